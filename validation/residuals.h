// Widths of intervals from cross-validated residuals, and the margin that separates runs that fit from those that fail.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cost/profile/constants.h"

namespace lockstep::validation {

// One row predicted by constants that had not seen it.
struct Residual {
  std::string hardware, stack, fold;
  double log_time = 0;       // log(measured / predicted) step; NaN: no time
  double exposed_share = 0;  // of the predicted step
  double log_memory = 0;     // log(measured / predicted) memory; NaN: none
};

// Standard deviations whose 90% interval covered 90% of the residuals of (hardware, stack), without those of
// `left_out_fold`. Few residuals are filled up with those of the hardware, these with all.
cost::Residuals residuals_of(const std::vector<Residual>& all, const std::string& hardware, const std::string& stack,
                             const std::string& left_out_fold);

// Predicted bytes of runs that ran and of runs that failed: the factor on predicted bytes at which
// "factor x bytes + fixed > capacity" tells them apart best by balanced accuracy: the least one within a standard
// error.
struct FitExample {
  double allocated = 0;
  double fixed = 0;  // context and communicators
  double capacity = 0;
  bool failed = false;
};
double best_reserve_factor(const std::vector<FitExample>& examples, double otherwise);

}  // namespace lockstep::validation
