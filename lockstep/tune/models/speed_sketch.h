// Speed sketch: which way the usual knobs push throughput, as is known before the first trial: larger
// micro-batches fill the machine, recomputation costs a third, full precision is slow. (What sharding and offload cost
// depends on links too much to be known.) A starting belief
// for the surrogate, which shrinks it as trials disagree. Knobs whose names say nothing are ignored. Immutable;
// thread-safe.
#pragma once

#include <vector>

#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

class SpeedSketch {
 public:
  explicit SpeedSketch(const Space& space);

  // Logarithm of throughput, up to a constant.
  double log_throughput(const Config& config) const;

 private:
  struct Entry {
    std::size_t knob;
    double (*effect)(const Value& value, double least);
    double least;  // smallest number the knob may have
  };
  std::vector<Entry> entries_;
};

}  // namespace lockstep::tune
