// The search strategy in one process, on every surface that counts: how good its answers are, how often trials fail,
// what a proposal costs. For work on the strategy itself; the comparison with other tools is run.py.
//
//   tune_lab [--kind nccl6,mesh] [--instances 15] [--seeds 1] [--trials 30,45,60] [--threads 2] [--prior]
//            [--half dev] [--hide-names] [--each | --json [--statements]]
//            [--optima FILE]
//
// What was lost splits in two: `seen` is the regret of the best setting that was launched at all (the search's part),
// the rest of `regret` is the choice's.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "bench/tune/coverage_truth.h"
#include "bench/tune/lab_surface.h"
#include "bench/tune/surfaces.h"
#include "lockstep/tune/models/statistics.h"
#include "lockstep/tune/study/conclusion.h"
#include "lockstep/tune/study/strategy.h"

namespace {

using namespace lockstep;
using namespace lockstep::bench;

struct Arguments {
  std::vector<std::string> kinds = surface_kinds();
  int instances = 15;
  int seeds = 1;
  int first_seed = 1;
  std::vector<std::int64_t> trials{30, 45, 60};
  int threads = 2;
  bool prior = false;
  bool hide_names = false;
  bool no_defaults = false;
  bool no_importance = false;
  bool each = false;
  bool trace = false;
  bool json = false;
  bool statements = false;
  std::string optima;  // a file that keeps the optima, so that they are searched for once
};

class SurfacePrior final : public tune::Prior {
 public:
  explicit SurfacePrior(const Surface& surface) : surface_(surface) {}
  std::optional<tune::Belief> operator()(const tune::Config& config) const override {
    return surface_.believe(surface_.point_of(config));
  }

