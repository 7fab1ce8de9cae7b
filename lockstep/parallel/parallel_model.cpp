#include "lockstep/parallel/parallel_model.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/nn/lora.h"
#include "lockstep/nn/tensor_comm.h"
#include "lockstep/parallel/same_parameters.h"
#include "lockstep/plan/stage_layers.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::parallel {
namespace {

using telemetry::SpanKind;
using torch::Tensor;

bool is_tied(const spec::Model& spec) { return spec.is_language_model() && spec.tied_embeddings && spec.classes == 0; }

std::int64_t key_sharers(const spec::Model& spec, const plan::Layout& layout) {
  if (!spec.is_language_model() || spec.heads == 0) return 1;
  const std::int64_t kv_heads = spec.kv_heads > 0 ? spec.kv_heads : spec.heads;
  return layout.tp > kv_heads ? layout.tp / kv_heads : 1;
}

// A shard for each block that is gathered, kept and freed together, apart by what has groups or a life of its own. What
// always stays is one: one pass of the optimizer, and buckets across blocks.
struct ShardKey {
  int block = 0;  // in order of use: embedding table, other embeddings, layers, head
  bool expert = false;
  bool frozen = false;
  auto operator<=>(const ShardKey&) const = default;  // NOLINT(modernize-use-nullptr): of the generated code
};

}  // namespace

ParallelModel::ParallelModel(const spec::Model& spec, const ParallelModelOptions& options, comm::Communicator world)
    : spec_(spec),
      options_(options),
      groups_(make_process_groups(options.layout, std::move(world), key_sharers(spec, options.layout))),
      arena_(options.device, options.offload_folder),
      schedule_(plan::make_pipeline_schedule(options.layout.schedule, static_cast<int>(options.layout.pp),
                                             static_cast<int>(options.layout.virtual_stages),
                                             static_cast<int>(options.micro_steps))) {
  plan::require_valid_layout(options.layout, &spec);
  build_chunks();
  std::vector<nn::DeclaredParameter> shared;
  for (const auto& chunk : chunks_) {
    for (nn::DeclaredParameter& parameter : nn::declared_parameters(chunk->model())) {
      if (!parameter.placement.expert) shared.push_back(std::move(parameter));
    }
  }
  if (groups_.everyone.valid()) check_same_parameters(shared, groups_.everyone);
  reset_buffers();
  if (options_.initial_values) initialise();
}

ParallelModel::~ParallelModel() = default;

void ParallelModel::build_chunks() {
  const plan::Layout& layout = options_.layout;
  layers_ = plan::layers_by_position(layout, spec_);
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
    const int position = schedule_.position(static_cast<int>(groups_.stage), chunk);
    nn::BuildOptions build;
    build.dtype = options_.dtype;
    build.device = options_.device;
    build.autocast = options_.autocast;
    build.seed = options_.seed;
    build.initialise = false;
    build.partition = groups_.partition(layout);
    for (int i = 0; i < position; ++i) build.part.first_layer += layers_[static_cast<std::size_t>(i)];
    build.part.end_layer = build.part.first_layer + layers_[static_cast<std::size_t>(position)];
    if (spec_.is_scripted() && layout.pp == 1) build.part.end_layer = -1;  // all, whatever is known of its units
    build.part.embedding = position == 0;
    build.part.head = position == schedule_.positions() - 1;
    auto model = options_.make_model(spec_, build);
    if (options_.lora.rank > 0) nn::add_lora(dynamic_cast<nn::LanguageModel&>(*model), options_.lora);
    std::vector<std::shared_ptr<FlatShard>> shards;
    build_shards(*model, position, shards);
    ChunkOptions running;
    running.recompute = layout.recompute;
    running.reshard_after_forward = options_.reshard_after_forward;
    running.reduce_each_micro_step = options_.reduce_each_micro_step;
    running.micro_steps = options_.micro_steps;
    running.activation_arena = options_.activation_offload ? &arena_ : nullptr;
    shards_.insert(shards_.end(), shards.begin(), shards.end());
    chunks_.push_back(std::make_unique<Chunk>(std::move(model), std::move(shards), running));
  }
}

