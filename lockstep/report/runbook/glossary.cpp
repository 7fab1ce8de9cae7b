// The words that this runbook uses, and no others.
#include <algorithm>

#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {

void add_glossary(Writer& writer) {
  const plan::Layout& layout = writer.input.planned.best.layout;
  const bool language = writer.tokens(), several = layout.world() > 1, nodes = writer.input.question.run.nodes > 1;
  const auto some = [&](auto member) {
    const auto& others = writer.input.strategies;
    return layout.*member > 1 || std::any_of(others.begin(), others.end(), [&](const planner::Strategy& each) {
             return each.best && each.best->layout.*member > 1;
           });
  };
  Pairs pairs;
  const auto add = [&](bool used, const char* word, const char* meaning) {
    if (used) pairs.rows.emplace_back(word, meaning);
  };
  add(true, "rank", "one process of the run; each has one GPU");
  add(nodes, "node", "one machine with its GPUs");
  add(language, "token", "a piece of a word: the unit in which text is counted");
  add(true, "step", "one change of the weights, after a global batch of data");
  add(true, "micro-batch", "the data that goes through a GPU at once; several of them make a step");
  add(several, "dp, shard",
      "data parallel: groups of GPUs that work on different data; shard of them share out one copy of the state");
  add(some(&plan::Layout::tp), "tp", "tensor parallel: GPUs that compute one layer together");
  add(some(&plan::Layout::pp), "pp", "pipeline parallel: stages that each hold some of the layers");
  add(some(&plan::Layout::virtual_stages), "virtual_stages",
      "a stage holds several shorter pieces, which shortens the wait at both ends of a step");
  add(some(&plan::Layout::cp), "cp", "context parallel: GPUs that share one long sequence");
  add(some(&plan::Layout::ep), "ep", "expert parallel: GPUs that hold different experts");
  add(several, "zero",
      "ZeRO: how much of the state is shared out: nothing, the optimizer's, gradients too, weights too (that is FSDP)");
  add(layout.sequence_parallel, "sequence_parallel",
      "what tensor parallel GPUs would all compute is cut along the sequence");
  add(true, "recompute", "results of the forward pass are computed again instead of kept: less memory, more time");
  add(layout.pp > 1, "bubble", "the time in which stages wait for work at the beginning and the end of a step");
  add(true, "MFU", "model FLOPs utilisation: the arithmetic the model needs over what the GPUs could do");
  add(true, "checkpoint", "a copy of the whole state on disk, from which the run can go on");
  add(writer.q.is_true("/recovery/from_memory"), "snapshot", "a copy of a rank's state in the memory of another node");
  add(true, "goodput", "the share of the time that trains and is kept");
  add(nodes, "spare", "a node that waits to take the place of another");
  add(true, "straggler", "a rank that is slower than the others, which all wait for it");
  add(language, "loss", "how wrong the model is on the data it just saw; it should fall");
  add(true, "interval", "low to high: the truth lies inside with a probability of 90%, as far as published runs tell");
  writer.add(Heading{"Glossary"});
  writer.add(std::move(pairs));
}

}  // namespace lockstep::report
