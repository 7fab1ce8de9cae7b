#include "lockstep/report/runbook/runbook.h"

#include <fmt/format.h>

#include "lockstep/report/recipe/words.h"
#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

constexpr double kScale = 1.0, kLargestScale = 1.12;  // a handbook is read at arm's length

std::vector<std::string> warnings_of(Writer& writer) {
  Quotes& q = writer.q;
  std::vector<std::string> warnings;
  if (writer.input.validation.is_null()) {
    warnings.emplace_back("Not validated: the figures are predictions. How to check them: last section but one.");
  }
  if (q.has("/checkpoint/interval_seconds") && !q.is_true("/checkpoint/by_job") &&
      q.number("/checkpoint/worst_lost_seconds") > q.number("/job/max_lost_seconds")) {
    warnings.push_back(fmt::format("A failure may cost {}, more than the bound of {}.",
                                   q.seconds("/checkpoint/worst_lost_seconds"), q.seconds("/job/max_lost_seconds")));
  }
  return warnings;
}

Card time_card(Writer& writer) {
  Quotes& q = writer.q;
  if (q.has("/plan/best/cost")) {
    return {.label = "Time and money",
            .figure = q.days("/plan/best/cost/days"),
            .details = {fmt::format("{} to {}", q.days("/money/days_low"), q.days("/money/days_high")),
                        q.has("/money/usd_per_day") ? fmt::format("{}; {} a day", q.dollars("/plan/best/cost/usd"),
                                                                  q.dollars("/money/usd_per_day"))
                                                    : ""}};
  }
  return {.label = fmt::format("For a billion {}", writer.unit()),
          .figure = q.days("/money/days_per_billion"),
          .details = {q.has("/money/usd_per_billion") ? q.dollars("/money/usd_per_billion") : "",
                      "the length of the job is not known here: it counts epochs"}};
}

}  // namespace

void Writer::add(Block block) { blocks.push_back(std::move(block)); }

Front runbook_front(Writer& writer) {
  Quotes& q = writer.q;
  const std::string rate = writer.rate_path();
  Front front;
  front.title = fmt::format("Runbook: {} on {} {}", q.text("/plan/model/name"), q.whole("/size/gpus"),
                            q.text("/plan/cluster/groups/0/device/kind"));
  front.sure = !writer.input.validation.is_null();
  front.badge = front.sure ? "VALIDATED" : "PREDICTED";
  front.subtitle = fmt::format("{}; {}", q.text("/job/name"), q.layout("/size/layout"));
  front.warnings = warnings_of(writer);
  front.cards.push_back({.label = "Speed",
                         .figure = fmt::format("{} {}/s", q.count(rate + "/expected"), writer.unit()),
                         .details = {fmt::format("{} to {} (90%)", q.count(rate + "/low"), q.count(rate + "/high")),
                                     fmt::format("MFU {}", q.percent("/plan/best/prediction/mfu"))},
                         .strong = true});
  front.cards.push_back(time_card(writer));
  if (q.has("/checkpoint/interval_seconds")) {
    front.cards.push_back(
        {.label = "Lost when a node dies, at worst",
         .figure = q.seconds("/checkpoint/worst_lost_seconds"),
         .details = {fmt::format("a checkpoint every {}", q.seconds("/checkpoint/interval_seconds")),
                     q.is_true("/recovery/from_memory") ? std::string("a step at most, while copies in memory survive")
                                                        : std::string()}});
  }
  return front;
}

Runbook make_runbook(const RunbookInput& input) {
  Quotes quotes(runbook_facts(input));
  Writer writer{.input = input, .q = quotes, .commands = runbook_commands(input), .blocks = {}};
  Runbook book;
  book.document.front = runbook_front(writer);
  for (void (*add)(Writer&) :
       {add_decision, add_memory_budget, add_time_budget, add_commands, add_checkpoints, add_node_loss, add_drills,
        add_alerts, add_goodput, add_money, add_confidence, add_glossary}) {
    add(writer);
  }
  book.document.blocks = std::move(writer.blocks);
  book.document.footer =
      fmt::format("lockstep {}; runbook of {}; {}", input.version, input.job.name, day(input.made_at));
  book.document.made_at = input.made_at;
  book.document.scale = kScale;
  book.document.largest_scale = kLargestScale;
  book.facts = quotes.document();
  book.facts["figures"] = quotes.figures();
  return book;
}

}  // namespace lockstep::report
