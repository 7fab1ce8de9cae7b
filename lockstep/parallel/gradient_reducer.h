// GradientReducer: sums gradients over the data-parallel ranks while backward still runs.
//
// The flat gradient is cut into buckets from its end to its start (backward produces gradients roughly in that order),
// the first one small so that communication starts early. When every parameter of the next bucket has its gradient, the
// exchange starts asynchronously; buckets start strictly in order, so all ranks issue the same operations in the same
// order, whatever order their hooks fire in. Parameters that got no gradient are reduced too (a peer may have one).
//
//   for each micro-step:  reducer.begin_micro_step(is_last);  loss.backward();
//   reducer.finish();     // gradients() of the FlatParameters now hold the sum over all ranks and micro-steps
//
// Gradients are summed, never averaged: the loss carries the weight. A group of one rank communicates nothing.
// Threads: as FlatParameters. Waits end with the group's timeout. The reducer must be destroyed before its
// FlatParameters. After a Fault the reducer is spent.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/compression.h"
#include "lockstep/parallel/flat_parameters.h"

namespace lockstep::parallel {

struct ReducerOptions {
  double bucket_mib = 25.0;
  double first_bucket_mib = 1.0;  // at most bucket_mib
  CompressionOptions compression;
};

// Of the last step that finish() completed.
struct ReducerStatistics {
  double wait_seconds = 0.0;        // inside finish(): communication that backward did not hide
  double launch_seconds = 0.0;      // inside hooks and finish(): compressing and issuing
  std::int64_t gradient_bytes = 0;  // size of the reduced gradient
  std::int64_t buckets = 0;
  std::int64_t launched_in_backward = 0;  // buckets whose exchange began before finish()
};

class GradientReducer {
 public:
  // Not collective; `group` is the data-parallel group. Both are kept; `parameters` must outlive the reducer.
  GradientReducer(FlatParameters& parameters, comm::Communicator group, const ReducerOptions& options = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Before each backward. With `last` false the gradients only accumulate locally; with true they are exchanged as they
  // become ready. Exactly one backward follows each call; a rank without samples may skip the backward.
  void begin_micro_step(bool last);
  // After the last backward: starts what has not started, waits for everything. Throws Fault.
  void finish();

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const ReducerStatistics& statistics() const { return statistics_; }
  // State of the compression on this rank (GradientExchange).
  TensorMap state() const { return exchange_->state(); }
  void load_state(const TensorMap& state) { exchange_->load_state(state); }

 private:
  void make_buckets(const ReducerOptions& options);
  void on_gradient(std::size_t parameter);
  void launch_ready(bool all);

  FlatParameters& parameters_;
  comm::Communicator group_;
  std::unique_ptr<GradientExchange> exchange_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // parameter -> bucket
  std::vector<char> seen_;              // parameter: gradient arrived in this pass
  std::vector<std::size_t> missing_;    // bucket -> parameters still to come
  std::vector<std::unique_ptr<PendingExchange>> pending_;
  bool exchanging_ = false;  // between begin_micro_step(true) and finish()
  ReducerStatistics statistics_;
};

// Collective over `group`, before the first step. Throws UserError on every rank when ranks hold different parameters
// (count, order, name, shape, dtype), naming the first difference and the ranks.
void check_same_parameters(const FlatParameters& parameters, comm::Communicator& group);

// Collective: values, master weights and the module's buffers become rank 0's of the group.
void broadcast_parameters(FlatParameters& parameters, comm::Communicator& group);

}  // namespace lockstep::parallel
