// Points added up: for charts of limited width, and for what the store keeps of old points.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {

Bucket bucket_of(const Point& point);
// `later` follows `bucket`: its steps are higher.
void join(Bucket& bucket, const Bucket& later);
// Neighbours joined, `count` at a time; the last may have fewer.
std::vector<Bucket> joined(std::span<const Bucket> buckets, std::size_t count);

// Steps first..last in at most `count` columns of equal numbers of steps. Parts are added by ascending step and go
// whole into the column that their first step falls into, so a column covers what its first_step and last_step say.
class BucketGrid {
 public:
  BucketGrid(std::int64_t first, std::int64_t last, std::size_t count);

  bool empty() const { return width_ == 0; }  // nothing can be added
  std::int64_t first() const { return first_; }
  std::int64_t last() const { return last_; }
  std::int64_t width() const { return width_; }  // steps of a column
  bool covers(std::int64_t first_step, std::int64_t last_step) const {
    return first_step >= first_ && last_step <= last_;
  }
  void add(const Bucket& part);  // ignored when it begins outside first..last
  void add(const Point& point) { add(bucket_of(point)); }
  std::vector<Bucket> take() { return std::move(buckets_); }

 private:
  std::int64_t first_, last_, width_ = 0;
  std::int64_t column_ = -1;  // of the last bucket
  std::vector<Bucket> buckets_;
};

}  // namespace lockstep::telemetry
