// Predictions of runs whose model, source, or (hardware, framework) was left out of the fit, alone and after one or
// three runs of what was left out have been observed: what a new user's first predictions are like.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "validation/accuracy.h"
#include "validation/cross_validation.h"

namespace lockstep::validation {

enum class LeftOut { kModel, kSource, kHardwareFramework };
const char* to_string(LeftOut what);
std::string group_of(const Measurement& measurement, LeftOut what);

// Sources that nobody looks at while the method is chosen: a quarter of them, by FNV-1a of the name, modulo 4.
bool is_held_back(const std::string& source);

struct HeldOutOptions {
  std::string published;
  int threads = 1;
  bool held_back = false;  // those sources instead of the others
  std::vector<LeftOut> columns{LeftOut::kModel, LeftOut::kSource, LeftOut::kHardwareFramework};
  FoldEffort effort{.iterations = 5, .widenings = {2, 1}, .most_rows_of_a_source = 80};  // of each fit without a group
};

// Three columns x 0, 1, 3 observed runs. A source counts with at most kMostRowsOfASource runs, chosen by the hash of
// their ids; observed runs are drawn kDraws times for each of them, never the run itself.
inline constexpr std::size_t kMostRowsOfASource = 40;
inline constexpr int kDraws = 3;
std::vector<HeldOutColumn> hold_out(const std::vector<Measurement>& all, const Fit& whole,
                                    const HeldOutOptions& options);
// One of those columns, at 0, 1 and 3 observed runs, from fits without each group (fit_without_each over group_of).
std::vector<HeldOutColumn> score_left_out(const std::vector<Measurement>& all, const std::map<std::string, Fit>& fits,
                                          LeftOut what, bool held_back);

}  // namespace lockstep::validation
