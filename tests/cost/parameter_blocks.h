// The weights of one rank to the element, in blocks: what ZeRO gathers, reduces and frees together. The pricer's
// dense_parameters_on_rank() (stage_content.h) is the same in round numbers. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/plan/layout.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

// A rank by its place on the axes on which ranks of one layout differ. Data ranks do not.
struct RankPlace {
  std::int64_t stage = 0;
  std::int64_t cp = 0;
  std::int64_t tp = 0;
};

// The token table where a tied head shares it, the other embeddings, a layer without routed experts, the routed experts
// of a layer, or the head with the final norm.
struct ParameterBlock {
  std::int64_t copies = 1;    // blocks of this size: the layers of a rank are alike
  std::int64_t elements = 0;  // on this rank before ZeRO
  bool expert = false;        // routed experts: fewer ranks have the same
  bool tied = false;          // the token table, and first and last position of a pipeline both have it
  // Of the elements, those that tensor-parallel ranks hold in common while each computes a part of the gradient.
  std::int64_t partial_over_tp = 0;
  std::int64_t partial_over_key_sharers = 0;  // the tp / kv_heads ranks that have one key/value head, fewer than tp
};

// Of a rank with `layers` layers (layers_on_stage()). All parameters are taken to be trained.
std::vector<ParameterBlock> parameter_blocks(const spec::Model& model, const plan::Layout& layout,
                                             const RankPlace& rank, std::int64_t layers);

// Length of a flat buffer that holds `elements` and divides by `ranks`.
inline std::int64_t padded(std::int64_t elements, std::int64_t ranks) { return (elements + ranks - 1) / ranks * ranks; }

}  // namespace lockstep::cost
