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

void add_sensitivity(Writer& writer) {
  Quotes& q = writer.q;
  if (q.size("/plan/sensitivity/assumptions") == 0) return;
  const std::string at = "/plan/sensitivity/assumptions/0";
  writer.add(Paragraph{.text = "The assumption it is most sensitive to", .strong = true});
  writer.add(
      Paragraph{fmt::format("{} ({}): over its range the time of the run changes by {} to {}. What settles it: {}.",
                            q.text(at + "/name"), q.text(at + "/meaning"), q.signed_percent(at + "/time_at_low"),
                            q.signed_percent(at + "/time_at_high"), q.text(at + "/measurement"))});
  writer.add(Code{q.text(at + "/command"), true});
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
