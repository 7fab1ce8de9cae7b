// What a rank records of its steps: metrics from the phases of its SpanLog, and the spans of some steps. The seconds of
// a step are those from the end of the one before, checkpoints behind it included and evaluations left out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/engine/cpu_wait.h"
#include "lockstep/engine/run_context.h"
#include "lockstep/engine/step_result.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::engine {

// The log of the rank's own thread, which its communicator and its faults on purpose know of.
std::shared_ptr<telemetry::SpanLog> start_log(RunContext& context);

// Which steps keep spans: the first ten, and then at most a few in a second. Every rank chooses the same ones, so that
// their spans can be laid beside each other.
class SpanCadence {
 public:
  explicit SpanCadence(std::int64_t first_step) : first_step_(first_step) {}
  // `mean_seconds`: of a step over all ranks, the same on every one.
  void stepped(double mean_seconds);
  bool keeps(std::int64_t step) const;

 private:
  std::int64_t first_step_;
  double seconds_ = 0.0;  // of a usual step
  std::int64_t every_ = 1;
};

// Belongs to the rank's thread. Does nothing where the run is not recorded.
class StepRecords {
 public:
  // `context` must outlive the object.
  explicit StepRecords(RunContext& context) : context_(context) {}

  // The first step after `step` begins now.
  void begin(std::int64_t step);
  // What the log does not know of a step.
  struct Facts {
    std::int64_t step = 0;
    double items = 0.0;  // tokens or samples of the global batch
    bool counts_tokens = false;
    double allocated_bytes = 0.0;  // 0: not known
    std::optional<double> efficiency;
    double peak_memory_bytes = 0.0;
  };
  // The step is over, with whatever followed it. Once for each begin() or end().
  void end(const StepResult& result, const Facts& facts);
  // Steps that were too much for the log; for a warning at the end.
  std::uint64_t lost_spans() const { return lost_spans_; }
  // Seconds of the newest step of this rank; 0 before the first.
  double last_seconds() const { return last_.seconds; }
  double last_comm_seconds() const { return last_.comm_seconds; }  // the same; -1 before the first
  struct Last {
    double seconds = 0.0, data_seconds = 0.0, checkpoint_seconds = 0.0;
    double comm_seconds = -1.0;  // waiting for others included; -1 before the first
  };
  const Last& last() const { return last_; }

 private:
  double waited(const telemetry::SpanLog::Step& step, double least_before) const;
  double goodput(double useful_seconds, std::int64_t step);

  RunContext& context_;
  std::int64_t first_step_ = 0;
  std::optional<SpanCadence> cadence_;
  Stopwatch running_;
  double useful_seconds_ = 0.0;
  Last last_;
  double cpu_seconds_ = 0.0, preemptions_ = 0.0;  // of the process so far
  CpuWait cpu_wait_;
  double cpu_wait_seconds_ = 0.0;
  std::uint64_t lost_spans_ = 0;
};

}  // namespace lockstep::engine
