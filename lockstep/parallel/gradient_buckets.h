// GradientBuckets: sums a flat gradient over the ranks that hold the same weights, while backward still runs.
//
// The flat gradient is cut into buckets from its end to its start (backward produces gradients roughly in that order),
// the first one small so that communication starts early. When every parameter of the next bucket has its gradient, the
// exchange starts; buckets start strictly in order, so all ranks issue the same operations in the same order, whatever
// order their gradients come in. Parameters that got no gradient are reduced too (a peer may have one).
//
//   after the last backward of a step has made some gradients:  buckets.ready(parameter) for each
//   at the end of the step:                                     buckets.finish()
//
// Gradients are summed, never averaged: the loss carries the weight. All calls come from the rank's thread; waits end
// with the group's timeout. After a Fault the object is spent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/compression.h"

namespace lockstep::parallel {

struct BucketOptions {
  double bucket_mib = 25.0;
  double first_bucket_mib = 1.0;  // at most bucket_mib
  CompressionOptions compression;
};

class GradientBuckets {
 public:
  // Called before a bucket starts: its last chance to be changed by this rank.
  using Prepare = std::function<void(const Bucket&)>;

  // Not collective. `ranges` are in order of their offsets and cover `gradient`. An invalid `group` is this rank alone:
  // one bucket that is prepared and goes nowhere. `site` names the exchange (comm::OpOptions).
  GradientBuckets(const torch::Tensor& gradient, const std::vector<ParameterRange>& ranges, comm::Communicator group,
                  const BucketOptions& options, const char* site, Prepare prepare);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Nobody touches the gradient of `parameter` any more until finish(); a second call in a step does nothing.
  void ready(std::size_t parameter);
  bool is_ready(std::size_t parameter) const { return seen_[parameter] != 0; }
  // Starts what has not started, waits for everything. Throws Fault.
  void finish();

  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Buckets of the step under way whose exchange has begun.
  std::size_t started() const { return started_; }
  // State of the compression on this rank (GradientExchange).
  TensorMap state() const { return exchange_->state(); }
  void load_state(const TensorMap& state) { exchange_->load_state(state); }

 private:
  void make_buckets(const torch::Tensor& gradient, const std::vector<ParameterRange>& ranges,
                    const BucketOptions& options, const char* site);
  void start_ready(bool all);
  void begin();

  comm::Communicator group_;
  Prepare prepare_;
  std::unique_ptr<GradientExchange> exchange_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // parameter -> bucket
  std::vector<char> seen_;              // parameter: ready in this step
  std::vector<std::size_t> missing_;    // bucket -> parameters still to come
  std::size_t started_ = 0;
  std::vector<std::unique_ptr<PendingExchange>> pending_;
};

}  // namespace lockstep::parallel
