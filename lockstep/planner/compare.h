// Comparison of clusters for one job, and of one cluster in several sizes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// The best plan on one cluster, or why there is none.
struct Option {
  spec::Cluster cluster;
  std::optional<plan::Candidate> best;
  std::string problem;                 // where nothing fits: the term and the excess
  std::optional<bool> meets_deadline;  // where a deadline was given
  std::int64_t runs = 0;               // published runs behind the figures; 0: defaults
};

struct Comparison {
  std::string model;
  double tokens = 0;         // that cost and days are for (samples for images)
  bool tokens_given = true;  // false: nobody said, so a billion (a million samples)
  double deadline_seconds = 0;
  std::vector<Option> options;  // in the order asked
  std::string verdict;          // one line
};

// One search per request; they differ in cluster and profile. With a deadline the cheapest option that ends in time is
// the verdict, else the cheapest and the fastest. Never throws for a cluster on which nothing fits.
Comparison compare(std::vector<SearchRequest> requests);

struct ScalingPoint {
  std::int64_t devices = 0;
  std::int64_t global_sequences = 0;
  std::optional<plan::Candidate> best;  // none: nothing fits, `problem` says why
  std::string problem;
  double efficiency = 0;  // throughput per device over that of the smallest size that fits without offload
};

struct Scaling {
  std::string model;
  std::string cluster;
  bool weak = false;                        // the batch grows with the devices; else it is the same everywhere
  std::vector<ScalingPoint> points;         // fewest devices first
  std::optional<std::int64_t> falls_below;  // first number of devices under kGoodEfficiency
};

inline constexpr double kGoodEfficiency = 0.90;

// `request.cluster` in every size of `devices` (see resized()). With `weak` the batch of the request belongs to the
// smallest size.
Scaling scale(const SearchRequest& request, std::vector<std::int64_t> devices, bool weak);

// Schemas `lockstep.comparison/1` and `lockstep.scaling/1`.
nlohmann::json to_json(const Comparison& comparison);
nlohmann::json to_json(const Scaling& scaling);

}  // namespace lockstep::planner
