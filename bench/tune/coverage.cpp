// Are the tuner's statements true? Whole studies on surfaces whose truth is known: how far the reported figure is off,
// how often the intervals cover, how often the three dearest knobs are named. Prints a table and, with --report, writes
// the page bench/reports/tune_coverage.md.
//
//   tune_coverage [--kind nccl6,mesh] [--instances 20] [--skip 0] [--seeds 4] [--trials 60] [--threads 2] [--report
//   FILE] [--each]
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "bench/tune/coverage_truth.h"
#include "lockstep/base/error.h"
#include "lockstep/tune/models/statistics.h"

namespace {

using namespace lockstep;
using namespace lockstep::bench;

struct Arguments {
  std::vector<std::string> kinds = surface_kinds();
  int instances = 20;
  int skip = 0;
  int seeds = 4;
  std::int64_t trials = 60;
  int threads = 2;
  bool each = false;
  std::string report;
};

struct Counted {
  std::unique_ptr<Surface> surface;
  SurfaceFacts facts;
  VarianceTruth variance;
};

// Intervals that covered, of how many.
struct Hits {
  double covered = 0, all = 0;
  void add(double truth, const tune::Estimate& estimate) {
    all += 1;
    // A rounding error is no miss.
    const double slack = 1e-9 * std::abs(truth) + 1e-9;
    covered += truth >= estimate.low - slack && truth <= estimate.high + slack ? 1 : 0;
  }
  void add(const Hits& other) {
    covered += other.covered;
    all += other.all;
  }
  double share() const { return all > 0 ? covered / all : 0; }
};

struct Scored {
  bool answered = false;
  bool provisional = false;
  double error = 0;  // of the reported figure, percent of the truth
  double regret = 0;
  double best_observed_error = 0;  // what "the best seen" would have overstated
  double width = 0;                // of the interval, percent
  Hits figure, gain, set_back, set_back_launched, variance_main, variance_total;
  Verdict top = Verdict::kWrongSet;
  bool fewer = false;  // than three named
  double failed = 0;
  double conclude_seconds = 0;
};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class F>
void in_parallel(std::size_t items, int threads, F work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> pool;
    for (int n = 0; n < threads; ++n)
      pool.emplace_back([&] {
        try {
          for (std::size_t item = next++; item < items; item = next++) work(item);
        } catch (...) {
          const std::lock_guard lock(mutex);
          failure = std::current_exception();
        }
      });
  }
  if (failure) std::rethrow_exception(failure);
}

