// What a run reports: the one schema of metrics and events (docs/reference/run-store.md), shared by the SQLite store,
// the JSON-lines files and everything that reads them. Plain values; times are seconds since 1970 (UTC).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/telemetry/span.h"

namespace lockstep::telemetry {

// Names of metrics that more than one folder uses. Others are welcome: lower_snake_case, unit in the name.
namespace metric {
inline constexpr std::string_view kLoss = "loss";
inline constexpr std::string_view kAuxiliaryLoss = "auxiliary_loss";  // beside it: load balancing of experts
inline constexpr std::string_view kEvaluationLoss = "evaluation_loss";
inline constexpr std::string_view kEvaluationAccuracy = "evaluation_accuracy";
inline constexpr std::string_view kLearningRate = "learning_rate";
inline constexpr std::string_view kGradientNorm = "gradient_norm";
inline constexpr std::string_view kTokensPerSecond = "tokens_per_second";    // of the whole job
inline constexpr std::string_view kSamplesPerSecond = "samples_per_second";  // of the whole job
// Of every rank and step, under every layout: step = data + compute + comm + optimizer + checkpoint + host.
inline constexpr std::string_view kStepSeconds = "step_seconds";
inline constexpr std::string_view kComputeSeconds = "compute_seconds";  // forward + backward, without what they waited
inline constexpr std::string_view kForwardSeconds = "forward_seconds";  // of compute
inline constexpr std::string_view kBackwardSeconds = "backward_seconds";  // of compute, recomputation included
inline constexpr std::string_view kExposedCommSeconds = "comm_seconds";   // blocked on communication, waiting included
inline constexpr std::string_view kWaitSeconds = "wait_seconds";          // of comm: a peer was not there yet
inline constexpr std::string_view kDataSeconds = "data_seconds";          // waited for the loader
inline constexpr std::string_view kOptimizerSeconds = "optimizer_seconds";
inline constexpr std::string_view kCheckpointSeconds = "checkpoint_seconds";  // stalls: checkpoints, snapshots
inline constexpr std::string_view kHostSeconds = "host_seconds";              // what is left of the step
inline constexpr std::string_view kCpuSeconds = "cpu_seconds";                // of all threads of the rank in the step
inline constexpr std::string_view kCpuWaitSeconds = "cpu_wait_seconds";  // its main thread was ready and had no core
inline constexpr std::string_view kPreemptions = "preemptions";          // involuntary context switches in the step
inline constexpr std::string_view kTargets = "targets";  // that this rank's samples held: uneven data shows here
inline constexpr std::string_view kExpertImbalance = "expert_imbalance";  // busiest expert over the mean, this step
inline constexpr std::string_view kMemoryBytes = "memory_bytes";          // peak so far
inline constexpr std::string_view kAllocatedBytes = "allocated_bytes";    // after the step: creeps where memory leaks
inline constexpr std::string_view kEfficiency = "efficiency";             // of a calibrated CPU; per step, rank 0
inline constexpr std::string_view kMfu = "mfu";                           // per step, rank 0
inline constexpr std::string_view kGoodput = "goodput";  // useful seconds over seconds since the start, rank 0
// Of a node, by its agent, with the first rank of the node; the step is the second of the run.
inline constexpr std::string_view kNodeCpuPercent = "node_cpu_percent";
inline constexpr std::string_view kNodeAvailableBytes = "node_available_bytes";
inline constexpr std::string_view kNodeDiskFreeBytes = "node_disk_free_bytes";  // where checkpoints go
inline constexpr std::string_view kGpuPercent = "gpu_percent";
inline constexpr std::string_view kGpuMemoryBytes = "gpu_memory_bytes";
inline constexpr std::string_view kGpuClockRatio = "gpu_clock_ratio";  // SM clock over the highest it has
inline constexpr std::string_view kGpuTemperature = "gpu_temperature_celsius";
inline constexpr std::string_view kGpuThrottled = "gpu_throttled";  // 1: NVML names a reason that is a fault
// A metric that the job's evaluation names: evaluation_f1.
inline constexpr std::string_view kEvaluationPrefix = "evaluation_";
inline std::string evaluation_metric(const std::string& name) { return std::string(kEvaluationPrefix) + name; }
}  // namespace metric

// Kinds of events that reports look for.
namespace event_kind {
inline constexpr std::string_view kCheckpoint = "checkpoint";  // data: {"path", "bytes", "seconds", "stall_seconds"}
inline constexpr std::string_view kCheckpointFailed = "checkpoint_failed";  // data: {"problem", "last_good"}
// How often they are saved from now on; data: {"interval_seconds", "stall_seconds", "durable_seconds",
// "worst_lost_seconds", "failures", "failures_per_second"}
inline constexpr std::string_view kCheckpointCadence = "checkpoint_cadence";
inline constexpr std::string_view kResume = "resume";  // data: {"path", "step"}
// Steps whose metrics of the first rank were lost with its process; data: {"first_step", "last_step"}
inline constexpr std::string_view kRecordsLost = "records_lost";
inline constexpr std::string_view kSnapshots = "snapshots";  // how often, and what they cost: data of the run's summary
inline constexpr std::string_view kEvaluation = "evaluation";
inline constexpr std::string_view kSkip = "skip";                 // data: {"loss", "gradient_norm"}
inline constexpr std::string_view kSpike = "spike";               // the same; also when it is over
inline constexpr std::string_view kOutlier = "gradient_outlier";  // the same
inline constexpr std::string_view kRollback = "rollback";         // data: {"from_step", "to_step", "samples", "reason"}
inline constexpr std::string_view kReplicas = "replicas";         // ranks that should hold the same do not
inline constexpr std::string_view kChaos = "chaos";  // a fault on purpose; data: {"event", "kind", "text", ...}
inline constexpr std::string_view kNodeHealth = "node_health";  // data: {"node", "severity", "check", "what", "fix"}
inline constexpr std::string_view kRankLost = "rank_lost";
// A new generation of a command's processes; data: {"generation", "world", "restarts"}
inline constexpr std::string_view kRestart = "restart";
inline constexpr std::string_view kFailure = "failure";
// A rule fires or is over; data: {"rule", "state": "firing"|"resolved", "value", "limit", "cost_percent", "fix"}
inline constexpr std::string_view kAlert = "alert";
// A collective that never ends; data: {"collective", "group", "sequence", "missing": [ranks], "ranks": [{"rank",
// "where", "stack"}]}
inline constexpr std::string_view kHang = "hang";
inline constexpr std::string_view kInterrupted = "interrupted";
// On which node each rank is, at the begin of a generation; data: {"nodes": [number of the node, by rank], "hosts"}
inline constexpr std::string_view kPlacement = "placement";
}  // namespace event_kind

enum class Level { kDebug, kInfo, kWarning, kError };
// kLost is never written: it is what a running run whose process is gone looks like to a reader.
enum class RunStatus { kRunning, kDone, kFailed, kInterrupted, kLost };

const char* to_string(Level level);
const char* to_string(RunStatus status);
// Throw UserError (bad input) for other words.
Level parse_level(std::string_view text);
RunStatus parse_status(std::string_view text);

std::string host_name();  // of this machine; "unknown" where it has none

struct RunInfo {
  std::string id;    // make_run_id()
  std::string name;  // of the job
  double started_at = 0.0;
  int world = 1;
  std::string backend;
  std::string host;
  std::int64_t pid = 0;          // of the process whose end is the run's end
  std::int64_t pid_started = 0;  // its start in clock ticks since boot, so that a reused pid is not mistaken for it
  std::string job_yaml;
  nlohmann::json versions = nlohmann::json::object();
};

struct PlanRecord {
  nlohmann::json plan;  // lockstep.plan/1, or at least {"best": {"prediction": {...}}}
};

struct Metric {
  std::string name;
  double value = 0.0;  // NaN and infinities are kept
};

struct MetricBatch {
  int rank = 0;
  std::int64_t step = 0;
  double time = 0.0;
  std::vector<Metric> metrics;
};

struct Event {
  double time = 0.0;
  Level level = Level::kInfo;
  std::string kind;
  int rank = -1;           // -1: the run as a whole
  std::int64_t step = -1;  // -1: outside any step
  std::string message;     // one line
  nlohmann::json data = nlohmann::json::object();
};

struct RunEnd {
  double time = 0.0;
  RunStatus status = RunStatus::kDone;
  std::string exit_reason;  // one line; "" when done
  nlohmann::json summary = nlohmann::json::object();
};

using Record = std::variant<RunInfo, PlanRecord, MetricBatch, Event, RunEnd, SpanBatch>;

// One line of a JSON-lines file, without the newline, and back. `run` is the run's id.
std::string to_json_line(const std::string& run, const Record& record);
struct ParsedLine {
  std::string run;
  Record record;
};
// Throws UserError (bad input) when the line is not a record.
ParsedLine parse_json_line(std::string_view line);

// Sortable and short: "20261115-031500-a1b2c3-jobname" (UTC; the name reduced to letters, digits, '-' and '_').
std::string make_run_id(const std::string& name);

// Fills started_at, host, pid and pid_started from this process, and an id when there is none.
RunInfo describe_this_process(RunInfo info);
// Is the process that `info` names still there? True when that cannot be told (another host).
bool process_is_alive(const RunInfo& info);
// kLost where it says kRunning and the process is gone.
RunStatus status_now(RunStatus written, const RunInfo& info);

}  // namespace lockstep::telemetry
