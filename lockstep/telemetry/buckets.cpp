#include "lockstep/telemetry/buckets.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::telemetry {

Bucket bucket_of(const Point& point) {
  const bool finite = std::isfinite(point.value);
  const double value = finite ? point.value : std::numeric_limits<double>::quiet_NaN();
  return {point.step, point.step, point.time, 1, value, value, value, finite ? 1 : 0};
}

void join(Bucket& bucket, const Bucket& later) {
  bucket.last_step = std::max(bucket.last_step, later.last_step);
  bucket.time = later.time;
  bucket.points += later.points;
  if (later.finite == 0) return;
  if (bucket.finite == 0) {
    bucket.minimum = later.minimum;
    bucket.maximum = later.maximum;
    bucket.mean = later.mean;
  } else {
    bucket.minimum = std::min(bucket.minimum, later.minimum);
    bucket.maximum = std::max(bucket.maximum, later.maximum);
    const auto share = static_cast<double>(later.finite) / static_cast<double>(bucket.finite + later.finite);
    bucket.mean += (later.mean - bucket.mean) * share;
  }
  bucket.finite += later.finite;
}

std::vector<Bucket> joined(std::span<const Bucket> buckets, std::size_t count) {
  std::vector<Bucket> result;
  result.reserve(buckets.size() / count + 1);
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (i % count == 0)
      result.push_back(buckets[i]);
    else
      join(result.back(), buckets[i]);
  }
  return result;
}

BucketGrid::BucketGrid(std::int64_t first, std::int64_t last, std::size_t count) : first_(first), last_(last) {
  if (last < first || count == 0) return;
  const std::uint64_t steps_less_one = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
  const std::uint64_t width = steps_less_one / count + 1;
  width_ = static_cast<std::int64_t>(std::min<std::uint64_t>(width, std::numeric_limits<std::int64_t>::max()));
}

void BucketGrid::add(const Bucket& part) {
  if (empty() || part.first_step < first_ || part.first_step > last_) return;
  const auto column =
      static_cast<std::int64_t>((static_cast<std::uint64_t>(part.first_step) - static_cast<std::uint64_t>(first_)) /
                                static_cast<std::uint64_t>(width_));
  if (column > column_) {
    column_ = column;
    buckets_.push_back(part);
  } else {
    join(buckets_.back(), part);
  }
}

}  // namespace lockstep::telemetry
