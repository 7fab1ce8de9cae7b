// A study that never was, with figures that tests can look for.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

struct MadeUpStudy {
  explicit MadeUpStudy(const std::string& space_yaml) : space(tune::Space::parse(space_yaml, "space.yaml")) {
    conclusion.baseline = space.default_config();
  }

  tune::Config with(const nlohmann::json& changes) const {
    nlohmann::json all = space.to_json(space.default_config());
    all.update(changes);
    for (const auto& [knob, value] : changes.items())
      if (value.is_null()) all.erase(knob);  // inactive
    return space.from_json(all, "test");
  }

  tune::Trial& add(const tune::Config& config, tune::Purpose purpose, double throughput,
                   tune::Outcome outcome = tune::Outcome::kMeasured) {
    tune::Trial trial;
    trial.number = static_cast<std::int64_t>(trials.size());
    trial.config = config;
    trial.purpose = purpose;
    trial.outcome = outcome;
    if (outcome == tune::Outcome::kMeasured) {
      trial.throughput = throughput;
      trial.samples = {throughput};
    } else {
      ++conclusion.failed;
      ++conclusion.failures_by_outcome[static_cast<std::size_t>(outcome)];
    }
    trial.seconds = 20, trial.gpu_seconds = 160;
    conclusion.trials += 1;
    conclusion.gpu_seconds += trial.gpu_seconds;
    trials.push_back(trial);
    return trials.back();
  }

  StudyView view() const {
    StudyView view{space, trials, conclusion};
    view.id = "20261115-031500-a1b2c3-gpt";
    view.name = "gpt-1.3b";
    view.host = "node7";
    view.created_at = 1794700000, view.ended_at = 1794710000;
    view.seed = 7, view.trials_allowed = 45, view.gpu_seconds_allowed = 7200, view.trial_seconds = 60;
    view.evaluator = evaluator;
    view.versions = {{"lockstep", "0.1.0"}, {"torch", "2.11.0"}, {"nccl", "2.30.7"}, {"hardware", "1x8xH100"}};
    return view;
  }

  tune::Space space;
  std::vector<tune::Trial> trials;
  tune::Conclusion conclusion;
  nlohmann::json evaluator = {{"kind", "command"},
                              {"command", "python3 train.py --mb {micro_batch} --workers {num_workers}"}};
};

inline tune::KnobImportance importance(const std::string& knob, double value, double half, int launches,
                                       double variance) {
  tune::KnobImportance entry;
  entry.knob = knob;
  entry.set_back_percent = tune::Estimate{value, value - half, value + half, launches};
  entry.variance_main_percent = {variance * 0.8, variance * 0.5, variance, 0};
  entry.variance_total_percent = {variance, variance * 0.7, variance * 1.2, 0};
  return entry;
}

// Six knobs, two of them tied, failures for lack of memory next to the best, everything measured.
inline MadeUpStudy usual_study() {
  MadeUpStudy study(R"(
knobs:
  NCCL_ALGO: {choices: [Ring, Tree], default: Ring}
  micro_batch: {choices: [1, 2, 4, 8, 16], default: 1}
  accumulation: {choices: [1, 2, 4, 8, 16], default: 16}
  num_workers: {int: [0, 16], default: 2}
  prefetch_factor: {int: [1, 8], default: 2, when: "num_workers > 0"}
  bucket_mib: {log_int: [1, 256], default: 25}
constraints: ["micro_batch * accumulation == 16"]
)");
  tune::Conclusion& found = study.conclusion;
  const tune::Config best = study.with(
      {{"NCCL_ALGO", "Tree"}, {"micro_batch", 8}, {"accumulation", 2}, {"num_workers", 6}, {"bucket_mib", 256}});
  found.best = tune::BestFound{best, {51234, 50400, 52080, 5}, false, 8};
  found.baseline_throughput = tune::Estimate{41500, 40800, 42210, 5};
  found.gain = tune::Gain{{23.4, 21.0, 25.8, 5}, true};
  found.importance = {importance("micro_batch", 14.2, 2.3, 3, 55), importance("NCCL_ALGO", 6.1, 1.4, 3, 12),
                      importance("bucket_mib", 2.4, 1.6, 3, 4),    importance("num_workers", 2.1, 1.7, 3, 6),
                      importance("accumulation", 0, 0, 0, 20),     importance("prefetch_factor", 0, 0, 0, 1)};
  found.importance[0].moved_along = {"accumulation"};
  found.top = {"micro_batch", "NCCL_ALGO"};
  found.tied = {"bucket_mib", "num_workers"};
  found.interactions = {{"micro_batch", "accumulation", {8.1, 3.0, 13.2, 0}}};
  found.launch_spread_percent = 1.5;
  tune::Random random(3);
  study.add(study.space.default_config(), tune::Purpose::kBaseline, 41600);
  for (int i = 0; i < 26; ++i) {
    const tune::Config config = study.space.sample(random);
    const auto coordinates = study.space.coordinates(config);
    const bool out_of_memory = coordinates[1] > 0.9;
    study.add(config, tune::Purpose::kExplore,
              41000 * std::exp(0.2 * coordinates[1] + 0.05 * coordinates[0] - 0.02 * (i % 3)),
              out_of_memory ? tune::Outcome::kOutOfMemory : tune::Outcome::kMeasured);
  }
  tune::Config too_large = best;
  too_large.values[1] = std::int64_t{16}, too_large.values[2] = std::int64_t{1};
  study.add(too_large, tune::Purpose::kExplore, 0, tune::Outcome::kOutOfMemory);
  for (int i = 0; i < 5; ++i) {
    study.add(best, tune::Purpose::kConfirm, 51234 + 300 * (i - 2));
    study.add(study.space.default_config(), tune::Purpose::kControl, 41500 + 250 * (i - 2));
  }
  for (const char* knob : {"micro_batch", "NCCL_ALGO", "bucket_mib"}) {
    const auto back = study.space.set_back(best, *study.space.find(knob));
    study.add(*back, tune::Purpose::kSetBack, 47000).set_back_knob = knob;
  }
  return study;
}

// `knobs` knobs that all changed, for full pages.
inline MadeUpStudy large_study(int knobs) {
  std::string yaml = "knobs:\n";
  for (int i = 0; i < knobs; ++i)
    yaml += fmt::format(
        "  some_long_knob_name_{}: {{choices: [alpha, beta_with_a_long_value, gamma], default: alpha}}\n", i);
  MadeUpStudy study(yaml);
  study.evaluator = {{"kind", "engine"}, {"job", "/somewhere/jobs/gone.yaml"}};
  nlohmann::json changes;
  for (int i = 0; i < knobs; ++i) changes[fmt::format("some_long_knob_name_{}", i)] = "beta_with_a_long_value";
  study.conclusion.best = tune::BestFound{study.with(changes), {1000, 980, 1020, 4}, false};
  study.conclusion.baseline_throughput = tune::Estimate{800, 790, 810, 4};
  study.conclusion.gain = tune::Gain{{25, 22, 28, 4}, true};
  for (int i = 0; i < knobs; ++i)
    study.conclusion.importance.push_back(importance(fmt::format("some_long_knob_name_{}", i), 20.0 - i, 2, 2, 5));
  study.conclusion.top = {"some_long_knob_name_0", "some_long_knob_name_1", "some_long_knob_name_2"};
  study.add(study.space.default_config(), tune::Purpose::kBaseline, 800);
  study.add(study.conclusion.best->config, tune::Purpose::kConfirm, 1000);
  return study;
}

}  // namespace lockstep::report
