#include "lockstep/serve/series_values.h"

#include <algorithm>

#include "lockstep/telemetry/span_codec.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
using telemetry::Bucket;
using telemetry::RunStore;

std::int64_t last_step_of_any(const RunStore& store, const std::string& run, const std::string& metric,
                              const std::vector<int>& ranks) {
  std::int64_t last = -1;
  for (const int rank : ranks) last = std::max(last, store.last_step(run, metric, rank).value_or(-1));
  return last;
}

std::int64_t first_step_of(const RunStore& store, const std::string& run, const std::string& metric, int rank) {
  const auto points = store.points_after(run, metric, rank, -1, 1);
  return points.empty() ? 0 : points.front().step;
}

// Buckets of a store that keeps summaries end somewhere near a column's ends: each is shown where its middle is, and
// in columns that it covers and nothing else does.
json heatmap_row(const std::vector<Bucket>& buckets, std::int64_t first, std::int64_t width, std::size_t columns) {
  std::vector<json> row(columns);
  const auto column_of = [&](std::int64_t step) {
    return std::min(static_cast<std::size_t>(std::max<std::int64_t>(0, step - first) / width), columns - 1);
  };
  for (const Bucket& bucket : buckets) {
    json& cell = row[column_of(bucket.first_step + (bucket.last_step - bucket.first_step) / 2)];
    if (cell.is_null()) cell = bucket.mean;
  }
  for (const Bucket& bucket : buckets) {
    for (std::size_t i = column_of(bucket.first_step); i <= column_of(bucket.last_step); ++i) {
      if (row[i].is_null()) row[i] = bucket.mean;
    }
  }
  return row;
}

}  // namespace

json series_json(const RunStore& store, const std::string& run, const SeriesQuestion& question) {
  const std::vector<int> ranks = store.ranks(run, question.metric);
  const int rank = question.rank >= 0 ? question.rank : ranks.empty() ? 0 : ranks.front();
  const std::int64_t recorded = store.last_step(run, question.metric, rank).value_or(-1);
  const std::int64_t last = question.to < 0 ? recorded : std::min(question.to, recorded);
  const std::int64_t first = std::max(question.from, first_step_of(store, run, question.metric, rank));
  std::vector<Bucket> buckets;
  if (last >= first) buckets = store.buckets(run, question.metric, rank, first, last, question.points);
  json steps = json::array(), times = json::array(), means = json::array(), least = json::array(), most = json::array();
  for (const Bucket& bucket : buckets) {
    steps.push_back(bucket.first_step);
    times.push_back(bucket.time);
    means.push_back(bucket.mean);  // NaN is written as null
    least.push_back(bucket.minimum);
    most.push_back(bucket.maximum);
  }
  return {{"schema", "lockstep.api.series/1"}, {"metric", question.metric}, {"rank", rank},
          {"steps", std::move(steps)},         {"times", std::move(times)}, {"mean", std::move(means)},
          {"min", std::move(least)},           {"max", std::move(most)},    {"last_step", recorded}};
}

json heatmap_json(const RunStore& store, const std::string& run, const HeatmapQuestion& question) {
  const std::vector<int> ranks = store.ranks(run, question.metric);
  const std::int64_t recorded = last_step_of_any(store, run, question.metric, ranks);
  const std::int64_t last = question.to < 0 ? recorded : std::min(question.to, recorded);
  const auto affordable = kHeatmapPoints / std::max<std::int64_t>(1, static_cast<std::int64_t>(ranks.size()));
  const std::int64_t begin = ranks.empty() ? 0 : first_step_of(store, run, question.metric, ranks.front());
  const std::int64_t first = question.from >= 0 ? question.from : std::max(begin, last - affordable + 1);
  json steps = json::array(), values = json::array();
  if (!ranks.empty() && last >= first) {
    const auto count = static_cast<std::int64_t>(question.columns);
    const std::int64_t width = (last - first + count) / count;  // as RunStore::buckets() divides
    const std::int64_t columns = (last - first) / width + 1;
    for (std::int64_t column = 0; column < columns; ++column) steps.push_back(first + column * width);
    for (const int rank : ranks) {
      json row = heatmap_row(store.buckets(run, question.metric, rank, first, last, question.columns), first, width,
                             static_cast<std::size_t>(columns));
      values.push_back(std::move(row));
    }
  }
  return {{"schema", "lockstep.api.heatmap/1"},
          {"metric", question.metric},
          {"ranks", ranks},
          {"steps", std::move(steps)},
          {"values", std::move(values)}};
}

json timeline_json(const RunStore& store, const std::string& run, std::int64_t step) {
  if (step < 0) {
    const std::vector<std::int64_t> kept = store.span_steps(run);
    step = kept.empty() ? 0 : kept.back();
  }
  json ranks = json::array();
  for (const telemetry::SpanBatch& batch : store.spans(run, step, step)) {
    json rank = telemetry::spans_to_json(batch);
    rank["rank"] = batch.rank;
    rank["time"] = batch.time;
    ranks.push_back(std::move(rank));
  }
  return {{"schema", "lockstep.api.timeline/1"}, {"step", step}, {"ranks", std::move(ranks)}};
}

}  // namespace lockstep::serve
