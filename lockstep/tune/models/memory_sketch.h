// Memory sketch: the usual formula for the memory of a training step, with unknown constants that are learned from
// what ran and what ran out of memory.
//
//   memory(x) / capacity = weights(x) + gradients(x) + optimizer(x) + activations(x)
//
// Activations grow with the micro-batch and shrink with recomputation and tensor parallelism; the other three shrink
// with ZeRO, tensor and pipeline parallelism, offload. Which knob does what is read from its name; knobs whose names
// say nothing get random factors on activations. How much each does is drawn from wide ranges; draws from the
// posterior, given the trials so far, are made by elliptical slice sampling (Murray, Adams and MacKay 2010).
// Deterministic; immutable once made; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tune/models/memory_factors.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

class MemorySketch {
 public:
  struct Point {
    Config config;
    bool fits = true;
  };
  // `points`: trials that ran or ran out of memory.
  // `trust_default`: somebody runs the default, so it fits.
  MemorySketch(const Space& space, std::span<const Point> points, bool trust_default = true);

  // Probability that the configuration fits.
  double fits(const Config& config) const;
  // Sum over the points of the logarithm of what the others say of each (leave-one-out by importance weights).
  double predictive_score() const;

 private:
  // One guess of all constants: each part of the memory, and the factors of each slot on it (not logarithms: products
  // are many times cheaper than exponentials here).
  struct Guess {
    MemoryParts base{};
    std::vector<MemoryParts> slots;
  };

  void make_guess(std::span<const double> latent, Guess& guess) const;
  static double log_memory(const Guess& guess, std::span<const std::size_t> slots);
  // `scratch` is overwritten.
  double log_likelihood(std::span<const double> latent, Guess& scratch) const;

  MemoryFactors factors_;
  bool trust_default_;
  std::vector<std::size_t> usual_;              // slots of the default
  std::vector<std::vector<std::size_t>> seen_;  // slots of the points
  std::vector<double> signs_;                   // of the points: 1 fits, -1 does not
  std::vector<Guess> guesses_;
};

}  // namespace lockstep::tune
