// Pipelines: a stage that takes longer than the others holds all of them up. Its layers explain it, or they do not.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/layer.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::diagnose {
namespace {

constexpr double kUnexplained =
    1.25;  // seconds per layer against the other stages, beyond which layers do not explain it

struct Stage {
  double seconds = 0.0;  // forward and backward of a step
  double weight = 0.0;   // in layers; the head counts as so many as its products take
  std::int64_t layers = 0;
  std::vector<int> ranks;
};

// The head's product in layers' worth of products.
double head_weight(const spec::Model& model) {
  if (!model.is_language_model()) return 0.0;
  const cost::Dimensions sizes = cost::dimensions_of(model);
  const double experts =
      sizes.experts > 0 ? sizes.expert_parameters_per_layer * sizes.experts_per_token / sizes.experts : 0.0;
  const double layer = sizes.dense_parameters_per_layer + experts;
  const double head = model.classes > 0 ? 0.0 : sizes.hidden * sizes.vocab;
  return layer > 0.0 ? head / layer : 0.0;
}

std::vector<Stage> stages_of(const RunEvidence& evidence) {
  const plan::Layout& layout = evidence.run->layout;
  std::vector<Stage> stages(static_cast<std::size_t>(layout.pp));
  for (std::int64_t position = 0; position < layout.pp * layout.virtual_stages; ++position) {
    const int rank = plan::pipeline_rank_of(layout.schedule, static_cast<int>(layout.pp), static_cast<int>(position));
    stages[static_cast<std::size_t>(rank)].layers += plan::layers_at(layout, evidence.run->model.layers, position);
  }
  for (Stage& stage : stages) stage.weight = static_cast<double>(stage.layers);
  stages[static_cast<std::size_t>(plan::head_rank(layout))].weight += head_weight(evidence.run->model);
  for (int rank = 0; rank < evidence.world(); ++rank) {
    stages[static_cast<std::size_t>(evidence.places[static_cast<std::size_t>(rank)].pp)].ranks.push_back(rank);
  }
  for (Stage& stage : stages) {
    std::vector<double> of_ranks;
    for (const int rank : stage.ranks) of_ranks.push_back(evidence.usual(telemetry::metric::kComputeSeconds, rank));
    stage.seconds = median(of_ranks);
  }
  return stages;
}

double rate_of(const Stage& stage) { return stage.weight > 0.0 ? stage.seconds / stage.weight : 0.0; }

// Layers dealt out so that the heaviest stage is as light as can be; all layers weigh the same.
std::vector<std::int64_t> balanced_layers(const std::vector<Stage>& stages) {
  std::vector<double> weights;
  std::int64_t left = 0;
  for (const Stage& stage : stages) {
    weights.push_back(stage.weight - static_cast<double>(stage.layers) + 1.0);  // a stage has one layer at least
    left += stage.layers - 1;
  }
  std::vector<std::int64_t> layers(stages.size(), 1);
  for (; left > 0; --left) {
    const auto lightest = static_cast<std::size_t>(std::min_element(weights.begin(), weights.end()) - weights.begin());
    weights[lightest] += 1.0;
    ++layers[lightest];
  }
  return layers;
}

std::string layers_text(const std::vector<std::int64_t>& layers) {
  std::vector<std::string> parts;
  parts.reserve(layers.size());
  for (const std::int64_t count : layers) parts.push_back(std::to_string(count));
  return join(parts, ",");
}

// The stage whose seconds per layer are out of line, whether the head counts or not, where there is one. What the head
// takes depends on the machine.
Findings slow_stage(const RunEvidence& evidence, const std::vector<Stage>& stages) {
  const auto slowest = std::max_element(stages.begin(), stages.end(),
                                        [](const Stage& a, const Stage& b) { return rate_of(a) < rate_of(b); });
  std::vector<double> others, without_head;
  for (const Stage& stage : stages) {
    if (&stage == &*slowest) continue;
    others.push_back(rate_of(stage));
    without_head.push_back(stage.seconds / static_cast<double>(std::max<std::int64_t>(stage.layers, 1)));
  }
  const double usual = median(others);
  const double own_without_head = slowest->seconds / static_cast<double>(std::max<std::int64_t>(slowest->layers, 1));
  if (usual <= 0.0 || rate_of(*slowest) < kUnexplained * usual) return {};
  if (own_without_head < kUnexplained * median(without_head)) return {};
  const double more = slowest->seconds - usual * slowest->weight;
  return {
      make_finding(Cause::kSlowRank, 0.8, evidence.share(more), slowest->ranks,
                   fmt::format("stage {} ({}) computes {} per layer, the other stages {}", slowest - stages.begin(),
                               named_ranks(slowest->ranks), format_seconds(rate_of(*slowest)), format_seconds(usual)),
                   fmt::format("look at node {} (`lockstep doctor` there), or cordon it and go on with --resume",
                               evidence.places[static_cast<std::size_t>(slowest->ranks.front())].node))};
}

}  // namespace

Findings find_stages(const RunEvidence& evidence) {
  if (!evidence.run || evidence.run->layout.pp < 2 || !evidence.has(telemetry::metric::kComputeSeconds)) return {};
  const std::vector<Stage> stages = stages_of(evidence);
  if (Findings slow = slow_stage(evidence, stages); !slow.empty()) return slow;

  const auto heaviest = std::max_element(stages.begin(), stages.end(),
                                         [](const Stage& a, const Stage& b) { return a.seconds < b.seconds; });
  const std::vector<std::int64_t> better = balanced_layers(stages);
  double best = 0.0, total = 0.0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    best = std::max(best, stages[i].weight + static_cast<double>(better[i] - stages[i].layers));
    total += stages[i].seconds;
  }
  if (heaviest->weight <= best || heaviest->weight <= 0.0) return {};
  const double saved = heaviest->seconds * (1.0 - best / heaviest->weight);
  const double even = total / static_cast<double>(stages.size());
  std::vector<std::int64_t> now;
  now.reserve(stages.size());
  for (const Stage& stage : stages) now.push_back(stage.layers);
  const bool one_chunk = evidence.run->layout.virtual_stages == 1;
  return {
      make_finding(Cause::kStageImbalance, 0.9, evidence.share(saved), heaviest->ranks,
                   fmt::format("stage {} computes {} a step, {:.0f}% more than the mean of the stages; layers are [{}]",
                               heaviest - stages.begin(), format_seconds(heaviest->seconds),
                               100.0 * (heaviest->seconds / even - 1.0), layers_text(now)),
                   one_chunk ? train_with(evidence, fmt::format("layout.stage_layers=[{}]", layers_text(better)))
                             : "layout.stage_layers: fewer layers at the positions of that stage")};
}

}  // namespace lockstep::diagnose
