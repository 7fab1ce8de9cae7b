// What was checked, what is assumed, and what would settle it.
#include <fmt/format.h>

#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

void add_validated(Writer& writer) {
  Quotes& q = writer.q;
  const std::string unit = q.text("/validation/unit");
  writer.add(Paragraph{
      fmt::format("Checked on {} with {}: {} {} ranks of {}. Measured against predicted throughput is off by {} at "
                  "the median and by {} at worst.",
                  q.text("/validation/date"), q.text("/validation/job"), q.whole("/validation/machine/ranks"),
                  q.text("/validation/machine/kind"), q.text("/validation/machine/hardware"),
                  q.percent_number("/validation/summary/median_error_percent"),
                  q.percent_number("/validation/summary/worst_error_percent"))});
  Table table{
      .rows = {{"proxy", "parameters", "layout", "predicted " + unit + "/s", "measured", "off by", "memory off by"}},
      .bold_column = 0,
      .right = {1, 3, 4, 5, 6}};
  for (std::size_t i = 0; i < q.size("/validation/proxies"); ++i) {
    const std::string at = fmt::format("/validation/proxies/{}", i);
    table.rows.push_back(
        {q.text(at + "/name"), q.count(at + "/model/parameters"), q.layout(at + "/layout"),
         q.count(at + "/predicted/per_second/expected"), q.count(at + "/measured/per_second"),
         q.percent_number(at + "/error_percent/per_second"),
         q.has(at + "/error_percent/memory_bytes") ? q.percent_number(at + "/error_percent/memory_bytes") : "-"});
  }
  writer.add(std::move(table));
  const std::string target = "/validation/target";
  writer.add(Paragraph{
      fmt::format("Carried over to the plan: {} {} a second before the check, {} to {}; {} after it, {} to {}.",
                  q.count(target + "/before/per_second/expected"), unit, q.count(target + "/before/per_second/low"),
                  q.count(target + "/before/per_second/high"), q.count(target + "/after/per_second/expected"),
                  q.count(target + "/after/per_second/low"), q.count(target + "/after/per_second/high"))});
  Bullets not_checked;
  for (std::size_t i = 0; i < q.size(target + "/does_not_carry"); ++i) {
    not_checked.items.push_back(q.text(fmt::format("{}/does_not_carry/{}", target, i)));
  }
  if (not_checked.items.empty()) return;
  writer.add(Paragraph{.text = "What the check does not say", .strong = true});
  writer.add(std::move(not_checked));
}

void add_not_validated(Writer& writer) {
  writer.add(Paragraph{
      "This plan was not validated: its figures are predictions of a cost model, and the intervals say how far such "
      "predictions were off on published runs. Before the long run, train a small proxy on the machines at hand and "
      "write the "
      "runbook again with --validation:"});
  writer.add(Code{command_lines(writer.commands, CommandGroup::kValidate), true});
}

std::string assumed_figure(Quotes& q, const std::string& path, const std::string& unit) {
  if (unit == "s") return q.seconds(path);
  if (unit == "B/s") return q.rate(path);
  return q.real(path);
}

void add_sensitivity(Writer& writer) {
  Quotes& q = writer.q;
  const std::string all = "/plan/sensitivity/assumptions";
  if (q.size(all) == 0) return;
  writer.add(Paragraph{.text = "The assumption it is most sensitive to", .strong = true});
  const std::string first = all + "/0";
  writer.add(Paragraph{fmt::format(
      "{} ({}): at the ends of its range the run takes {} and {} of the time that is "
      "planned. The range: {}. What settles it: {}.",
      q.text(first + "/name"), q.text(first + "/meaning"), q.signed_percent(first + "/time_at_low"),
      q.signed_percent(first + "/time_at_high"), q.text(first + "/evidence"), q.text(first + "/measurement"))});
  writer.add(Code{q.text(first + "/command"), true});
  Table table{.rows = {{"assumption", "as planned", "range", "time at its ends", "then better"}},
              .bold_column = 0,
              .right = {1}};
  for (std::size_t i = 0; i < q.size(all); ++i) {
    const std::string at = fmt::format("{}/{}", all, i);
    const nlohmann::json& assumption = q.document().at(nlohmann::json::json_pointer(at));
    const auto unit = assumption.at("unit").get<std::string>();
    const bool stays = assumption.at("other_layout").get_ref<const std::string&>().empty();
    table.rows.push_back(
        {q.text(at + "/name"), assumed_figure(q, at + "/value", unit),
         fmt::format("{} to {}", assumed_figure(q, at + "/low", unit), assumed_figure(q, at + "/high", unit)),
         fmt::format("{} to {}", q.signed_percent(at + "/time_at_low"), q.signed_percent(at + "/time_at_high")),
         stays ? "this plan" : fmt::format("{} by {}", q.layout(at + "/other_layout"), q.percent(at + "/other_gain"))});
  }
  writer.add(std::move(table));
}

void add_assumed(Writer& writer) {
  Quotes& q = writer.q;
  const std::string group = "/plan/cluster/groups/0";
  writer.add(Paragraph{.text = "What the plan takes for granted", .strong = true});
  Pairs pairs;
  pairs.rows.emplace_back(
      "GPU", fmt::format("{} with {}", q.text(group + "/device/kind"), q.bytes(group + "/device/memory_bytes")));
  pairs.rows.emplace_back(
      "links", fmt::format("{} inside a node{}", q.rate(group + "/intra/bytes_per_second"),
                           writer.input.question.run.nodes > 1
                               ? fmt::format(", {} cards of {} on each node between them",
                                             q.whole(group + "/nics_per_node"), q.rate(group + "/nic/bytes_per_second"))
                               : ""));
  if (q.number("/plan/cluster/storage/write_bytes_per_second") > 0) {
    pairs.rows.emplace_back("storage", fmt::format("{} for writing and {} for reading, all nodes together",
                                                   q.rate("/plan/cluster/storage/write_bytes_per_second"),
                                                   q.rate("/plan/cluster/storage/read_bytes_per_second")));
  }
  if (q.has("/checkpoint/failures_per_1000_node_days")) {
    pairs.rows.emplace_back(
        "failures", fmt::format("{} in a thousand days of a node", q.real("/checkpoint/failures_per_1000_node_days")));
  }
  pairs.rows.emplace_back("speed", fmt::format("profile {}", q.text("/plan/profile")));
  const bool given = q.number("/plan/search/candidates") <= 1;
  pairs.rows.emplace_back(
      "search", given ? "none: the job's file names the layout"
                      : fmt::format("{} layouts were looked at, {} of them fit", q.count("/plan/search/candidates"),
                                    q.count("/plan/search/feasible")));
  writer.add(std::move(pairs));
}

}  // namespace

void add_confidence(Writer& writer) {
  writer.add(Heading{"How sure this is"});
  writer.input.validation.is_null() ? add_not_validated(writer) : add_validated(writer);
  add_sensitivity(writer);
  add_assumed(writer);
}

}  // namespace lockstep::report
