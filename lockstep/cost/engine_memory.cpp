#include "lockstep/cost/engine_memory.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "lockstep/cost/adapters.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/stage_content.h"
#include "lockstep/cost/states.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/plan/stage_layers.h"

namespace lockstep::cost {
namespace {

// Parameters by how ZeRO divides them.
struct Parameters {
  double dense = 0, expert = 0;
  double all() const { return dense + expert; }
  double divided(const plan::Layout& layout) const {
    return dense / dense_shards(layout) + expert / expert_shards(layout);
  }
};

// Parameters of one rank, by when a step needs them.
struct Blocks {
  bool embeds = false, ends = false;  // the rank has the embedding, the head
  double table = 0;                   // token embedding; the tied head's where that is elsewhere
  double positions = 0;               // embeddings beside it
  double head = 0;                    // a weight of its own
  double head_weight = 0;             // what the loss makes a gradient of: the head, or the tied table
  double layer_count = 0;
  Parameters layer;  // one of them
  Parameters all;
};

Blocks blocks_of(const Dimensions& model, const plan::Layout& layout, std::int64_t stage) {
  const double tp = static_cast<double>(layout.tp);
  const double table = model.vocab * model.hidden / tp;
  const std::int64_t layers = layers_on_stage(model, layout, StageSplit::kEven, stage);
  Blocks blocks;
  blocks.embeds = stage == 0;
  blocks.ends = stage == plan::head_rank(layout);
  if (blocks.embeds) blocks.positions = model.embedding_parameters / tp - table;
  if (blocks.ends) blocks.head_weight = model.head_parameters / tp;
  if (blocks.ends && !model.tied) blocks.head = blocks.head_weight;
  if (blocks.embeds || (blocks.ends && model.tied)) blocks.table = table;
  blocks.layer_count = static_cast<double>(layers);
  blocks.layer = {model.dense_parameters_per_layer / tp,
                  model.expert_parameters_per_layer / static_cast<double>(layout.tp * layout.ep)};
  blocks.all = {blocks.table + blocks.positions + blocks.head + blocks.layer_count * blocks.layer.dense,
                expert_parameters_on_rank(model, layout, layers)};
  return blocks;
}

// Of one loss, which goes through the rows in chunks (nn::linear_cross_entropy).
double chunk_bytes(const EngineQuestion& question, const plan::Layout& layout, double rows, double element) {
  constexpr double kChunkElements = 1 << 24;
  const double chunk = std::min(rows, std::max(32.0, kChunkElements / question.model.vocab));
  const double wide = std::max(4.0, element);
  return chunk * question.output_width / static_cast<double>(layout.tp) * (wide + (element < wide ? 2 * element : 0.0));
}

// Elements that one layer keeps from forward to backward for one token, by the part that keeps them.
struct KeptElements {
  double inputs = 0;     // of the layer's parts, in the residual stream
  double attention = 0;  // norms, projections, attention's output; of a state-space layer everything
  double mlp = 0;        // norm and pre-activations
};

// Nothing of size sequence x sequence. A GPU keeps GELU's output beside its input (nn/device_mlp.cpp).
KeptElements kept_elements(const EngineQuestion& question, const plan::Layout& layout) {
  const Dimensions& model = question.model;
  const double tp = static_cast<double>(layout.tp);
  const double stream = model.hidden / (layout.sequence_parallel ? tp : 1.0);
  if (model.arch == spec::Arch::kMamba) {
    return {.inputs = stream, .attention = model.hidden + 7 * model.inner / tp + model.dt_rank + 2 * model.state};
  }
  const double width = model.heads * model.head_dim / tp;
  const double kv = std::max(model.kv_heads, tp) * model.head_dim / tp;
  const double inner = model.ffn / tp;
  // Gate and up, and their product where backward does not make it again.
  const double gated = model.fused_gate ? 2 : 3;
  const double plain = question.is_gpu ? 2 : 1;
  const double experts = model.experts_per_token * (2 * model.hidden + 3 * inner) + 2 * model.shared_experts * inner;
  const double mlp = model.experts > 0
                         ? (1 - model.dense_share) * experts + model.dense_share * gated * model.dense_ffn / tp
                         : (model.gated ? gated : plain) * inner;
  const double normed = model.qk_norm ? width + kv : 0;  // queries and keys before their norms
  const double behind = model.norms > 2 ? stream : 0;    // what the norm behind a block reads
  const double entered = std::min(1.0, model.norms / 2) * model.hidden;
  const bool one_part = model.blocks < 2;
  return {.inputs = (one_part ? 1 : 2) * stream,
          .attention = entered + 2 * width + 2 * kv + normed + behind,
          .mlp = entered + mlp + behind};
}

// A part that is computed again keeps its input alone, and where activations are offloaded not even that. A
// state-space layer is one part, and so is a parallel one, which selective recomputation leaves alone.
double kept_elements_per_token(const EngineQuestion& question, const plan::Layout& layout) {
  const KeptElements kept = kept_elements(question, layout);
  const double away = question.activation_offload ? 0.0 : 1.0;
  const bool one_part = question.model.arch == spec::Arch::kMamba || question.model.blocks < 2;
  if (layout.recompute == plan::Recompute::kFull) return away * kept.inputs;
  if (layout.recompute == plan::Recompute::kNone || one_part) return kept.inputs + kept.attention + kept.mlp;
  return (1 + away) / 2 * kept.inputs + kept.mlp;
}

// What a compressed reduction keeps from step to step: what it could not send (parallel/powersgd.cpp, onebit.cpp).
double feedback_bytes(const EngineQuestion& question, const plan::Layout& layout, double gradients) {
  const double ranks = static_cast<double>(layout.dp * layout.cp);
  if (layout.zero > 0 || ranks == 1) return 0;
  if (question.communication.compression == spec::Compression::kPowerSgd) return gradients;
  return question.communication.compression == spec::Compression::kOneBit ? gradients * (1 + 1 / ranks) : 0.0;
}

// The communicator stages one bucket of a reduction at a time.
double bucket_bytes(const EngineQuestion& question, const plan::Layout& layout, double gradients) {
  if (layout.zero > 0 || layout.dp * layout.cp == 1) return 0;
  return std::min(question.communication.bucket_mib * kMiB, gradients);
}

// Gradients are widened to be added up; a GPU leaves those of a single micro-batch on a single rank as products do.
ParameterBytes bytes_of(const EngineQuestion& question, const plan::Layout& layout, const plan::BatchPlan& batch) {
  ParameterBytes bytes =
      parameter_bytes(layout.precision, question.optimizer, {.trained_share = question.trained_share});
  const bool summed = batch.accumulation > 1 || layout.world() > 1 || layout.offload != plan::Offload::kNone;
  if (question.is_gpu && !summed && layout.precision == spec::Precision::kBf16) {
    bytes.gradient = question.trained_share * bytes.weight;
  }
  return bytes;
}

bool scatters_each_backward(const EngineQuestion& question, const plan::Layout& layout, const plan::BatchPlan& batch) {
  return layout.zero >= 2 && (batch.accumulation == 1 || question.communication.reduce_each_micro_step);
}

plan::MemoryBreakdown image_memory(const EngineQuestion& question, const plan::Layout& layout,
                                   const plan::BatchPlan& batch) {
  const ParameterBytes bytes = bytes_of(question, layout, batch);
  const StateBytesOnRank state = state_on_rank(question.parameters, dense_shards(layout), layout, bytes,
                                               scatters_each_backward(question, layout, batch));
  plan::MemoryBreakdown memory;
  memory.parameters = state.parameters.value();
  memory.gradients = state.gradients.value();
  memory.optimizer = state.optimizer.value();
  memory.activations = question.sample_elements * static_cast<double>(batch.micro) * bytes.weight;
  memory.buffers =
      bucket_bytes(question, layout, memory.gradients) + feedback_bytes(question, layout, memory.gradients);
  return memory;
}

// A module from Python: units come and go (ZeRO-3), and keep what was counted in them. Autocast narrows products, not
// weights or what is kept of them.
plan::MemoryBreakdown script_memory(const EngineQuestion& question, plan::Layout layout, const plan::BatchPlan& batch,
                                    std::int64_t stage) {
  if (layout.precision == spec::Precision::kBf16) layout.precision = spec::Precision::kFp32;
  spec::Model model;
  model.arch = spec::Arch::kTorchScript;
  model.script.facts = question.script;
  const std::vector<std::int64_t> dealt = plan::layers_by_position(layout, model);
  const auto [schedule, pp, stages] = std::tuple(layout.schedule, layout.pp, layout.virtual_stages);
  double parameters = 0, kept = 0, entering = 0, largest_kept = 0, largest_unit = 0;
  std::size_t unit = 0;
  for (std::size_t position = 0; position < dealt.size(); ++position) {
    const bool here = static_cast<std::int64_t>(position) % pp == stage;
    for (std::int64_t i = 0; i < dealt[position]; ++i, ++unit) {
      if (!here) continue;
      const spec::ScriptUnit& one = question.script.units[unit];
      parameters += static_cast<double>(one.parameters);
      kept += one.saved_bytes;
      entering += one.entering_bytes;
      largest_kept = std::max(largest_kept, one.saved_bytes);
      largest_unit = std::max(largest_unit, static_cast<double>(one.parameters));
    }
  }
  const ParameterBytes bytes = bytes_of(question, layout, batch);
  const StateBytesOnRank state =
      state_on_rank(parameters, dense_shards(layout), layout, bytes, scatters_each_backward(question, layout, batch));
  plan::MemoryBreakdown memory;
  memory.parameters = state.parameters.value() + question.script.buffer_bytes;
  memory.gradients = state.gradients.value();
  memory.optimizer = state.optimizer.value();
  const double flying =
      pp == 1 ? 1.0 : static_cast<double>(plan::chunks_in_flight(schedule, pp, stage, stages, batch.accumulation));
  const bool again = layout.recompute == plan::Recompute::kFull;
  const double of_sample = again ? flying * entering + largest_kept : flying * kept;
  const double wide = layout.precision == spec::Precision::kFp64 ? 2.0 : 1.0;
  memory.activations = wide * static_cast<double>(batch.micro) * of_sample;
  memory.buffers =
      bucket_bytes(question, layout, memory.gradients) + feedback_bytes(question, layout, memory.gradients);
  // The unit that computes and the one whose weights are on their way.
  if (layout.zero == 3) memory.buffers += 2 * largest_unit * bytes.weight;
  return memory;
}

// What may be the peak of a step.
struct Moment {
  double activations = 0, gradients = 0, buffers = 0;
  double total() const { return activations + gradients + buffers; }
};

// The terms that the moments of a step are made of, for one rank.
class Step {
 public:
  Step(const EngineQuestion& question, const plan::Layout& layout, const plan::BatchPlan& batch, std::int64_t stage)
      : question_(question),
        layout_(layout),
        batch_(batch),
        stage_(stage),
        blocks_(blocks_of(question.model, layout, stage)),
        bytes_(bytes_of(question, layout, batch)) {}

