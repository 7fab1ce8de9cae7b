#include "validation/accuracy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace lockstep::validation {
namespace {

ErrorSummary error_of(const std::vector<Scored>& runs, std::optional<double> Scored::*measured,
                      std::optional<double> Scored::*predicted) {
  ErrorSummary summary;
  std::vector<double> errors;
  double log_sum = 0;
  for (const Scored& run : runs) {
    if (!(run.*measured) || !(run.*predicted)) continue;
    const double ratio = *(run.*predicted) / *(run.*measured);
    const double error = std::abs(ratio - 1);
    errors.push_back(error);
    log_sum += std::log(ratio);
    if (error <= summary.largest && !summary.largest_id.empty()) continue;
    summary.largest = error;
    summary.largest_id = run.id;
  }
  summary.n = errors.size();
  if (errors.empty()) return summary;
  summary.mean = mean_of(errors);
  summary.bias = std::exp(log_sum / static_cast<double>(errors.size())) - 1;
  summary.median = median_of(std::move(errors));
  return summary;
}

int sign(double value) { return (value > 0) - (value < 0); }

// The configurations a planner would have started, first to last: predicted fastest among those it believes to fit.
std::vector<const Scored*> in_order_of_picks(const std::vector<Scored>& runs) {
  const auto expected = [](const Scored& run) {
    return *run.predicted * (1 - run.out_of_memory_probability.value_or(0));
  };
  const auto fits = [](const Scored& run) {
    return run.predicted_fits.value_or(true) && run.out_of_memory_probability.value_or(0) <= kAcceptedOutOfMemory;
  };
  std::vector<const Scored*> picks;
  for (const Scored& run : runs) {
    if (run.predicted) picks.push_back(&run);
  }
  std::stable_sort(picks.begin(), picks.end(), [&](const Scored* a, const Scored* b) {
    return fits(*a) != fits(*b) ? fits(*a) : expected(*a) > expected(*b);
  });
  return picks;
}

bool are_neighbours(const Scored& a, const Scored& b) {
  if (&a == &b) return true;
  if (a.degrees.empty() || a.degrees != b.degrees) return false;
  return a.micro <= 2 * b.micro && b.micro <= 2 * a.micro;
}

double expected_rate(const Scored& run, const std::vector<Scored>& runs) {
  if (!run.measured) return 0;
  std::vector<double> rates;
  for (const Scored& other : runs) {
    if (other.measured && are_neighbours(run, other)) rates.push_back(*other.measured);
  }
  return mean_of(rates);
}

const Scored* fastest(const std::vector<Scored>& runs) {
  const Scored* best = nullptr;
  for (const Scored& run : runs) {
    if (run.measured && (best == nullptr || *run.measured > *best->measured)) best = &run;
  }
  return best;
}

GroupRank rank_group(const std::vector<Scored>& runs, const Scored& best) {
  GroupRank rank{.model = best.model, .gpus = best.gpus, .best = best.id};
  std::vector<std::pair<double, double>> pairs;
  for (const Scored& run : runs) {
    rank.ran += run.measured.has_value();
    rank.failed += run.failed;
    if (run.measured && run.predicted) pairs.emplace_back(*run.predicted, *run.measured);
  }
  rank.tau = kendall_tau_b(pairs);
  const std::vector<const Scored*> picks = in_order_of_picks(runs);
  rank.regret = rank.expected_regret = rank.regret_of_three = 1;
  if (picks.empty()) return rank;
  rank.pick = picks.front()->id;
  if (picks.front()->measured) rank.regret = 1 - *picks.front()->measured / *best.measured;
  double most = 0;
  for (const Scored& run : runs) most = std::max(most, expected_rate(run, runs));
  rank.expected_regret = 1 - expected_rate(*picks.front(), runs) / most;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, picks.size()); ++i) {
    rank.regret_of_three = std::min(rank.regret_of_three, 1 - expected_rate(*picks[i], runs) / most);
  }
  return rank;
}

double share(std::size_t part, std::size_t other) {
  const std::size_t whole = part + other;
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

struct Scale {
  std::int64_t most;
  const char* name;
};
constexpr std::array<Scale, 3> kScales{{{8, "1-8"}, {64, "9-64"}, {512, "65-512"}}};
constexpr const char* kLargestScale = ">512";

}  // namespace

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ErrorSummary rate_error(const std::vector<Scored>& runs) {
  return error_of(runs, &Scored::measured, &Scored::predicted);
}

ErrorSummary memory_error(const std::vector<Scored>& runs) {
  return error_of(runs, &Scored::measured_memory, &Scored::predicted_memory);
}

