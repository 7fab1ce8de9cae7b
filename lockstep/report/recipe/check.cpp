#include "lockstep/report/recipe/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/tune/models/statistics.h"

namespace lockstep::report {
namespace {

constexpr double kPartThatCounts = 0.5;  // of the promised gain: less is another answer
constexpr std::int64_t kMostPairs = 1000;

// How far apart two launches of one configuration are, from every configuration of the study that has two.
tune::PooledSpread spread_of(std::span<const tune::Trial> trials) {
  std::vector<tune::Config> configs;
  std::vector<std::vector<double>> launches;
  for (const tune::Trial& trial : trials) {
    if (!tune::measured(trial) || trial.stopped_early || !(trial.throughput > 0)) continue;
    std::size_t i = 0;
    while (i < configs.size() && !(configs[i] == trial.config)) ++i;
    if (i == configs.size()) {
      configs.push_back(trial.config);
      launches.emplace_back();
    }
    launches[i].push_back(trial.throughput);
  }
  return tune::pooled_log_spread(launches);
}

double to_percent(double log_ratio) { return (std::exp(log_ratio) - 1) * 100; }

double to_log_ratio(double percent) { return std::log1p(percent / 100); }

// Percent below which a gain is no longer what was promised. Overlap alone says little: the wider an interval, the more
// it overlaps.
double least_gain(const tune::Estimate& then) { return kPartThatCounts * then.value; }

CheckVerdict verdict_of(const tune::Estimate& now, const tune::Estimate& then) {
  constexpr double kSlack = 0.05;  // points: what rounding shows as equal is equal
  if (now.high + kSlack < then.low) return CheckVerdict::kFaded;
  if (now.low - kSlack > then.high) return CheckVerdict::kBetter;
  if (then.value > 0 && now.low + kSlack < least_gain(then)) return CheckVerdict::kUnclear;
  return CheckVerdict::kHolds;
}

// Pairs beyond `pairs` after which the interval is narrow enough to say holds or faded, the estimate staying where it
// is; 0 where neither is ever reached, because the study's own interval is so wide.
std::int64_t pairs_that_would_tell(const tune::LogEstimate& ratio, std::int64_t pairs, const tune::Estimate& then) {
  const double to_hold = ratio.mean - to_log_ratio(least_gain(then));
  const double to_fade = to_log_ratio(then.low) - ratio.mean;
  const double narrow_enough = std::max(to_hold, to_fade);
  if (narrow_enough <= 0) return 0;
  for (std::int64_t more = 1; more <= kMostPairs; ++more) {
    const tune::LogEstimate later{ratio.mean,
                                  ratio.variance * static_cast<double>(pairs) / static_cast<double>(pairs + more),
                                  ratio.degrees_of_freedom + static_cast<double>(more)};
    if (later.half_width() <= narrow_enough) return more;
  }
  return kMostPairs;
}

std::string overlap_of(const CheckResult& check) {
  return fmt::format("The intervals overlap from {:+.1f}% to {:+.1f}%",
                     std::max(check.gain_percent.low, check.expected_percent.low),
                     std::min(check.gain_percent.high, check.expected_percent.high));
}

std::string way_out_of(const CheckResult& check) {
  if (check.more_pairs == 0)
    return "No number of pairs would decide it, the study's own interval is too wide: tune again";
  if (check.more_pairs >= kMostPairs) return fmt::format("More than {} pairs would be needed", kMostPairs);
  return fmt::format("About {} more {} would decide it: --pairs {}", check.more_pairs,
                     check.more_pairs == 1 ? "pair" : "pairs", check.gain_percent.launches + check.more_pairs);
}

std::string sentence_of(const CheckResult& check) {
  const std::string now = fmt::format("{:+.1f}% now ({:+.1f}% to {:+.1f}%, {} pairs)", check.gain_percent.value,
                                      check.gain_percent.low, check.gain_percent.high, check.gain_percent.launches);
  const std::string then = fmt::format("the study said {:+.1f}% ({:+.1f}% to {:+.1f}%)", check.expected_percent.value,
                                       check.expected_percent.low, check.expected_percent.high);
  switch (check.verdict) {
    case CheckVerdict::kHolds:
      return fmt::format("Holds: {}; {}. {}.", now, then, overlap_of(check));
    case CheckVerdict::kBetter:
      return fmt::format("More than promised: {}; {}.", now, then);
    case CheckVerdict::kFaded:
      return fmt::format("No longer holds: {}; {}. Tune again.", now, then);
    case CheckVerdict::kUnclear:
      return fmt::format("Unclear, within noise: {}; {}. {}, but less than half the gain is possible too. {}.", now,
                         then, overlap_of(check), way_out_of(check));
    case CheckVerdict::kDoesNotRun:
      return fmt::format("The recommended setting does not run here: {}.", check.failure);
    case CheckVerdict::kNoComparison:
      break;
  }
  if (check.failure.empty()) return "The study has no gain over the default to compare with.";
  return fmt::format("The default does not run here, so that there is nothing to compare with: {}.", check.failure);
}

template <class Check, class Use>
void for_each_field(Check& check, Use use) {
  use("gain_percent", check.gain_percent);
  use("expected_percent", check.expected_percent);
  use("best", check.best);
  use("default", check.standard);
  use("failure", check.failure);
  use("checked_at", check.checked_at);
  use("gpu_seconds", check.gpu_seconds);
  use("sentence", check.sentence);
}

nlohmann::json json_of(const auto& value) { return value; }
nlohmann::json json_of(const tune::Estimate& value) {
  return {{"estimate", value.value}, {"low", value.low}, {"high", value.high}, {"pairs", value.launches}};
}
void read_json(const nlohmann::json& json, auto& out) { json.get_to(out); }
void read_json(const nlohmann::json& json, tune::Estimate& out) {
  out = {json.at("estimate"), json.at("low"), json.at("high"), json.at("pairs")};
}

}  // namespace

CheckResult judge_check(const tune::Conclusion& conclusion, std::span<const tune::Trial> trials,
                        std::vector<double> best, std::vector<double> standard) {
  CheckResult check;
  check.best = std::move(best);
  check.standard = std::move(standard);
  const tune::LogEstimate ratio = tune::paired_log_ratio(check.best, check.standard, spread_of(trials));
  const double half = ratio.half_width();
  check.gain_percent = {to_percent(ratio.mean), to_percent(ratio.mean - half), to_percent(ratio.mean + half),
                        static_cast<std::int64_t>(check.best.size())};
  if (conclusion.gain) {
    check.expected_percent = conclusion.gain->percent;
    check.verdict = verdict_of(check.gain_percent, check.expected_percent);
    if (check.verdict == CheckVerdict::kUnclear) {
      check.more_pairs = pairs_that_would_tell(ratio, check.gain_percent.launches, check.expected_percent);
    }
  }
  check.sentence = sentence_of(check);
  return check;
}

CheckResult check_recipe(tune::Evaluator& evaluator, const tune::Conclusion& conclusion,
                         std::span<const tune::Trial> trials, const CheckOptions& options) {
  if (!conclusion.best) throw does_not_fit("the study found no setting that runs", "see `lockstep tune --show`");
  if (!conclusion.default_given)
    throw bad_input("the study's space gives no default to compare the recipe with",
                    "write `default:` at every knob of the space and tune again");
  std::vector<double> best, standard;
  double gpu_seconds = 0;
  std::int64_t next_number =
      trials.empty() ? 0 : trials.back().number + 1;  // fresh noise where noise is keyed by trial
  const int launches = 2 * options.pairs;
  for (int launch = 0; launch < launches; ++launch) {
    const bool second = launch % 2 == 1;
    const bool is_best = ((launch / 2) % 2 == 0) == second;
    tune::EvaluationRequest request;
    request.trial = next_number++;
    request.config = is_best ? conclusion.best->config : conclusion.baseline;
    request.budget_seconds = options.launch_seconds;
    request.stop = options.stop;
    const tune::Measurement result = evaluator.evaluate(request);
    gpu_seconds += result.seconds * evaluator.devices(request.config);
    if (options.stop != nullptr && options.stop->load()) throw UserError(ExitCode::kInterrupted, "stopped", "");
    if (options.progress) options.progress(launch, launches, is_best, result);
    if (result.outcome != tune::Outcome::kMeasured) {
      CheckResult check;
      check.verdict = is_best ? CheckVerdict::kDoesNotRun : CheckVerdict::kNoComparison;
      check.failure = result.message.empty() ? to_string(result.outcome)
                                             : fmt::format("{} ({})", to_string(result.outcome), result.message);
      check.best = best, check.standard = standard;
      check.checked_at = unix_seconds();
      check.gpu_seconds = gpu_seconds;
      check.sentence = sentence_of(check);
      return check;
    }
    (is_best ? best : standard).push_back(tune::summarize_launch(result.samples).mean);
  }
  CheckResult check = judge_check(conclusion, trials, std::move(best), std::move(standard));
  check.checked_at = unix_seconds();
  check.gpu_seconds = gpu_seconds;
  return check;
}

nlohmann::json to_json(const CheckResult& check) {
  nlohmann::json document{{"verdict", to_string(check.verdict)}, {"more_pairs", check.more_pairs}};
  for_each_field(check, [&](const char* key, const auto& value) { document[key] = json_of(value); });
  return document;
}

std::optional<CheckResult> check_from_json(const nlohmann::json& document) try {
  CheckResult check;
  const auto verdict = value_named<CheckVerdict>(document.at("verdict").get<std::string>());
  if (!verdict) return std::nullopt;
  check.verdict = *verdict;
  check.more_pairs = document.value("more_pairs", std::int64_t{0});  // absent in older files
  for_each_field(check, [&](const char* key, auto& value) { read_json(document.at(key), value); });
  return check;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

}  // namespace lockstep::report
