// A small study to store, export and show.
#pragma once

#include <string>

#include "lockstep/tune/study/store_journal.h"

namespace lockstep::tune {

inline constexpr const char* kSmallSpace = R"(
knobs:
  algo: {choices: [Ring, Tree], default: Ring}
  pinned: {choices: [true, false]}
  micro: {choices: [1, 2, 4, 8]}
  workers: {int: [0, 8], default: 2}
  bucket: {log_int: [1, 256], default: 16}
  prefetch: {int: [1, 8], when: "workers > 0"}
  dropout: {float: [0.0, 0.5], default: 0.1}
constraints: ["micro * workers <= 32"]
)";

inline StudySetup small_setup() {
  StudySetup setup;
  setup.name = "small job";
  setup.strategy.trials = 12;
  setup.strategy.gpu_seconds = 3600;
  setup.strategy.trial_seconds = 30;
  setup.strategy.seed = 0xfedcba9876543210ull;
  setup.strategy.importance = false;
  setup.strategy.confirmations = 3;
  setup.evaluator = {{"kind", "command"}, {"argv", {"python3", "train.py", "--mb", "{micro}"}}};
  setup.versions = {{"lockstep", "0.5.0"}, {"hardware", "2 cores"}, {"nccl", "2.30.7"}};
  setup.unit = "samples/s";
  return setup;
}

// The default with one knob changed.
inline Config with(const Space& space, const std::string& knob, Value value) {
  Config config = space.default_config();
  config.values[*space.find(knob)] = std::move(value);
  return config;
}

inline Trial measured_trial(std::int64_t number, Config config, double throughput) {
  Trial trial;
  trial.number = number;
  trial.config = std::move(config);
  trial.purpose = number == 0 ? Purpose::kBaseline : Purpose::kExplore;
  trial.budget_seconds = 30;
  trial.samples = {throughput * 0.99, throughput * 1.01};
  trial.throughput = throughput;
  trial.relative_error = 0.01;
  trial.seconds = 12.5;
  trial.gpu_seconds = 50;
  trial.started_at = 1'800'000'000.25 + 20.0 * double(number);
  return trial;
}

inline Trial failed_trial(std::int64_t number, Config config, Outcome outcome, std::string message) {
  Trial trial = measured_trial(number, std::move(config), 1);
  trial.outcome = outcome;
  trial.samples.clear();
  trial.throughput = trial.relative_error = 0;
  trial.message = std::move(message);
  return trial;
}

// Baseline, four that ran (one without workers, so without prefetch), an out-of-memory one and a set-back.
inline std::vector<Trial> small_trials(const Space& space) {
  Config no_workers = with(space, "workers", std::int64_t{0});
  no_workers.values[*space.find("prefetch")] = std::monostate();
  Config best = with(space, "algo", std::string("Tree"));
  best.values[*space.find("micro")] = std::int64_t{4};
  std::vector<Trial> trials{measured_trial(0, space.default_config(), 100),
                            measured_trial(1, with(space, "micro", std::int64_t{4}), 130),
                            failed_trial(2, with(space, "micro", std::int64_t{8}), Outcome::kOutOfMemory,
                                         "CUDA out of memory, \"tried\" to allocate,\n2 GiB"),
                            measured_trial(3, no_workers, 80),
                            measured_trial(4, best, 150),
                            measured_trial(5, with(space, "bucket", std::int64_t{200}), 101)};
  trials.push_back(measured_trial(6, with(space, "micro", std::int64_t{4}), 131));
  trials.back().purpose = Purpose::kSetBack;
  trials.back().set_back_knob = "algo";
  return trials;
}

inline void journal_all(Journal& journal, const std::vector<Trial>& trials) {
  for (const Trial& trial : trials) {
    journal.begin(trial);
    journal.end(trial);
  }
}

}  // namespace lockstep::tune