void ParallelModel::build_shards(nn::TrainableModel& model, int position,
                                 std::vector<std::shared_ptr<FlatShard>>& out) {
  auto* language = dynamic_cast<nn::LanguageModel*>(&model);
  // Block numbers: 0 the table that a tied head shares, 1 other embeddings, 2... the layers, last the head.
  std::map<const void*, int> block_of;
  const auto assign = [&](const std::vector<std::shared_ptr<torch::nn::Module>>& modules, int block) {
    for (const void* tensor : tensors_of(modules)) block_of.emplace(tensor, block);
  };
  const bool tied = is_tied(spec_);
  const bool stays = options_.layout.zero == 0 && options_.layout.offload == plan::Offload::kNone;
  const int last = schedule_.positions() - 1;
  if (language != nullptr) {
    const nn::ModelPart& part = language->part();
    if (tied && (part.embedding || part.head)) assign({language->tied_embedding()}, 0);
    if (part.embedding) assign(language->embedding_modules(), 1);
    int block = 2;
    for (std::int64_t i = part.first_layer; i < part.end_layer; ++i) assign({language->layer_module(i)}, block++);
    if (part.head) assign(language->head_modules(), block);
  } else if (auto* by_unit = dynamic_cast<nn::UnitModel*>(&model)) {
    for (std::size_t i = 0; i < by_unit->unit_count(); ++i) {
      for (const Tensor& tensor : by_unit->unit_parameters(i)) {
        block_of.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(i));
      }
    }
  }
  std::map<ShardKey, std::vector<nn::DeclaredParameter>> blocks;
  for (nn::DeclaredParameter& parameter : nn::declared_parameters(model)) {
    const auto found = block_of.find(parameter.tensor.unsafeGetTensorImpl());
    const int block = found == block_of.end() ? 0 : found->second;
    ShardKey key{block, parameter.placement.expert, !parameter.tensor.requires_grad()};
    if (stays) key = {tied && last > 0 && block == 0 ? 0 : 1, key.expert && options_.layout.ep > 1, key.frozen};
    blocks[key].push_back(std::move(parameter));
  }
  const bool here = last > 0 && schedule_.rank_of(0) == schedule_.rank_of(last);
  for (auto& [key, parameters] : blocks) {
    FlatShardOptions options;
    const bool two_ends = tied && last > 0 && key.block == 0;
    options.zero = options_.layout.zero;
    options.expert = key.expert;
    options.trainable = !key.frozen;
    options.tied_ends = two_ends && !here;
    options.norm_counts = !(two_ends && position == last);
    options.gradient_dtype = options_.gradient_dtype;
    options.master_dtype = options_.master_dtype;
    options.offload = options_.layout.offload;
    options.buckets = options_.buckets;
    const std::string name = parameters.front().name;
    out.push_back(std::make_shared<FlatShard>(name, std::move(parameters), options, groups_, arena_));
    if (!two_ends || !here || key.frozen) continue;
    if (position == 0) {
      tied_here_.emplace_back(out.back().get(), nullptr);
    } else {
      tied_here_.front().second = out.back().get();
    }
  }
}

void ParallelModel::initialise() {
  // Drawn in the model's own dtype: a narrow model's master weights begin as what the model computes with.
  for (const auto& shard : shards_) {
    Tensor own = shard->has_master() ? shard->narrow_weights() : shard->master();
    for (const OwnedStretch& stretch : shard->stretches()) {
      const nn::DeclaredParameter& parameter = shard->parameters()[stretch.parameter];
      Tensor out = own.narrow(0, stretch.shard, stretch.count);
      parameter.initial(out, stretch.whole, options_.seed, parameter.name);
    }
    if (shard->has_master()) {
      Tensor master = shard->master();
      master.copy_(own);
    }
  }
  for (const auto& chunk : chunks_) chunk->model().drop_initial_values();
  share_values();
}

void ParallelModel::reset_buffers() {
  for (const auto& chunk : chunks_) {
    for (const auto& module : chunk->model().modules(/*include_self=*/false)) {
      if (auto* layer = dynamic_cast<nn::Layer*>(module.get())) layer->reset_buffers();
    }
  }
}

