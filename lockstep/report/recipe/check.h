// Does a recipe still hold? Fresh launches of the best and of the default, in pairs, against what the study said.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/study/conclusion.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::report {

enum class CheckVerdict {
  kHolds,        // the gain's intervals, then and now, overlap, and now's shows at least half of what was promised
  kBetter,       // the gain is larger than the study said
  kFaded,        // the gain is smaller than the study said
  kUnclear,      // they overlap, but now's reaches below half of what was promised: noise hides which it is
  kDoesNotRun,   // the recommended setting failed
  kNoComparison  // the default failed, or the study had no gain to compare with
};
constexpr auto names_of(CheckVerdict) {
  return enum_names<CheckVerdict::kNoComparison>("holds", "better", "faded", "unclear", "does_not_run",
                                                 "no_comparison");
}
using lockstep::to_string;

struct CheckResult {
  CheckVerdict verdict = CheckVerdict::kNoComparison;
  tune::Estimate gain_percent;         // now; launches counts pairs
  tune::Estimate expected_percent;     // then
  std::vector<double> best, standard;  // launch figures, pair by pair
  std::int64_t more_pairs = 0;         // kUnclear: that would decide it, if the estimate stays; 0: no number would
  std::string failure;                 // of the first launch that failed
  double checked_at = 0;               // unix time
  double gpu_seconds = 0;
  std::string sentence;  // one line for people

  bool ok() const { return verdict == CheckVerdict::kHolds || verdict == CheckVerdict::kBetter; }
};

struct CheckOptions {
  int pairs = 3;
  double launch_seconds = 60;  // what one launch may take
  const std::atomic<bool>* stop = nullptr;
  // After each launch: its number from 0, of how many, and what came back. May be empty.
  std::function<void(int launch, int of, bool best, const tune::Measurement&)> progress;
};

// Launches default and best in turn (the order alternates from pair to pair, so that a drift cancels). Ends at the
// first failure. `trials` are the study's: they say how far apart launches are here. Blocks for at most
// 2 x pairs x launch_seconds and a grace.
CheckResult check_recipe(tune::Evaluator& evaluator, const tune::Conclusion& conclusion,
                         std::span<const tune::Trial> trials, const CheckOptions& options);

// The comparison alone. `best` and `standard` are launch figures, pair by pair.
CheckResult judge_check(const tune::Conclusion& conclusion, std::span<const tune::Trial> trials,
                        std::vector<double> best, std::vector<double> standard);

nlohmann::json to_json(const CheckResult& check);
// nullopt when the document is none.
std::optional<CheckResult> check_from_json(const nlohmann::json& document);

}  // namespace lockstep::report
