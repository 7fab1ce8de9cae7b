#include "lockstep/nn/moe_router.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/nn/moe_capacity.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

// What the ranks of a micro-step bring together.
struct MicroStep {
  std::vector<std::int64_t> pairs;          // (token, choice) pairs by expert, before any is dropped
  std::vector<std::int64_t> samples, rows;  // by rank of `routing`
  std::int64_t tokens = 0;
};

// Each rank knows only its own numbers; the others are zeros, and the sum has all of them.
MicroStep gather_counts(const std::vector<std::int32_t>& experts, std::int64_t samples, std::int64_t rows,
                        std::int64_t expert_count, const Partition& partition, torch::Device device) {
  const std::int64_t ranks = Partition::size(partition.routing), rank = Partition::rank(partition.routing);
  Tensor counts = torch::zeros({expert_count + 2 * ranks}, torch::kLong);
  auto* values = counts.data_ptr<std::int64_t>();
  for (const std::int32_t expert : experts) ++values[expert];
  values[expert_count + rank] = samples;
  values[expert_count + ranks + rank] = rows;
  if (ranks > 1) {
    Tensor sum = counts.to(device);
    comm::Communicator group = partition.routing;
    comm::OpOptions options;
    options.site = "routing: expert counts";
    group.all_reduce(buffer_of(sum), comm::ReduceOp::kSum, options).wait();
    counts = sum.to(torch::kCPU);
    values = counts.data_ptr<std::int64_t>();
  }
  MicroStep step;
  step.pairs.assign(values, values + expert_count);
  step.samples.assign(values + expert_count, values + expert_count + ranks);
  step.rows.assign(values + expert_count + ranks, values + expert_count + 2 * ranks);
  step.tokens = std::inner_product(step.samples.begin(), step.samples.end(), step.rows.begin(), std::int64_t{0});
  return step;
}

// [ranks, longest], int32, CPU: of every rank the positions of its rows, then the experts of its tokens, then nothing.
Tensor gather_choices(const std::vector<std::int32_t>& experts, const MicroStep& step, std::int64_t choices,
                      const Partition& partition, const Tensor& positions, torch::Device device) {
  const std::int64_t ranks = Partition::size(partition.routing);
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    longest = std::max(longest, step.rows[i] * (1 + step.samples[i] * choices));
  }
  const std::int64_t rows = step.rows[static_cast<std::size_t>(Partition::rank(partition.routing))];
  LOCKSTEP_ASSERT(rows + static_cast<std::int64_t>(experts.size()) <= longest, "the counts agree with what is here");
  Tensor own = torch::full({1, longest}, kDropped, torch::kInt);
  own[0].narrow(0, 0, rows).copy_(positions.defined() ? positions : torch::arange(rows));
  std::copy(experts.begin(), experts.end(), own.data_ptr<std::int32_t>() + rows);
  if (ranks == 1) return own;
  own = own.to(device);
  const Tensor all = torch::empty({ranks, longest}, own.options());
  comm::Communicator group = partition.routing;
  comm::OpOptions options;
  options.site = "routing: expert choices";
  group.all_gather(buffer_of(own), buffer_of(all), options).wait();
  return all.to(torch::kCPU);
}

// Every rank goes through all choices of the micro-step in the same order, so all agree on what is dropped.
void apply_capacity(RouterChoice& choice, const MicroStep& step, const spec::Model& spec, const Partition& partition,
                    const ForwardContext& context, torch::Device device) {
  const std::int64_t k = spec.experts_per_token, cp = partition.cp_size();
  const auto own = static_cast<std::size_t>(Partition::rank(partition.routing));
  LOCKSTEP_ASSERT(static_cast<std::int64_t>(own) % cp == partition.cp_rank(), "cp is the fastest axis of routing");
  const Tensor all = gather_choices(choice.experts, step, k, partition, context.positions, device);
  std::vector<RankChoices> ranks;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    auto* payload = all.data_ptr<std::int32_t>() + static_cast<std::int64_t>(i) * all.size(1);
    ranks.push_back({step.samples[i], step.rows[i], payload, payload + step.rows[i]});
  }
  drop_over_capacity(ranks, cp, k, spec.experts, expert_capacity(spec.capacity_factor, step.tokens, k, spec.experts));
  const std::int32_t* accepted = ranks[own].experts;
  std::copy(accepted, accepted + choice.experts.size(), choice.experts.begin());
  choice.dropped = std::count(choice.experts.begin(), choice.experts.end(), kDropped);
}

Tensor balance_losses(const Tensor& logits, const Tensor& probabilities, const MicroStep& step,
                      const spec::Model& spec) {
  const auto tokens = static_cast<double>(std::max<std::int64_t>(1, step.tokens));
  Tensor total = torch::zeros({}, logits.options());
  if (spec.router_auxiliary_loss > 0) {
    const double pairs = tokens * static_cast<double>(spec.experts_per_token);
    const Tensor share = (torch::tensor(step.pairs, torch::kDouble) / pairs).to(logits.options());
    const double scale = spec.router_auxiliary_loss * static_cast<double>(spec.experts) / tokens;
    total = total + (probabilities.sum(0) * share).sum() * scale;
  }
  if (spec.router_z_loss > 0) {
    total = total + at::logsumexp(logits, 1).square().sum() * (spec.router_z_loss / tokens);
  }
  return total;
}

}  // namespace

RouterChoice route(const Tensor& sample_logits, const spec::Model& spec, const Partition& partition,
                   const ForwardContext& context) {
  const torch::Device device = sample_logits.device();
  const Tensor logits = sample_logits.reshape({-1, spec.experts});
  const Tensor probabilities = at::softmax(logits, 1);
  // Not topk: which of two equal probabilities it takes is not said.
  const Tensor order = std::get<1>(at::sort(probabilities.detach(), /*stable=*/true, 1, /*descending=*/true));
  const Tensor chosen = order.narrow(1, 0, spec.experts_per_token);
  const Tensor on_host = chosen.to(torch::kCPU, torch::kInt).contiguous();
  const Tensor probability = probabilities.gather(1, chosen);

  RouterChoice choice;
  choice.weights = spec.decoder.normalized_routing ? probability / probability.sum(1, /*keepdim=*/true) : probability;
  if (spec.decoder.routed_scale != 1.0) choice.weights = choice.weights * spec.decoder.routed_scale;
  choice.experts.assign(on_host.data_ptr<std::int32_t>(), on_host.data_ptr<std::int32_t>() + on_host.numel());
  const bool has_losses = context.training && (spec.router_auxiliary_loss > 0 || spec.router_z_loss > 0);
  if (!has_losses && spec.capacity_factor <= 0) return choice;
  const MicroStep step =
      gather_counts(choice.experts, sample_logits.size(0), sample_logits.size(1), spec.experts, partition, device);
  // Gradients of the tensor-parallel region are summed over tp, so the losses may enter once. One rank has all of them
  // rather than each a tp-th part, whose sum would round; the others have a plain zero.
  if (has_losses) {
    choice.auxiliary = partition.tp_rank() == 0 ? balance_losses(logits, probabilities, step, spec)
                                                : torch::zeros({}, logits.options());
  }
  if (spec.capacity_factor > 0) apply_capacity(choice, step, spec, partition, context, device);
  return choice;
}

}  // namespace lockstep::nn