std::vector<Counted> find_counted(const Arguments& arguments) {
  std::vector<Counted> all;
  for (const std::string& kind : arguments.kinds) {
    int found = -arguments.skip;
    const int most = 10 * (arguments.instances + arguments.skip);
    for (int first = 0; found < arguments.instances && first < most; first += 8) {
      std::vector<Counted> chunk(8);
      in_parallel(chunk.size(), arguments.threads, [&](std::size_t n) {
        chunk[n].surface = make_surface(kind, first + static_cast<int>(n));
        chunk[n].facts = study_surface(*chunk[n].surface);
        if (chunk[n].facts.counts) chunk[n].variance = variance_truth(*chunk[n].surface);
      });
      for (Counted& counted : chunk) {
        if (!counted.facts.counts || found >= arguments.instances) continue;
        if (++found > 0) all.push_back(std::move(counted));
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

Scored score(const Counted& counted, const tune::Space& space, const std::vector<tune::Trial>& history,
             const tune::Conclusion& conclusion) {
  Scored scored;
  double best_observed = 0;
  for (const tune::Trial& trial : history) {
    scored.failed += tune::measured(trial) ? 0 : 1.0 / static_cast<double>(history.size());
    best_observed = std::max(best_observed, trial.throughput);
  }
  if (!conclusion.best) return scored;
  const Surface& surface = *counted.surface;
  scored.answered = true;
  scored.provisional = conclusion.best->provisional;
  const tune::Estimate& figure = conclusion.best->throughput;
  const double truth = surface.at(conclusion.best->config).throughput;
  scored.error = 100 * (figure.value / truth - 1);
  scored.best_observed_error = 100 * (best_observed / truth - 1);
  scored.width = 100 * (figure.high - figure.low) / truth;
  scored.regret = regret_percent(counted.facts, truth);
  scored.figure.add(truth, figure);
  if (conclusion.gain)
    scored.gain.add(100 * (truth / surface.at(conclusion.baseline).throughput - 1), conclusion.gain->percent);
  const auto costs = set_back_truth(surface, space, conclusion.best->config);
  for (const tune::KnobImportance& importance : conclusion.importance) {
    const std::size_t knob = *space.find(importance.knob);
    scored.variance_main.add(counted.variance.main[knob], importance.variance_main_percent);
    scored.variance_total.add(counted.variance.total[knob], importance.variance_total_percent);
    if (!importance.set_back_percent) continue;
    scored.set_back.add(costs.at(importance.knob), *importance.set_back_percent);
    if (importance.set_back_percent->launches > 0)
      scored.set_back_launched.add(costs.at(importance.knob), *importance.set_back_percent);
  }
  scored.top = judge_top(costs, conclusion);
  scored.fewer = conclusion.top.size() + conclusion.tied.size() < 3;
  return scored;
}

Scored run(const Counted& counted, int seed, const Arguments& arguments) {
  const Surface& surface = *counted.surface;
  tune::StrategyOptions options;
  options.trials = arguments.trials;
  options.seed = static_cast<std::uint64_t>(seed);
  const tune::Strategy strategy(tune::Space::parse(surface.space_yaml(), surface.kind()), options);
  std::vector<tune::Trial> history;
  while (const auto proposal = strategy.next(history))
    history.push_back(make_trial(surface, *proposal, static_cast<std::int64_t>(history.size()), seed));
  const double start = thread_seconds();
  const tune::Conclusion conclusion = tune::conclude(strategy, history);
  const double seconds = thread_seconds() - start;
  Scored scored = score(counted, strategy.space(), history, conclusion);
  scored.conclude_seconds = seconds;
  if (arguments.each) {
    std::string line =
        fmt::format("{} {} seed {}: error {:.2f}% regret {:.1f}% verdict {} top {} tied {} |", surface.kind(),
                    surface.instance(), seed, scored.error, scored.regret, static_cast<int>(scored.top),
                    fmt::join(conclusion.top, ","), fmt::join(conclusion.tied, ","));
    const auto costs = conclusion.best ? set_back_truth(surface, strategy.space(), conclusion.best->config)
                                       : std::map<std::string, double>{};
    for (const tune::KnobImportance& importance : conclusion.importance)
      if (importance.set_back_percent && importance.set_back_percent->high != 0)
        line += fmt::format(" {} {:.1f} [{:.1f} {:.1f}] n{} true {:.1f};", importance.knob,
                            importance.set_back_percent->value, importance.set_back_percent->low,
                            importance.set_back_percent->high, importance.set_back_percent->launches,
                            costs.at(importance.knob));
    fmt::print("{}\n", line);
  }
  return scored;
}

// Mean and its Monte-Carlo error.
struct Mean {
  double value = 0, error = 0;
};
Mean mean_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  double sum = 0, square = 0;
  for (const double value : values) sum += value;
  for (const double value : values) square += (value - sum / n) * (value - sum / n);
  return {sum / n, n > 1 ? std::sqrt(square / (n - 1) / n) : 0};
}

// A share over studies, each study one unit: its intervals are not independent of each other.
Mean share_of(const std::vector<Scored>& all, Hits Scored::*field) {
  std::vector<double> values;
  Hits sum;
  for (const Scored& scored : all) {
    sum.add(scored.*field);
    if ((scored.*field).all > 0) values.push_back(100 * (scored.*field).share());
  }
  return {100 * sum.share(), mean_of(values).error};
}

template <class Value>
Mean over(const std::vector<Scored>& all, const Value& value) {
  std::vector<double> values;
  for (const Scored& scored : all)
    if (scored.answered) values.push_back(value(scored));
  return mean_of(values);
}

struct Line {
  std::string name;
  Mean mean;
  double least = -1e300, most = 1e300;  // wanted
  std::string wanted() const {
    if (least <= -1e300) return "";
    return most >= 100 ? fmt::format("at least {}", least) : fmt::format("{} to {}", least, most);
  }
  bool met() const { return mean.value >= least && mean.value <= most; }
};

std::vector<Line> lines_of(const std::vector<Scored>& all) {
  const auto right = [](const Scored& s) { return s.top <= Verdict::kRightByTie ? 100.0 : 0.0; };
  return {
      {"bias of the reported figure, %", over(all, [](const Scored& s) { return s.error; }), -0.5, 0.5},
      {"95% interval of the figure covers, %", share_of(all, &Scored::figure), 92, 98},
      {"95% interval of the gain covers, %", share_of(all, &Scored::gain), 92, 98},
      {"three dearest knobs right, %", over(all, right), 80, 100},
      {"  of these by a declared tie, %",
       over(all, [](const Scored& s) { return s.top == Verdict::kRightByTie ? 100.0 : 0.0; })},
      {"  of these fewer than three named, %", over(all, [&](const Scored& s) { return s.fewer ? right(s) : 0.0; })},
      {"  a tie declared that is none, %",
       over(all, [](const Scored& s) { return s.top == Verdict::kWrongTie ? 100.0 : 0.0; })},
      {"set-back intervals cover, %", share_of(all, &Scored::set_back_launched), 90, 100},
      {"  knobs at their default included, %", share_of(all, &Scored::set_back)},
      {"variance shares, main: intervals cover, %", share_of(all, &Scored::variance_main), 90, 100},
      {"variance shares, total: intervals cover, %", share_of(all, &Scored::variance_total), 90, 100},
      {"width of the figure's interval, %", over(all, [](const Scored& s) { return s.width; })},
      {"the best figure seen would overstate by, %", over(all, [](const Scored& s) { return s.best_observed_error; })},
      {"regret of the chosen configuration, %", over(all, [](const Scored& s) { return s.regret; })},
      {"failed trials, %", over(all, [](const Scored& s) { return 100 * s.failed; })},
      {"time of a conclusion, ms", over(all, [](const Scored& s) { return 1e3 * s.conclude_seconds; })},
  };
}

std::string table_of(const std::vector<std::pair<std::string, std::vector<Scored>>>& columns) {
  std::string text = "| |";
  for (const auto& [name, all] : columns) text += fmt::format(" {} |", name);
  text += " wanted |\n|---|";
  for (std::size_t i = 0; i < columns.size(); ++i) text += "---|";
  text += "---|\n";
  std::vector<std::vector<Line>> lines;
  for (const auto& [name, all] : columns) lines.push_back(lines_of(all));
  for (std::size_t row = 0; row < lines[0].size(); ++row) {
    text += fmt::format("| {} |", lines[0][row].name);
    for (const auto& column : lines)
      text += fmt::format(" {:.2f} ± {:.2f} |", column[row].mean.value, column[row].mean.error);
    text += fmt::format(" {} |\n", lines[0][row].wanted());
  }
  return text;
}

std::string page(const Arguments& arguments, std::size_t studies, std::size_t instances, const std::string& table) {
  return fmt::format(
      "# Are the tuner's statements true?\n\n"
      "{:%Y-%m-%d}. {} studies of {} trials each, everything included (baseline, search, confirmations, controls, "
      "set-backs), on {} "
      "synthetic surfaces whose truth is known by enumeration; noise of about 3% per launch. Written by "
      "`tune_coverage`; "
      "± is the Monte-Carlo error (one standard deviation). Definitions: docs/reference/tuning-statistics.md.\n\n"
      "{}\n"
      "The three dearest knobs by set-back are right when the answer has the three largest true costs. With a declared "
      "tie the answer has four knobs at most, the three are among them, all before the tie belong to the three, and "
      "the "
      "true costs of the tied differ by less than one point; any other tie counts as wrong.\n",
      std::chrono::system_clock::now(), studies, arguments.trials, instances, table);
}

int work(const Arguments& arguments) {
  if (std::ranges::any_of(arguments.kinds, is_lab_kind))
    throw UserError(ExitCode::kUsage, "the laboratory's spaces are too large to enumerate", "use bench/tune/lab.py");
  const std::vector<Counted> counted = find_counted(arguments);
  const auto seeds = static_cast<std::size_t>(arguments.seeds);
  std::vector<Scored> scored(counted.size() * seeds);
  in_parallel(scored.size(), arguments.threads,
              [&](std::size_t n) { scored[n] = run(counted[n / seeds], 1 + static_cast<int>(n % seeds), arguments); });
  std::vector<std::pair<std::string, std::vector<Scored>>> columns{{"all", scored}};
  for (const std::string& kind : arguments.kinds) {
    columns.emplace_back(kind, std::vector<Scored>{});
    for (std::size_t n = 0; n < scored.size(); ++n)
      if (counted[n / seeds].surface->kind() == kind) columns.back().second.push_back(scored[n]);
  }
  const std::string table = table_of(columns);
  fmt::print("{}", table);
  int missed = 0;
  for (const Line& line : lines_of(scored)) {
    if (line.met()) continue;
    fmt::print(stderr, "missed: {} is {:.2f}, wanted {}\n", line.name, line.mean.value, line.wanted());
    ++missed;
  }
  if (!arguments.report.empty())
    std::ofstream(arguments.report) << page(arguments, scored.size(), counted.size(), table);
  return missed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Are the tuner's statements true?");
  app.add_option("--kind", arguments.kinds)->delimiter(',');
  app.add_option("--instances", arguments.instances, "counted instances of each kind");
  app.add_option("--skip", arguments.skip, "leave out the first counted instances of each kind");
  app.add_option("--seeds", arguments.seeds);
  app.add_option("--trials", arguments.trials);
  app.add_option("--threads", arguments.threads);
  app.add_option("--report", arguments.report, "write the page here");
  app.add_flag("--each", arguments.each, "a line per study");
  CLI11_PARSE(app, argc, argv);
  try {
    return work(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tune_coverage: {}\n", error.what());
    return 1;
  }
}
