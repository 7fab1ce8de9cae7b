// Smaller models of the same shape: every width, the depth and the sequence by one factor. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/plan/layout.h"
#include "lockstep/spec/model.h"

namespace lockstep::planner {

// What the layouts of all proxies divide.
struct Divisors {
  std::int64_t heads = 1;     // and key/value heads, the MLP, the vocabulary: tp, and cp where heads are exchanged
  std::int64_t layers = 1;    // chunks of the pipeline
  std::int64_t sequence = 1;  // pieces of a sequence
};
Divisors divisors_of(const std::vector<plan::Layout>& layouts, const spec::Model& model);

struct SmallModel {
  spec::Model model;
  std::int64_t sequence = 0;  // tokens; 0: images
  double share_of_micro = 1;  // images: of the micro-batch, as they shrink together
};

// Largest first, all smaller than `model`. Of a transformer: hidden : layers, MLP : hidden, query heads : key/value
// heads and sequence : hidden are those of `model` as far as whole numbers allow (hidden : layers within a quarter, but
// for the smallest depth that the pipeline needs); experts stay; the vocabulary shrinks so that the head keeps its
// share of the FLOPs, down to 256. Heads keep their size until fewer than four would be left. Image networks keep their
// structure; the images of those that take any size shrink, and the micro-batch.
std::vector<SmallModel> smaller_models(const spec::Model& model, std::int64_t sequence, const Divisors& divisors);

}  // namespace lockstep::planner
