#include "lockstep/cost/stage_content.h"

#include <algorithm>
#include <cmath>

#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {
namespace {

// nanotron deals blocks out by cumulative FLOPs, the LM head as one block and last: a stage takes layers until it has
// reached its share of the total.
std::int64_t layers_by_cost(const Dimensions& model, std::int64_t stages, std::int64_t stage) {
  const std::int64_t all = static_cast<std::int64_t>(model.layers);
  const double layer = model.dense_parameters_per_layer;
  const double share = (layer * model.layers + model.vocab * model.hidden) / static_cast<double>(stages);
  const auto layers_before = [&](std::int64_t end) {  // of the first `end` stages
    if (end >= stages) return all;
    const double needed = std::ceil(share * static_cast<double>(end) / layer - 1e-3);
    return std::min(all, static_cast<std::int64_t>(needed));
  };
  return layers_before(stage + 1) - layers_before(stage);
}

}  // namespace

std::int64_t layers_on_stage(const Dimensions& model, const plan::Layout& layout, StageSplit split,
                             std::int64_t stage) {
  const std::int64_t all = static_cast<std::int64_t>(model.layers);
  if (layout.pp == 1) return all;
  if (plan::makes_a_v(layout)) {
    return plan::layers_at(layout, all, stage) + plan::layers_at(layout, all, 2 * layout.pp - 1 - stage);
  }
  if (!layout.stage_layers.empty()) {
    std::int64_t layers = 0;
    for (std::int64_t chunk = 0; chunk < layout.virtual_stages; ++chunk) {
      layers += plan::layers_at(layout, all, chunk * layout.pp + stage);
    }
    return layers;
  }
  if (split == StageSplit::kByCost) return layers_by_cost(model, layout.pp, stage);
  return all / layout.pp + (stage < all % layout.pp ? 1 : 0);
}

double dense_parameters_on_rank(const Dimensions& model, const plan::Layout& layout, std::int64_t stage,
                                std::int64_t layers) {
  double parameters = static_cast<double>(layers) * model.dense_parameters_per_layer;
  if (stage == 0) parameters += model.embedding_parameters;
  // A tied head is the embedding itself unless another stage holds it.
  const std::int64_t head = plan::head_rank(layout);
  if (stage == head && (!model.tied || head > 0)) parameters += model.head_parameters;
  const double tp = static_cast<double>(layout.tp);
  return parameters / tp + static_cast<double>(layers) * model.whole_parameters_per_layer * (1 - 1 / tp);
}

double expert_parameters_on_rank(const Dimensions& model, const plan::Layout& layout, std::int64_t layers) {
  return static_cast<double>(layers) * model.expert_parameters_per_layer / static_cast<double>(layout.tp * layout.ep);
}

}  // namespace lockstep::cost
