// Goodput over the run, scaling, cost.
#include <fmt/format.h>

#include "lockstep/report/runbook/plots.h"
#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

using nlohmann::literals::operator""_json_pointer;

std::string spares_sentence(Writer& writer) {
  Quotes& q = writer.q;
  std::string text = fmt::format("Nodes that are down at once: {} for half of the time, {} for 90%, {} for 99% of it",
                                 q.whole("/goodput/spares/50/expected"), q.whole("/goodput/spares/90/expected"),
                                 q.whole("/goodput/spares/99/expected"));
  if (q.has("/money/usd_per_spare_day"))
    text += fmt::format("; a spare node costs {} a day", q.dollars("/money/usd_per_spare_day"));
  return text + ".";
}

void add_cost(Writer& writer) {
  Quotes& q = writer.q;
  writer.add(Paragraph{.text = "Cost", .strong = true});
  Table table{.rows = {{"", "expected", "if as fast as it can be", "if as slow as it can be"}},
              .bold_column = 0,
              .right = {1, 2, 3}};
  if (q.has("/plan/best/cost")) {
    table.rows.push_back(
        {"time", q.days("/plan/best/cost/days"), q.days("/money/days_low"), q.days("/money/days_high")});
    if (q.has("/money/usd_low")) {
      table.rows.push_back(
          {"money", q.dollars("/plan/best/cost/usd"), q.dollars("/money/usd_low"), q.dollars("/money/usd_high")});
    }
  }
  const std::string rate = writer.rate_path();
  table.rows.push_back({fmt::format("{} a second", writer.unit()), q.count(rate + "/expected"), q.count(rate + "/high"),
                        q.count(rate + "/low")});
  writer.add(std::move(table));
  if (!q.has("/money/usd_per_hour")) return;
  std::string text =
      fmt::format("The GPUs cost {} an hour ({} for each GPU), {} a day, {} for a billion {} ({} of training)",
                  q.dollars("/money/usd_per_hour"), q.dollars("/plan/cluster/groups/0/price_per_device_hour_usd"),
                  q.dollars("/money/usd_per_day"), q.dollars("/money/usd_per_billion"), writer.unit(),
                  q.days("/money/days_per_billion"));
  if (q.has("/plan/best/cost"))
    text += fmt::format("; the whole run takes {} GPU-hours", q.count("/plan/best/cost/gpu_hours"));
  writer.add(Paragraph{text + ". Saves, failures and restarts are counted; storage, network and people are not."});
}

void add_what_ifs(Writer& writer) {
  Quotes& q = writer.q;
  if (q.size("/plan/what_ifs") == 0) return;
  writer.add(Paragraph{.text = "What one change would bring", .strong = true});
  Table table{.rows = {{"change", std::string(writer.unit()) + "/s", "gain", "with this layout"}},
              .bold_column = 0,
              .right = {1, 2}};
  for (std::size_t i = 0; i < q.size("/plan/what_ifs"); ++i) {
    const std::string at = fmt::format("/plan/what_ifs/{}", i);
    if (!q.is_true(at + "/fits")) {
      table.rows.push_back({q.text(at + "/change"), "-", "-", "does not fit"});
      continue;
    }
    const bool same =
        q.document().at("/size/layout"_json_pointer) == q.document().at(nlohmann::json::json_pointer(at + "/layout"));
    table.rows.push_back({q.text(at + "/change"), q.count(at + "/per_second"), q.signed_percent(at + "/gain"),
                          same ? "the same layout" : q.layout(at + "/layout")});
  }
  writer.add(std::move(table));
}

// Days and money where the length of the job is known.
std::vector<std::string> scaling_row(Writer& writer, std::size_t i, bool length) {
  Quotes& q = writer.q;
  const std::string at = fmt::format("/scaling/points/{}", i), best = at + "/best";
  std::vector<std::string> row{q.whole(at + "/devices")};
  if (!q.is_true(at + "/fits")) {
    row.resize(length ? 7 : 5, "-");
    row.emplace_back("does not fit");
    return row;
  }
  row.push_back(q.count(best + (writer.tokens() ? "/tokens_per_second" : "/samples_per_second")));
  row.push_back(q.count(fmt::format("/scaling_per_gpu/{}", i)));
  row.push_back(q.percent(best + "/mfu"));
  row.push_back(q.percent(at + "/efficiency", 0));
  if (length) {
    row.push_back(q.has(best + "/days") ? q.days(best + "/days") : "-");
    row.push_back(q.has(best + "/usd") && q.number(best + "/usd") > 0 ? q.dollars(best + "/usd") : "-");
  }
  row.push_back(q.layout(best + "/layout"));
  return row;
}