  double parameters() const {
    if (!gathers()) return blocks_.all.all() * bytes_.weight;
    return layout_.offload == plan::Offload::kParameters ? 0.0 : blocks_.all.divided(layout_) * bytes_.weight;
  }
  double optimizer() const {
    return layout_.offload == plan::Offload::kNone ? blocks_.all.divided(layout_) * bytes_.optimizer : 0.0;
  }
  double feedback() const { return feedback_bytes(question_, layout_, held()); }

  Moment at_the_loss() const {
    const double head = blocks_.ends ? chunk_bytes(question_, layout_, rows(), element()) + head_gradient() +
                                           2 * rows() * question_.model.hidden * element()
                                     : 0.0;
    return {kept() + head, held(), gathered_at_layers()};
  }
  // A block's gradient lives as autograd leaves it, and in the flat tensor that is reduced.
  Moment at_the_first_backward() const {
    const double layer = blocks_.layer.all();
    if (layout_.zero == 0) return {kept(), held() + layer * raw_gradient() + head_gradient(), bucket()};
    const double in_flight = layer * (raw_gradient() + 2 * bytes_.gradient);
    const double early = scatters() ? blocks_.head * bytes_.gradient / dense_shards(layout_) : 0.0;
    return {kept(), early + in_flight + head_gradient(), gathered_at_layers()};
  }
  Moment at_the_last_backward() const {
    const double table = blocks_.embeds ? blocks_.table : 0.0;
    if (layout_.zero == 0) return {0.0, held() + table * raw_gradient(), bucket()};
    const double of_table = table * (raw_gradient() + std::max(raw_gradient(), bytes_.gradient));
    const Parameters rest{blocks_.all.dense - table, blocks_.all.expert};
    const double summed = (scatters() ? rest.divided(layout_) : rest.all()) * bytes_.gradient;
    return {0.0, summed + of_table, gathered(blocks_.table + blocks_.positions)};
  }

