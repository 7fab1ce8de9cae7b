// Accuracy: predictions held against measurements. Pure functions over plain values; nothing here knows how a
// prediction was made.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::validation {

// One run with what was predicted of it and what was measured. Rates are tokens/s/GPU, memory is GiB.
struct Scored {
  std::string id;
  std::string source;    // family: where it was published
  std::string hardware;  // kind
  std::string model;
  std::int64_t gpus = 0;
  bool failed = false;      // the run crashed or ran out of memory: it has no measured rate
  bool cannot_run = false;  // a rule of layouts forbids it, whatever the memory
  bool complete = true;     // the configuration is stated completely and the evidence is not weak

  // Neighbours of a run have the same tensor, pipeline and data parallelism ("tp=4,pp=2"; empty: not known) and a
  // micro-batch at most twice or half as large, with or without ZeRO.
  std::string degrees;
  std::int64_t micro = 0;

  std::optional<double> measured;
  std::optional<double> predicted, low, high;
  std::optional<double> measured_memory, predicted_memory;
  std::optional<bool> predicted_fits;
  std::optional<double> out_of_memory_probability;
  // Shares of the predicted step by term ("compute", "tp_comm", ...); empty: not known.
  std::vector<std::pair<std::string, double>> shares;
};

// Runs predicted without what is left out of the fit (their model, source, or hardware and framework), after so many
// runs of the same source and of what is left out were observed.
struct HeldOutColumn {
  std::string left_out;
  int observed = 0;
  std::vector<Scored> rows;  // complete configurations and others; see Scored::complete
};

// |predicted / measured - 1| over the runs that have both; 0 of them: n = 0.
struct ErrorSummary {
  std::size_t n = 0;
  double mean = 0;
  double median = 0;
  double bias = 0;     // exp(mean log(predicted / measured)) - 1: above 0 predicts too fast
  double largest = 0;  // and whose it is
  std::string largest_id;
};
ErrorSummary rate_error(const std::vector<Scored>& runs);
ErrorSummary memory_error(const std::vector<Scored>& runs);

// Kendall's tau-b of the pairs (Kendall 1945: ties in either are taken out of the denominator). Absent where one side
// is all ties or there are fewer than two pairs. O(n^2).
std::optional<double> kendall_tau_b(const std::vector<std::pair<double, double>>& pairs);

struct GroupRank {
  std::string model;
  std::int64_t gpus = 0;
  std::size_t ran = 0, failed = 0;
  std::optional<double> tau;  // predicted against measured rate, runs that ran
  double regret = 0;          // of the first pick: 1 - its measured rate / the best one; 1 where it failed
  // The same of expected rates, of the first pick and of the best of the first three. The expected rate of a run is the
  // mean of those measured of it and its neighbours: no run was repeated, and a run may have stalled that would not
  // the next time. Of a failed one it is 0.
  double expected_regret = 0, regret_of_three = 0;
  std::string pick, best;  // ids
};

// What the planner's search accepts by default (planner::Constraints).
inline constexpr double kAcceptedOutOfMemory = 0.25;

// One entry per (model, GPUs) group that has a run with a measured rate, in order of their names. The pick is the
// planner's: fastest times the chance to run, among those predicted to fit with at most kAcceptedOutOfMemory (all,
// where none is); failed ones compete too.
std::vector<GroupRank> rank_groups(const std::vector<Scored>& runs);

struct RankSummary {
  std::size_t groups = 0, groups_with_tau = 0;
  double mean_tau = 0, median_tau = 0;
  double mean_regret = 0, median_regret = 0;
  double mean_expected_regret = 0, mean_regret_of_three = 0;
  std::size_t failed_picks = 0;
};
RankSummary summarise(const std::vector<GroupRank>& groups);

// Fits / does not fit. Runs without a prediction of it are left out and counted.
struct FitSummary {
  std::size_t ran_and_fits = 0, ran_but_refused = 0;
  std::size_t failed_and_refused = 0, failed_but_fits = 0;
  std::size_t cannot_run = 0;  // of the failed: no memory would have helped
  std::size_t unpredicted = 0;
  double true_fit_rate() const;
  double true_refusal_rate() const;
  double balanced_accuracy() const;  // mean of the two rates
};
FitSummary fit_accuracy(const std::vector<Scored>& runs);

struct IntervalSummary {
  std::size_t n = 0;
  double coverage = 0;           // share of measurements inside [low, high]
  double below = 0, above = 0;   // shares of measurements under low, over high
  double median_half_width = 0;  // (high - low) / (2 predicted)
};
IntervalSummary interval_quality(const std::vector<Scored>& runs);

// Groups of runs by a key, in order of their keys.
using KeyOf = std::function<std::string(const Scored&)>;
std::vector<std::pair<std::string, std::vector<Scored>>> grouped(const std::vector<Scored>& runs, const KeyOf& key);

// "1-8", "9-64", "65-512", ">512" GPUs.
std::string scale_of(const Scored& run);
// Groups by that, smallest first; empty ones are left out.
std::vector<std::pair<std::string, std::vector<Scored>>> by_scale(const std::vector<Scored>& runs);

// The term other than compute with the largest share of the step, where that is at least kBindingShare; else "compute".
// Groups of runs by it show which formula an error comes from.
inline constexpr double kBindingShare = 0.15;
std::string binding_term(const Scored& run);

double median_of(std::vector<double> values);  // 0 for none; the mean of the middle two for an even number
double mean_of(const std::vector<double>& values);

}  // namespace lockstep::validation
