// The page about a validation. Figures are read from the JSON document alone.
#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/report/validation/validation.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

double number(const json& value) { return value.is_number() ? value.get<double>() : NAN; }

std::string percent(const json& value) { return value.is_number() ? fmt::format("{:+.1f}%", number(value)) : "-"; }

std::string seconds(const json& value) { return value.is_number() ? format_seconds(number(value)) : "-"; }

std::string bytes(const json& value) { return value.is_number() ? format_bytes(number(value)) : "-"; }

std::string text(const json& value) { return value.get<std::string>(); }

std::string count(const json& value) { return format_count(number(value)); }

std::string rate(const json& interval) {
  return fmt::format("{} ({} to {})", count(interval.at("expected")), count(interval.at("low")),
                     count(interval.at("high")));
}

Front front_of(const json& validation) {
  const json& summary = validation.at("summary");
  const json& target = validation.at("target");
  const std::string unit = text(validation.at("unit"));
  Front front;
  front.title = fmt::format("Check of {} on proxies", text(validation.at("job")));
  front.badge = "MEASURED";
  front.subtitle = fmt::format("{} on {}; {}", text(validation.at("model")), text(validation.at("cluster")),
                               text(target.at("layout")));
  front.cards.push_back({.label = "Throughput, measured against predicted",
                         .figure = fmt::format("off by {:.1f}%", number(summary.at("median_error_percent"))),
                         .details = {fmt::format("at the median of {} proxies", validation.at("proxies").size()),
                                     fmt::format("{:.1f}% at worst", number(summary.at("worst_error_percent")))}});
  const json& memory = summary.at("median_memory_error_percent");
  front.cards.push_back({.label = "Memory",
                         .figure = memory.is_number() ? fmt::format("off by {:.1f}%", number(memory)) : "-",
                         .details = {"allocated by the first rank at the peak, median"}});
  front.cards.push_back(
      {.label = fmt::format("The job, {} a second", unit),
       .figure = count(target.at("after").at("per_second").at("expected")),
       .details = {fmt::format("{} to {} (90%)", count(target.at("after").at("per_second").at("low")),
                               count(target.at("after").at("per_second").at("high"))),
                   fmt::format("{} to {} before the check", count(target.at("before").at("per_second").at("low")),
                               count(target.at("before").at("per_second").at("high")))}});
  return front;
}

void add_machine(const json& validation, std::vector<Block>& blocks) {
  const json& machine = validation.at("machine");
  double least = INFINITY, most = 0;
  for (const json& proxy : validation.at("proxies")) {
    for (const json& run : proxy.at("runs")) {
      least = std::min(least, number(run.at("load")));
      most = std::max(most, number(run.at("load")));
    }
  }
  Pairs pairs;
  pairs.rows.emplace_back("machine", fmt::format("{}; {} {} ranks x {} threads over {}", text(machine.at("hardware")),
                                                 number(machine.at("ranks")), text(machine.at("kind")),
                                                 number(machine.at("threads")), text(machine.at("backend"))));
  pairs.rows.emplace_back("software", text(machine.at("software")));
  pairs.rows.emplace_back("load", fmt::format("{:.1f} to {:.1f} when the runs began (1 a core is busy)", least, most));
  pairs.rows.emplace_back("priced by", text(validation.at("profile")));
  pairs.rows.emplace_back("date", text(validation.at("date")));
  blocks.emplace_back(std::move(pairs));
}

