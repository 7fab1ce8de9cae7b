// What a recorded run tells about itself, read once for all detectors: the phases of its steady steps rank by rank,
// what its spans say about exchanges between ranks, events, what agents saw of the nodes, and what was planned.
// Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/diagnose/exchanges.h"
#include "lockstep/plan/plan.h"
#include "lockstep/plan/run.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::diagnose {

// Where a rank is in the layout and among the nodes.
struct Place {
  std::int64_t pp = 0, dp = 0, shard = 0, cp = 0, tp = 0;
  int node = 0;
};

// Inclusive; what is not given is open.
struct StepRange {
  std::optional<std::int64_t> first, last;
};

struct RunEvidence {
  telemetry::RunRow row;
  std::optional<spec::Job> job;     // as it was run; absent as `run` is
  std::optional<plan::Run> run;     // absent: the program of somebody else, or a job this version cannot read
  std::optional<plan::Plan> plan;   // with its prediction where there is one
  std::vector<Place> places;        // by rank
  bool nodes_known = false;         // places[].node was recorded, not guessed from the cluster
  std::vector<std::int64_t> steps;  // steady ones: warm-up left out
  // [metric][rank][step]; NaN where a rank has not recorded it.
  std::map<std::string, std::vector<std::vector<double>>, std::less<>> series;
  // Of nodes, by the rank they are recorded with; in the order of time.
  std::map<std::string, std::map<int, std::vector<double>>, std::less<>> nodes;
  std::vector<telemetry::SpanBatch> spans;  // of some of the steady steps
  std::vector<Exchange> exchanges;          // of the same
  std::vector<Part> parts;                  // by rank, of these exchanges
  std::vector<telemetry::Event> events;
  double step_seconds = 0.0;  // usual; 0: nothing was recorded

  int world() const { return static_cast<int>(places.size()); }
  bool has(std::string_view metric) const { return series.contains(metric); }
  // Values of one rank over the steady steps; empty when it has none.
  const std::vector<double>& of(std::string_view metric, int rank) const;
  double usual(std::string_view metric, int rank) const;  // median; 0 when not recorded
  double usual(std::string_view metric) const;            // median over ranks of that
  // What of the step is the rank's own: everything but what it was blocked on communication.
  std::vector<double> own_seconds(int rank) const;
  // Ranks with the same work: those of the same pipeline stage, this one included.
  std::vector<int> peers(int rank) const;
  // For each steady step `metric` of `rank` less the median of the same over its other peers; empty without peers.
  std::vector<double> excess(std::string_view metric, int rank) const;
  std::vector<double> own_excess(int rank) const;
  double share(double seconds) const { return step_seconds > 0.0 ? 100.0 * seconds / step_seconds : 0.0; }  // percent
  std::vector<int> ranks_of_node(int node) const;
};

RunEvidence read_evidence(const telemetry::RunStore& store, const telemetry::RunRow& row, const StepRange& range = {});

// The place of every rank: tp changes fastest, then cp, shard, dp, pp; nodes filled in the order of the cluster.
std::vector<Place> places_of(const plan::Layout& layout, const spec::Cluster& cluster);

}  // namespace lockstep::diagnose
