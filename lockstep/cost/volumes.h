// Communication volumes: the payload bytes that one rank hands to collectives in one optimizer step, by axis and by
// kind, as comm::Traffic counts them. The numbers are traffic.h's, which the pricer turns into seconds.
//
// Not counted, being small or none of the layout's: loss and gradient norm, the softmax statistics of a vocabulary that
// tp has split, the gradient of tied embeddings between first and last stage, and padding of flat buffers.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/cost/constants.h"
#include "lockstep/cost/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

// The group a collective runs over. kDp: whoever holds the same weights (replicas, shards, cp ranks that share them).
enum class CommAxis { kTp, kCp, kDp, kPp, kEp };
inline constexpr std::size_t kCommAxes = 5;
inline constexpr std::size_t kCollectiveOps = 6;

struct Volumes {
  // kSendReceive counts what is sent.
  std::array<std::array<double, kCollectiveOps>, kCommAxes> bytes{};

  double at(CommAxis axis, CollectiveOp op) const {
    return bytes[static_cast<std::size_t>(axis)][static_cast<std::size_t>(op)];
  }
  double of(CommAxis axis) const;    // all kinds
  double of(CollectiveOp op) const;  // all axes
  double total() const;
};

// Of one rank of pipeline stage `stage`. `layout` is valid for `model` (plan::find_layout_problem) and `batch` has its
// sequence length; images are data parallel only.
Volumes communication_volumes(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch,
                              const StackFacts& facts, std::int64_t stage = 0);

}  // namespace lockstep::cost
