#include "lockstep/engine/fused/step.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/engine/fused/cuda_handles.h"
#include "lockstep/engine/fused/passes.h"
#include "lockstep/kernels/cuda/cross_entropy.h"
#include "lockstep/kernels/cuda/rope.h"

namespace lockstep::engine::cuda {

using kernels::cuda::AdamWStep;

namespace {

bool bf16_gradients(const FusedOptions& o) {
  if (o.gradients == GradientPrecision::kAutomatic) return o.accumulation == 1;
  return o.gradients == GradientPrecision::kBf16;
}

// One step in flight: its input on the host and on the device, what it needs from the host, and its marks.
struct InFlight {
  explicit InFlight(std::int64_t tokens) : input(2 * tokens), adamw(1), results(2) {
    for (Event* event : {&copied, &begin, &fed, &done}) *event = make_event();
  }
  Pinned<std::int32_t> input;  // tokens, then targets
  Pinned<AdamWStep> adamw;
  Pinned<float> results;  // loss, gradient norm
  std::int32_t* device_input = nullptr;
  AdamWStep* device_adamw = nullptr;
  Event copied, begin, fed, done;
  bool busy = false;
};

}  // namespace

struct FusedStep::Impl {
  spec::Model model;
  FusedOptions options;
  FusedShape shape;
  Stream stream, copy_stream;
  DeviceArena arena;
  FusedParameters parameters;
  FusedActivations activations;
  std::unique_ptr<FusedFp8> fp8;
  Gemm gemm;
  FusedWays fused;
  char* gemm_workspace = nullptr;
  Attention attention;
  StepTimeline timeline;
  std::array<InFlight, 2> flights;
  std::deque<int> order;  // flights submitted and not waited for
  int next = 0;
  std::int64_t steps = 0;
  bool prepared = false, use_graph = true;
  std::int32_t* tokens = nullptr;  // of the micro-batch at work
  std::int32_t* targets = nullptr;
  AdamWStep* adamw = nullptr;
  GraphExec first_micro, next_micro, update;
  FusedEvaluation evaluation;

  Impl(const spec::Model& m, const FusedOptions& o)
      : model(m),
        options(o),
        shape(fused_shape(m, o)),
        stream(make_stream()),
        copy_stream(make_stream()),
        parameters(shape, bf16_gradients(o), o.states),
        activations(shape, o.loss_chunk_bytes),
        gemm(o.gemm_candidates),
        fused(shape, o),
        attention({shape.batch, shape.seq, shape.heads, shape.kv_heads, shape.head_dim}, static_cast<int>(shape.layers),
                  // 8-bit gradients are made while they are packed.
                  o.own_attention_graphs && o.precision == LinearPrecision::kBf16, stream.get()),
        flights{InFlight(shape.rows() * o.accumulation), InFlight(shape.rows() * o.accumulation)},
        use_graph(o.graph) {
    if (o.precision == LinearPrecision::kFp8) fp8 = std::make_unique<FusedFp8>(shape, parameters);
    take_memory();
  }
  ~Impl() { cudaDeviceSynchronize(); }

  void take_memory() {
    parameters.want(arena);
    activations.want(arena, shape, options.recompute);
    if (fp8 != nullptr) fp8->want(arena);
    arena.want(&gemm_workspace, Gemm::kWorkspaceBytes);
    for (InFlight& f : flights) {
      arena.want(&f.device_input, 2 * shape.rows() * options.accumulation);
      arena.want(&f.device_adamw, 1);
    }
    arena.want(&tokens, shape.rows());
    arena.want(&targets, shape.rows());
    arena.want(&adamw, 1);
    evaluation.want(arena, shape.rows());
    arena.allocate();
    activations.share(options.recompute);
    gemm.set_workspace(gemm_workspace);
    if (!options.gemm_table.empty()) {
      std::ifstream file(options.gemm_table);
      gemm.use_table({std::istreambuf_iterator<char>(file), {}});
    }
    kernels::cuda::rope_tables(activations.cos, activations.sin, shape.seq, rope_frequencies(shape), stream.get());
    if (fp8 != nullptr) fp8->initialize(stream.get());
    parameters.zero_states(stream.get());
  }

