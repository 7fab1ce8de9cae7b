// Idle time of pipeline schedules in closed form. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// Seconds of one micro-batch on one stage, or summed over several.
struct PassSeconds {
  double forward = 0;
  double input_gradient = 0;  // with what is recomputed for it
  double weight_gradient = 0;
  double total() const { return forward + input_gradient + weight_gradient; }
  PassSeconds& operator+=(const PassSeconds& other) {
    forward += other.forward;
    input_gradient += other.input_gradient;
    weight_gradient += other.weight_gradient;
    return *this;
  }
  PassSeconds& operator-=(const PassSeconds& other) {
    return *this += {-other.forward, -other.input_gradient, -other.weight_gradient};
  }
};

// ZB-V on p stages of F, B and W with m micro-batches. A step ends for all ranks together (the norm of the gradients is
// everybody's), so the skew of the ranks counts, which Qi et al. 2023 leave out: the last rank starts p-1 forwards of a
// chunk late, and (p-1)(max(F, B) - min(B, W)/2) are idle where m >= p. Fewer micro-batches leave fewer weight
// gradients to fill with; few enough, and the step is the way of the first one through the model and the others behind
// it.
inline double zero_bubble_v_seconds(double p, double m, double f, double b, double w) {
  const double slower = std::max(f, b), fill = std::min(b, w);
  const double filled = (p - 1) * (slower - fill / 2) + std::max(0.0, p - m) * fill;
  const double path = p * (f + b) + w / 2 + (m - 1) * slower;
  return std::max(filled, path - m * (f + b + w));
}

// Idle seconds of the slowest of p stages in a step of m micro-batches, where `others` is the sum over the other stages
// of one micro-batch. Equal to the tables (plan/pipeline_schedule.h) played with equal stages, except where something
// else is said; with unequal stages the table may idle less.
//   GPipe, 1F1B   (p-1)(F + B + W): fill and drain pass every other stage once (Narayanan et al. 2021, PipeDream-flush)
//   interleaved   1/v of it over v chunks (Narayanan et al. 2021, section 2.2); a last round that is k micro-batches
//                 short adds at most k (v-1)/v (F + B + W)
//   ZB-H1         (p-1)(F + B - W) (Qi et al. 2023): weight gradients fill the drain, as far as there are any (m < p)
//                 and the other passes make room for them (W above F or B)
//   ZB-V          above; where m < p and F, B and W differ an estimate, within a quarter of the step as long as none is
//                 four times another
inline double bubble_seconds(plan::Schedule schedule, std::int64_t stages, std::int64_t virtual_stages,
                             std::int64_t micro_batches, const PassSeconds& others) {
  if (stages == 1) return 0;
  const auto p = static_cast<double>(stages), m = static_cast<double>(micro_batches);
  const double each = 1 / (p - 1);  // mean of the other stages
  switch (schedule) {
    case plan::Schedule::kNone:
      return 0;
    case plan::Schedule::kGpipe:
    case plan::Schedule::kOneForwardOneBackward:
      return others.total();
    case plan::Schedule::kInterleaved: {
      const auto v = static_cast<double>(virtual_stages);
      const auto missing = static_cast<double>((stages - micro_batches % stages) % stages);
      return others.total() / v * (1 + missing * (v - 1) * each);
    }
    case plan::Schedule::kZeroBubble:
      if (virtual_stages == 1) {
        const double fill = std::min({others.forward, others.input_gradient, others.weight_gradient});
        return others.forward + others.input_gradient - (std::min(m, p) - 1) * each * fill;
      }
      return zero_bubble_v_seconds(p, m, each * others.forward, each * others.input_gradient,
                                   each * others.weight_gradient);
  }
  return others.total();
}

}  // namespace lockstep::cost
