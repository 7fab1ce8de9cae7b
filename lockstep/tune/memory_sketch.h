// Memory sketch: the memory of a training step as everybody knows it, states plus activations, with the constants left
// open and learned from what ran and what ran out of memory.
//
//   memory(x) / capacity = a * states(x) + b * activations(x)
//
// activations grow with the micro-batch and shrink with recomputation and tensor parallelism; states shrink with ZeRO,
// tensor and pipeline parallelism, offload. Which knob does what is read from its name (knobs whose names say nothing
// get small random factors on activations); how much is drawn from wide ranges, and the draws that agree with the
// trials so far are kept. Deterministic; immutable once made; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tune/space.h"
#include "lockstep/tune/trial.h"

namespace lockstep::tune {

class MemorySketch {
 public:
  struct Point {
    Config config;
    bool fits = true;
  };
  // `points`: trials that ran or ran out of memory.
  MemorySketch(const Space& space, std::span<const Point> points);

  // Probability that the configuration fits.
  double fits(const Config& config) const;

 private:
  // One guess of all constants: logarithms of factors by knob and level.
  struct Guess {
    double log_states = 0;       // at the default, relative to the capacity
    double log_activations = 0;  // likewise
    std::vector<double> states;  // by slot (knob and level)
    std::vector<double> activations;
  };
  struct Knobs;

  std::size_t slot(std::size_t knob, const Value& value) const;
  // Slots of a configuration: one per active knob, relative to the default's.
  std::vector<std::size_t> slots(const Config& config) const;
  double log_memory(const Guess& guess, std::span<const std::size_t> slots) const;

  Space space_;
  std::vector<std::size_t> first_slot_;
  std::vector<std::vector<double>> levels_;  // ordered knobs with many values: the grid that slots stand on
  std::vector<Guess> guesses_;
};

}  // namespace lockstep::tune