void add_scaling(Writer& writer) {
  Quotes& q = writer.q;
  std::string text =
      "The best plan for other numbers of the same GPUs, with the same global batch. Efficiency is the speed of a GPU "
      "against the smallest size that fits";
  text += q.has("/scaling/falls_below")
              ? fmt::format("; it falls below {} at {} GPUs.", q.percent("/scaling/good_efficiency", 0),
                            q.whole("/scaling/falls_below"))
              : fmt::format("; it stays above {}.", q.percent("/scaling/good_efficiency", 0));
  writer.add(Paragraph{text});
  const bool length = q.has("/size/tokens");
  Table table{.rows = {{"GPUs", std::string(writer.unit()) + "/s", "on each GPU", "MFU", "efficiency"}},
              .bold_column = 0,
              .right = {0, 1, 2, 3, 4}};
  if (length) {
    table.rows.front().insert(table.rows.front().end(), {"time", "cost"});
    table.right.insert(table.right.end(), {5, 6});
  }
  table.rows.front().emplace_back("best layout");
  for (std::size_t i = 0; i < q.size("/scaling/points"); ++i) table.rows.push_back(scaling_row(writer, i, length));
  writer.add(std::move(table));
  writer.add(Pictures{{scaling_picture(q, writer.unit())}, false});
}

}  // namespace

void add_goodput(Writer& writer) {
  Quotes& q = writer.q;
  if (q.size("/goodput/choices") == 0) return;
  writer.add(Heading{"Expected goodput over the run"});
  std::string text = fmt::format(
      "Goodput is the share of the time that trains and is kept. {} made-up runs of {} went through {}: {} of the "
      "time trains in the middle one, {} to {} in nine of ten.",
      q.whole("/goodput/samples"), q.days("/goodput/days"), q.text("/goodput/failures"),
      q.percent("/goodput/goodput/median", 2), q.percent("/goodput/goodput/low", 2),
      q.percent("/goodput/goodput/high", 2));
  if (q.has("/checkpoint/failures_expected")) {
    text += fmt::format(" At the rate of the cluster file {} failures are to be expected, one in {}.",
                        q.real("/checkpoint/failures_expected"), q.days("/checkpoint/days_between_failures"));
  }
  writer.add(Paragraph{text + " " + spares_sentence(writer)});
  Table table{
      .rows = {{"choice", "goodput", "in nine of ten runs", "interruptions", "lost work", "worst loss", "cost"}},
      .bold_column = 0,
      .right = {1, 2, 3, 4, 5, 6}};
  for (std::size_t i = 0; i < q.size("/goodput/choices"); ++i) {
    const std::string at = fmt::format("/goodput/choices/{}", i);
    table.rows.push_back(
        {q.text(at + "/name"), q.percent(at + "/goodput/median", 2),
         fmt::format("{} to {}", q.percent(at + "/goodput/low", 2), q.percent(at + "/goodput/high", 2)),
         q.real(at + "/interruptions/median"), q.seconds(at + "/lost_seconds/median"),
         q.seconds(at + "/worst_lost_seconds/high"), q.has(at + "/usd") ? q.dollars(at + "/usd") : "-"});
  }
  writer.add(std::move(table));
  writer.add(Pictures{{losses_picture(q)}, false});
  writer.add(Code{command_lines(writer.commands, CommandGroup::kAsk), true});
}

void add_money(Writer& writer) {
  writer.add(Heading{"Scaling and cost"});
  if (writer.q.size("/scaling/points") > 0) add_scaling(writer);
  add_cost(writer);
  add_what_ifs(writer);
}

}  // namespace lockstep::report
