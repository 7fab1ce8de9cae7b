#include "lockstep/sim/failures/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lockstep/base/units.h"

namespace lockstep::sim {
namespace {

constexpr int kSamplesOfSpares = 200;

void add(Outcome& sum, const Outcome& one, double share) {
  sum.useful += share * one.useful;
  sum.lost += share * one.lost;
  sum.stalled += share * one.stalled;
  sum.recovering += share * one.recovering;
  sum.waiting += share * one.waiting;
  sum.shrunk += share * one.shrunk;
  sum.total += share * one.total;
  sum.interruptions += one.interruptions;
  sum.from_disk += one.from_disk;
  sum.resizes += one.resizes;
  sum.events += one.events;
  sum.worst_lost = std::max(sum.worst_lost, one.worst_lost);
}

template <class Value>
Quantiles of(const std::vector<Outcome>& outcomes, const Value& value) {
  std::vector<double> values;
  values.reserve(outcomes.size());
  for (const Outcome& outcome : outcomes) values.push_back(value(outcome));
  return quantiles(std::move(values));
}

nlohmann::json to_json(const Quantiles& value) {
  return {{"low", value.low}, {"median", value.median}, {"high", value.high}, {"mean", value.mean}};
}

nlohmann::json to_json(const SparesNeeded& value) {
  return {{"low", value.low}, {"expected", value.expected}, {"high", value.high}};
}

}  // namespace

GoodputRow goodput_row(const FaultSource& source, const GoodputQuestion& question, const RunOnNodes& run,
                       std::string name) {
  const auto outcomes = study(source, run, question.seconds, question.samples, question.seed, question.threads);
  GoodputRow row{.name = std::move(name), .run = run, .samples = question.samples};
  row.goodput = of(outcomes, [](const Outcome& one) { return one.goodput(); });
  row.interruptions = of(outcomes, [](const Outcome& one) { return static_cast<double>(one.interruptions); });
  row.lost_seconds = of(outcomes, [](const Outcome& one) { return one.lost; });
  row.worst_lost_seconds = of(outcomes, [](const Outcome& one) { return one.worst_lost; });
  for (const Outcome& one : outcomes) add(row.mean, one, 1.0 / static_cast<double>(outcomes.size()));
  if (question.usd_per_hour > 0 && row.goodput.mean > 0) {
    const double hourly = question.usd_per_hour + (run.spares - question.run.spares) * question.usd_per_node_hour;
    row.usd = hourly * question.seconds / 3600.0 / row.goodput.mean;
  }
  return row;
}

nlohmann::json to_json(const GoodputRow& row) {
  const auto share = [&](double seconds) { return row.mean.total > 0 ? seconds / row.mean.total : 0.0; };
  return {{"name", row.name},
          {"spares", row.run.spares},
          {"when_short", row.run.when_short == WhenShort::kShrink ? "shrink" : "wait"},
          {"checkpoint_interval_seconds", row.run.interval_seconds},
          {"state_from_memory", row.run.from_memory},
          {"goodput", to_json(row.goodput)},
          {"interruptions", to_json(row.interruptions)},
          {"from_disk", static_cast<double>(row.mean.from_disk) / row.samples},
          {"resizes", static_cast<double>(row.mean.resizes) / row.samples},
          {"lost_seconds", to_json(row.lost_seconds)},
          {"worst_lost_seconds", to_json(row.worst_lost_seconds)},
          {"shares",
           {{"useful", share(row.mean.useful)},
            {"lost", share(row.mean.lost)},
            {"stalled", share(row.mean.stalled)},
            {"recovering", share(row.mean.recovering)},
            {"waiting", share(row.mean.waiting)},
            {"shrunk", share(row.mean.shrunk)}}},
          {"usd", row.usd > 0 ? nlohmann::json(row.usd) : nlohmann::json()}};
}

GoodputStudy compare_choices(const FaultSource& source, const GoodputQuestion& question) {
  GoodputStudy made;
  made.failures = source.describe();
  made.samples = question.samples;
  made.seconds = question.seconds;
  const int spare_samples = std::min(question.samples, kSamplesOfSpares);
  const auto needed = [&](double share) {
    return spares_needed(source, question.run.nodes, question.seconds, share, spare_samples, question.seed);
  };
  made.half = needed(0.5);
  made.ninety = needed(0.9);
  made.ninety_nine = needed(0.99);

  const RunOnNodes& planned = question.run;
  const auto try_one = [&](const std::string& name, const auto& change) {
    RunOnNodes changed = planned;
    change(changed);
    made.rows.push_back(goodput_row(source, question, changed, name));
  };
  try_one("as planned", [](RunOnNodes&) {});
  std::set<int> spares = {0, static_cast<int>(std::lround(made.half.expected)),
                          static_cast<int>(std::lround(made.ninety.expected)),
                          static_cast<int>(std::lround(made.ninety_nine.expected))};
  spares.erase(planned.spares);
  for (const int number : spares)
    try_one(number == 1 ? "1 spare" : fmt::format("{} spares", number), [&](RunOnNodes& run) { run.spares = number; });
  for (const double factor : {0.5, 2.0}) {
    const double least = planned.stall_seconds + planned.background_seconds;
    if (!std::isfinite(planned.interval_seconds) || factor * planned.interval_seconds <= least) continue;
    try_one(fmt::format("checkpoints every {}", format_seconds(factor * planned.interval_seconds)),
            [&](RunOnNodes& run) { run.interval_seconds *= factor; });
  }
  try_one(planned.from_memory ? "state from disk only" : "state from memory too",
          [](RunOnNodes& run) { run.from_memory = !run.from_memory; });
  const bool shrinks = planned.when_short == WhenShort::kShrink;
  try_one(shrinks ? "wait for repairs" : "go on with fewer nodes",
          [&](RunOnNodes& run) { run.when_short = shrinks ? WhenShort::kWait : WhenShort::kShrink; });
  return made;
}

nlohmann::json to_json(const GoodputStudy& made) {
  nlohmann::json rows = nlohmann::json::array();
  for (const GoodputRow& row : made.rows) rows.push_back(to_json(row));
  return {{"schema", "lockstep.goodput/1"},
          {"failures", made.failures},
          {"samples", made.samples},
          {"days", made.seconds / 86400.0},
          {"goodput", rows.empty() ? nlohmann::json() : rows[0].at("goodput")},
          {"spares", {{"50", to_json(made.half)}, {"90", to_json(made.ninety)}, {"99", to_json(made.ninety_nine)}}},
          {"choices", rows}};
}

}  // namespace lockstep::sim