 private:
  double element() const { return bytes_.weight; }
  double raw_gradient() const { return question_.trained_share * bytes_.weight; }  // as autograd leaves it
  double head_gradient() const { return blocks_.head_weight * raw_gradient(); }
  double rows() const {
    return static_cast<double>(batch_.micro * batch_.sequence_length) / static_cast<double>(layout_.cp);
  }
  bool gathers() const { return layout_.zero == 3 && layout_.sharding_ranks() > 1; }
  bool scatters() const { return scatters_each_backward(question_, layout_, batch_); }
  // ZeRO-0 keeps the flat gradient of all that the rank trains.
  double held() const { return layout_.zero == 0 ? blocks_.all.all() * bytes_.gradient : 0.0; }
  double bucket() const { return bucket_bytes(question_, layout_, held()); }

  double kept() const {
    const double held = static_cast<double>(plan::chunks_in_flight(layout_.schedule, layout_.pp, stage_,
                                                                   layout_.virtual_stages, batch_.accumulation)) /
                        static_cast<double>(layout_.virtual_stages);
    return rows() * blocks_.layer_count * kept_elements_per_token(question_, layout_) * element() * held +
           (blocks_.embeds ? rows() * question_.model.hidden * element() : 0.0);
  }

  // Weights of all ranks that are there at once: `parameters` of them, or all where none are let go before the end.
  double gathered(double parameters) const {
    if (!gathers()) return 0;
    return (question_.communication.reshard_after_forward ? parameters : blocks_.all.all()) * element();
  }
  // A tied table from the embedding to the head, two neighbouring blocks beside it.
  double gathered_at_layers() const {
    const double layer = blocks_.layer.all();
    return gathered(blocks_.table + std::max(2 * layer, layer + blocks_.head));
  }

