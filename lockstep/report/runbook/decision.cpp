#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/report/runbook/plots.h"
#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

constexpr double kWorthSaying = 0.0005;  // of the speed

// How the GPUs share the work, for readers who have not heard of it.
std::vector<std::string> splits(Writer& writer) {
  Quotes& q = writer.q;
  const plan::Layout& layout = writer.input.planned.best.layout;
  const std::string at = "/plan/best/layout/";
  std::vector<std::string> parts;
  if (layout.tp > 1) {
    const bool inside = layout.tp <= writer.input.planned.cluster.groups.front().devices_per_node;
    parts.push_back(fmt::format("every layer is cut over {} GPUs{} (tensor parallel)", q.whole(at + "tp"),
                                inside ? " of one node" : ""));
  }
  if (layout.pp > 1) {
    parts.push_back(fmt::format("the layers stand in {} stages, one behind the other (pipeline, schedule {})",
                                q.whole(at + "pp"), q.text("/plan/best/schedule")));
  }
  if (layout.cp > 1)
    parts.push_back(fmt::format("every sequence is cut over {} GPUs (context parallel)", q.whole(at + "cp")));
  if (layout.ep > 1)
    parts.push_back(fmt::format("experts are dealt out over {} GPUs (expert parallel)", q.whole(at + "ep")));
  if (layout.data_ranks() > 1) {
    parts.push_back(fmt::format("{} such groups work on different parts of each batch (data parallel)",
                                q.whole("/size/data_ranks")));
  }
  return parts;
}

std::string sharing(Writer& writer) {
  const plan::Layout& layout = writer.input.planned.best.layout;
  if (layout.zero == 0) return "Each of them keeps its own copy of all training state.";
  const char* const what = layout.zero == 1   ? "the optimizer's state"
                           : layout.zero == 2 ? "the optimizer's state and the gradients"
                                              : "weights, gradients and the optimizer's state";
  return fmt::format("{} {} shared out over {} of them (ZeRO stage {}{}), so that nobody holds all of {}.",
                     std::string(1, static_cast<char>(std::toupper(*what))) + (what + 1),
                     layout.zero == 1 ? "is" : "are", writer.q.whole("/plan/best/layout/shard"),
                     writer.q.whole("/plan/best/layout/zero"), layout.zero == 3 ? ", FSDP" : "",
                     layout.zero == 1 ? "it" : "them");
}

std::string goal(Writer& writer) {
  Quotes& q = writer.q;
  const bool fine_tunes = q.is_true("/job/fine_tunes");
  std::string text = fmt::format("{} {} ({} parameters)", fine_tunes ? "Fine-tune" : "Train",
                                 q.text("/plan/model/name"), q.count("/size/parameters"));
  if (q.number("/job/lora_rank") > 0) {
    text +=
        fmt::format(" with adapters of rank {} while all other weights stay as they are,", q.whole("/job/lora_rank"));
  }
  if (q.has("/size/tokens")) {
    text += fmt::format(" on {} {}", q.count("/size/tokens"), writer.unit());
  } else if (q.has("/size/epochs")) {
    text += fmt::format(" for {} epochs of its data", q.real("/size/epochs"));
  }
  const std::string kind = q.text("/plan/cluster/groups/0/device/kind");
  if (writer.input.question.run.nodes == 1) {
    return text + fmt::format(" on one node with {} {}.", q.whole("/size/gpus"), kind);
  }
  return text + fmt::format(" on {} {}, {} nodes of {}.", q.whole("/size/gpus"), kind, q.whole("/size/nodes"),
                            q.whole("/size/gpus_per_node"));
}

