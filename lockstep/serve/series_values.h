// Curves, heat maps and timelines of a run as the API tells them (docs/reference/http-api.md). All of them answer with
// a bounded number of values however long the run is.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::serve {

struct SeriesQuestion {
  std::string metric;
  int rank = -1;                   // -1: the lowest that recorded it
  std::int64_t from = 0, to = -1;  // steps, inclusive; to -1: the last one
  std::size_t points = 1500;
};
nlohmann::json series_json(const telemetry::RunStore& store, const std::string& run, const SeriesQuestion& question);

// Means per rank and column; without `from` at most kHeatmapPoints points are read, the last ones.
inline constexpr std::int64_t kHeatmapPoints = 2'000'000;
struct HeatmapQuestion {
  std::string metric;
  std::int64_t from = -1, to = -1;
  std::size_t columns = 200;
};
nlohmann::json heatmap_json(const telemetry::RunStore& store, const std::string& run, const HeatmapQuestion& question);

// Spans of all ranks in one step; `step` -1: the newest that has any.
nlohmann::json timeline_json(const telemetry::RunStore& store, const std::string& run, std::int64_t step);

}  // namespace lockstep::serve
