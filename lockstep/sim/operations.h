// One step of a pipelined, data-parallel job as recorded operations, and what follows from them: which ones begin
// together, which wait for which, and how long the step takes with other durations ("what if", after Lin et al.,
// Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/sim/replay.h"

namespace lockstep::sim {

enum class OperationKind {
  kForwardCompute = 0,
  kBackwardCompute,
  kForwardSend,
  kForwardReceive,
  kBackwardSend,
  kBackwardReceive,
  kGatherParameters,
  kGarbageCollection,
  kReduceNormGradients,
  kReduceEmbeddingGradients,
  kReduceScatterGradients,
  kReduceSeparateGradients,
  kClipGradients,
  kOptimizer,
};
constexpr auto names_of(OperationKind) {
  return enum_names<OperationKind::kOptimizer>(
      "forward-compute", "backward-compute", "forward-send", "forward-recv", "backward-send", "backward-recv",
      "params-all-gather", "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
      "separate-grads-all-reduce", "optimizer-clip-main-grad", "optimizer");
}
inline constexpr std::size_t kOperationKinds = static_cast<std::size_t>(OperationKind::kOptimizer) + 1;

bool is_compute(OperationKind kind);        // forward and backward
bool is_communication(OperationKind kind);  // its duration holds waiting for others

struct Operation {
  int data_rank = 0;
  int stage = 0;
  int rank = 0;  // in the job
  std::int64_t step = 0;
  OperationKind kind = OperationKind::kForwardCompute;
  double begin = 0.0;  // seconds
  double seconds = 0.0;
  int sequence = 0;      // among those of its kind on its worker in its step
  int chunk = 0;         // of the model on this worker; -1: none
  int global_chunk = 0;  // in the model; -1: none
};

// All operations of one step.
class StepReplay {
 public:
  // Throws UserError (exit 2) when the operations contradict each other.
  explicit StepReplay(std::vector<Operation> operations);

  const std::vector<Operation>& operations() const { return operations_; }
  // How long each takes once everybody is there: of communication the time after the last member has begun.
  const std::vector<double>& seconds() const { return seconds_; }
  // How long after what it waits for each began: the host was late, or did something that was not recorded.
  const std::vector<double>& pauses() const { return pauses_; }
  // How long the step takes with these durations, one for each operation, without pauses or with these.
  double length(const std::vector<double>& seconds, const std::vector<double>& pauses = {}) const {
    return replay_.length(seconds, pauses);
  }
  // From the first begin to the last end, as recorded.
  double recorded_seconds() const;

 private:
  void order_worker(const std::vector<std::size_t>& own);
  void order_transfers(const std::vector<std::size_t>& own, const std::vector<std::size_t>& compute, bool forward);
  void order_end_of_step(const std::vector<std::size_t>& own, const std::vector<std::size_t>& compute);
  void join_pairs();
  void join_collectives();
  void take_waiting_out();
  void find_pauses();
  std::vector<std::size_t> of_kind(const std::vector<std::size_t>& own, OperationKind kind) const;
  double end_of(std::size_t operation) const { return operations_[operation].begin + operations_[operation].seconds; }

  std::vector<Operation> operations_;
  std::vector<double> seconds_, pauses_;
  std::vector<bool> without_peer_;  // sends and receives that were recorded but have nobody to talk to
  int stages_ = 0;
  int chunks_ = 0;  // in the model
  Replay replay_;
};

}  // namespace lockstep::sim
