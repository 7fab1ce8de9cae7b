#include "lockstep/nn/moe.h"

#include <fmt/format.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/moe_router.h"
#include "lockstep/nn/moe_rows.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

constexpr const char* kRoutedNames[] = {"w1", "w3", "w2"};
constexpr const char* kSharedNames[] = {"gate_proj", "up_proj", "down_proj"};

// The names of DeepSeek and Qwen 3, otherwise those of Mixtral.
bool has_plain_names(const spec::Model& spec) { return spec.decoder.family != spec::Family::kLlama; }

void check(const spec::Model& spec, std::int64_t layer, const Partition& partition) {
  const std::string where = fmt::format("layer {} of {}: ", layer, spec.name);
  if (spec.bias) throw bad_input(where + "experts have no biases", "set bias: false in the model");
  if (spec.experts_per_token < 1 || spec.experts_per_token > spec.experts) {
    throw bad_input(fmt::format("{}experts_per_token {} of {} experts", where, spec.experts_per_token, spec.experts),
                    "choose at least one and at most all");
  }
  if (spec.experts < partition.ep_size()) {
    throw bad_input(fmt::format("{}{} experts on ep = {} ranks", where, spec.experts, partition.ep_size()),
                    "choose an ep that divides the experts");
  }
}

}  // namespace

Tensor MoeMlp::Expert::add_to(const Tensor& residual, const Tensor& x) const {
  const bool plain = gate->plain() && up->plain() && down->plain();
  return plain ? swiglu_mlp(residual, x, gate->weight, up->weight, down->weight)
               : down->add_to(residual, swiglu(gate->forward(x), up->forward(x)));
}

const char* MoeMlp::module_name(const spec::Model& spec) { return has_plain_names(spec) ? "mlp" : "block_sparse_moe"; }

MoeMlp::MoeMlp(const spec::Model& spec, std::int64_t layer, const Partition& partition,
               const torch::TensorOptions& options)
    : spec_(spec), partition_(partition) {
  check(spec, layer, partition);
  // The router is inside the tensor-parallel region, where the gradient of a weight is a part on every rank: here
  // because the weights of the sum meet only this rank's part of the experts' results.
  const LinearCut replicated{.weight = {partition.tp_size(), partition.tp_size() > 1}};
  gate_ = register_module("gate", std::make_shared<Linear>(spec.hidden, spec.experts, false, WeightLayout::kOutIn,
                                                           Init{.std = spec.init_std}, options, replicated));
  auto experts = register_module("experts", std::make_shared<Group>());
  const Segment own = share_of(spec.experts, partition.ep_rank(), partition.ep_size());
  for (std::int64_t number = own.first; number < own.first + own.count; ++number) {
    auto parent = experts->register_module(std::to_string(number), std::make_shared<Group>());
    const auto* names = has_plain_names(spec) ? kSharedNames : kRoutedNames;
    experts_.push_back(make_expert(*parent, names, spec.ffn_hidden, true, options));
  }
  if (spec.shared_experts == 0) return;
  auto parent = register_module(has_plain_names(spec) ? "shared_experts" : "shared_expert", std::make_shared<Group>());
  shared_ = std::make_unique<const Expert>(
      make_expert(*parent, kSharedNames, spec.shared_experts * spec.ffn_hidden, false, options));
}

MoeMlp::Expert MoeMlp::make_expert(torch::nn::Module& parent, const char* const* names, std::int64_t width, bool routed,
                                   const torch::TensorOptions& options) {
  const std::vector<Segment> share = {partition_.tp_share(width)};
  const auto part = [&](const char* name, std::int64_t in, std::int64_t out, LinearCut::Kind kind) {
    const LinearCut cut{.kind = kind, .segments = share, .expert = routed};
    return parent.register_module(name, std::make_shared<Linear>(in, out, false, WeightLayout::kOutIn,
                                                                 Init{.std = spec_.init_std}, options, cut));
  };
  return {.gate = part(names[0], spec_.hidden, width, LinearCut::Kind::kOutputs),
          .up = part(names[1], spec_.hidden, width, LinearCut::Kind::kOutputs),
          .down = part(names[2], width, spec_.hidden, LinearCut::Kind::kInputs)};
}

Tensor MoeMlp::router_logits(const Tensor& x) const {
  const auto wide = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto product = [wide](const Tensor& rows, const Linear& layer) {
    return linear(rows, layer.weight.to(wide), Tensor(), WeightLayout::kOutIn);
  };
  const Tensor rows = x.to(wide), logits = product(rows, *gate_);
  if (gate_->plain()) return logits;
  return logits + product(product(rows, *gate_->lora->a), *gate_->lora->b) * gate_->lora->scale;
}

// An expert without rows runs too: its weights then have a gradient of zeros, which the ranks that share them wait for.
Tensor MoeMlp::run_experts(const Tensor& rows, const std::vector<std::int64_t>& per_expert) const {
  const std::vector<Tensor> parts = rows.split_with_sizes(per_expert);
  const Tensor zero = torch::zeros({1, 1}, rows.options());
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    results.push_back(experts_[i].add_to(zero.expand(parts[i].sizes()), parts[i]));
  }
  return at::cat(results);
}

MoeMlp::Output MoeMlp::forward(const Tensor& x, const ForwardContext& context) {
  const RouterChoice choice = route(router_logits(x), spec_, partition_, context);
  const RowOrder order = order_by_expert(choice.experts, spec_.experts_per_token, spec_.experts, x.device());
  const ExpertExchange exchange(order.per_expert, partition_.ep, x.device());
  const Tensor tokens = x.reshape({-1, spec_.hidden});
  const Tensor rows = exchange.dispatch(rows_of_tokens(tokens, order));
  const Tensor results = exchange.combine(run_experts(rows, exchange.per_own_expert()));
  Tensor y = weighted_sum(results, choice.weights, order);
  if (shared_) y = shared_->add_to(y, tokens);
  last_routing_ = {exchange.rows_sent(), exchange.rows_received(), choice.dropped, order.per_expert};
  return {y.view(x.sizes()), choice.auxiliary};
}

}  // namespace lockstep::nn