 private:
  const Surface& surface_;
};

struct Counted {
  std::unique_ptr<Surface> surface;
  SurfaceFacts facts;
};

struct Job {
  const Counted* counted;
  int seed;
  std::int64_t trials;
};

struct Outcome {
  double regret = 100;               // percent, of the winner
  double best_regret = 100;          // percent, of the best configuration among all that ran
  double failed = 0;                 // share
  std::map<std::string, int> spent;  // trials by purpose, failed ones under "failed"
  nlohmann::json statements{{"figure", nullptr}, {"gain", nullptr}, {"top", nullptr}};
  bool answered = false;
  double milliseconds = 0;  // per trial, of this thread
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The work of several threads on numbered items.
template <class F>
void in_parallel(std::size_t items, int threads, F work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> pool;
  for (int n = 0; n < threads; ++n) {
    pool.emplace_back([&] {
      for (std::size_t item = next++; item < items; item = next++) work(item);
    });
  }
}

// Of the laboratory's surfaces all count, and only the optimum is needed, which is searched for once.
std::vector<Counted> find_kept(const Arguments& arguments) {
  nlohmann::json optima = nlohmann::json::object();
  if (std::ifstream file(arguments.optima); file) optima = nlohmann::json::parse(file);
  std::vector<Counted> all;
  for (const std::string& kind : arguments.kinds) {
    for (int instance = 0; instance < arguments.instances; ++instance) {
      Counted counted{make_surface(kind, instance), {}};
      const std::string key = fmt::format("{}/{}/{:016x}", kind, instance, fingerprint(*counted.surface));
      if (!optima.contains(key)) optima[key] = find_optimum(*counted.surface).throughput;
      counted.facts.best = optima[key];
      if (arguments.hide_names) counted.surface->hide_names();
      all.push_back(std::move(counted));
    }
  }
  std::ofstream(arguments.optima) << optima.dump(1) << "\n";
  return all;
}

// Chunks of instances, until enough of each kind count.
std::vector<Counted> find_counted(const Arguments& arguments) {
  if (!arguments.optima.empty() && std::ranges::all_of(arguments.kinds, is_lab_kind)) return find_kept(arguments);
  std::vector<Counted> all;
  for (const std::string& kind : arguments.kinds) {
    int found = 0;
    for (int first = 0; found < arguments.instances && first < 10 * arguments.instances; first += 8) {
      std::vector<Counted> chunk(8);
      in_parallel(chunk.size(), arguments.threads, [&](std::size_t n) {
        chunk[n].surface = make_surface(kind, first + static_cast<int>(n));
        if (arguments.hide_names) chunk[n].surface->hide_names();
        chunk[n].facts = study_surface(*chunk[n].surface);
      });
      for (Counted& counted : chunk) {
        if (counted.facts.counts && found < arguments.instances) all.push_back(std::move(counted)), ++found;
      }
    }
  }
  return all;
}

tune::Trial make_trial(const Surface& surface, const tune::Proposal& proposal, std::int64_t number, int seed) {
  tune::Trial trial;
  trial.number = number;
  trial.config = proposal.config;
  trial.purpose = proposal.purpose;
  trial.set_back_knob = proposal.set_back_knob;
  trial.budget_seconds = proposal.budget_seconds;
  const SurfaceMeasurement measured =
      surface.measure(surface.point_of(proposal.config), static_cast<std::uint64_t>(seed), number);
  trial.outcome = measured.outcome;
  trial.samples = measured.samples;
  trial.seconds = trial.gpu_seconds = measured.seconds;
  trial.message = measured.message;
  if (!tune::measured(trial)) return trial;
  const tune::LaunchSummary launch = tune::summarize_launch(trial.samples);
  trial.throughput = launch.mean;
  trial.relative_error = launch.standard_error / launch.mean;
  return trial;
}

std::string space_of(const Surface& surface, const Arguments& arguments) {
  const std::string text = surface.space_yaml();
  return arguments.no_defaults ? std::regex_replace(text, std::regex(", default: [^,}]*"), "") : text;
}

bool within(const tune::Estimate& estimate, double truth) {
  const double slack = 1e-9 * std::abs(truth) + 1e-9;
  return truth >= estimate.low - slack && truth <= estimate.high + slack;
}

// As lab_score.py has them: true, false, or null where it is not asked.
nlohmann::json judge_statements(const Surface& surface, const tune::Strategy& strategy,
                                const std::vector<tune::Trial>& history) {
  nlohmann::json told{{"figure", nullptr}, {"gain", nullptr}, {"top", nullptr}};
  const tune::Conclusion conclusion = tune::conclude(strategy, history);
  if (!conclusion.best) return told;
  const double truth = surface.at(conclusion.best->config).throughput;
  const bool drifts = surface.log_drift(1, 10) != surface.log_drift(1, 50);
  if (!drifts) told["figure"] = within(conclusion.best->throughput, truth);
  if (!surface.tells_defaults()) return told;
  if (conclusion.gain)
    told["gain"] = within(conclusion.gain->percent, 100 * (truth / surface.at(conclusion.baseline).throughput - 1));
  const auto costs = set_back_truth(surface, strategy.space(), conclusion.best->config);
  told["top"] = judge_top(costs, conclusion) <= Verdict::kRightByTie;
  return told;
}

Outcome run(const Job& job, const Arguments& arguments) {
  const Surface& surface = *job.counted->surface;
  const SurfacePrior prior(surface);
  tune::StrategyOptions options;
  options.trials = job.trials;
  options.seed = static_cast<std::uint64_t>(job.seed);
  options.importance = !arguments.no_importance;
  if (arguments.prior) options.prior = &prior;
  const double start = thread_seconds();
  const tune::Strategy strategy(tune::Space::parse(space_of(surface, arguments), surface.kind()), options);
  std::vector<tune::Trial> history;
  Outcome outcome;
  while (const auto proposal = strategy.next(history)) {
    history.push_back(make_trial(surface, *proposal, static_cast<std::int64_t>(history.size()), job.seed));
    outcome.failed += !tune::measured(history.back());
    ++outcome.spent[tune::measured(history.back()) ? tune::to_string(history.back().purpose) : "failed"];
    const double truth = surface.at(proposal->config).throughput;
    outcome.best_regret = std::min(outcome.best_regret, regret_percent(job.counted->facts, truth));
    if (arguments.trace) {
      fmt::print("{:3} {:9} {:5.1f} {} | {}\n", history.size(), tune::to_string(history.back().purpose),
                 truth > 0 ? regret_percent(job.counted->facts, truth) : 100.0,
                 strategy.space().to_text(proposal->config), proposal->reason);
    }
  }
  if (const auto winner = strategy.winner(history)) {
    outcome.answered = true;
    outcome.regret = regret_percent(job.counted->facts, surface.at(*winner).throughput);
  }
  outcome.failed /= static_cast<double>(history.size());
  if (arguments.statements) outcome.statements = judge_statements(surface, strategy, history);
  outcome.milliseconds = 1e3 * (thread_seconds() - start) / static_cast<double>(history.size());
  return outcome;
}

double mean_of(const std::vector<Outcome>& outcomes, double Outcome::*field) {
  double sum = 0;
  for (const Outcome& outcome : outcomes) sum += outcome.*field;
  return sum / static_cast<double>(outcomes.size());
}

double quantile_of(const std::vector<Outcome>& outcomes, double share) {
  std::vector<double> regrets;
  for (const Outcome& outcome : outcomes) regrets.push_back(outcome.regret);
  std::ranges::sort(regrets);
  return regrets[std::min(regrets.size() - 1, static_cast<std::size_t>(share * static_cast<double>(regrets.size())))];
}

void print_row(const std::string& name, std::int64_t trials, const std::vector<Outcome>& outcomes) {
  const auto unanswered = std::ranges::count(outcomes, false, &Outcome::answered);
  fmt::print("{:8} {:4} {:7.2f} {:7.2f} {:7.2f} {:7.2f} {:7.1f}% {:6} {:8.1f}\n", name, trials,
             mean_of(outcomes, &Outcome::regret), quantile_of(outcomes, 0.5), quantile_of(outcomes, 0.9),
             mean_of(outcomes, &Outcome::best_regret), 100 * mean_of(outcomes, &Outcome::failed), unanswered,
             mean_of(outcomes, &Outcome::milliseconds));
}

void report(const std::vector<Job>& jobs, const std::vector<Outcome>& outcomes, const Arguments& arguments) {
  fmt::print("{:8} {:>4} {:>7} {:>7} {:>7} {:>7} {:>8} {:>6} {:>8}\n", "kind", "n", "regret", "median", "p90", "seen",
             "failed", "none", "ms/trial");
  for (std::int64_t trials : arguments.trials) {
    std::map<std::string, std::vector<Outcome>> by_kind;
    std::vector<Outcome> all;
    for (std::size_t n = 0; n < jobs.size(); ++n) {
      if (jobs[n].trials != trials) continue;
      by_kind[jobs[n].counted->surface->kind()].push_back(outcomes[n]);
      all.push_back(outcomes[n]);
      if (arguments.each) {
        fmt::print("{:8} {:4} instance {:3} seed {}: regret {:6.2f} (seen {:6.2f}) failed {:4.1f}%\n",
                   jobs[n].counted->surface->kind(), trials, jobs[n].counted->surface->instance(), jobs[n].seed,
                   outcomes[n].regret, outcomes[n].best_regret, 100 * outcomes[n].failed);
      }
    }
    for (const auto& [kind, some] : by_kind) print_row(kind, trials, some);
    print_row("ALL", trials, all);
  }
}

void print_json(const std::vector<Job>& jobs, const std::vector<Outcome>& outcomes) {
  nlohmann::json studies = nlohmann::json::array();
  for (std::size_t n = 0; n < jobs.size(); ++n) {
    const Surface& surface = *jobs[n].counted->surface;
    studies.push_back({{"kind", surface.kind()},
                       {"instance", surface.instance()},
                       {"seed", jobs[n].seed},
                       {"trials", jobs[n].trials},
                       {"regret", outcomes[n].regret},
                       {"seen", outcomes[n].best_regret},
                       {"spent", outcomes[n].spent},
                       {"statements", outcomes[n].statements},
                       {"failed", outcomes[n].failed},
                       {"answered", outcomes[n].answered},
                       {"milliseconds_per_trial", outcomes[n].milliseconds}});
  }
  std::puts(nlohmann::json{{"studies", studies}}.dump().c_str());
}

int work(const Arguments& arguments) {
  const std::vector<Counted> counted = find_counted(arguments);
  std::vector<Job> jobs;
  for (std::int64_t trials : arguments.trials) {
    for (const Counted& one : counted) {
      for (int seed = 0; seed < arguments.seeds; ++seed) jobs.push_back({&one, arguments.first_seed + seed, trials});
    }
  }
  std::vector<Outcome> outcomes(jobs.size());
  std::mutex mutex;
  std::exception_ptr failure;
  in_parallel(jobs.size(), arguments.trace ? 1 : arguments.threads, [&](std::size_t n) {
    try {
      outcomes[n] = run(jobs[n], arguments);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  if (arguments.json) {
    print_json(jobs, outcomes);
  } else {
    report(jobs, outcomes, arguments);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The tuner's strategy on synthetic surfaces");
  std::string half;
  app.add_option("--kind", arguments.kinds)->delimiter(',');
  app.add_option("--half", half, "the families of the laboratory: dev, or final (opened once, by whoever reports)");
  app.add_option("--instances", arguments.instances, "counted instances of each kind");
  app.add_option("--seeds", arguments.seeds);
  app.add_option("--first-seed", arguments.first_seed);
  app.add_option("--trials", arguments.trials)->delimiter(',');
  app.add_option("--threads", arguments.threads);
  app.add_flag("--prior", arguments.prior, "with the distorted model as prior");
  app.add_flag("--hide-names", arguments.hide_names, "knobs k0, k1, ... and words w0, w1, ...: what names are worth");
  app.add_flag("--no-defaults", arguments.no_defaults, "the space files give no defaults");
  app.add_flag("--no-importance", arguments.no_importance, "trials are not set aside for reverting knobs");
  app.add_flag("--each", arguments.each, "a line per study");
  app.add_flag("--json", arguments.json, "one document with every study");
  app.add_option("--optima", arguments.optima, "keep the optima of the laboratory's surfaces in this file");
  app.add_flag("--statements", arguments.statements, "with --json: are the statements after the study true?");
  app.add_flag("--trace", arguments.trace, "a line per trial");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!half.empty()) arguments.kinds = lab_kinds(half);
    return work(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tune_lab: {}\n", error.what());
    return 1;
  }
}
