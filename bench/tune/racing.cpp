// What stopping hopeless trials early saves, and what it costs in the answer: the strategy in one process on the
// laboratory's dev families, every study once with and once without it, the same noise for both.
//
//   tune_racing [--kinds dev_ddp,dev_zero] [--instances 3] [--seeds 2] [--trials 45]
//
// Prints a line a family and one for all. A trial costs its launch and the samples that were taken.
#include <cstdio>
#include <exception>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "bench/tune/surfaces.h"
#include "lockstep/base/text.h"
#include "lockstep/tune/models/statistics.h"
#include "lockstep/tune/study/racing.h"
#include "lockstep/tune/study/strategy.h"

namespace {

using namespace lockstep;
using namespace lockstep::bench;

struct Tally {
  double regret[2] = {0, 0};            // sums; without, with
  double seconds[2] = {0, 0};           // of all trials
  double measured_seconds[2] = {0, 0};  // of samples alone
  int studies = 0, trials = 0, stopped = 0, stopped_above_best = 0;

  void add(const Tally& other) {
    for (int i = 0; i < 2; ++i) {
      regret[i] += other.regret[i];
      seconds[i] += other.seconds[i];
      measured_seconds[i] += other.measured_seconds[i];
    }
    studies += other.studies;
    trials += other.trials;
    stopped += other.stopped;
    stopped_above_best += other.stopped_above_best;
  }
  void print(const std::string& name) const {
    const double n = studies;
    std::puts(
        fmt::format("{:<14} {:>3} studies  regret {:>5.2f}% -> {:>5.2f}%  seconds {:>6.0f} -> {:>6.0f} (-{:.1f}%)  "
                    "of measuring -{:.1f}%  stopped {} of {}, {} of them better than the best then",
                    name, studies, regret[0] / n, regret[1] / n, seconds[0] / n, seconds[1] / n,
                    100 * (1 - seconds[1] / seconds[0]), 100 * (1 - measured_seconds[1] / measured_seconds[0]), stopped,
                    trials, stopped_above_best)
            .c_str());
    std::fflush(stdout);
  }
};

struct Made {
  tune::Trial trial;
  double sample_seconds = 0;
};

Made launch(const Surface& surface, const tune::Proposal& proposal, std::span<const tune::Trial> history, int seed,
            bool racing) {
  Made made;
  tune::Trial& trial = made.trial;
  trial.number = static_cast<std::int64_t>(history.size());
  trial.config = proposal.config;
  trial.purpose = proposal.purpose;
  trial.set_back_knob = proposal.set_back_knob;
  const Point point = surface.point_of(proposal.config);
  const SurfaceTruth truth = surface.at(point);
  const SurfaceMeasurement all = surface.measure(point, static_cast<std::uint64_t>(seed), trial.number);
  trial.outcome = all.outcome;
  trial.message = all.message;
  trial.seconds = trial.gpu_seconds = all.seconds;
  if (!tune::measured(trial)) return made;
  const tune::Race race(history);
  std::size_t taken = all.samples.size();
  if (racing && tune::may_stop_early(trial.purpose)) {
    for (std::size_t first = 1; first < all.samples.size() && taken == all.samples.size(); ++first)
      if (race.is_hopeless(std::span(all.samples).first(first))) taken = first;
  }
  trial.stopped_early = taken < all.samples.size();
  trial.samples.assign(all.samples.begin(), all.samples.begin() + static_cast<std::ptrdiff_t>(taken));
  made.sample_seconds = static_cast<double>(taken) * truth.sample_seconds;
  trial.seconds = trial.gpu_seconds = truth.launch_seconds + made.sample_seconds;
  const tune::LaunchSummary summary = tune::summarize_launch(trial.samples);
  trial.throughput = summary.mean;
  trial.relative_error = summary.standard_error / summary.mean;
  return made;
}

Tally run(const Surface& surface, double best, int seed, std::int64_t trials) {
  Tally tally;
  tally.studies = 1;
  for (const bool racing : {false, true}) {
    tune::StrategyOptions options;
    options.trials = trials;
    options.seed = static_cast<std::uint64_t>(seed);
    const tune::Strategy strategy(tune::Space::parse(surface.space_yaml(), surface.kind()), options);
    std::vector<tune::Trial> history;
    double highest = 0;  // in truth, of what ran so far
    while (const auto proposal = strategy.next(history)) {
      const Made made = launch(surface, *proposal, history, seed, racing);
      const double truth = surface.at(made.trial.config).throughput;
      tally.seconds[racing] += made.trial.seconds;
      tally.measured_seconds[racing] += made.sample_seconds;
      if (racing) {
        ++tally.trials;
        tally.stopped += made.trial.stopped_early;
        tally.stopped_above_best += made.trial.stopped_early && truth > highest;
      }
      highest = std::max(highest, truth);
      history.push_back(made.trial);
    }
    const auto winner = strategy.winner(history);
    tally.regret[racing] += winner ? 100 * (1 - surface.at(*winner).throughput / best) : 100;
  }
  return tally;
}

}  // namespace

int main(int argc, char** argv) {
  std::string kinds = "dev_ddp,dev_zero,dev_anonymous,dev_words,dev_cloud";
  int instances = 2, seeds = 2;
  std::int64_t trials = 45;
  CLI::App app("What early stopping saves");
  app.add_option("--kinds", kinds);
  app.add_option("--instances", instances);
  app.add_option("--seeds", seeds);
  app.add_option("--trials", trials);
  CLI11_PARSE(app, argc, argv);
  try {
    Tally all;
    for (const std::string& kind : split(kinds, ',')) {
      Tally family;
      for (int instance = 0; instance < instances; ++instance) {
        const auto surface = make_surface(kind, instance);
        const double best = study_surface(*surface).best;
        for (int seed = 1; seed <= seeds; ++seed) family.add(run(*surface, best, seed, trials));
      }
      family.print(kind);
      all.add(family);
    }
    all.print("all");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tune_racing: %s\n", error.what());
    return 2;
  }
}