// Equal already where seeds and files are; nothing may depend on that.
void ParallelModel::share_values() {
  for (const auto& shard : shards_) shard->share_values();
  publish();
  if (!groups_.everyone.valid()) return;
  const torch::NoGradGuard no_grad;
  for (const auto& chunk : chunks_) {
    for (const Tensor& buffer : chunk->model().buffers()) {
      if (buffer.defined()) groups_.everyone.broadcast(nn::bytes_of(buffer), 0).wait();
    }
  }
}

// Of what enters `position`.
std::vector<std::int64_t> ParallelModel::stream_shape(const MicroBatch& batch, int position) const {
  if (spec_.is_scripted()) {
    std::int64_t unit = 0;
    for (int i = 0; i < position; ++i) unit += layers_[static_cast<std::size_t>(i)];
    std::vector<std::int64_t> shape = spec_.script.facts.units.at(static_cast<std::size_t>(unit)).entering;
    shape.insert(shape.begin(), batch.input.size(0));
    return shape;
  }
  const std::int64_t split = options_.layout.sequence_parallel ? options_.layout.tp : 1;
  return {batch.input.size(0), batch.input.size(1) / split, spec_.hidden};
}

Tensor ParallelModel::or_nothing(Tensor stream, const MicroBatch& batch, int position) const {
  if (stream.defined() || position == 0 || position == schedule_.positions()) return stream;
  return torch::zeros(stream_shape(batch, position), torch::dtype(options_.dtype).device(options_.device));
}

void ParallelModel::set_micro_steps(std::int64_t micro_steps) {
  if (micro_steps == schedule_.micro_batches) return;
  const plan::Layout& layout = options_.layout;
  schedule_ = plan::make_pipeline_schedule(layout.schedule, static_cast<int>(layout.pp),
                                           static_cast<int>(layout.virtual_stages), static_cast<int>(micro_steps));
  for (const auto& chunk : chunks_) chunk->set_micro_steps(micro_steps);
}

ChunkSums ParallelModel::run(const std::vector<MicroBatch>& micro_batches, const std::function<void()>& meanwhile) {
  set_micro_steps(static_cast<std::int64_t>(micro_batches.size()));
  for (const auto& shard : shards_) shard->clear_gradient();
  const auto batch_of = [&](int micro) -> const MicroBatch& { return micro_batches[static_cast<std::size_t>(micro)]; };
  const int stage = static_cast<int>(groups_.stage);
  PipelineLinks links(
      schedule_, stage, groups_.pipeline,
      [&](int position, int micro) { return stream_shape(batch_of(micro), position); },
      torch::dtype(options_.dtype).device(options_.device));
  const auto chunk_of = [&](int chunk) -> Chunk& { return *chunks_[static_cast<std::size_t>(chunk)]; };
  const auto mark = [&](SpanKind kind, int chunk, int micro) -> telemetry::SpanMark {
    return {.kind = kind,
            .micro = static_cast<std::int16_t>(micro),
            .stage = static_cast<std::int16_t>(schedule_.position(stage, chunk))};
  };
  PipelineWork work;
  work.forward = [&](int chunk, int micro, const Tensor& x) {
    const telemetry::SpanScope span(mark(SpanKind::kForward, chunk, micro));
    return or_nothing(chunk_of(chunk).forward(micro, batch_of(micro), x), batch_of(micro),
                      schedule_.position(stage, chunk) + 1);
  };
  work.backward = [&](int chunk, int micro, const Tensor& gradient, bool split) {
    const telemetry::SpanScope span(mark(SpanKind::kBackward, chunk, micro));
    return or_nothing(chunk_of(chunk).backward(micro, gradient, split), batch_of(micro),
                      schedule_.position(stage, chunk));
  };
  work.weight_gradients = [&](int chunk, int micro) {
    const telemetry::SpanScope span(mark(SpanKind::kWeightGradient, chunk, micro));
    chunk_of(chunk).weight_gradients(micro);
  };
  work.observe = observer_;
  run_pipeline(schedule_, stage, links, work);
  {
    const telemetry::SpanScope span({.name = "finish the gradients"}, telemetry::Phase::kBackward);
    finish_reductions();
  }
  start_norm();
  for (const auto& chunk : chunks_) chunk->end_step();
  if (meanwhile) meanwhile();
  // On a device this waits for all that was queued.
  const telemetry::SpanScope span({.name = "read the loss"}, telemetry::Phase::kCompute);
  return take_sums();
}

