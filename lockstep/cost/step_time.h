// Predicted time of one optimizer step of a data-parallel layout on a Profile: matrix products by the shape table,
// attention and pointwise operators by theirs, a fixed cost per operator, the optimizer's traffic, and the gradient
// all-reduce less what backward hides. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/cost/flops.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"

namespace lockstep::cost {

// What is executed; the part of a Job that prices a step.
struct Workload {
  spec::Model model;
  plan::BatchPlan batch;
  spec::Precision precision = spec::Precision::kFp32;
  spec::OptimizerKind optimizer = spec::OptimizerKind::kAdamW;
  double bucket_mib = 25.0;
  double trained_share = 1;  // of the parameters: below 1 adapters alone have gradients and optimizer state
};

struct OperatorSeconds {
  double forward = 0;
  double backward = 0;
};

// One operator, once, from the tables (correction not applied).
OperatorSeconds operator_seconds(const Profile& profile, const Operator& op, spec::Precision precision);

// FLOP/s for a product of this kind and shape: inverse-distance interpolation in (log m, log n, log k) over the nearest
// measured shapes. Nothing when the profile has no product of any kind.
std::optional<double> matmul_flops_per_second(const Profile& profile, MatmulKind kind, spec::Precision precision,
                                              std::int64_t m, std::int64_t n, std::int64_t k);

// From the tables alone; what calibration compares with the check models. Pure data parallel only (price.h). Throws
// UserError (exit code 3) for architectures whose operators are not known.
plan::TimeBreakdown price_step(const Profile& profile, const Workload& workload, const plan::Layout& layout);

// How far the tables are off, from the checks of the profile that are of the model's family: measured / predicted.
struct Correction {
  std::int64_t checks = 0;  // of the model's family
  double factor = 1;        // geometric mean of the ratios (1 without checks)
  double half_width = 0;    // of the 90% interval, relative: [x e^-w, x e^w]
};
inline constexpr double kNinetyPercent = 1.6449;  // two-sided, in standard deviations
// Student's t for the same interval, by degrees of freedom from 1.
double student_t_95(std::size_t degrees);
// Half-width of the logarithm: the residuals of the checks around the factor (Student's t for their number), and the
// spread of the repetitions, added as independent errors. Without checks only the repetitions are left: a plan says so.
Correction correction_of(const Profile& profile, const spec::Model& model);

// price_step() x correction, with interval, throughput and MFU.
struct StepPrediction {
  plan::Prediction prediction;
  plan::TimeBreakdown breakdown;
};
StepPrediction predict_step(const Profile& profile, const Workload& workload, const plan::Layout& layout);

}  // namespace lockstep::cost
