// Plan: how a Model is trained on a Cluster and what that will cost. Made by the planner, executed by the engine,
// played by the simulator; predicted and measured figures meet in its fields. Values only; file format
// `lockstep.plan/1`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/plan/layout.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"

namespace lockstep::plan {

// 90% interval around the expected value: low <= expected <= high.
struct Interval {
  double low = 0;
  double expected = 0;
  double high = 0;
  bool operator==(const Interval&) const = default;
};

struct BatchPlan {
  std::int64_t micro = 1;             // samples per data rank per micro-step
  std::int64_t accumulation = 1;      // micro-steps per optimizer step
  std::int64_t global_sequences = 1;  // = micro x accumulation x data ranks
  std::int64_t sequence_length = 0;   // 0: the model has no tokens
  bool operator==(const BatchPlan&) const = default;
};

// What the layout leaves open and the tuner may turn.
struct Knobs {
  std::string backend;               // communicator: "", local, gloo, mpi, nccl ("": chosen where the run starts)
  double bucket_mib = 25.0;          // gradient bucket of the overlapped all-reduce
  std::string compression = "none";  // spec::Compression by name
  std::int64_t num_workers = 1;      // loader threads per rank
  std::int64_t prefetch_factor = 2;
  std::int64_t threads_per_rank = 0;  // CPU threads; 0: cores / ranks on the node
  std::string nccl_groups;            // algorithm, protocol and channels by group, as comm/group_settings.h reads them
  bool operator==(const Knobs&) const = default;
};

// Bytes per rank at the peak of a step; the file has GiB.
struct MemoryBreakdown {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double buffers = 0;   // gradient buckets, communicator, loader
  double overhead = 0;  // framework, context, allocator reserve
  double capacity = 0;  // of the device; 0: unknown
  // Beside total(), in host memory: copies of the state for recovery (cost/snapshots.h).
  double snapshots = 0;
  double host = 0;           // there too: what is offloaded
  double host_capacity = 0;  // of a rank's share of its node's memory; 0: unknown or nothing is offloaded
  double total() const { return parameters + gradients + optimizer + activations + buffers + overhead; }
  // How full the device is: the share of its capacity; where that is unknown, bytes.
  double fill() const { return capacity > 0 ? total() / capacity : total(); }
  bool operator==(const MemoryBreakdown&) const = default;
};

// Seconds of one optimizer step on the critical path; total() is the expected step time.
struct TimeBreakdown {
  double compute = 0;
  double tp_comm = 0;
  double dp_comm = 0;  // what backward does not hide
  double pp_comm = 0;
  double cp_comm = 0;
  double ep_comm = 0;
  double bubble = 0;
  double optimizer = 0;
  double other = 0;  // host cost, jitter, offload traffic
  // Of a plan that was chosen among many: what such predictions turn out too fast by (planner/selection.h).
  double selection = 0;
  double total() const {
    return compute + tp_comm + dp_comm + pp_comm + cp_comm + ep_comm + bubble + optimizer + other + selection;
  }
  bool operator==(const TimeBreakdown&) const = default;
};

struct Prediction {
  Interval step_seconds;
  Interval tokens_per_second;  // all zero for models without tokens
  Interval samples_per_second;
  Interval mfu;  // all zero where the peak is unknown
  bool operator==(const Prediction&) const = default;
};

// Whole-job figures: days of wall time, device-hours, dollars.
struct Cost {
  double gpu_hours = 0;
  double usd = 0;
  double days = 0;
  bool operator==(const Cost&) const = default;
};

struct CheckpointCadence {
  double interval_seconds = 0;
  double expected_lost_seconds = 0;  // of work, when a node dies
  double worst_lost_seconds = 0;     // bounded by --max-lost
  double stall_seconds = 0;          // training stands still this long per checkpoint
  double goodput = 1;                // share of the wall time that trains
  bool operator==(const CheckpointCadence&) const = default;
};

// One way to run the job. What is absent was not computed (no Profile, no goal, no checkpoint policy) and `reasons`
// says so.
struct Candidate {
  Layout layout;
  BatchPlan batch;
  Knobs knobs;
  MemoryBreakdown memory;
  std::optional<double> out_of_memory_probability;
  std::optional<Prediction> prediction;
  std::optional<TimeBreakdown> breakdown;
  std::optional<Cost> cost;
  std::optional<CheckpointCadence> checkpoint;
  std::vector<std::string> reasons;
  std::string why_not;  // alternatives only
  bool operator==(const Candidate&) const = default;
};

struct SearchSummary {
  std::int64_t candidates = 0;
  std::int64_t feasible = 0;
  double seconds = 0;
  bool operator==(const SearchSummary&) const = default;
};

struct Plan {
  spec::Model model;
  spec::Cluster cluster;
  Candidate best;
  std::vector<Candidate> alternatives;
  SearchSummary search;
  std::string profile;  // identity of the cost::Profile that priced it; "": none
};

// Schema `lockstep.plan/1`. read_plan(to_json(p)) gives the same plan back, bit for bit.
nlohmann::json to_json(const Plan& plan);

// Strict: unknown or missing keys, wrong types, invalid layouts and figures that contradict each other (world larger
// than the cluster, global_sequences, memory total) are UserErrors (exit code 2) that name the file and the JSON path.
Plan read_plan(const nlohmann::json& document, const std::string& name_for_errors);

// Files; written atomically. A missing file is a UserError with exit code 4.
void save_plan(const Plan& plan, const std::string& path);
Plan load_plan(const std::string& path);

}  // namespace lockstep::plan