void ParallelModel::finish_reductions() {
  for (const auto& shard : shards_) shard->continue_reduction();
  for (const auto& shard : shards_) shard->finish_reduction();
  for (const auto& [first, second] : tied_here_) {
    first->gradient().add_(second->gradient());
    second->gradient().copy_(first->gradient());
  }
}

// Queued before anybody reads the loss: reading waits for the device, once for both.
void ParallelModel::start_norm() {
  if (options_.device.is_cpu() || options_.layout.offload != plan::Offload::kNone) return;
  device_norm_ = torch::zeros({}, torch::dtype(torch::kFloat64).device(options_.device));
  for (const auto& shard : shards_) shard->add_squared_norm(device_norm_, is_replicated());
}

// One micro-batch through all chunks, forward only.
torch::Tensor ParallelModel::pass(const MicroBatch& batch,
                                  const std::function<Tensor(Chunk&, const Tensor&)>& through) {
  const int last = schedule_.positions() - 1, stage = static_cast<int>(groups_.stage);
  plan::PipelineSchedule forward = schedule_;
  forward.micro_batches = 1;
  for (auto& tasks : forward.ranks) {
    tasks.clear();
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      tasks.push_back({plan::PipelineTaskKind::kForward, chunk, 0});
    }
  }
  PipelineLinks links(
      forward, stage, groups_.pipeline, [&](int position, int) { return stream_shape(batch, position); },
      torch::dtype(options_.dtype).device(options_.device));
  Tensor result;
  for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
    const int position = schedule_.position(stage, chunk);
    const Tensor x = position > 0 ? links.take(Direction::kForward, position, 0) : Tensor();
    const Tensor y = or_nothing(through(*chunks_[static_cast<std::size_t>(chunk)], x), batch, position + 1);
    if (position < last) {
      links.hand(Direction::kForward, position + 1, 0, y);
    } else {
      result = y;
    }
  }
  links.finish();
  for (const auto& chunk : chunks_) chunk->end_step();
  return result;
}

ChunkSums ParallelModel::evaluate(const MicroBatch& batch) {
  pass(batch, [&](Chunk& chunk, const Tensor& x) { return chunk.evaluate(batch, x); });
  return take_sums();
}

Tensor ParallelModel::predict(const MicroBatch& batch) {
  return pass(batch, [&](Chunk& chunk, const Tensor& x) { return chunk.predict(batch, x); });
}

ChunkSums ParallelModel::take_sums() {
  ChunkSums sums;
  for (const auto& chunk : chunks_) {
    const ChunkSums own = chunk->take_sums();
    sums.loss += own.loss;
    sums.auxiliary += own.auxiliary;
    sums.targets += own.targets;
    sums.correct += own.correct;
  }
  return sums;
}

void ParallelModel::publish() {
  for (const auto& shard : shards_) shard->start_publish();
  for (const auto& shard : shards_) shard->finish_publish();
}

void ParallelModel::adopt_master() {
  for (const auto& shard : shards_) shard->master_to_weights();
  share_values();
}

namespace {

// The first shard's state has the names it would have alone.
std::string compression_prefix(std::size_t shard) { return shard == 0 ? "" : "shard." + std::to_string(shard) + "."; }

}  // namespace

TensorMap ParallelModel::compression_state() const {
  TensorMap state;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i]->buckets() == nullptr) continue;
    for (const auto& [name, tensor] : shards_[i]->buckets()->state()) state[compression_prefix(i) + name] = tensor;
  }
  return state;
}

