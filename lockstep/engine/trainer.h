// The training loop of one rank: steps, evaluation, checkpoints, progress, and the summary that stands beside the plan.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/clock.h"
#include "lockstep/engine/kept_batch.h"
#include "lockstep/engine/memory_counter.h"
#include "lockstep/engine/replica_check.h"
#include "lockstep/engine/rollback.h"
#include "lockstep/engine/run_alerts.h"
#include "lockstep/engine/run_checkpoints.h"
#include "lockstep/engine/run_context.h"
#include "lockstep/engine/run_health.h"
#include "lockstep/engine/snapshots.h"
#include "lockstep/engine/step_records.h"
#include "lockstep/engine/training_state.h"
#include "lockstep/engine/training_step.h"

namespace lockstep::engine {

class PeerState;

// Throughput over the steps after warm-up, and over the last few for the progress line. Evaluation and checkpoints are
// outside the steps and do not count.
class ThroughputMeter {
 public:
  // The first steps pay for lazy allocation and cold caches; a tenth of the run, at most ten steps.
  explicit ThroughputMeter(std::int64_t steps_to_do) : warmup_(std::min<std::int64_t>(10, steps_to_do / 10)) {}

  void add(double items, double seconds);
  double overall() const;  // items per second, 0 before the first step
  double recent() const;
  double seconds_per_step() const;

 private:
  std::int64_t warmup_;
  std::int64_t seen_ = 0;
  double items_ = 0.0, seconds_ = 0.0, recent_items_ = 0.0, recent_seconds_ = 0.0;
};

class Trainer {
 public:
  // Collective: builds or resumes the state. `context` must outlive the trainer.
  explicit Trainer(RunContext& context);

  // Collective: trains to the end or until somebody asks to stop. Returns the summary (schema lockstep.run/1, the same
  // on every rank but for memory); `exit_code` in it is 0, 130 or 75 (stopped to be started again). Throws
  // UserError (run failed) when the numbers went wrong.
  nlohmann::json run();

 private:
  KeptBatch settle_batch();
  void tell_what_it_starts_from() const;
  void resume();
  void rejoin();
  void tell_lost_records();
  void resume_from(PeerState& peers);
  void hold();
  void begin_snapshots();
  std::string covered_by_memory() const;
  nlohmann::json train();
  void end_again();
  StepWishes wishes();
  void after_step(const StepResult& result);
  bool finish_step(const StepResult& result);
  void record_step(const StepResult& result, std::int64_t step);
  telemetry::StepSample sample_of(const StepResult& result, const StepRecords::Facts& facts) const;
  double peak_memory_bytes();
  void tell_lost_spans();
  void write_ledger();
  void report_progress(const StepResult& result);
  void report_step(const StepResult& result);
  void check_loss(const StepResult& result);
  void record_health(HealthEvent event, const StepResult& result);
  // What went wrong says that the run goes back: takes the kept state, behind the data of the steps that are undone.
  void roll_back();
  void check_replicas();
  [[noreturn]] void fail_replicas(const ReplicaReport& report);
  void finish_soundly();
  // `check` may find that the numbers went wrong; a note in the checkpoint folder then says what is sound.
  void guarded_check(const std::function<void()>& check);
  bool is_preempted();
  bool is_requeued();
  void run_evaluation();
  void export_weights();
  nlohmann::json summary(int exit_code) const;
  std::optional<double> efficiency(double items_per_second) const;
  double predicted_items_per_second() const;

  RunContext& context_;
  RunHealth health_;
  RunCheckpoints checkpoints_;
  MemoryCounter memory_;  // before the state, whose tensors it counts
  TrainingState state_;
  std::unique_ptr<Snapshots> snapshots_;  // null before the first step
  ThroughputMeter meter_{0};
  StepRecords records_{context_};
  RunAlerts alerts_{context_};
  Stopwatch running_;
  double last_progress_ = -1.0;
  double data_seconds_ = 0.0;
  std::int64_t first_step_ = 0;
  RollbackStates rollback_states_;
  ReplicaCheck replica_check_;
  std::int64_t replicas_agreed_ = 0;  // the last step after which they did
  std::int64_t replica_checks_ = 0;
  double replica_seconds_ = 0.0;
  bool discards_state_ = false;  // this rank's state is not what its replicas hold
  Stopwatch since_notice_;
  bool preempted_ = false;
  Stopwatch since_memory_;
  double peak_memory_ = 0.0;
  Stopwatch since_ledger_;
  bool told_ledger_ = false;  // that it cannot be written
  nlohmann::json evaluations_ = nlohmann::json::array();
};

}  // namespace lockstep::engine
