// What proxies that ran say about the job they stand for: the residual of a step by phase, and the job's interval with
// that carried over. Pure functions; docs/reference/validate.md states the rules.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/plan/plan.h"

namespace lockstep::planner {

// The parts of a recorded step, which add up to it.
enum class StepPhase { kData, kCompute, kComm, kOptimizer, kCheckpoint, kHost };
constexpr auto names_of(StepPhase) {
  return enum_names<StepPhase::kHost>("data", "compute", "comm", "optimizer", "checkpoint", "host");
}
using lockstep::to_string;
inline constexpr std::size_t kStepPhases = 6;

struct StepParts {
  std::array<double, kStepPhases> seconds = {};
  double& operator[](StepPhase phase) { return seconds[static_cast<std::size_t>(phase)]; }
  double operator[](StepPhase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  double total() const;
};

// A predicted step in the same parts: comm is all traffic that is not hidden, and the bubble; host is `other`. Loader
// and checkpoints are not predicted.
StepParts parts_of(const plan::TimeBreakdown& time);

// The same parts of a step of `seconds`: recorded means beside a median.
StepParts scaled_to(StepParts parts, double seconds);

// A proxy that ran.
struct CheckedStep {
  StepParts predicted, measured;
  double log_ratio() const;  // of measured over predicted step
};

// A proxy has a phase where that is predicted to be this share of its step.
inline constexpr double kSmallestPhase = 0.02;

struct PhaseError {
  StepPhase phase = StepPhase::kCompute;
  double seconds = 0;               // of the job's predicted step
  double share = 0;                 // of it
  std::int64_t checks = 0;          // proxies that have the phase
  std::optional<double> log_error;  // root mean square over them; none: on no proxy
  double factor = 1;                // what the job's seconds were multiplied by
};

struct CarriedOver {
  plan::Interval step_seconds;  // of the job, after
  double widened_by = 0;        // half-width of the logarithm that was added, as an independent error
  std::vector<PhaseError> phases;
};

// `before`: the job's step as predicted, `parts` what it is made of. Another kind of device: the expected value stays,
// the interval grows by 1.645 x the larger of rms(r) and the phases' errors weighted by the job's shares. The same
// kind: each phase moves by its mean error, and the interval grows by the scatter of r (Student's t; one proxy: |r|).
CarriedOver carry_over(const plan::Interval& before, const StepParts& parts, const std::vector<CheckedStep>& checked,
                       bool same_device);

// Which of the runs stands for all: that of the middle ratio; of two in the middle the one further from 1. Not empty.
std::size_t middle_run(const std::vector<double>& log_ratios);

}  // namespace lockstep::planner
