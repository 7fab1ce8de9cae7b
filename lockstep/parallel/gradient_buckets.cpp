#include "lockstep/parallel/gradient_buckets.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

constexpr double kBytesPerMib = 1024.0 * 1024.0;

}  // namespace

GradientBuckets::GradientBuckets(const torch::Tensor& gradient, const std::vector<ParameterRange>& ranges,
                                 comm::Communicator group, const BucketOptions& options, const char* site,
                                 Prepare prepare)
    : group_(std::move(group)), prepare_(std::move(prepare)) {
  if (!(options.bucket_mib > 0.0) || !(options.first_bucket_mib > 0.0)) {
    throw bad_input("bucket_mib is not above 0", "give the bucket size in MiB, 25 say");
  }
  make_buckets(gradient, ranges, options, site);
  // One rank has nobody to exchange with, and so nothing to compress.
  exchange_ = make_exchange(group_.valid() ? options.compression : CompressionOptions{}, buckets_,
                            group_.valid() ? group_.size() : 1);
  begin();
}

GradientBuckets::~GradientBuckets() {
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

void GradientBuckets::make_buckets(const torch::Tensor& gradient, const std::vector<ParameterRange>& ranges,
                                   const BucketOptions& options, const char* site) {
  const double element_bytes = static_cast<double>(gradient.element_size());
  const double usual = group_.valid() ? options.bucket_mib * kBytesPerMib : std::numeric_limits<double>::infinity();
  double limit = group_.valid() ? std::min(options.first_bucket_mib * kBytesPerMib, usual) : usual;
  bucket_of_.resize(ranges.size());
  std::int64_t end = gradient.numel();
  std::size_t last = ranges.size();  // one past the last parameter of the bucket being filled
  for (std::size_t i = ranges.size(); i-- > 0;) {
    const std::int64_t begin = ranges[i].offset;
    bucket_of_[i] = buckets_.size();
    if (i > 0 && static_cast<double>(end - begin) * element_bytes < limit) continue;
    Bucket bucket{buckets_.size(), gradient.narrow(0, begin, end - begin), begin, i, {}, site};
    for (std::size_t k = i; k < last; ++k) {
      bucket.parameters.push_back(ranges[k]);
      bucket.parameters.back().offset -= begin;
    }
    buckets_.push_back(std::move(bucket));
    limit = usual;
    end = begin;
    last = i;
  }
}

void GradientBuckets::begin() {
  seen_.assign(bucket_of_.size(), 0);
  missing_.clear();
  for (const Bucket& bucket : buckets_) missing_.push_back(bucket.parameters.size());
  started_ = 0;
}

void GradientBuckets::ready(std::size_t parameter) {
  if (seen_[parameter]) return;
  seen_[parameter] = 1;
  if (--missing_[bucket_of_[parameter]] == 0) start_ready(false);
}

void GradientBuckets::start_ready(bool all) {
  const torch::NoGradGuard no_grad;
  while (started_ < buckets_.size() && (all || missing_[started_] == 0)) {
    const Bucket& bucket = buckets_[started_++];
    prepare_(bucket);
    if (group_.valid()) pending_.push_back(exchange_->start(bucket, group_));
  }
}

void GradientBuckets::finish() {
  const torch::NoGradGuard no_grad;
  start_ready(true);
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
  begin();
}

}  // namespace lockstep::parallel
