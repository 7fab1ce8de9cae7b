// Which assumption a plan depends on most, and what would settle it: the plan is priced again with each of them at the
// ends of its range.
//
//   of the profile   The spread of each constant is what the fit allows it between stacks (cost/profile/constants.h,
//                    fused/time.h) or, of tables, what its repetitions spread by. Where all of them together would make
//                    the step more uncertain than the profile's predictions are known to be, all shrink by one factor
//                    until they do not; of tables they also grow to that. Ranges are 90%.
//   of the cluster   Failures, restarts, storage: what published clusters had.
//
// Memory is not among them: out_of_memory_probability says what its uncertainty means.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

struct Assumption {
  std::string name;          // "speed of matrix products"
  std::string meaning;       // of the value: "share of the bf16 peak in large products"
  std::string unit;          // "": a share or a factor; "s", "B/s", "per 1000 node-days"
  double value = 0;          // as the plan has it
  double low = 0, high = 0;  // 90% range
  std::string evidence;      // where the range comes from
  // Relative change of the time that the run takes, failures and checkpoints counted: +0.12 is 12% longer.
  double time_at_low = 0, time_at_high = 0;
  // The layout that would be chosen instead at the end of the range where it gains most; "": this plan stays the best
  // of those that were looked at. The gain is relative to this plan there, in the unit of the objective.
  std::string other_layout;
  double other_gain = 0;
  std::string measurement;  // that settles it
  std::string command;      // which measures it, or reads what was measured
  bool operator==(const Assumption&) const = default;
};

// Largest change at either end first. Empty: the plan has no prediction.
using Sensitivity = std::vector<Assumption>;

// `best` has a prediction and answers `request`, which is complete(). `rivals`: other candidates, of which one may be
// the better choice at an end. Those that change the time by less than a thousandth are left out, the first never is;
// at most six. Some 200 prices of the plan and of each rival: milliseconds.
Sensitivity sensitivity_of(const SearchRequest& request, const plan::Candidate& best,
                           const std::vector<Ranked>& rivals);

nlohmann::json to_json(const Sensitivity& sensitivity);  // `sensitivity` of lockstep.plan/1

}  // namespace lockstep::planner
