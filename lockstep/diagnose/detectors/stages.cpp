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

// Where the loss is computed together with its gradient, the head's whole work is done in forward: three times its own.
constexpr double kMostOfHeadInForward = 3.0;

struct Phase {
  std::string_view metric;
  const char* name;
  double head;  // of its weight, at most
};
constexpr Phase kPhases[] = {{telemetry::metric::kForwardSeconds, "forward", kMostOfHeadInForward},
                             {telemetry::metric::kBackwardSeconds, "backward", 1.0}};

// Seconds of the stage in every steady step: the median of its ranks.
std::vector<double> seconds_of(const RunEvidence& evidence, const Stage& stage, std::string_view metric) {
  std::vector<double> seconds;
  seconds.reserve(evidence.steps.size());
  for (std::size_t i = 0; i < evidence.steps.size(); ++i) {
    std::vector<double> at;
    for (const int rank : stage.ranks) {
      const std::vector<double>& own = evidence.of(metric, rank);
      if (i < own.size()) at.push_back(own[i]);
    }
    seconds.push_back(median(at));
  }
  return seconds;
}

struct Excess {
  double seconds = 0.0;            // of a step, beyond what layers explain; 0: none that is clear
  double own = 0.0, others = 0.0;  // per layer
};

// By how much `slowest` exceeds the other stages in one phase, layer for layer. What a head takes depends on the
// machine, so it may take anything up to `head` times its products.
Excess excess_in(const RunEvidence& evidence, const std::vector<Stage>& stages, const Stage& slowest,
                 const Phase& phase) {
  const auto weight = [&](const Stage& stage, double head) {
    const auto layers = static_cast<double>(stage.layers);
    return std::max(1.0, layers + head * (stage.weight - layers));
  };
  const std::vector<double> own = seconds_of(evidence, slowest, phase.metric);
  std::vector<std::vector<double>> others;
  for (const Stage& stage : stages) {
    if (&stage != &slowest) others.push_back(seconds_of(evidence, stage, phase.metric));
  }
  std::vector<double> more, usual;
  for (std::size_t i = 0; i < own.size(); ++i) {
    double explained = 0.0;
    for (const double head : {0.0, 1.0, phase.head}) {
      std::vector<double> rates;
      std::size_t other = 0;
      for (const Stage& stage : stages) {
        if (&stage != &slowest) rates.push_back(others[other++][i] / weight(stage, head));
      }
      explained = std::max(explained, median(rates) * weight(slowest, head));
    }
    usual.push_back(explained);
    more.push_back(own[i] - explained);
  }
  const double excess = median(more), expected = median(usual);
  if (expected <= 0.0 || excess < (kUnexplained - 1.0) * expected || !is_clearly_positive(more)) return {};
  const auto layers = static_cast<double>(std::max<std::int64_t>(slowest.layers, 1));
  return {excess, median(own) / layers, expected / layers};
}

// The stage that holds the others up, where its layers do not explain it: in forward, in backward or in both. Phases
// are looked at one by one, because what is as usual in one hides what is not in the other.
Findings slow_stage(const RunEvidence& evidence, const std::vector<Stage>& stages) {
  const auto slowest = std::max_element(stages.begin(), stages.end(),
                                        [](const Stage& a, const Stage& b) { return a.seconds < b.seconds; });
  double more = 0.0;
  std::vector<std::string> parts;
  for (const Phase& phase : kPhases) {
    const Excess excess = excess_in(evidence, stages, *slowest, phase);
    if (excess.seconds <= 0.0) continue;
    more += excess.seconds;
    parts.push_back(fmt::format("{} per layer in {}, where the other stages let expect {}", format_seconds(excess.own),
                                phase.name, format_seconds(excess.others)));
  }
  if (parts.empty()) return {};
  return {make_finding(
      Cause::kSlowRank, 0.8, evidence.share(more), slowest->ranks,
      fmt::format("stage {} ({}) takes {}", slowest - stages.begin(), named_ranks(slowest->ranks), join(parts, "; ")),
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