std::optional<double> kendall_tau_b(const std::vector<std::pair<double, double>>& pairs) {
  double concordance = 0;  // concordant minus discordant pairs
  double untied_first = 0;
  double untied_second = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const int first = sign(pairs[i].first - pairs[j].first);
      const int second = sign(pairs[i].second - pairs[j].second);
      concordance += first * second;
      untied_first += first != 0;
      untied_second += second != 0;
    }
  }
  if (untied_first == 0 || untied_second == 0) return std::nullopt;
  return concordance / std::sqrt(untied_first * untied_second);
}

std::vector<GroupRank> rank_groups(const std::vector<Scored>& runs) {
  std::map<std::pair<std::string, std::int64_t>, std::vector<Scored>> groups;
  for (const Scored& run : runs) groups[{run.model, run.gpus}].push_back(run);
  std::vector<GroupRank> ranks;
  for (const auto& [key, members] : groups) {
    if (const Scored* best = fastest(members)) ranks.push_back(rank_group(members, *best));
  }
  return ranks;
}

RankSummary summarise(const std::vector<GroupRank>& groups) {
  RankSummary summary{.groups = groups.size()};
  std::vector<double> taus;
  std::vector<double> regrets, expected, of_three;
  for (const GroupRank& group : groups) {
    if (group.tau) taus.push_back(*group.tau);
    regrets.push_back(group.regret);
    expected.push_back(group.expected_regret);
    of_three.push_back(group.regret_of_three);
    summary.failed_picks += group.regret >= 1;
  }
  summary.groups_with_tau = taus.size();
  summary.mean_tau = mean_of(taus);
  summary.median_tau = median_of(taus);
  summary.mean_regret = mean_of(regrets);
  summary.mean_expected_regret = mean_of(expected);
  summary.mean_regret_of_three = mean_of(of_three);
  summary.median_regret = median_of(regrets);
  return summary;
}

double FitSummary::true_fit_rate() const { return share(ran_and_fits, ran_but_refused); }
double FitSummary::true_refusal_rate() const { return share(failed_and_refused, failed_but_fits); }
double FitSummary::balanced_accuracy() const { return (true_fit_rate() + true_refusal_rate()) / 2; }

FitSummary fit_accuracy(const std::vector<Scored>& runs) {
  FitSummary summary;
  for (const Scored& run : runs) {
    summary.cannot_run += run.failed && run.cannot_run;
    if (!run.predicted_fits) {
      ++summary.unpredicted;
    } else if (run.failed) {
      ++(*run.predicted_fits ? summary.failed_but_fits : summary.failed_and_refused);
    } else {
      ++(*run.predicted_fits ? summary.ran_and_fits : summary.ran_but_refused);
    }
  }
  return summary;
}

IntervalSummary interval_quality(const std::vector<Scored>& runs) {
  IntervalSummary summary;
  std::vector<double> half_widths;
  for (const Scored& run : runs) {
    if (!run.measured || !run.predicted || !run.low || !run.high) continue;
    ++summary.n;
    summary.below += *run.measured < *run.low;
    summary.above += *run.measured > *run.high;
    half_widths.push_back((*run.high - *run.low) / (2 * *run.predicted));
  }
  if (summary.n == 0) return summary;
  summary.below /= static_cast<double>(summary.n);
  summary.above /= static_cast<double>(summary.n);
  summary.coverage = 1 - summary.below - summary.above;
  summary.median_half_width = median_of(std::move(half_widths));
  return summary;
}

std::vector<std::pair<std::string, std::vector<Scored>>> grouped(const std::vector<Scored>& runs, const KeyOf& key) {
  std::map<std::string, std::vector<Scored>> groups;
  for (const Scored& run : runs) groups[key(run)].push_back(run);
  return {groups.begin(), groups.end()};
}

std::string scale_of(const Scored& run) {
  for (const Scale& scale : kScales) {
    if (run.gpus <= scale.most) return scale.name;
  }
  return kLargestScale;
}

std::vector<std::pair<std::string, std::vector<Scored>>> by_scale(const std::vector<Scored>& runs) {
  std::vector<std::pair<std::string, std::vector<Scored>>> groups;
  for (const Scale& scale : kScales) groups.emplace_back(scale.name, std::vector<Scored>());
  groups.emplace_back(kLargestScale, std::vector<Scored>());
  for (const Scored& run : runs) {
    const std::string name = scale_of(run);
    std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.first == name;
    })->second.push_back(run);
  }
  std::erase_if(groups, [](const auto& group) { return group.second.empty(); });
  return groups;
}

std::string binding_term(const Scored& run) {
  std::string binding = "compute";
  double largest = kBindingShare;
  for (const auto& [term, part] : run.shares) {
    if (term == "compute" || part < largest) continue;
    binding = term;
    largest = part;
  }
  return binding;
}

}  // namespace lockstep::validation
