// Memory, time and batch.
#include <fmt/format.h>

#include "lockstep/report/memory_terms.h"
#include "lockstep/report/runbook/plots.h"
#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

struct Meaning {
  const char* term;
  const char* words;
};

constexpr Meaning kMemoryMeanings[] = {
    {"parameters", "the weights of the layers that this GPU holds"},
    {"gradients", "how each of those weights should change"},
    {"optimizer", "the optimizer's averages and its exact copy of the weights"},
    {"activations", "results of the forward pass that the backward pass needs again"},
    {"buffers", "room for exchanges with other GPUs and for the next data"},
    {"overhead", "the framework, the driver, and memory that cannot be used for being in pieces"}};

constexpr Meaning kTimeMeanings[] = {
    {"compute", "the GPUs calculate"},
    {"tp_comm", "exchange between GPUs that share a layer"},
    {"dp_comm", "gradients and weights between data ranks, as far as computing does not hide it"},
    {"pp_comm", "results passed from stage to stage"},
    {"cp_comm", "exchange between GPUs that share a sequence"},
    {"ep_comm", "tokens sent to their experts and back"},
    {"bubble", "stages wait for the first and the last micro-batch"},
    {"optimizer", "the weights are changed"},
    {"other", "starting work on the GPU, and what differs from step to step"},
    {"selection", "nothing: the layout that is predicted fastest is, on average, slower than predicted by this much"}};

constexpr double kShownShare = 0.002;  // of a step: shorter terms get no row
constexpr double kRisky = 0.01, kImpossible = 0.0005;

std::string memory_sentence(Writer& writer) {
  Quotes& q = writer.q;
  std::string text = fmt::format(
      "The GPU that needs most needs {} of its {}: {} are left. This is what the framework allocates at the peak of a "
      "step.",
      q.gib("/plan/best/memory_gib/total"), q.gib("/plan/best/memory_gib/capacity"), q.gib("/memory/free_gib"));
  if (q.has("/plan/best/out_of_memory_probability")) {
    const bool risky = q.number("/plan/best/out_of_memory_probability") > kRisky;
    const bool none = q.number("/plan/best/out_of_memory_probability") < kImpossible;
    text += fmt::format(" The probability that it does not suffice is {}{}.",
                        none ? "below 0.1%" : q.percent("/plan/best/out_of_memory_probability"),
                        risky ? ": watch the first steps, and have the next smaller micro-batch ready" : "");
  }
  if (q.has("/plan/best/memory_gib/snapshots") && q.number("/plan/best/memory_gib/snapshots") > 0) {
    text += fmt::format(
        " Beside it every rank keeps {} of copies for recovery in the memory of its host, {} on a node: see that the "
        "nodes have it.",
        q.gib("/plan/best/memory_gib/snapshots"), q.gib("/memory/snapshots_node_gib"));
  }
  return text;
}

void add_batch(Writer& writer) {
  Quotes& q = writer.q;
  const std::string at = "/plan/best/batch/";
  writer.add(Paragraph{.text = "Batch", .strong = true});
  Pairs pairs;
  pairs.rows.emplace_back("micro-batch", fmt::format("{} {} go through a GPU at once", q.whole(at + "micro"),
                                                     writer.tokens() ? fmt::format("sequences of {} tokens",
                                                                                   q.whole(at + "sequence_length"))
                                                                     : std::string("samples")));
  pairs.rows.emplace_back("accumulation",
                          fmt::format("{} micro-batches before the weights change", q.whole(at + "accumulation")));
  pairs.rows.emplace_back(
      "global batch", fmt::format("{} = micro-batch x accumulation x {} data ranks{}", q.whole(at + "global_sequences"),
                                  q.whole("/size/data_ranks"),
                                  writer.tokens() ? fmt::format("; {} tokens", q.count("/size/tokens_per_step")) : ""));
  if (q.has("/size/steps")) {
    pairs.rows.emplace_back(
        "steps", fmt::format("{} steps of {} are {} {}", q.count("/size/steps"),
                             q.seconds("/plan/best/prediction/step_seconds"), q.count("/size/tokens"), writer.unit()));
  }
  writer.add(std::move(pairs));
}

}  // namespace

void add_memory_budget(Writer& writer) {
  Quotes& q = writer.q;
  writer.add(Heading{"Memory budget of a GPU"});
  writer.add(Paragraph{memory_sentence(writer)});
  Table table{.rows = {{"term", "needs", "what it is"}}, .bold_column = 0, .right = {1}};
  for (const Meaning& meaning : kMemoryMeanings) {
    table.rows.push_back({meaning.term, q.gib(fmt::format("/plan/best/memory_gib/{}", meaning.term)), meaning.words});
  }
  table.rows.push_back({"total", q.gib("/plan/best/memory_gib/total"),
                        fmt::format("{} of what the GPU has", q.percent("/memory/used_share"))});
  writer.add(Pictures{{memory_picture(q)}, false});
  writer.add(std::move(table));
}

void add_time_budget(Writer& writer) {
  Quotes& q = writer.q;
  writer.add(Heading{"Throughput budget of a step"});
  const std::string rate = writer.rate_path(), step = "/plan/best/prediction/intervals/step_seconds";
  std::string text =
      fmt::format("A step takes {} ({} to {}), which is {} {} a second, {} on each GPU.", q.seconds(step + "/expected"),
                  q.seconds(step + "/low"), q.seconds(step + "/high"), q.count(rate + "/expected"), writer.unit(),
                  writer.tokens() ? q.count("/plan/best/prediction/tokens_per_second_per_gpu")
                                  : q.count("/size/samples_per_second_per_gpu"));
  if (q.number("/plan/best/prediction/mfu") > 0) {
    text += fmt::format(" The GPUs do {} of the arithmetic that their data sheet promises (MFU).",
                        q.percent("/plan/best/prediction/mfu"));
  }
  if (q.has("/plan/bottleneck")) text += fmt::format(" What limits it: {}.", q.text("/plan/bottleneck"));
  writer.add(Paragraph{text});
  Table table{.rows = {{"term", "time", "share", "what happens"}}, .bold_column = 0, .right = {1, 2}};
  for (const Meaning& meaning : kTimeMeanings) {
    const std::string share = fmt::format("/time_shares/{}", meaning.term);
    if (q.number(share) < kShownShare) continue;
    table.rows.push_back({meaning.term, q.seconds(fmt::format("/plan/best/breakdown_seconds/{}", meaning.term)),
                          q.percent(share), meaning.words});
  }
  writer.add(Pictures{{time_picture(q)}, false});
  writer.add(std::move(table));
  add_batch(writer);
}

}  // namespace lockstep::report
