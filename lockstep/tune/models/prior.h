// Prior: what is believed about a configuration before anything ran. The planner's prediction is one.
#pragma once

#include <optional>

#include "lockstep/tune/space/config.h"

namespace lockstep::tune {

struct Belief {
  double log_throughput = 0;    // natural logarithm; only differences between configurations are used
  double fits_probability = 1;  // that it runs at all
};

class Prior {
 public:
  virtual ~Prior() = default;
  // nullopt: nothing is known. Cheap (called for thousands of candidates per trial), deterministic, thread-safe.
  virtual std::optional<Belief> operator()(const Config& config) const = 0;
};

}  // namespace lockstep::tune