void ParallelModel::load_compression(const TensorMap& state) {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i]->buckets() == nullptr) continue;
    TensorMap own;
    for (const auto& [name, tensor] : shards_[i]->buckets()->state()) {
      const auto found = state.find(compression_prefix(i) + name);
      if (found != state.end()) own[name] = found->second;
    }
    shards_[i]->buckets()->load_state(own);
  }
}

MicroBatch ParallelModel::rows_of(MicroBatch whole) const {
  const std::int64_t cp = options_.layout.cp;
  if (cp == 1) return whole;
  const nn::Partition partition = groups_.partition(options_.layout);
  const Tensor positions =
      nn::context_positions(whole.input.size(1), partition.cp_rank(), cp, nn::balances_context(spec_, partition))
          .to(whole.input.device());
  whole.input = whole.input.index_select(1, positions);
  whole.target = whole.target.index_select(1, positions);
  whole.context.positions = positions;
  return whole;
}

std::vector<nn::TrainableModel*> ParallelModel::models() {
  std::vector<nn::TrainableModel*> result;
  for (const auto& chunk : chunks_) result.push_back(&chunk->model());
  return result;
}

bool ParallelModel::has_loss() const {
  const int holder = schedule_.rank_of(schedule_.positions() - 1);
  return groups_.stage == holder && nn::Partition::rank(groups_.tp) == 0;
}

bool ParallelModel::is_replicated() const {
  const plan::Layout& layout = options_.layout;
  return layout.zero == 0 && layout.tp == 1 && layout.pp == 1 && layout.ep == 1;
}

double ParallelModel::squared_norm() const {
  if (device_norm_.defined()) return device_norm_.item<double>();
  double sum = 0.0;
  for (const auto& shard : shards_) sum += shard->squared_norm(is_replicated());
  return sum;
}

std::int64_t ParallelModel::parameter_count() const { return spec::parameter_count(spec_); }

namespace {

// Calls each(stretches) for every parameter: they lie one behind the other in the shard.
void for_each_parameter(const std::vector<OwnedStretch>& all,
                        const std::function<void(std::span<const OwnedStretch>)>& each) {
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    while (end < all.size() && all[end].parameter == all[begin].parameter) ++end;
    each({all.data() + begin, end - begin});
    begin = end;
  }
}

Tensor of_stretches(const Tensor& shard, std::span<const OwnedStretch> stretches) {
  const std::int64_t first = stretches.front().shard;
  return shard.narrow(0, first, stretches.back().shard + stretches.back().count - first);
}

}  // namespace

void ParallelModel::fill(const std::function<Tensor(const FlatShard&)>& of, const ReadRange& read) const {
  const torch::NoGradGuard no_grad;
  for (const auto& shard : shards_) {
    const Tensor target = of(*shard);
    if (!target.defined()) continue;
    for_each_parameter(shard->stretches(), [&](std::span<const OwnedStretch> stretches) {
      const Tensor there = of_stretches(target, stretches);
      // A device gets a parameter at once, not row by row.
      const Tensor here = there.is_cpu() ? there : torch::empty_like(there, torch::Device(torch::kCPU));
      for (const OwnedStretch& stretch : stretches) {
        read(shard->parameters()[stretch.parameter].name, stretch.whole,
             here.narrow(0, stretch.shard - stretches.front().shard, stretch.count));
      }
      if (!there.is_cpu()) there.copy_(here);
    });
  }
}

std::vector<ParallelModel::SavedPiece> ParallelModel::saved_pieces(const std::function<Tensor(const FlatShard&)>& of,
                                                                   bool everything) const {
  std::vector<SavedPiece> pieces;
  for (const auto& shard : shards_) {
    const Tensor values = of(*shard);
    if (!values.defined()) continue;
    for_each_parameter(everything ? shard->stretches() : shard->saved_stretches(),
                       [&](std::span<const OwnedStretch> stretches) {
                         pieces.push_back({shard->parameters()[stretches.front().parameter],
                                           {stretches.begin(), stretches.end()},
                                           of_stretches(values, stretches)});
                       });
  }
  return pieces;
}

}  // namespace lockstep::parallel
