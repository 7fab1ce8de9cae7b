// Communication volumes: the payload bytes that one rank hands to collectives in one optimizer step, by group and by
// kind, as comm::Traffic counts them. The numbers are traffic.h's, which the pricer turns into seconds.
//
// With lockstep_facts() this is all that the engine exchanges for a job without LoRA, compression or evaluation, to the
// byte: tests/exact/volumes_test.cpp. Of other stacks what is small is left out: see StackFacts::small_exchanges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "lockstep/cost/profile/constants.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/model.h"
#include "tests/cost/parameter_blocks.h"

namespace lockstep::cost {

// Who exchanges. Names, members and order are those of parallel::ProcessGroups, which explains them.
enum class CommGroup {
  kTp,
  kKeySharers,  // tp ranks that hold the same key/value heads
  kCp,
  kEveryone,  // dp x shard x cp: the same weights before ZeRO
  kShards,
  kReplicas,
  kExpertEveryone,  // these three where ep has divided the experts
  kExpertShards,
  kExpertReplicas,
  kEp,
  kPipeline,
  kEnds,  // first and last stage
  kWorld,
};
inline constexpr std::size_t kCommGroups = 13;
const char* to_string(CommGroup group);  // as parallel::ProcessGroups names it

enum class CommAxis { kTp, kCp, kDp, kPp, kEp, kWorld };
CommAxis axis_of(CommGroup group);  // kDp: whoever holds the same weights (replicas, shards, cp ranks that share them)

inline constexpr std::size_t kCollectiveOps = 6;

struct Volumes {
  // [group][kind]; kSendReceive counts what is sent.
  std::array<std::array<double, kCollectiveOps>, kCommGroups> bytes{};
  std::array<double, kCommGroups> received{};  // by kSendReceive

  double at(CommGroup group, CollectiveOp op) const {
    return bytes[static_cast<std::size_t>(group)][static_cast<std::size_t>(op)];
  }
  double at(CommAxis axis, CollectiveOp op) const;  // all groups of the axis
  double of(CommAxis axis) const;                   // all kinds
  double of(CollectiveOp op) const;                 // all groups
  double total() const;
};

// Rows of tokens that the router of this rank sent to experts and its experts got, those that stayed on the rank
// included: of one forward each, summed over the rank's layers and the micro-batches of a step.
struct RoutedRows {
  double sent = 0;
  double received = 0;
};

// Of one rank. `layout` is valid for `model` (plan::find_layout_problem) and `batch` has its sequence length; images
// are data parallel only. Without `routed` tokens spread evenly over the experts.
Volumes communication_volumes(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch,
                              const StackFacts& facts, const RankPlace& rank = {},
                              const std::optional<RoutedRows>& routed = {});

}  // namespace lockstep::cost
