#include "lockstep/cost/engine_memory.h"

#include <algorithm>

#include "lockstep/cost/layer.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {
namespace {

// Parameters of one rank, by when a step needs them.
struct Blocks {
  double table = 0;        // token embedding
  double embeddings = 0;   // beside it
  double layer = 0;        // one layer, experts included
  double layers = 0;       // all of them
  double head = 0;         // without the table of a tied head
  double head_weight = 0;  // what the loss makes a gradient of
  double total() const { return table + embeddings + layers + head; }
};

Blocks blocks_of(const spec::Model& spec, const plan::Layout& layout, std::int64_t stage) {
  const Dimensions model = dimensions_of(spec);
  const double tp = static_cast<double>(layout.tp);
  const double table = model.vocab * model.hidden / tp;
  const bool first = stage == 0, last = stage == layout.pp - 1;
  Blocks blocks;
  if (first || (last && model.tied)) blocks.table = table;
  if (first) blocks.embeddings = model.embedding_parameters / tp - table;
  blocks.layer =
      (model.dense_parameters_per_layer + model.expert_parameters_per_layer / static_cast<double>(layout.ep)) / tp;
  blocks.layers = blocks.layer * static_cast<double>(layers_on_stage(model, layout, StageSplit::kEven, stage));
  if (last) {
    blocks.head_weight = spec.classes > 0 ? static_cast<double>(spec.classes) * model.hidden : table;
    blocks.head = model.head_parameters / tp - (model.tied ? table : 0.0);
  }
  return blocks;
}

double logits_bytes(const spec::Model& model, const plan::Layout& layout, double rows, double element) {
  constexpr double kChunkElements = 1 << 24;  // nn::linear_cross_entropy goes through the rows in chunks
  const double classes =
      static_cast<double>(model.classes > 0 ? model.classes : model.vocab) / static_cast<double>(layout.tp);
  const double chunk = std::min(rows, std::max(32.0, kChunkElements / static_cast<double>(model.vocab)));
  const double wide = std::max(4.0, element);
  return chunk * classes * (wide + (element < wide ? 2 * element : 0.0));
}

}  // namespace

double kept_elements_per_token(const spec::Model& model, const plan::Layout& layout) {
  const double tp = static_cast<double>(layout.tp);
  const double hidden = static_cast<double>(model.hidden);
  const double stream = hidden / (layout.sequence_parallel ? tp : 1.0);
  if (model.arch == spec::Arch::kMamba) {
    const double inner = static_cast<double>(model.expand) * hidden / tp;
    const double mixer = 7 * inner + static_cast<double>(model.dt_rank + 2 * model.state_size);
    return layout.recompute == plan::Recompute::kFull ? stream : stream + hidden + mixer;
  }
  const double head_dim = static_cast<double>(model.head_dim > 0 ? model.head_dim : model.hidden / model.heads);
  const double width = static_cast<double>(model.heads) * head_dim / tp;
  const double kv =
      static_cast<double>(std::max(model.kv_heads > 0 ? model.kv_heads : model.heads, layout.tp)) * head_dim / tp;
  const double inner = static_cast<double>(model.ffn_hidden) / tp;
  const bool gated = model.arch == spec::Arch::kLlama || model.arch == spec::Arch::kMoe;
  const double attention = hidden + 2 * width + 2 * kv;
  double mlp = hidden + (gated ? 2 : 1) * inner;
  if (model.experts > 0) {
    mlp = hidden + static_cast<double>(model.experts_per_token) * (2 * hidden + 3 * inner);
  }
  switch (layout.recompute) {
    case plan::Recompute::kNone:
      return 2 * stream + attention + mlp;
    case plan::Recompute::kSelective:
      return 2 * stream + mlp;
    case plan::Recompute::kFull:
      return 2 * stream;
  }
  return 0;
}

plan::MemoryBreakdown engine_memory(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch,
                                    spec::OptimizerKind optimizer, std::int64_t stage, const EngineStates& states) {
  const Blocks blocks = blocks_of(model, layout, stage);
  const ParameterBytes bytes =
      parameter_bytes(layout.precision, optimizer, {.trained_share = states.trained_share}, states.narrow_moments);
  const double gradient_element = states.trained_share * bytes.weight;  // as autograd leaves it
  const double shards = dense_shards(layout);
  const double element = bytes.weight;
  const double rows = static_cast<double>(batch.micro * batch.sequence_length) / static_cast<double>(layout.cp);
  const double held = static_cast<double>(plan::chunks_in_flight(layout.schedule, layout.pp, stage,
                                                                 layout.virtual_stages, batch.accumulation)) /
                      static_cast<double>(layout.virtual_stages);
  const bool first = stage == 0, last = stage == layout.pp - 1;
  const bool gathers = layout.zero == 3 && shards > 1, scatters = layout.zero >= 2 && batch.accumulation == 1;
  const double layers = blocks.layer > 0 ? blocks.layers / blocks.layer : 0.0;

  plan::MemoryBreakdown memory;
  const double own = blocks.total() * bytes.weight / (gathers ? shards : 1.0);
  memory.parameters = layout.offload == plan::Offload::kParameters && gathers ? 0.0 : own;
  memory.optimizer = layout.offload == plan::Offload::kNone ? blocks.total() * bytes.optimizer / shards : 0.0;

  const double kept = rows * layers * kept_elements_per_token(model, layout) * element * held +
                      (first ? rows * static_cast<double>(model.hidden) * element : 0.0);
  const double head = last ? logits_bytes(model, layout, rows, element) + blocks.head_weight * gradient_element +
                                 2 * rows * static_cast<double>(model.hidden) * element
                           : 0.0;
  // Gathered at once: a tied table from the embedding to the head, two neighbouring blocks beside it.
  const double gathered_layers =
      gathers ? (blocks.table + std::max(2 * blocks.layer, blocks.layer + blocks.head)) * element : 0.0;
  const double gathered_ends = gathers ? (blocks.table + blocks.embeddings) * element : 0.0;
  // A block's gradient: as autograd leaves it, and in the flat tensor that is reduced.
  const double in_flight = blocks.layer * (gradient_element + 2 * bytes.gradient);
  const double of_table = first ? blocks.table * (gradient_element + std::max(gradient_element, bytes.gradient)) : 0.0;
  const double rest = blocks.total() - (first ? blocks.table : 0.0);
  const double early = scatters ? blocks.head * bytes.gradient / shards : 0.0;
  const double late = scatters ? rest * bytes.gradient / shards : rest * bytes.gradient;

  struct Moment {
    double activations, gradients, buffers;
    double total() const { return activations + gradients + buffers; }
  };
  const Moment moments[] = {
      {kept + head, 0.0, gathered_layers},
      {kept, early + in_flight + (last ? blocks.head_weight * gradient_element : 0.0), gathered_layers},
      {0.0, late + of_table, gathered_ends},
  };
  const Moment& peak = *std::max_element(std::begin(moments), std::end(moments),
                                         [](const Moment& a, const Moment& b) { return a.total() < b.total(); });
  memory.activations = peak.activations;
  memory.gradients = peak.gradients;
  memory.buffers = peak.buffers;
  return memory;
}

}  // namespace lockstep::cost
