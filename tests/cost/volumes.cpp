#include "tests/cost/volumes.h"

#include <numeric>

#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/traffic.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {
namespace {

using Op = CollectiveOp;
using Group = CommGroup;

constexpr double kInteger = 8, kShortInteger = 4;  // bytes of a count and of an expert's number
// Squared norm, two losses, two wishes, the seconds of the step, a save in flight and the samples read, in fp64; and
// what each rank communicated, in worlds of at most 256.
constexpr double kStepSums = 15 * 8;
double step_sums(std::int64_t world) { return kStepSums + (world <= 256 ? 8.0 * static_cast<double>(world) : 0.0); }

// Adds up one rank's step.
class Counter {
 public:
  Counter(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch, const StackFacts& facts,
          const RankPlace& rank)
      : spec_(model),
        layout_(layout),
        facts_(facts),
        rank_(rank),
        micro_(static_cast<double>(batch.micro)),
        micro_batches_(static_cast<double>(batch.accumulation)),
        sequence_(static_cast<double>(batch.sequence_length)),
        everyone_(layout.dp * layout.sharding_ranks()),
        bytes_(parameter_bytes(layout.precision, spec::OptimizerKind::kAdamW, facts)) {
    if (model.is_image_model()) return;
    model_ = dimensions_of(model);
    local_ = local_sizes(model_, layout, micro_, sequence_);
    layers_ = layers_on_stage(model_, layout, facts.stage_split, rank.stage);
    passes_ = micro_batches_ * static_cast<double>(layers_);
    full_again_ = layout.recompute == plan::Recompute::kFull ? 1 : 0;
  }

  // The blocks of the rank's layers.
  void tensor_blocks_of_layers() {
    if (layout_.tp == 1) return;
    const double block = tensor_block_bytes(model_, local_, facts_);
    const double blocks = tensor_blocks(model_);
    const double exchanges = passes_ * (2 * blocks + tensor_blocks_again(model_, layout_, facts_));
    if (layout_.sequence_parallel) {
      const double inputs_again = passes_ * blocks * tensor_inputs_gathered_again(layout_, facts_);
      add(Group::kTp, Op::kAllGather, block * (exchanges + inputs_again));
      add(Group::kTp, Op::kReduceScatter, block * exchanges);
    } else {
      add(Group::kTp, Op::kAllReduce, block * exchanges);
    }
    add(Group::kTp, Op::kAllReduce, tensor_projection_bytes(model_, local_, facts_) * passes_ * (2 + full_again_));
  }

  // The embedding reduces its rows in forward, the head the gradient of its input in backward; with sequence parallel
  // each gathers once and scatters once. A classifier needs whole sequences and has no gradient to sum.
  void tensor_ends() {
    if (layout_.tp == 1) return;
    const bool classifies = spec_.classes > 0;
    const double hidden = micro_batches_ * hidden_bytes(model_, local_);
    const double ends = (rank_.stage == 0 ? 1 : 0) + (has_head() && !classifies ? 1 : 0);
    if (layout_.sequence_parallel) {
      add(Group::kTp, Op::kAllGather, hidden * ends);
      add(Group::kTp, Op::kReduceScatter, hidden * ends);
    } else {
      add(Group::kTp, Op::kAllReduce, hidden * ends);
    }
    if (!has_head() || !facts_.small_exchanges) return;
    if (classifies) {
      if (layout_.sequence_parallel) add(Group::kTp, Op::kAllGather, hidden);
      return;
    }
    // Of every row the softmax's maximum, its sum and the target's logit (Shoeybi et al. 2019).
    const double wide = layout_.precision == spec::Precision::kFp64 ? 8 : 4;
    add(Group::kTp, Op::kAllReduce, micro_batches_ * local_.tokens * 3 * wide);
  }

  void context() {
    if (layout_.cp == 1) return;
    const double again = recomputes_attention(model_, layout_, facts_) ? 1 : 0;
    if (model_.arch == spec::Arch::kMamba) {
      hand_on();
    } else if (layout_.context_exchange == plan::ContextExchange::kAllToAll) {
      add(Group::kCp, Op::kAllToAll, context_all_to_all_bytes(model_, local_, facts_) * passes_ * (2 + again));
    } else {
      const double steps = (local_.cp - 1) * (1 + again + kContextRingsInBackward);
      send(Group::kCp, context_ring_step_bytes(local_) * passes_ * steps);
    }
  }

  void experts(const std::optional<RoutedRows>& routed) {
    if (layout_.ep == 1 || model_.experts == 0) return;
    const double rows = routed ? (routed->sent + routed->received) * model_.hidden * local_.element
                               : passes_ * kExpertExchanges * expert_all_to_all_bytes(model_, local_, facts_);
    add(Group::kEp, Op::kAllToAll, rows * (2 + full_again_));
    if (facts_.small_exchanges) {
      add(Group::kEp, Op::kAllToAll, passes_ * (1 + full_again_) * model_.experts * kInteger);
    }
  }