  FusedParts parts() {
    return {shape, options, parameters, activations, gemm, attention, fp8.get(), fused, timeline, stream.get()};
  }
  void run_micro(bool accumulate) {
    if (fp8 != nullptr && !accumulate) {
      const StepTimeline::Scope scope(timeline, Family::kQuantize, "quantize weights");
      fp8->quantize_weights(stream.get());
    }
    FusedPasses(parts()).micro_step(tokens, targets, accumulate, shape.layers);
  }
  bool measures_norm() const { return options.clip > 0 || options.gradient_norm; }
  void run_update() {
    const StepTimeline::Scope scope(timeline, Family::kOptimizer, "adamw");
    const WeightDecay decay{options.weight_decay, options.norms_decay ? options.weight_decay : 0.0};
    parameters.update(adamw, decay, options.clip, measures_norm(), stream.get());
    if (fp8 != nullptr) fp8->end_step(stream.get());
  }

  template <class F>
  GraphExec capture(F f) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    // Relaxed: libtorch's allocator may take memory meanwhile, which is not part of the graph.
    LOCKSTEP_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed));
    f();
    LOCKSTEP_CUDA(cudaStreamEndCapture(stream.get(), &graph));
    const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    LOCKSTEP_CUDA(status);
    return GraphExec(exec);
  }

  // A micro-step whose results are dropped: it chooses GEMM algorithms, builds cuDNN's plans, loads every kernel, fills
  // libtorch's cache of blocks, and measures the first scales of fp8. Then graphs are captured.
  void prepare(const InFlight& f) {
    count_targets(f);
    load_micro(f, 0);
    if (fp8 != nullptr) fp8->set_current(true);
    run_micro(false);
    if (options.accumulation > 1) run_micro(true);
    if (fp8 != nullptr) {
      fp8->end_step(stream.get());
      fp8->set_current(options.fp8_scaling == Fp8Scaling::kCurrent);
    }
    LOCKSTEP_CUDA(cudaStreamSynchronize(stream.get()));
    capture_graphs();
    prepared = true;
  }

  void capture_graphs() {
    if (use_graph) {
      first_micro = capture([&] { run_micro(false); });
      if (options.accumulation > 1) next_micro = capture([&] { run_micro(true); });
      update = capture([&] { run_update(); });
    }
  }

  void tune_gemms(int rounds) {
    if (!prepared) throw UserError(ExitCode::kUsage, "tune after the first step");
    for (int round = 0; round < rounds; ++round)
      for (int i = 0; i < options.gemm_candidates; ++i) {
        gemm.begin_trial(round % 2 == 0 ? i : options.gemm_candidates - 1 - i);  // there and back: drift cancels
        run_micro(false);
        gemm.end_trial(stream.get());
      }
    gemm.settle_trials();
    capture_graphs();
  }

  // Of the whole step: every target weighs the same, whichever micro-batch it is in.
  void count_targets(const InFlight& f) {
    const StepTimeline::Scope scope(timeline, Family::kLoss, "count targets");
    const std::int64_t all = shape.rows() * options.accumulation;
    kernels::cuda::count_targets(f.device_input + all, all, shape.vocab, 1.0f, activations.loss_scale, stream.get());
  }

  void load_micro(const InFlight& f, std::int64_t micro) {
    const StepTimeline::Scope scope(timeline, Family::kCopy, "input");
    const std::int64_t rows = shape.rows(), all = rows * options.accumulation;
    const std::size_t bytes = rows * sizeof(std::int32_t);
    LOCKSTEP_CUDA(
        cudaMemcpyAsync(tokens, f.device_input + micro * rows, bytes, cudaMemcpyDeviceToDevice, stream.get()));
    LOCKSTEP_CUDA(
        cudaMemcpyAsync(targets, f.device_input + all + micro * rows, bytes, cudaMemcpyDeviceToDevice, stream.get()));
  }

  void check_tokens(const std::int32_t* host_tokens, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i)
      if (host_tokens[i] < 0 || host_tokens[i] >= shape.vocab)
        throw UserError(ExitCode::kUsage,
                        fmt::format("token {} at place {} is outside the vocabulary", host_tokens[i], i));
  }

  void submit(const std::int32_t* host_tokens, const std::int32_t* host_targets, double learning_rate) {
    InFlight& f = flights[next];
    if (f.busy) throw UserError(ExitCode::kUsage, "a third step was submitted before the first was waited for");
    const std::int64_t count = shape.rows() * options.accumulation;
    check_tokens(host_tokens, count);
    std::memcpy(f.input.get(), host_tokens, count * sizeof(std::int32_t));
    std::memcpy(f.input.get() + count, host_targets, count * sizeof(std::int32_t));
    *f.adamw.get() = kernels::cuda::adamw_step(learning_rate, options.beta1, options.beta2, options.epsilon, ++steps);
    LOCKSTEP_CUDA(cudaMemcpyAsync(f.device_input, f.input.get(), 2 * count * sizeof(std::int32_t),
                                  cudaMemcpyHostToDevice, copy_stream.get()));
    LOCKSTEP_CUDA(
        cudaMemcpyAsync(f.device_adamw, f.adamw.get(), sizeof(AdamWStep), cudaMemcpyHostToDevice, copy_stream.get()));
    LOCKSTEP_CUDA(cudaEventRecord(f.copied.get(), copy_stream.get()));
    if (!prepared) {
      LOCKSTEP_CUDA(cudaStreamWaitEvent(stream.get(), f.copied.get(), 0));
      prepare(f);
    }
    enqueue(f);
    f.busy = true;
    order.push_back(next);
    next ^= 1;
  }

  void enqueue(InFlight& f) {
    LOCKSTEP_CUDA(cudaEventRecord(f.begin.get(), stream.get()));
    LOCKSTEP_CUDA(cudaStreamWaitEvent(stream.get(), f.copied.get(), 0));
    LOCKSTEP_CUDA(cudaEventRecord(f.fed.get(), stream.get()));
    LOCKSTEP_CUDA(cudaMemcpyAsync(adamw, f.device_adamw, sizeof(AdamWStep), cudaMemcpyDeviceToDevice, stream.get()));
    count_targets(f);
    for (std::int64_t micro = 0; micro < options.accumulation; ++micro) {
      load_micro(f, micro);
      if (!use_graph)
        run_micro(micro > 0);
      else
        LOCKSTEP_CUDA(cudaGraphLaunch(micro > 0 ? next_micro.get() : first_micro.get(), stream.get()));
    }
    if (!use_graph)
      run_update();
    else
      LOCKSTEP_CUDA(cudaGraphLaunch(update.get(), stream.get()));
    LOCKSTEP_CUDA(
        cudaMemcpyAsync(f.results.get(), activations.loss, sizeof(float), cudaMemcpyDeviceToHost, stream.get()));
    if (measures_norm())
      LOCKSTEP_CUDA(cudaMemcpyAsync(f.results.get() + 1, parameters.gradient_norm(), sizeof(float),
                                    cudaMemcpyDeviceToHost, stream.get()));
    LOCKSTEP_CUDA(cudaEventRecord(f.done.get(), stream.get()));
  }

  Evaluation evaluate(const std::int32_t* host_tokens, const std::int32_t* host_targets) {
    if (!order.empty()) throw UserError(ExitCode::kUsage, "a step is in flight: wait for it before evaluating");
    check_tokens(host_tokens, shape.rows());
    const std::size_t bytes = shape.rows() * sizeof(std::int32_t);
    LOCKSTEP_CUDA(cudaMemcpyAsync(tokens, host_tokens, bytes, cudaMemcpyHostToDevice, stream.get()));
    LOCKSTEP_CUDA(cudaMemcpyAsync(targets, host_targets, bytes, cudaMemcpyHostToDevice, stream.get()));
    FusedParts p = parts();
    p.fp8 = nullptr;
    FusedPasses(p).evaluate(tokens, targets, evaluation);
    float sums[2];
    LOCKSTEP_CUDA(cudaMemcpyAsync(sums, evaluation.sums, sizeof sums, cudaMemcpyDeviceToHost, stream.get()));
    LOCKSTEP_CUDA(cudaStreamSynchronize(stream.get()));
    return {sums[0], sums[1]};
  }

  Result wait() {
    if (order.empty()) throw UserError(ExitCode::kUsage, "no step was submitted");
    InFlight& f = flights[order.front()];
    order.pop_front();
    LOCKSTEP_CUDA(cudaEventSynchronize(f.done.get()));
    f.busy = false;
    Result r;
    r.loss = f.results.get()[0];
    if (measures_norm()) r.gradient_norm = f.results.get()[1];
    r.skipped = !std::isfinite(r.gradient_norm);
    if (r.skipped) --steps;
    LOCKSTEP_CUDA(cudaEventElapsedTime(&r.gpu_ms, f.fed.get(), f.done.get()));
    LOCKSTEP_CUDA(cudaEventElapsedTime(&r.input_stall_ms, f.begin.get(), f.fed.get()));
    return r;
  }
};

