#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/report/run_page/run_page.h"

namespace lockstep::report {
namespace {

using telemetry::Bucket;

std::vector<Bucket> buckets_of(const telemetry::RunStore& store, const RunFacts& facts, std::string_view metric,
                               int rank, std::size_t columns) {
  return store.buckets(facts.run.info.id, std::string(metric), rank, facts.first_step, facts.last_step, columns);
}

}  // namespace

HeatMap make_heat_map(const telemetry::RunStore& store, const RunFacts& facts, std::size_t columns,
                      std::size_t most_ranks) {
  HeatMap heat;
  if (facts.steps() == 0) return heat;
  const auto recorded = [&](double PhaseSeconds::*field) {
    return std::any_of(facts.ranks.begin(), facts.ranks.end(),
                       [&](const RankFacts& rank) { return rank.mean.*field > 0.0; });
  };
  const bool waits = recorded(&PhaseSeconds::wait), computes = recorded(&PhaseSeconds::compute);
  heat.what = waits      ? "busy seconds of a step: all but waiting for peers"
              : computes ? "computing seconds of a step"
                         : "seconds of a step";
  const std::string_view base =
      waits || !computes ? telemetry::metric::kStepSeconds : telemetry::metric::kComputeSeconds;
  std::vector<Standing> standings = make_standings(facts);
  std::erase_if(standings, [](const Standing& standing) { return standing.busy_seconds <= 0.0; });
  if (standings.size() > most_ranks) {
    std::stable_sort(standings.begin(), standings.end(),
                     [](const Standing& a, const Standing& b) { return a.slowdown > b.slowdown; });
    standings.resize(most_ranks);
    std::sort(standings.begin(), standings.end(), [](const Standing& a, const Standing& b) { return a.rank < b.rank; });
    heat.what += " (the slowest ranks)";
  }
  // Columns are those of all steps; a rank that was not there has none in some of them.
  const auto steps = static_cast<double>(facts.steps());
  const std::size_t count = std::min(columns, static_cast<std::size_t>(facts.steps()));
  const auto column_of = [&](std::int64_t step) {
    const double share = static_cast<double>(step - facts.first_step) / steps;
    return std::min(count - 1, static_cast<std::size_t>(share * static_cast<double>(count)));
  };
  for (std::size_t c = 0; c < count; ++c) {
    heat.steps.push_back(facts.first_step + static_cast<std::int64_t>(std::floor(static_cast<double>(c) * steps /
                                                                                 static_cast<double>(count))));
  }
  for (const Standing& standing : standings) {
    std::vector<double> row(count, std::numeric_limits<double>::quiet_NaN());
    for (const Bucket& bucket : buckets_of(store, facts, base, standing.rank, count)) {
      row[column_of(bucket.first_step)] = bucket.mean;
    }
    if (waits) {
      for (const Bucket& bucket : buckets_of(store, facts, telemetry::metric::kWaitSeconds, standing.rank, count)) {
        if (std::isfinite(bucket.mean)) row[column_of(bucket.first_step)] -= bucket.mean;
      }
    }
    heat.ranks.push_back(standing.rank);
    heat.values.push_back(std::move(row));
  }
  return heat;
}

}  // namespace lockstep::report
