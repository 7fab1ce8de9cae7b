// Goodput: the share of a run's time that trained, and where the rest went. Terms add up to the elapsed time.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/report/incidents.h"
#include "lockstep/report/run_facts.h"

namespace lockstep::report {

enum class Period : std::uint8_t { kStart = 0, kTraining, kRecovery, kEnd };
constexpr auto names_of(Period) { return enum_names<Period::kEnd>("start", "training", "recovery", "end"); }

// Of the time line: what the run was doing. Steps that were done again are inside training.
struct TimeSpan {
  Period period = Period::kTraining;
  double begin = 0.0, end = 0.0;  // seconds after the start of the run
};

struct Goodput {
  double elapsed_seconds = 0.0;
  double useful_seconds = 0.0;      // in steps, each counted once, without checkpoint stalls
  double checkpoint_seconds = 0.0;  // stalls
  double lost_seconds = 0.0;        // steps that were done again
  double recovery_seconds = 0.0;    // from a failure to the first step after it
  double start_seconds = 0.0;       // before the first step
  double other_seconds = 0.0;       // between steps: evaluation, saving at the end, what is not recorded
  std::vector<TimeSpan> line;       // by begin, without gaps

  double share() const { return elapsed_seconds > 0.0 ? useful_seconds / elapsed_seconds : 0.0; }
};

Goodput make_goodput(const RunFacts& facts, const Incidents& incidents);
Goodput make_goodput(const RunFacts& facts);

nlohmann::json to_json(const Goodput& goodput);  // docs/reference/report.md

}  // namespace lockstep::report
