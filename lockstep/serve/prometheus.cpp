#include "lockstep/serve/prometheus.h"

#include <cmath>

#include "lockstep/base/clock.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
using telemetry::RunRow;
using telemetry::RunStore;
namespace metric = telemetry::metric;

// A metric of the store as a family of Prometheus, in base units.
struct Exported {
  std::string_view metric, family, help;
  double scale = 1.0;
};

// Newest value on the lowest rank that recorded it.
constexpr Exported kOfRun[] = {
    {metric::kLoss, "lockstep_run_loss", "Training loss of the newest step."},
    {metric::kEvaluationLoss, "lockstep_run_evaluation_loss", "Loss of the newest evaluation."},
    {metric::kEvaluationAccuracy, "lockstep_run_evaluation_accuracy_ratio", "Accuracy of the newest evaluation."},
    {metric::kLearningRate, "lockstep_run_learning_rate", "Learning rate of the newest step."},
    {metric::kGradientNorm, "lockstep_run_gradient_norm", "Norm of the gradient in the newest step."},
    {metric::kMfu, "lockstep_run_mfu_ratio", "Model FLOPs utilization of the newest step, 0 to 1."},
    {metric::kEfficiency, "lockstep_run_efficiency_ratio", "The same of a calibrated CPU."},
    {metric::kGoodput, "lockstep_run_goodput_ratio", "Useful seconds over seconds since the start, 0 to 1."},
};

// Newest value of every rank.
constexpr Exported kOfRank[] = {
    {metric::kStepSeconds, "lockstep_rank_step_seconds", "Seconds of the newest step."},
    {metric::kMemoryBytes, "lockstep_rank_memory_bytes", "Most bytes the rank has held."},
    {metric::kAllocatedBytes, "lockstep_rank_allocated_bytes", "Bytes the rank holds after a step."},
    {metric::kNodeCpuPercent, "lockstep_node_cpu_ratio", "Busy share of the node's cores, by the node's first rank.",
     0.01},
    {metric::kNodeAvailableBytes, "lockstep_node_memory_available_bytes", "Memory left on the node."},
    {metric::kNodeDiskFreeBytes, "lockstep_node_disk_free_bytes", "Bytes left where checkpoints go."},
    {metric::kGpuPercent, "lockstep_gpu_utilization_ratio", "Share of time in which the GPU was busy, 0 to 1.", 0.01},
    {metric::kGpuMemoryBytes, "lockstep_gpu_memory_used_bytes", "Memory in use on the GPU."},
    {metric::kGpuClockRatio, "lockstep_gpu_clock_ratio", "SM clock over the highest it has."},
    {metric::kGpuTemperature, "lockstep_gpu_temperature_celsius", "Temperature of the GPU."},
    {metric::kGpuThrottled, "lockstep_gpu_throttled", "1 while the driver names a fault that slows the GPU down."},
};

// Parts of a step of every rank: lockstep_rank_phase_seconds{phase=...}.
constexpr std::pair<std::string_view, std::string_view> kPhases[] = {{metric::kComputeSeconds, "compute"},
                                                                     {metric::kExposedCommSeconds, "comm"},
                                                                     {metric::kWaitSeconds, "wait"},
                                                                     {metric::kDataSeconds, "data"},
                                                                     {metric::kOptimizerSeconds, "optimizer"},
                                                                     {metric::kCheckpointSeconds, "checkpoint"},
                                                                     {metric::kHostSeconds, "host"}};

std::string name_of(std::string_view name) { return std::string(name); }

// When it ended; of a run that was lost, its newest step.
double last_sign(const RunStore& store, const RunRow& row) {
  if (row.ended_at > 0) return row.ended_at;
  const auto step = newest_point(store, row.info.id, name_of(metric::kStepSeconds));
  return step ? step->time : row.info.started_at;
}

class RunMetrics {
 public:
  RunMetrics(Exposition& out, const RunStore& store, const RunRow& row)
      : out_(out),
        store_(store),
        row_(row),
        run_(row.info.id),
        figures_(figures_of(store, row)),
        plan_(store.plan(run_)) {}

  void add_all() {
    add_identity();
    add_progress();
    add_predicted();
    for (const Exported& exported : kOfRun) add_newest(exported);
    for (const Exported& exported : kOfRank)
      add_ranks(exported.metric, exported.family, exported.help, exported.scale, {});
    for (const auto& [name, phase] : kPhases) {
      add_ranks(name, "lockstep_rank_phase_seconds",
                "Seconds of the newest step by phase; wait is part of comm, the others add up to the step.", 1.0,
                {{"phase", name_of(phase)}});
    }
    add_alerts();
  }

 private:
  void gauge(std::string_view family, std::string_view help, double value, Labels more = {}) {
    if (std::isnan(value) && family != "lockstep_run_loss") return;  // that a loss is NaN is worth telling
    Labels labels{{"run", run_}};
    labels.insert(labels.end(), more.begin(), more.end());
    out_.add(family, "gauge", help, labels, value);
  }