FusedStep::FusedStep(const spec::Model& model, const FusedOptions& options) : impl_(new Impl(model, options)) {}
FusedStep::~FusedStep() = default;

void FusedStep::initialize(std::uint32_t seed) {
  impl_->parameters.initialize(impl_->model.init_std, seed, impl_->stream.get());
}
void FusedStep::initialize_as_torch(std::uint32_t seed) {
  impl_->parameters.initialize_as_torch(seed, impl_->stream.get());
}
const std::vector<NamedParameter>& FusedStep::parameters() const { return impl_->parameters.named(); }

void FusedStep::load(const std::string& name, const std::vector<float>& values) {
  const NamedParameter& p = impl_->parameters.find(name);
  if (static_cast<std::int64_t>(values.size()) != p.place.count())
    throw UserError(ExitCode::kUsage,
                    fmt::format("{} has {} values, {} were given", name, p.place.count(), values.size()));
  impl_->parameters.load(p, values.data(), impl_->stream.get());
}
std::vector<float> FusedStep::save(const std::string& name) const {
  const NamedParameter& p = impl_->parameters.find(name);
  std::vector<float> values(p.place.count());
  impl_->parameters.save(p, values.data(), impl_->stream.get());
  return values;
}
void* FusedStep::memory(const NamedParameter& parameter, FusedParameters::Part part) const {
  return impl_->parameters.memory(parameter, part);
}
void FusedStep::load(const NamedParameter& parameter, const float* values) {
  impl_->parameters.load(parameter, values, impl_->stream.get());
}
void FusedStep::load(const NamedParameter& parameter, const Bf16* values) {
  impl_->parameters.load(parameter, values, impl_->stream.get());
}
void FusedStep::save(const NamedParameter& parameter, float* values) const {
  impl_->parameters.save(parameter, values, impl_->stream.get());
}
void FusedStep::save_on_device(const NamedParameter& parameter, float* values) const {
  impl_->parameters.save_on_device(parameter, values, impl_->stream.get());
}
void FusedStep::save_all_on_device(float* values) const {
  impl_->parameters.save_all_on_device(values, impl_->stream.get());
}
std::int64_t FusedStep::flat_count() const { return impl_->parameters.count(); }
std::int64_t FusedStep::updates() const { return impl_->steps; }
void FusedStep::set_updates(std::int64_t updates) { impl_->steps = updates; }
FusedStep::Evaluation FusedStep::evaluate(const std::int32_t* tokens, const std::int32_t* targets) {
  return impl_->evaluate(tokens, targets);
}
std::vector<float> FusedStep::save_gradient(const std::string& name) const {
  return impl_->parameters.save_gradient(impl_->parameters.find(name), impl_->stream.get());
}