void add_proxies(const json& validation, std::vector<Block>& blocks) {
  const std::string unit = text(validation.at("unit"));
  blocks.emplace_back(Heading{"Proxies"});
  Table table{.rows = {{"proxy", "layout", "parameters", "predicted " + unit + "/s", "measured", "off by", "inside",
                        "memory predicted", "measured", "off by"}},
              .bold_column = 0,
              .right = {2, 3, 4, 5, 7, 8, 9}};
  for (const json& proxy : validation.at("proxies")) {
    const json& error = proxy.at("error_percent");
    table.rows.push_back({text(proxy.at("name")), text(proxy.at("layout")), count(proxy.at("model").at("parameters")),
                          rate(proxy.at("predicted").at("per_second")), count(proxy.at("measured").at("per_second")),
                          percent(error.at("per_second")), proxy.at("inside").get<bool>() ? "yes" : "no",
                          bytes(proxy.at("predicted").at("memory_bytes")),
                          bytes(proxy.at("measured").at("memory_bytes")), percent(error.at("memory_bytes"))});
  }
  blocks.emplace_back(std::move(table));
  Table runs{.rows = {{"run", "predicted step", "measured", "off by", "by the clock", "share of the cores", "load"}},
             .right = {1, 2, 3, 4, 5, 6}};
  for (const json& proxy : validation.at("proxies")) {
    for (const json& run : proxy.at("runs")) {
      runs.rows.push_back({text(run.at("run")), seconds(run.at("predicted_step_seconds")),
                           seconds(run.at("step_seconds")), percent(run.at("error_percent")),
                           seconds(run.at("wall_seconds")), fmt::format("{:.0f}%", 100 * number(run.at("share"))),
                           fmt::format("{:.1f}", number(run.at("load")))});
    }
  }
  blocks.emplace_back(Paragraph{.text = "Every run, with the prediction made for it", .strong = true});
  blocks.emplace_back(std::move(runs));
}

void add_phases(const json& validation, std::vector<Block>& blocks) {
  blocks.emplace_back(Heading{"Where the difference is"});
  for (const json& proxy : validation.at("proxies")) {
    Table table{.rows = {{"phase", "predicted", "measured", "residual", "of the step"}}, .right = {1, 2, 3, 4}};
    for (const json& row : proxy.at("phases")) {
      table.rows.push_back(
          {text(row.at("phase")), seconds(row.at("predicted_seconds")), seconds(row.at("measured_seconds")),
           fmt::format("{:+.2f} ms", 1e3 * number(row.at("residual_seconds"))), percent(row.at("percent_of_step"))});
    }
    blocks.emplace_back(
        Paragraph{.text = fmt::format("{}, {}", text(proxy.at("name")), text(proxy.at("layout"))), .strong = true});
    blocks.emplace_back(std::move(table));
  }
}

void add_target(const json& validation, std::vector<Block>& blocks) {
  const json& target = validation.at("target");
  blocks.emplace_back(Heading{"What it says about the job"});
  blocks.emplace_back(
      Paragraph{fmt::format("{} {} a second before the check, {} after it.", rate(target.at("before").at("per_second")),
                            text(validation.at("unit")), rate(target.at("after").at("per_second")))});
  Table table{.rows = {{"phase", "of the job's step", "on proxies", "off by (rms)", "multiplied by"}},
              .right = {1, 2, 3, 4}};
  for (const json& row : target.at("phases")) {
    const json& error = row.at("log_error");
    table.rows.push_back({text(row.at("phase")), fmt::format("{:.1f}%", 100 * number(row.at("share"))),
                          fmt::format("{}", row.at("checks").get<std::int64_t>()),
                          error.is_number() ? fmt::format("{:.1f}%", 100 * std::expm1(number(error))) : "-",
                          fmt::format("{:.3f}", number(row.at("factor")))});
  }
  blocks.emplace_back(std::move(table));
  for (const auto& [title, key] :
       {std::pair{"What carries over", "carries"}, std::pair{"What does not", "does_not_carry"}}) {
    blocks.emplace_back(Paragraph{.text = title, .strong = true});
    blocks.emplace_back(Bullets{target.at(key).get<std::vector<std::string>>()});
  }
}

void add_differences(const json& validation, std::vector<Block>& blocks) {
  blocks.emplace_back(Heading{"How the proxies differ from the job"});
  Table table{.rows = {{"what", "job", "proxy", "why"}}, .bold_column = 0};
  for (const json& row : validation.at("proxies").front().at("differences")) {
    table.rows.push_back({text(row.at("what")), text(row.at("target")), text(row.at("proxy")), text(row.at("why"))});
  }
  blocks.emplace_back(std::move(table));
  if (validation.at("proxies").size() > 1) {
    blocks.emplace_back(Paragraph{"These are of proxy-1; the others differ from it in their layout."});
  }
}

}  // namespace

Document validation_document(const nlohmann::json& validation) {
  Document document;
  document.front = front_of(validation);
  add_machine(validation, document.blocks);
  add_proxies(validation, document.blocks);
  add_phases(validation, document.blocks);
  add_target(validation, document.blocks);
  add_differences(validation, document.blocks);
  return document;
}

}  // namespace lockstep::report
