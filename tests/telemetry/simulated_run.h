// A long run without incident, made up: what a large language model's steps look like to the rules of alerts. The
// figures are those that reports of such runs publish (a step of 105 s and 2048 sequences, a loss that falls to about
// 2); the noise is worse than theirs in several ways.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "lockstep/telemetry/alerts.h"

namespace lockstep::telemetry {

enum class StepNoise {
  kNormal,
  kHeavyTail,   // Student's t, 3 degrees of freedom
  kCorrelated,  // neighbours resemble each other: AR(1), 0.7
  kOutliers,    // one step in a hundred takes up to several times as long
  kSkewed,      // only upwards: exponential
  kWandering,   // the level itself moves by 0.7 of the noise, over thousands of steps
};
constexpr auto names_of(StepNoise) {
  return enum_names<StepNoise::kWandering>("normal", "heavy tail", "correlated", "outliers", "skewed", "wandering");
}

struct SimulatedOptions {
  std::uint64_t seed = 1;
  StepNoise noise = StepNoise::kNormal;
  double deviation = 0.01;  // of the step time, as a share
  double loss_deviation = 0.02;
  bool begins = true;  // with warm-up and a batch that grows; false: in the middle
};

class SimulatedRun {
 public:
  static constexpr std::int64_t kMonth = 26000;  // steps of 100 s in 30 days

  explicit SimulatedRun(const SimulatedOptions& options) : options_(options), random_(options.seed) {
    phase_ = static_cast<std::int64_t>(random_() % 100);
    if (!options.begins) step_ = 20000;
  }

  double slower = 0.0;       // from now on, as a share
  double loss_offset = 0.0;  // from now on

  StepSample next() {
    StepSample sample;
    sample.step = ++step_;
    sample.items = samples_of_step();
    sample.seconds = 105.0 * (0.1 + 0.9 * sample.items / 2048.0) * std::exp(options_.deviation * noise());
    sample.seconds *= 1.0 + slower;
    if ((step_ + phase_) % 100 == 0) sample.seconds += 30.0;  // a checkpoint that nobody told of
    sample.time = time_ += sample.seconds;
    sample.data_seconds = 0.002 * sample.seconds * exponential();
    if (random_() % 500 == 0) sample.data_seconds = 0.5 * sample.seconds;
    sample.loss = loss();
    sample.gradient_norm = 0.3 * std::exp(0.25 * normal()) * (random_() % 300 == 0 ? 8.0 : 1.0);
    sample.memory_bytes = 4e10 + 2e8 * exponential();
    sample.memory_capacity_bytes = 8e10;
    age_ = (step_ + phase_) % 100 == 0 ? 60.0 : age_ + sample.seconds;
    sample.checkpoint_age_seconds = age_;
    sample.checkpoint_bound_seconds = 4 * 3600.0;
    sample.predicted_seconds = 105.0;
    sample.predicted_slowest_seconds = 115.0;
    return sample;
  }

 private:
  double normal() { return std::normal_distribution<double>()(random_); }
  double exponential() { return std::exponential_distribution<double>()(random_); }

  // 192 sequences first, 16 more every 200 steps.
  double samples_of_step() const {
    return options_.begins ? std::min(2048.0, 192.0 + 16.0 * static_cast<double>(step_ / 100)) : 2048.0;
  }

  double noise() {
    switch (options_.noise) {
      case StepNoise::kNormal:
        return normal();
      case StepNoise::kHeavyTail:
        return std::clamp(std::student_t_distribution<double>(3.0)(random_) / 1.3, -10.0, 10.0);
      case StepNoise::kCorrelated:
        return level_ = 0.7 * level_ + std::sqrt(1.0 - 0.49) * normal();
      case StepNoise::kOutliers:
        return normal() + (random_() % 100 == 0 ? 0.5 * std::min(4.0, exponential()) / options_.deviation : 0.0);
      case StepNoise::kSkewed:
        return exponential() - 1.0;
      case StepNoise::kWandering:
        level_ = 0.9995 * level_ + std::sqrt(1.0 - 0.9995 * 0.9995) * normal();
        return normal() + 0.7 * level_;
    }
    return 0.0;
  }

  // Falls as a power of the steps, fast in the warm-up; drifts; a hard batch now and then.
  double loss() {
    const double steps = static_cast<double>(step_);
    const double falls = 1.8 + 9.2 * std::pow(1.0 + steps / 30.0, -0.55);
    drift_ = 0.999 * drift_ + 0.045 * normal();
    const double hard = random_() % 400 == 0 ? 0.3 * exponential() : 0.0;
    return falls + options_.loss_deviation * (normal() + 0.3 * drift_) + hard + loss_offset;
  }

  SimulatedOptions options_;
  std::mt19937_64 random_;
  std::int64_t step_ = 0, phase_ = 0;
  double time_ = 1.7e9, age_ = 0.0, level_ = 0.0, drift_ = 0.0;
};

}  // namespace lockstep::telemetry