  // A loss or a capacity is of the tokens of all data ranks: how many each expert gets and each rank has; for a
  // capacity every choice, and the position of every row.
  void routing() {
    const bool losses = spec_.router_auxiliary_loss > 0 || spec_.router_z_loss > 0;
    const bool limited = spec_.capacity_factor > 0;
    if (!facts_.small_exchanges || model_.experts == 0 || everyone_ == 1 || !(losses || limited)) return;
    const double ranks = static_cast<double>(everyone_);
    const double forwards = passes_ * (1 + full_again_);
    add(Group::kEveryone, Op::kAllReduce, forwards * (model_.experts + 2 * ranks) * kInteger);
    if (!limited) return;
    const double choices = sequence_ / local_.cp * (1 + micro_ * model_.experts_per_token);
    add(Group::kEveryone, Op::kAllGather, forwards * ranks * choices * kShortInteger);
  }

  void pipeline() {
    if (layout_.pp == 1) return;
    send(Group::kPipeline, boundary_bytes(model_, local_, facts_) * micro_batches_ * sends_per_micro_batch());
  }

  // Gradients and weights between the ranks that share them.
  void data() {
    const std::vector<ParameterBlock> blocks = parameter_blocks(spec_, layout_, rank_, layers_);
    const std::int64_t shards = layout_.zero > 0 ? layout_.sharding_ranks() : 1;
    const auto expert_shards_count = static_cast<std::int64_t>(expert_shards(layout_));
    std::int64_t dense = 0, expert = 0;
    for (const ParameterBlock& block : blocks) {
      (block.expert ? expert : dense) +=
          block.copies * padded(block.elements, block.expert ? expert_shards_count : shards);
    }
    const DataTraffic traffic =
        data_traffic(layout_, facts_, bytes_, static_cast<double>(dense), static_cast<double>(expert), micro_batches_);
    add(Group::kEveryone, everyone_, Op::kAllReduce, traffic.reduce);
    add(Group::kShards, shards, Op::kReduceScatter, traffic.scatter);
    add(Group::kShards, shards, Op::kAllGather, traffic.gather);
    add(Group::kReplicas, layout_.dp, Op::kAllReduce, traffic.replicas);
    const bool apart = layout_.ep > 1;
    const std::int64_t same = everyone_ / layout_.ep;
    add(apart ? Group::kExpertEveryone : Group::kEveryone, same, Op::kAllReduce, traffic.experts);
    const Group of_experts = apart ? Group::kExpertShards : Group::kShards;
    add(of_experts, expert_shards_count, Op::kReduceScatter, traffic.expert_scatter);
    add(of_experts, expert_shards_count, Op::kAllGather, traffic.expert_gather);
    add(apart ? Group::kExpertReplicas : Group::kReplicas, same / expert_shards_count, Op::kAllReduce,
        traffic.expert_replicas);
    if (facts_.small_exchanges) shared_gradients(blocks, traffic, shards);
  }

  // Everybody's loss, norm and requests to save or stop, and how many targets the step has.
  void step() {
    if (!facts_.small_exchanges) return;
    if (layout_.world() > 1) add(Group::kWorld, Op::kAllReduce, step_sums(layout_.world()));
    if (everyone_ > 1) add(Group::kEveryone, Op::kAllReduce, kInteger);
  }

  const Volumes& volumes() const { return volumes_; }

 private:
  void add(Group group, Op op, double bytes) {
    volumes_.bytes[static_cast<std::size_t>(group)][static_cast<std::size_t>(op)] += bytes;
  }
  // A group of one rank communicates nothing.
  void add(Group group, std::int64_t ranks, Op op, const Transfer& transfer) {
    if (ranks > 1) add(group, op, transfer.total());
  }
  // As much comes as goes.
  void send(Group group, double bytes) { send(group, bytes, bytes); }
  void send(Group group, double sent, double received) {
    add(group, Op::kSendReceive, sent);
    volumes_.received[static_cast<std::size_t>(group)] += received;
  }

  bool has_head() const { return rank_.stage == plan::head_rank(layout_); }

  // A state-space layer: to the next rank in forward, back in backward.
  void hand_on() {
    const double state = context_state_bytes(model_, local_, micro_, facts_) * passes_;
    const double forwards = 1 + full_again_;
    const double to_next = rank_.cp < layout_.cp - 1 ? 1 : 0, to_previous = rank_.cp > 0 ? 1 : 0;
    send(Group::kCp, state * (to_next * forwards + to_previous), state * (to_previous * forwards + to_next));
  }