  void add_identity() {
    gauge("lockstep_run_info", "What the run is: join on `run`.", 1.0,
          {{"name", row_.info.name},
           {"model", figures_.model},
           {"layout", figures_.layout},
           {"host", row_.info.host},
           {"backend", row_.info.backend}});
    for (const auto status :
         {telemetry::RunStatus::kRunning, telemetry::RunStatus::kDone, telemetry::RunStatus::kFailed,
          telemetry::RunStatus::kInterrupted, telemetry::RunStatus::kLost}) {
      gauge("lockstep_run_status", "1 for the status that the run has, 0 for the others.",
            status == row_.status ? 1.0 : 0.0, {{"status", telemetry::to_string(status)}});
    }
    gauge("lockstep_run_ranks", "Ranks of the run.", row_.info.world);
    gauge("lockstep_run_start_time_seconds", "When it began, seconds since 1970.", row_.info.started_at);
    if (row_.ended_at > 0) gauge("lockstep_run_end_time_seconds", "When it ended, seconds since 1970.", row_.ended_at);
  }

  void add_progress() {
    out_.add("lockstep_run_steps_total", "counter", "Steps done; falls back when the run does.", {{"run", run_}},
             static_cast<double>(figures_.steps));
    if (const auto step = newest_point(store_, run_, name_of(metric::kStepSeconds))) {
      gauge("lockstep_run_last_step_time_seconds", "When the newest step was recorded, seconds since 1970.",
            step->time);
    }
    gauge("lockstep_run_" + figures_.unit + "_per_second", "Rate of the whole job, median of the last steps.",
          figures_.per_second);
    const auto saved = store_.events_after(run_, 0.0, telemetry::event_kind::kCheckpoint);
    if (!saved.empty()) {
      gauge("lockstep_run_last_checkpoint_time_seconds", "When the newest checkpoint was saved, seconds since 1970.",
            saved.back().time);
    }
  }

  void add_predicted() {
    const std::pair<std::string, std::string> bands[] = {
        {figures_.unit + "_per_second", "lockstep_run_predicted_" + figures_.unit + "_per_second"},
        {"step_seconds", "lockstep_run_predicted_step_seconds"},
        {"mfu", "lockstep_run_predicted_mfu_ratio"},
        {"memory_bytes", "lockstep_run_predicted_memory_bytes"}};
    for (const auto& [name, family] : bands) {
      const json band = predicted(plan_, name);
      for (const char* bound : {"low", "expected", "high"}) {
        if (band.is_object() && band[bound].is_number()) {
          gauge(family, "What the plan predicts: low, expected or high.", band[bound].get<double>(),
                {{"bound", bound}});
        }
      }
    }
  }

  void add_newest(const Exported& exported) {
    if (const auto point = newest_point(store_, run_, name_of(exported.metric))) {
      gauge(exported.family, exported.help, point->value * exported.scale);
    }
  }

  void add_ranks(std::string_view name, std::string_view family, std::string_view help, double scale,
                 const Labels& more) {
    std::vector<int> ranks = store_.ranks(run_, name_of(name));
    if (ranks.size() > kMostExportedRanks) ranks.resize(kMostExportedRanks);
    for (const int rank : ranks) {
      const auto step = store_.last_step(run_, name_of(name), rank);
      const auto points =
          step ? store_.points_after(run_, name_of(name), rank, *step - 1, 1) : std::vector<telemetry::Point>();
      Labels labels{{"rank", std::to_string(rank)}};
      labels.insert(labels.end(), more.begin(), more.end());
      if (!points.empty()) gauge(family, help, points.front().value * scale, labels);
    }
  }

  void add_alerts() {
    for (const RuleState& state : rule_states(store_, row_)) {
      gauge("lockstep_run_alert_firing", "1 while a rule inside the run fires.", state.firing ? 1.0 : 0.0,
            {{"rule", state.rule}, {"subject", state.subject}});
    }
  }

  Exposition& out_;
  const RunStore& store_;
  const RunRow& row_;
  const std::string& run_;
  RunFigures figures_;
  json plan_;
};

}  // namespace

std::string metrics_text(const RunStore& store, ExpositionFormat format, double now) {
  const Stopwatch watch;
  Exposition out(format);
  std::size_t exported = 0;
  for (const RunRow& row : store.runs(kMostExportedRuns)) {
    if (row.status != telemetry::RunStatus::kRunning && now - last_sign(store, row) > kExportedAfterEndSeconds)
      continue;
    RunMetrics(out, store, row).add_all();
    ++exported;
  }
  out.add("lockstep_serve_runs", "gauge", "Runs in this answer.", {}, static_cast<double>(exported));
  out.add("lockstep_serve_read_seconds", "gauge", "Seconds it took to read them.", {}, watch.seconds());
  return out.text();
}

}  // namespace lockstep::serve
