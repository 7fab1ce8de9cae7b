// A run over days of failures, as it is planned and with one choice changed at a time: what each choice is worth.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/sim/failures/bursts.h"
#include "lockstep/sim/failures/goodput.h"

namespace lockstep::sim {

struct GoodputQuestion {
  RunOnNodes run;
  double seconds = 0;
  int samples = 200;
  std::uint64_t seed = 1;
  int threads = 1;
  double usd_per_hour = 0;       // of all nodes with the spares; 0: not known
  double usd_per_node_hour = 0;  // of a spare
};

struct GoodputRow {
  std::string name;  // "as planned", "2 spares", "checkpoints every 15 min", ...
  RunOnNodes run;
  Quantiles goodput, interruptions, lost_seconds, worst_lost_seconds;
  Outcome mean;  // of all samples; counts are sums
  int samples = 0;
  double usd = 0;  // paid over the time, per share that trained; 0: not known
};

struct GoodputStudy {
  std::string failures;  // where they come from
  int samples = 0;
  double seconds = 0;                      // of each
  std::vector<GoodputRow> rows;            // the first is as planned
  SparesNeeded half, ninety, ninety_nine;  // nodes down at once, for 50%, 90%, 99% of the time
};

// Spares: none, and enough for 50%, 90% and 99% of the time; checkpoints half and twice as often; state from memory or
// not; shrink or wait.
GoodputStudy compare_choices(const FaultSource& source, const GoodputQuestion& question);

// One run under one policy; `question.run` is what prices are counted from.
GoodputRow goodput_row(const FaultSource& source, const GoodputQuestion& question, const RunOnNodes& run,
                       std::string name);

nlohmann::json to_json(const GoodputRow& row);
nlohmann::json to_json(const GoodputStudy& study);  // lockstep.goodput/1

}  // namespace lockstep::sim