  // Both directions. Every chunk hands on what it made but the last, which has the loss, and hands back but the first.
  // Two chunks of a zero-bubble schedule lie in a V: where the pipeline turns, they meet on one rank.
  double sends_per_micro_batch() const {
    const bool first = rank_.stage == 0;
    const bool last = rank_.stage == layout_.pp - 1;
    const double chunks = static_cast<double>(layout_.virtual_stages);
    if (plan::makes_a_v(layout_)) return first || last ? 2 : 4;
    return 2 * chunks - (first ? 1 : 0) - (last ? 1 : 0);
  }

  // Gradients of which several tensor-parallel ranks, or both ends of a pipeline, have a part. The first are summed
  // before the data ranks' are, the second after.
  void shared_gradients(const std::vector<ParameterBlock>& blocks, const DataTraffic& traffic, std::int64_t shards) {
    const double gradient = travelling_gradient_bytes(layout_, facts_, bytes_);
    const double reductions = traffic.scatters_each_micro_batch ? micro_batches_ : 1;
    for (const ParameterBlock& block : blocks) {
      const double each = static_cast<double>(block.copies) * gradient;
      add(Group::kTp, Op::kAllReduce, static_cast<double>(block.partial_over_tp) * each * reductions);
      add(Group::kKeySharers, Op::kAllReduce, static_cast<double>(block.partial_over_key_sharers) * each * reductions);
      const bool ends_apart = plan::head_rank(layout_) > 0;
      if (block.tied && ends_apart) {
        add(Group::kEnds, Op::kAllReduce, static_cast<double>(padded(block.elements, shards) / shards) * each);
      }
    }
  }

  const spec::Model& spec_;
  const plan::Layout& layout_;
  const StackFacts& facts_;
  RankPlace rank_;
  double micro_, micro_batches_, sequence_;
  std::int64_t everyone_;
  ParameterBytes bytes_;
  Dimensions model_;
  LocalSizes local_;
  std::int64_t layers_ = 0;
  double passes_ = 0;      // forwards of a layer in one step
  double full_again_ = 0;  // and how often each is repeated where everything is recomputed
  Volumes volumes_;
};

}  // namespace

const char* to_string(CommGroup group) {
  constexpr std::array<const char*, kCommGroups> kNames{"tp",
                                                        "key_sharers",
                                                        "cp",
                                                        "everyone",
                                                        "shards",
                                                        "replicas",
                                                        "expert_everyone",
                                                        "expert_shards",
                                                        "expert_replicas",
                                                        "ep",
                                                        "pp",
                                                        "ends",
                                                        "world"};
  return kNames[static_cast<std::size_t>(group)];
}

CommAxis axis_of(CommGroup group) {
  switch (group) {
    case CommGroup::kTp:
    case CommGroup::kKeySharers:
      return CommAxis::kTp;
    case CommGroup::kCp:
      return CommAxis::kCp;
    case CommGroup::kEveryone:
    case CommGroup::kShards:
    case CommGroup::kReplicas:
    case CommGroup::kExpertEveryone:
    case CommGroup::kExpertShards:
    case CommGroup::kExpertReplicas:
      return CommAxis::kDp;
    case CommGroup::kEp:
      return CommAxis::kEp;
    case CommGroup::kPipeline:
    case CommGroup::kEnds:
      return CommAxis::kPp;
    case CommGroup::kWorld:
      return CommAxis::kWorld;
  }
  return CommAxis::kWorld;
}

double Volumes::at(CommAxis axis, CollectiveOp op) const {
  double sum = 0;
  for (std::size_t group = 0; group < kCommGroups; ++group) {
    if (axis_of(static_cast<CommGroup>(group)) == axis) sum += bytes[group][static_cast<std::size_t>(op)];
  }
  return sum;
}

double Volumes::of(CommAxis axis) const {
  double sum = 0;
  for (std::size_t op = 0; op < kCollectiveOps; ++op) sum += at(axis, static_cast<CollectiveOp>(op));
  return sum;
}

double Volumes::of(CollectiveOp op) const {
  double sum = 0;
  for (const auto& row : bytes) sum += row[static_cast<std::size_t>(op)];
  return sum;
}

double Volumes::total() const {
  double sum = 0;
  for (const auto& row : bytes) sum = std::accumulate(row.begin(), row.end(), sum);
  return sum;
}

Volumes communication_volumes(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch,
                              const StackFacts& facts, const RankPlace& rank, const std::optional<RoutedRows>& routed) {
  Counter counter(model, layout, batch, facts, rank);
  if (model.is_language_model()) {
    counter.tensor_blocks_of_layers();
    counter.tensor_ends();
    counter.context();
    counter.experts(routed);
    counter.routing();
    counter.pipeline();
  }
  counter.data();
  counter.step();
  return counter.volumes();
}

}  // namespace lockstep::cost
