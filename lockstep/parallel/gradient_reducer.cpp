#include "lockstep/parallel/gradient_reducer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr double kBytesPerMib = 1024.0 * 1024.0;

}  // namespace

GradientReducer::GradientReducer(FlatParameters& parameters, comm::Communicator group, const ReducerOptions& options)
    : parameters_(parameters), group_(std::move(group)) {
  if (!(options.bucket_mib > 0.0) || !(options.first_bucket_mib > 0.0)) {
    throw bad_input("bucket_mib is not above 0", "give the bucket size in MiB, 25 say");
  }
  make_buckets(options);
  // One rank has nobody to exchange with, and so nothing to compress.
  exchange_ = make_exchange(group_.size() > 1 ? options.compression : CompressionOptions{}, buckets_, group_.size());
  if (group_.size() == 1 && !parameters_.gradients().is_cpu()) parameters_.collect_at_once();
  parameters_.set_gradient_hook([this](std::size_t parameter) { on_gradient(parameter); });
}

GradientReducer::~GradientReducer() {
  parameters_.set_gradient_hook({});
  if (pending_.empty()) return;
  // A step was abandoned half-way (an exception in backward). Peers must not wait for us, and no operation may touch
  // the gradient after we are gone.
  group_.abort("gradient reduction was abandoned");
  for (auto& pending : pending_) {
    try {
      if (pending) pending->advance();
    } catch (const std::exception&) {
      // Expected: that is how an aborted operation ends.
    }
  }
}

void GradientReducer::make_buckets(const ReducerOptions& options) {
  const std::vector<ParameterRange>& ranges = parameters_.ranges();
  const torch::Tensor& flat = parameters_.gradients();
  const double element_bytes = static_cast<double>(flat.element_size());
  double limit = std::min(options.first_bucket_mib, options.bucket_mib) * kBytesPerMib;
  bucket_of_.resize(ranges.size());
  std::int64_t end = flat.numel();
  std::size_t last = ranges.size();  // one past the last parameter of the bucket being filled
  for (std::size_t i = ranges.size(); i-- > 0;) {
    const std::int64_t begin = ranges[i].offset;
    bucket_of_[i] = buckets_.size();
    if (i > 0 && static_cast<double>(end - begin) * element_bytes < limit) continue;
    Bucket bucket{buckets_.size(), flat.narrow(0, begin, end - begin), {}};
    for (std::size_t k = i; k < last; ++k) {
      bucket.parameters.push_back(ranges[k]);
      bucket.parameters.back().offset -= begin;
    }
    buckets_.push_back(std::move(bucket));
    limit = options.bucket_mib * kBytesPerMib;
    end = begin;
    last = i;
  }
}

void GradientReducer::begin_micro_step(bool last) {
  LOCKSTEP_ASSERT(!exchanging_, "finish() was not called after the last micro-step");
  parameters_.collect_gradients();  // of the micro-step before
  exchanging_ = last && group_.size() > 1;
  if (last) {
    statistics_ = {};
    statistics_.gradient_bytes = static_cast<std::int64_t>(parameters_.gradients().nbytes());
    statistics_.buckets = static_cast<std::int64_t>(buckets_.size());
  }
  if (!exchanging_) return;
  seen_.assign(parameters_.ranges().size(), 0);
  missing_.clear();
  for (const Bucket& bucket : buckets_) missing_.push_back(bucket.parameters.size());
}

void GradientReducer::on_gradient(std::size_t parameter) {
  if (!exchanging_) return;
  // A second pass would add to a gradient that is already on its way.
  LOCKSTEP_ASSERT(!seen_[parameter], "two backward passes in the last micro-step");
  seen_[parameter] = 1;
  if (--missing_[bucket_of_[parameter]] == 0) launch_ready(false);
}

void GradientReducer::launch_ready(bool all) {
  torch::NoGradGuard no_grad;
  const Clock::time_point start = Clock::now();
  while (pending_.size() < buckets_.size() && (all || missing_[pending_.size()] == 0)) {
    pending_.push_back(exchange_->start(buckets_[pending_.size()], group_));
    if (!all) ++statistics_.launched_in_backward;
  }
  statistics_.launch_seconds += seconds_since(start);
}

void GradientReducer::finish() {
  parameters_.collect_gradients();
  if (!exchanging_) return;
  torch::NoGradGuard no_grad;
  launch_ready(true);
  const Clock::time_point start = Clock::now();
  // Round by round and bucket by bucket, so that every rank issues the later rounds in the same order too.
  for (bool unfinished = true; unfinished;) {
    unfinished = false;
    for (auto& pending : pending_) {
      if (!pending) continue;
      if (pending->advance()) {
        pending.reset();
      } else {
        unfinished = true;
      }
    }
  }
  pending_.clear();
  exchanging_ = false;
  statistics_.wait_seconds = seconds_since(start);
}

}  // namespace lockstep::parallel
