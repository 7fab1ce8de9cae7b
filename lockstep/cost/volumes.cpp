#include "lockstep/cost/volumes.h"

#include <algorithm>
#include <numeric>

#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/traffic.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {
namespace {

using Op = CollectiveOp;
using Axis = CommAxis;

// Adds up one rank's step.
class Counter {
 public:
  Counter(const plan::Layout& layout, const plan::BatchPlan& batch, const StackFacts& facts)
      : layout_(layout), facts_(facts), micro_batches_(static_cast<double>(batch.accumulation)) {}

  void add(Axis axis, Op op, double bytes, double count) {
    volumes_.bytes[static_cast<std::size_t>(axis)][static_cast<std::size_t>(op)] += bytes * count;
  }

  // Tensor parallel: blocks of the stage's layers, the embedding on the first stage and the head on the last.
  void tensor(const Dimensions& model, const LocalSizes& local, double layers, bool first, bool last) {
    if (layout_.tp == 1) return;
    const double passes = micro_batches_ * layers * tensor_blocks(model);
    const double again = layout_.recompute == plan::Recompute::kFull ? 1 : 0;
    const double block = tensor_block_bytes(model, local);
    const double hidden = hidden_bytes(model, local);
    const double ends = micro_batches_ * ((first ? 1 : 0) + (last ? 1 : 0));
    if (!layout_.sequence_parallel) {
      add(Axis::kTp, Op::kAllReduce, block, passes * (2 + again));
      // The embedding reduces its rows in forward, the head the gradient of its input in backward.
      add(Axis::kTp, Op::kAllReduce, hidden, ends);
      return;
    }
    add(Axis::kTp, Op::kAllGather, block, passes * (2 + again + tensor_inputs_gathered_again(layout_, facts_)));
    add(Axis::kTp, Op::kReduceScatter, block, passes * (2 + again));
    add(Axis::kTp, Op::kAllGather, hidden, ends);
    add(Axis::kTp, Op::kReduceScatter, hidden, ends);
  }

  void context(const Dimensions& model, const LocalSizes& local, double layers, double micro) {
    if (layout_.cp == 1) return;
    const double passes = micro_batches_ * layers;
    const double again = layout_.recompute == plan::Recompute::kFull ? 1 : 0;
    if (model.arch == spec::Arch::kMamba) {
      add(Axis::kCp, Op::kSendReceive, context_state_bytes(model, local, micro), passes * (2 + again));
    } else if (layout_.context_exchange == plan::ContextExchange::kAllToAll) {
      add(Axis::kCp, Op::kAllToAll, context_all_to_all_bytes(local), passes * (2 + again));
    } else {
      const double steps = (local.cp - 1) * (1 + again + kContextRingsInBackward);
      add(Axis::kCp, Op::kSendReceive, context_ring_step_bytes(local), passes * steps);
    }
  }

  void experts(const Dimensions& model, const LocalSizes& local, double layers) {
    if (layout_.ep == 1 || model.experts == 0) return;
    const double again = layout_.recompute == plan::Recompute::kFull ? 1 : 0;
    add(Axis::kEp, Op::kAllToAll, expert_all_to_all_bytes(model, local),
        micro_batches_ * layers * kExpertExchanges * (2 + again));
  }

  void pipeline(const Dimensions& model, const LocalSizes& local, std::int64_t stage) {
    if (layout_.pp == 1) return;
    add(Axis::kPp, Op::kSendReceive, boundary_bytes(model, local), micro_batches_ * sends_per_micro_batch(stage));
  }

  void data(const ParameterBytes& bytes, double dense, double expert) {
    const DataTraffic traffic = data_traffic(layout_, facts_, bytes, dense, expert, micro_batches_);
    const std::int64_t same = layout_.dp * layout_.sharding_ranks();
    add_data(same, Op::kAllReduce, traffic.reduce);
    add_data(layout_.sharding_ranks(), Op::kReduceScatter, traffic.scatter);
    add_data(layout_.sharding_ranks(), Op::kAllGather, traffic.gather);
    add_data(layout_.dp, Op::kAllReduce, traffic.replicas);
    const std::int64_t same_experts = same / layout_.ep;
    const std::int64_t shards = static_cast<std::int64_t>(expert_shards(layout_));
    add_data(same_experts, Op::kAllReduce, traffic.experts);
    add_data(shards, Op::kReduceScatter, traffic.expert_scatter);
    add_data(shards, Op::kAllGather, traffic.expert_gather);
    add_data(same_experts / shards, Op::kAllReduce, traffic.expert_replicas);
  }

  const Volumes& volumes() const { return volumes_; }

 private:
  // A group of one rank communicates nothing.
  void add_data(std::int64_t ranks, Op op, const Transfer& transfer) {
    if (ranks > 1) add(Axis::kDp, op, transfer.bytes, transfer.count);
  }

  // Both directions. Every chunk hands on what it made but the last, which has the loss, and hands back but the first.
  // Two chunks of a zero-bubble schedule lie in a V: where the pipeline turns, they meet on one rank.
  double sends_per_micro_batch(std::int64_t stage) const {
    const bool first = stage == 0;
    const bool last = stage == layout_.pp - 1;
    const double chunks = static_cast<double>(layout_.virtual_stages);
    if (plan::makes_a_v(layout_)) return first || last ? 2 : 4;
    return 2 * chunks - (first ? 1 : 0) - (last ? 1 : 0);
  }

  const plan::Layout& layout_;
  const StackFacts& facts_;
  double micro_batches_;
  Volumes volumes_;
};

}  // namespace

double Volumes::of(CommAxis axis) const {
  const auto& row = bytes[static_cast<std::size_t>(axis)];
  return std::accumulate(row.begin(), row.end(), 0.0);
}

double Volumes::of(CollectiveOp op) const {
  double sum = 0;
  for (const auto& row : bytes) sum += row[static_cast<std::size_t>(op)];
  return sum;
}

double Volumes::total() const {
  double sum = 0;
  for (std::size_t axis = 0; axis < kCommAxes; ++axis) sum += of(static_cast<CommAxis>(axis));
  return sum;
}

Volumes communication_volumes(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch,
                              const StackFacts& facts, std::int64_t stage) {
  Counter counter(layout, batch, facts);
  const ParameterBytes bytes = parameter_bytes(layout.precision, spec::OptimizerKind::kAdamW, facts);
  if (!model.is_language_model()) {
    counter.data(bytes, static_cast<double>(spec::parameter_count(model)), 0);
    return counter.volumes();
  }
  const Dimensions dimensions = dimensions_of(model);
  const double micro = static_cast<double>(batch.micro);
  const LocalSizes local = local_sizes(dimensions, layout, micro, static_cast<double>(batch.sequence_length));
  const std::int64_t layers = layers_on_stage(dimensions, layout, facts.stage_split, stage);
  const bool ends = stage == plan::head_rank(layout);
  const bool has_head =
      dimensions.head_parameters >= dimensions.vocab * dimensions.hidden;  // not a classifier's few rows
  counter.tensor(dimensions, local, static_cast<double>(layers), stage == 0, ends && has_head);
  counter.context(dimensions, local, static_cast<double>(layers), micro);
  counter.experts(dimensions, local, static_cast<double>(layers));
  counter.pipeline(dimensions, local, stage);
  counter.data(bytes, dense_parameters_on_rank(dimensions, layout, stage, layers),
               expert_parameters_on_rank(dimensions, layout, layers));
  return counter.volumes();
}

}  // namespace lockstep::cost
