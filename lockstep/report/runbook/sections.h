// The parts of a runbook, in its order. Each appends its blocks; figures come through the quotes alone.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/runbook/commands.h"
#include "lockstep/report/runbook/quotes.h"
#include "lockstep/report/runbook/runbook.h"

namespace lockstep::report {

struct Writer {
  const RunbookInput& input;
  Quotes& q;
  std::vector<RunbookCommand> commands;
  std::vector<Block> blocks;

  bool tokens() const { return input.planned.best.batch.sequence_length > 0; }
  const char* unit() const { return tokens() ? "tokens" : "samples"; }
  // "/plan/best/prediction/intervals/tokens_per_second"
  std::string rate_path() const {
    return std::string("/plan/best/prediction/intervals/") + (tokens() ? "tokens_per_second" : "samples_per_second");
  }
  void add(Block block);
};

Front runbook_front(Writer& writer);
void add_decision(Writer& writer);  // goal, decision, why, why not the others
void add_memory_budget(Writer& writer);
void add_time_budget(Writer& writer);  // and the batch
void add_commands(Writer& writer);
void add_checkpoints(Writer& writer);
void add_node_loss(Writer& writer);  // minute by minute
void add_drills(Writer& writer);
void add_alerts(Writer& writer);
void add_goodput(Writer& writer);
void add_money(Writer& writer);       // scaling and cost
void add_confidence(Writer& writer);  // validation, assumptions
void add_glossary(Writer& writer);

}  // namespace lockstep::report