void FusedStep::submit(const std::int32_t* tokens, const std::int32_t* targets, double learning_rate) {
  impl_->submit(tokens, targets, learning_rate);
}
FusedStep::Result FusedStep::wait() { return impl_->wait(); }
FusedStep::Result FusedStep::step(const std::int32_t* tokens, const std::int32_t* targets, double learning_rate) {
  impl_->submit(tokens, targets, learning_rate);
  return impl_->wait();
}

std::vector<StepTimeline::Operation> FusedStep::profile(const std::int32_t* tokens, const std::int32_t* targets,
                                                        double learning_rate) {
  if (!impl_->prepared) step(tokens, targets, learning_rate);
  const bool graph = impl_->use_graph;
  impl_->use_graph = false;
  impl_->timeline.start_recording(impl_->stream.get());
  step(tokens, targets, learning_rate);
  impl_->timeline.stop_recording();
  impl_->use_graph = graph;
  return impl_->timeline.operations();
}

FusedStep::Memory FusedStep::memory() const { return {impl_->arena.bytes(), impl_->attention.peak_bytes()}; }
std::vector<Gemm::Choice> FusedStep::gemm_choices() const {
  auto all = impl_->gemm.choices();
  for (const FasterWay* way : {&impl_->fused.qkv, &impl_->fused.gate_up, &impl_->fused.down})
    all.push_back(way->choice());
  return all;
}
void FusedStep::tune_gemms(int rounds) { impl_->tune_gemms(rounds); }
bool FusedStep::use_gemm_table(const std::string& text) { return impl_->gemm.use_table(text); }
std::string FusedStep::gemm_table() const { return impl_->gemm.table(); }
void FusedStep::save_gemm_table(const std::string& path) const { std::ofstream(path) << impl_->gemm.table(); }
const FusedShape& FusedStep::shape() const { return impl_->shape; }

}  // namespace lockstep::engine::cuda