  const EngineQuestion& question_;
  const plan::Layout& layout_;
  const plan::BatchPlan& batch_;
  std::int64_t stage_;
  Blocks blocks_;
  ParameterBytes bytes_;
};

// Elements of the largest gradient that backward holds while everything saved is still there, and what is saved.
double image_elements(const spec::Model& model) {
  double saved = 0, largest = 0;
  for (const Operator& op : list_operators(model, 1, 0)) {
    saved += static_cast<double>(op.count) * static_cast<double>(op.saved_elements);
    const bool is_product = op.kind == OperatorKind::kMatmul || op.kind == OperatorKind::kConvolution;
    if (!op.chunked) largest = std::max(largest, static_cast<double>(is_product ? op.m * op.n : op.elements));
  }
  return saved + largest;
}

// Of the smallest device that a rank of the stage may sit on.
double capacity_of(const plan::Run& run, std::int64_t stage) {
  const std::int64_t ranks = run.layout.world() / run.layout.pp;
  double capacity = std::numeric_limits<double>::infinity();
  std::int64_t first = 0;
  for (const spec::NodeGroup& group : run.cluster.groups) {
    const std::int64_t end = first + group.nodes * group.devices_per_node;
    if (first < (stage + 1) * ranks && stage * ranks < end) capacity = std::min(capacity, group.device.memory_bytes);
    first = end;
  }
  return capacity == std::numeric_limits<double>::infinity() ? 0.0 : capacity;
}

}  // namespace

EngineQuestion::EngineQuestion(const plan::Run& run)
    : is_gpu(!run.cluster.groups.empty() && !run.cluster.groups.front().device.is_cpu()),
      trained_share(cost::trained_share(run.lora, run.model)),
      optimizer(run.optimizer.kind),
      communication(run.communication),
      activation_offload(run.activation_offload) {
  if (run.model.is_language_model()) {
    model = dimensions_of(run.model);
    output_width = run.model.classes > 0 ? static_cast<double>(run.model.classes) : model.vocab;
  } else if (run.model.is_scripted()) {
    parameters = static_cast<double>(spec::parameter_count(run.model));
    script = run.model.script.facts;
    trained_share = 1.0 - static_cast<double>(script.frozen) / std::max(1.0, parameters);
  } else {
    parameters = static_cast<double>(spec::parameter_count(run.model));
    sample_elements = image_elements(run.model);
  }
}

plan::MemoryBreakdown engine_memory(const EngineQuestion& question, const plan::Layout& layout,
                                    const plan::BatchPlan& batch, std::int64_t stage) {
  if (question.script.known()) return script_memory(question, layout, batch, stage);
  if (question.parameters > 0) return image_memory(question, layout, batch);
  const Step step(question, layout, batch, stage);
  const Moment moments[] = {step.at_the_loss(), step.at_the_first_backward(), step.at_the_last_backward()};
  const Moment& peak = *std::max_element(std::begin(moments), std::end(moments),
                                         [](const Moment& a, const Moment& b) { return a.total() < b.total(); });
  plan::MemoryBreakdown memory;
  memory.parameters = step.parameters();
  memory.optimizer = step.optimizer();
  memory.activations = peak.activations;
  memory.gradients = peak.gradients;
  memory.buffers = peak.buffers + step.feedback();
  return memory;
}

StateOnRank engine_state(const plan::Run& run, std::int64_t stage) {
  const EngineQuestion question(run);
  const ParameterBytes bytes = bytes_of(question, run.layout, run.batch);
  Parameters held{question.parameters, 0};
  if (run.model.is_language_model()) held = blocks_of(question.model, run.layout, stage).all;
  const double per_parameter = bytes.weight + bytes.optimizer;
  return {held.dense / dense_shards(run.layout) * per_parameter,
          held.expert / expert_shards(run.layout) * per_parameter};
}

plan::MemoryBreakdown engine_memory(const plan::Run& run, std::int64_t stage) {
  if (run.executor == plan::Executor::kSharded) {
    return engine_memory(EngineQuestion(run), run.layout, run.batch, stage);
  }
  FusedRun fused = fused_run(run.model, run.layout, run.batch);
  fused.bf16_states = run.optimizer.state_precision == spec::Precision::kBf16;
  return fused_memory(fused);
}

plan::MemoryBreakdown engine_memory(const plan::Run& run) {
  plan::MemoryBreakdown most;
  double worst = -std::numeric_limits<double>::infinity();
  for (std::int64_t stage = 0; stage < run.layout.pp; ++stage) {
    plan::MemoryBreakdown memory = engine_memory(run, stage);
    memory.capacity = capacity_of(run, stage);
    const double excess = memory.total() - memory.capacity;
    if (excess <= worst) continue;
    worst = excess;
    most = memory;
  }
  return most;
}

}  // namespace lockstep::cost