std::string expectation(Writer& writer) {
  Quotes& q = writer.q;
  const std::string rate = writer.rate_path();
  std::string text =
      fmt::format("Expected: {} {} a second ({} to {} with a probability of 90%)", q.count(rate + "/expected"),
                  writer.unit(), q.count(rate + "/low"), q.count(rate + "/high"));
  if (q.has("/plan/best/cost")) {
    text += fmt::format(", {} of training", q.days("/plan/best/cost/days"));
    if (q.number("/plan/best/cost/usd") > 0) text += fmt::format(" for {}", q.dollars("/plan/best/cost/usd"));
  } else if (q.has("/money/usd_per_billion")) {
    text += fmt::format(", {} for a billion {}", q.dollars("/money/usd_per_billion"), writer.unit());
  }
  if (q.has("/checkpoint/interval_seconds")) {
    text += fmt::format(", and at most {} of work lost when a node dies", q.seconds("/checkpoint/worst_lost_seconds"));
  }
  return text + ".";
}

std::string verdict_on(Writer& writer, const std::string& at) {
  Quotes& q = writer.q;
  if (q.is_true(at + "/is_planned")) return "this plan";
  if (!q.is_true(at + "/fits")) return q.text(at + "/problem");
  const double gain = q.number(at + "/gain");
  if (gain < -kWorthSaying)
    return fmt::format("{}; loses in {}", q.signed_percent(at + "/gain"), q.text(at + "/loses_in"));
  const bool given = writer.input.job.layout.has_value();
  return fmt::format("{}; not taken because {}", q.signed_percent(at + "/gain"),
                     given ? "the job's file names the layout" : "the search counts the risk of running out of memory");
}

void add_strategies(Writer& writer) {
  Quotes& q = writer.q;
  Table table{.rows = {{"strategy", "what it means", "its best layout here", std::string(writer.unit()) + "/s",
                        "memory", "against the plan"}},
              .bold_column = 0,
              .right = {3, 4}};
  for (std::size_t i = 0; i < q.size("/strategies"); ++i) {
    const std::string at = fmt::format("/strategies/{}", i);
    const bool fits = q.is_true(at + "/fits");
    table.rows.push_back({q.text(at + "/name"), q.text(at + "/meaning"), fits ? q.layout(at + "/layout") : "-",
                          fits ? q.count(at + "/per_second") : "-", fits ? q.gib(at + "/memory_gib") : "-",
                          verdict_on(writer, at)});
  }
  writer.add(std::move(table));
}

void add_losers(Writer& writer) {
  Quotes& q = writer.q;
  Bullets bullets;
  for (std::size_t i = 0; i < q.size("/plan/alternatives"); ++i) {
    const std::string at = fmt::format("/plan/alternatives/{}", i);
    if (q.has(at + "/why_not")) bullets.items.push_back(q.text(at + "/why_not"));
  }
  if (bullets.items.empty()) return;
  writer.add(Paragraph{.text = "The nearest competitors, and why they lost", .strong = true});
  writer.add(std::move(bullets));
}

}  // namespace

void add_decision(Writer& writer) {
  Quotes& q = writer.q;
  writer.add(Heading{"Goal and decision"});
  const std::vector<std::string> parts = splits(writer);
  std::string text = goal(writer) + " The decision: ";
  text += parts.empty() ? "one GPU does all of it" : join(parts, "; ");
  text += ". " + (writer.input.planned.best.layout.data_ranks() > 1 ? sharing(writer) + " " : "") + expectation(writer);
  writer.add(Paragraph{text});
  writer.add(Paragraph{.text = "Why, in the planner's words; in brackets, what other choices would have cost",
                       .strong = true});
  Bullets reasons;
  for (std::size_t i = 0; i < q.size("/plan/best/reasons"); ++i) {
    reasons.items.push_back(q.text(fmt::format("/plan/best/reasons/{}", i)));
  }
  writer.add(std::move(reasons));
  writer.add(Heading{"Why not the others"});
  writer.add(Paragraph{
      "Every strategy that has a name was given its best layout on the same GPUs, with the same batch and the same "
      "cost model. Layouts are written as lockstep takes them; the glossary explains the letters."});
  add_strategies(writer);
  writer.add(Pictures{{strategies_picture(q, writer.unit())}, false});
  add_losers(writer);
}

}  // namespace lockstep::report
