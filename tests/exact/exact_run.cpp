#include "tests/exact/exact_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "lockstep/comm/local.h"
#include "lockstep/engine/probe.h"
#include "lockstep/engine/sharded_executor.h"
#include "lockstep/nn/device_thread.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/moe.h"
#include "tests/support/tiny_models.h"

namespace lockstep::exact {
namespace {

using torch::Tensor;

// The stream of tokens is a formula, so that every layout sees the same one.
Tensor tokens_of(std::int64_t step, std::int64_t vocab) {
  const Tensor place = torch::arange(kSamples * (kSequence + 1)) + 7919 * (step + 1);
  return (place * place * 31 + place * 17).remainder(1009).remainder(vocab).view({kSamples, kSequence + 1});
}

data::Batch part_of_tokens(std::int64_t step, std::int64_t first, std::int64_t samples, std::int64_t vocab) {
  const Tensor own = tokens_of(step, vocab).narrow(0, first, samples);
  data::Batch batch;
  batch.input = own.narrow(1, 0, kSequence).clone();
  batch.target = own.narrow(1, 1, kSequence).clone();
  batch.target.masked_fill_((batch.input + batch.target).remainder(11) == 3, -100);  // uneven over ranks
  return batch;
}

constexpr std::int64_t kPoints = 32, kClasses = 4;  // what the plugin's model reads and tells apart

data::Batch part_of_waves(std::int64_t step, std::int64_t first, std::int64_t samples) {
  const Tensor number = torch::arange(first, first + samples) + kSamples * step;
  const Tensor place = number.unsqueeze(1) * kPoints + torch::arange(kPoints);
  data::Batch batch;
  batch.input = (place * place).remainder(1009).to(torch::kFloat64) / 504.5 - 1.0;
  batch.target = (number * number + 3 * number).remainder(7).remainder(kClasses);
  return batch;
}

// The plugin's model, looked at once.
const spec::Model& model_of_plugin() {
  static const spec::Model model = [] {
    const std::string plugin = "plugin: " LOCKSTEP_BUILD_DIR "/tests/libwaves.so, ";
    spec::Job job = spec::parse_job("model: {" + plugin + "arch: mixer, loss: focal, layers: 4, width: 8}\n" +
                                        "cluster: 1x1xcpu\ndata: {" + plugin + "kind: waves, samples: 64}\n" +
                                        "batch: {micro: 8}\nsteps: 3\n",
                                    "gate");
    job.model.script.facts = engine::probe_script(job);
    return job.model;
  }();
  return model;
}

}  // namespace

data::Batch batch_of(std::int64_t step, std::int64_t micro, std::int64_t rank, std::int64_t ranks,
                     std::int64_t accumulation, const spec::Model& model) {
  const std::int64_t samples = kSamples / (ranks * accumulation), first = (micro * ranks + rank) * samples;
  data::Batch batch =
      model.is_scripted() ? part_of_waves(step, first, samples) : part_of_tokens(step, first, samples, model.vocab);
  batch.first_index = first;
  batch.samples = samples;
  batch.global_samples = kSamples;
  batch.micro_step = micro;
  batch.last_of_step = micro == accumulation - 1;
  return batch;
}

namespace {

// One stretch of a parameter's master weights on one rank.
struct Piece {
  std::string name;
  std::int64_t first = 0;
  std::vector<std::int64_t> whole;
  Tensor values;
};

// Where the routers send the rows of `batches` with the weights as they are: a forward of each without gradients.
void count_expert_rows(engine::ShardedExecutor& executor, const std::vector<data::Batch>& batches,
                       RankTraffic& traffic) {
  for (const data::Batch& batch : batches) {
    executor.evaluate(batch, -1, false);
    for (nn::TrainableModel* chunk : executor.model().models()) {
      for (const auto& module : chunk->modules()) {
        const auto* moe = dynamic_cast<nn::MoeMlp*>(module.get());
        if (moe == nullptr) continue;
        traffic.expert_rows_sent += moe->last_routing().rows_sent;
        traffic.expert_rows_received += moe->last_routing().rows_received;
      }
    }
  }
}

struct Shared {
  std::mutex mutex;
  Outcome outcome;
  std::vector<std::vector<Piece>> pieces;  // by rank
};

void run_rank(const Case& exact_case, comm::Communicator world, int rank, Setting setting, Shared& shared) {
  const nn::DeviceThread thread(setting.device);
  plan::Layout layout = layout_of(exact_case);
  spec::Job job = job_of(exact_case);
  job.precision = layout.precision = setting.precision;
  // What rounding does to a small gradient must not become a step of full size.
  if (setting.precision == spec::Precision::kFp32) job.optimizer.epsilon = 1e-3;
  engine::ShardedExecutor executor(job, plan::run_of(job, layout), std::move(world), {.device = setting.device});
  parallel::ParallelModel& model = executor.model();
  RankTraffic traffic;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<data::Batch> batches;
    for (std::int64_t micro = 0; micro < exact_case.accumulation; ++micro) {
      batches.push_back(
          batch_of(step, micro, model.groups().data_rank, layout.data_ranks(), exact_case.accumulation, job.model));
    }
    if (step == kSteps - 1 && layout.ep > 1) count_expert_rows(executor, batches, traffic);
    model.groups().reset_traffic();
    executor.stage(std::move(batches));
    const engine::StepResult result = executor.step({.step = step, .learning_rate = job.optimizer.learning_rate});
    traffic.groups = model.groups().traffic();
    if (rank != 0) continue;
    shared.outcome.losses.push_back(result.loss);
    shared.outcome.auxiliary_losses.push_back(result.auxiliary_loss);
    shared.outcome.norms.push_back(result.gradient_norm);
  }
  traffic.stage = model.groups().stage;
  std::vector<Piece> pieces;
  for (const auto& shard : model.shards()) {
    for (const parallel::OwnedStretch& stretch : shard->stretches()) {
      const nn::DeclaredParameter& parameter = shard->parameters()[stretch.parameter];
      pieces.push_back({parameter.name, stretch.whole, parameter.placement.whole,
                        shard->master().narrow(0, stretch.shard, stretch.count).clone().to(torch::kCPU)});
    }
  }
  parallel::TensorMap gradients = model.assemble([](const parallel::FlatShard& shard) { return shard.gradient(); });
  parallel::TensorMap weights = model.assemble([](const parallel::FlatShard& shard) { return shard.master(); });
  parallel::TensorMap state = executor.optimizer().assemble();
  model.groups().world.barrier().wait();
  const std::lock_guard lock(shared.mutex);
  shared.outcome.traffic[static_cast<std::size_t>(rank)] = traffic;
  shared.pieces[static_cast<std::size_t>(rank)] = std::move(pieces);
  if (rank != 0) return;
  shared.outcome.gradients = std::move(gradients);
  shared.outcome.weights = std::move(weights);
  shared.outcome.state = std::move(state);
}

// Every element that more than one rank holds must have the same bits on all of them.
std::string compare_replicas(const std::vector<std::vector<Piece>>& pieces) {
  struct Seen {
    Tensor values;
    std::vector<int> rank;  // who held the element first; -1: nobody yet
  };
  std::map<std::string, Seen> seen;
  for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
    for (const Piece& piece : pieces[rank]) {
      Seen& known = seen[piece.name];
      if (!known.values.defined()) {
        known.values = torch::zeros(piece.whole, piece.values.options()).view({-1});
        known.rank.assign(static_cast<std::size_t>(known.values.numel()), -1);
      }
      const auto size = piece.values.element_size();
      const auto* own = static_cast<const std::byte*>(piece.values.data_ptr());
      auto* first = static_cast<std::byte*>(known.values.data_ptr()) + piece.first * static_cast<std::int64_t>(size);
      for (std::int64_t i = 0; i < piece.values.numel(); ++i, own += size, first += size) {
        int& holder = known.rank[static_cast<std::size_t>(piece.first + i)];
        if (holder < 0) {
          std::memcpy(first, own, size);
          holder = static_cast<int>(rank);
        } else if (std::memcmp(first, own, size) != 0) {
          return fmt::format("{}[{}]: rank {} has {:.17g}, rank {} has {:.17g}", piece.name, piece.first + i, holder,
                             known.values[piece.first + i].item<double>(), rank, piece.values[i].item<double>());
        }
      }
    }
  }
  return {};
}

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-4); }

double relative(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>() / std::max(b.abs().max().item<double>(), 1e-4);
}

std::string compare_maps(const char* what, const parallel::TensorMap& a, const parallel::TensorMap& b,
                         double tolerance) {
  if (a.size() != b.size()) return fmt::format("{}: {} tensors against {}", what, a.size(), b.size());
  for (const auto& [name, tensor] : b) {
    const auto found = a.find(name);
    if (found == a.end()) return fmt::format("{}: {} is missing", what, name);
    if (found->second.sizes() != tensor.sizes()) return fmt::format("{}: {} has another shape", what, name);
    if (!tensor.is_floating_point()) {
      if (!found->second.equal(tensor)) return fmt::format("{}: {} differs", what, name);
      continue;
    }
    const double error = relative(found->second, tensor);
    if (!(error <= tolerance)) {
      return fmt::format("{}: {} differs by {:.3g} of {:.3g}", what, name, error, tensor.abs().max().item<double>());
    }
  }
  return {};
}

}  // namespace

std::string Case::name() const {
  std::string text = model + " " + layout;
  if (accumulation > 1) text += fmt::format(" accumulation={}", accumulation);
  if (reduce_each_micro_step) text += " reduce-each";
  if (!reshard_after_forward) text += " no-reshard";
  if (activation_offload) text += " activation-offload";
  if (bucket_mib != 25.0) text += fmt::format(" bucket={}", bucket_mib);
  return text;
}

// Llama's relatives, each with what sets it apart: windows shorter than the sequence, caps that bend, ...
spec::Model relative_of(const std::string& name, const tiny::ModelSizes& sizes) {
  spec::Model model = tiny::llama_of(sizes, 2);
  spec::Decoder& d = model.decoder;
  const auto is = [&name](const char* other) { return name == other; };
  if (is("qwen2")) spec::adopt_family(model, spec::Family::kQwen2);
  if (is("qwen3")) spec::adopt_family(model, spec::Family::kQwen3);
  if (is("mistral")) spec::adopt_family(model, spec::Family::kMistral);
  if (is("gemma2")) spec::adopt_family(model, spec::Family::kGemma2);
  if (is("gemma3")) spec::adopt_family(model, spec::Family::kGemma3);
  if (is("phi3")) spec::adopt_family(model, spec::Family::kPhi3);
  if (is("olmo")) spec::adopt_family(model, spec::Family::kOlmo);
  if (is("olmo2")) spec::adopt_family(model, spec::Family::kOlmo2);
  if (is("neox")) spec::adopt_family(model, spec::Family::kNeox);
  if (name.starts_with("falcon")) spec::adopt_family(model, spec::Family::kFalcon);
  if (is("qwen2"))
    model.rope_scaling = {.kind = spec::RopeScaling::Kind::kYarn, .factor = 4, .original_max_sequence = 8};
  if (is("qwen3")) model.head_dim = 12;
  if (is("mistral") || is("gemma2") || is("gemma3")) d.sliding_window = 5;
  if (is("gemma2") || is("gemma3")) d.window_period = 2;
  if (is("gemma2")) d.score_dim = 5, d.attention_softcap = 2, d.logit_softcap = 3;
  if (is("gemma3"))
    d.local_rope_theta = 100, model.rope_scaling = {.kind = spec::RopeScaling::Kind::kLinear, .factor = 4};
  if (is("olmo")) d.clip_qkv = 0.5, d.qkv_bias = d.attention_output_bias = true;
  if (is("neox")) model.kv_heads = 4, d.rotary_fraction = 0.5;
  if (is("falcon")) model.kv_heads = 1;
  if (is("falcon-new")) d.parallel_block = spec::ParallelBlock::kTwoNorms;
  if (is("phi3")) {
    d.rotary_fraction = 0.5;
    model.rope_scaling = {.kind = spec::RopeScaling::Kind::kLongRope, .factor = 0, .original_max_sequence = 8};
    model.rope_scaling.short_factors = {1.0, 1.5};
    model.rope_scaling.long_factors = {1.25, 3.0};
  }
  return model;
}

bool is_relative(const std::string& name) {
  constexpr const char* kNames[] = {"qwen2", "qwen3", "mistral", "gemma2", "gemma3",    "phi3",
                                    "olmo",  "olmo2", "neox",    "falcon", "falcon-new"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* other) { return name == other; });
}

spec::Model family_of(const std::string& name) {
  tiny::ModelSizes sizes{4, 32, 4, 64, 64, 32};
  if (is_relative(name)) return relative_of(name, sizes);
  if (name == "gpt-odd") sizes = {4, 32, 4, 62, 61, 31};
  if (name == "ssm") return tiny::mamba_of(sizes, {4, 4, 2, 2});
  if (name.starts_with("llama")) return tiny::llama_of(sizes, name == "llama-mqa" ? 1 : 2);
  spec::Model model = tiny::gpt_of(sizes);
  if (name.starts_with("gpt") || name == "bert") {
    model.dropout = 0.1;
    if (name == "bert") {
      model.arch = spec::Arch::kBert;
      model.type_vocab = 2;
    }
    return model;
  }
  sizes.ffn_hidden = 32;
  model = tiny::llama_of(sizes, 2);
  model.arch = spec::Arch::kMoe;
  model.experts = 4;
  model.experts_per_token = 2;
  model.router_auxiliary_loss = 0.05;
  model.router_z_loss = 0.01;
  if (name == "moe-capacity") model.capacity_factor = 1.0;
  if (name == "moe-shared") model.shared_experts = 1;
  if (name == "qwen3-moe") {
    spec::adopt_family(model, spec::Family::kQwen3);
    model.head_dim = 12;
  }
  if (name == "deepseek") {
    spec::adopt_family(model, spec::Family::kDeepseek);
    model.shared_experts = 2;
    model.decoder.dense_layers = 1;
    model.decoder.dense_ffn_hidden = 48;
    model.decoder.routed_scale = 1.5;
  }
  return model;
}

spec::Model model_of(const std::string& name) {
  if (name == "plugin") return model_of_plugin();
  spec::Model model = family_of(name);
  model.name = name;
  model.init_std = 0.2;  // far from the linear regime, so that errors show
  return model;
}

plan::Layout layout_of(const Case& exact_case) {
  plan::Layout layout = plan::parse_layout(exact_case.layout);
  layout.precision = spec::Precision::kFp64;
  return layout;
}

spec::Job job_of(const Case& exact_case) {
  const plan::Layout layout = layout_of(exact_case);
  spec::Job job;
  job.model = model_of(exact_case.model);
  job.precision = spec::Precision::kFp64;
  job.batch = {kSamples / (layout.data_ranks() * exact_case.accumulation), exact_case.accumulation, kSequence};
  job.optimizer.learning_rate = 1e-2;
  job.optimizer.weight_decay = 0.1;
  job.optimizer.clip_norm = 0.5;
  // Gradients that are zero but for rounding must not become steps of full size (BERT's key biases are nothing else).
  job.optimizer.epsilon = exact_case.model == "bert" ? 1e-4 : 1e-6;
  job.communication.reduce_each_micro_step = exact_case.reduce_each_micro_step;
  job.communication.bucket_mib = exact_case.bucket_mib;
  job.communication.reshard_after_forward = exact_case.reshard_after_forward;
  job.activation_offload = exact_case.activation_offload;
  job.steps = kSteps;
  job.seed = 7;
  return job;
}

Setting setting_of_environment() {
  Setting setting;
  const char* device = std::getenv("LOCKSTEP_EXACT_DEVICE");
  const char* precision = std::getenv("LOCKSTEP_EXACT_PRECISION");
  if (device != nullptr && *device != '\0') setting.device = torch::Device(device);
  if (setting.device.is_cuda()) setting.device = torch::Device(torch::kCUDA, 0);
  if (precision != nullptr && std::string(precision) == "fp32") setting.precision = spec::Precision::kFp32;
  return setting;
}

Outcome run_case(const Case& exact_case, const Wrap& wrap, comm::milliseconds timeout, Setting setting) {
  const int ranks = static_cast<int>(layout_of(exact_case).world());
  comm::LocalWorld world(ranks, timeout, nn::device_queues(setting.device));
  Shared shared;
  shared.outcome.traffic.resize(static_cast<std::size_t>(ranks));
  shared.pieces.resize(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank, communicator = world.communicator(rank)]() mutable {
      try {
        run_rank(exact_case, wrap ? wrap(std::move(communicator), rank) : std::move(communicator), rank, setting,
                 shared);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  shared.outcome.replicas_differ = compare_replicas(shared.pieces);
  return std::move(shared.outcome);
}

namespace {

struct Moments {
  Tensor first, second;
};

// torch.optim.AdamW.
void update(Tensor weight, Moments& moments, const Tensor& gradient, const spec::Optimizer& o, double step) {
  if (!moments.first.defined()) moments = {torch::zeros_like(weight), torch::zeros_like(weight)};
  weight.mul_(1 - o.learning_rate * o.weight_decay);
  moments.first.mul_(o.beta1).add_(gradient, 1 - o.beta1);
  moments.second.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
  const Tensor divisor = (moments.second / (1 - std::pow(o.beta2, step))).sqrt() + o.epsilon;
  weight.sub_(moments.first / divisor, o.learning_rate / (1 - std::pow(o.beta1, step)));
}

}  // namespace

Outcome plain_run(const std::string& name, std::int64_t accumulation) {
  const spec::Job job = job_of({name, "dp=1", accumulation});
  const auto model =
      nn::build_model(job.model, {.dtype = torch::kFloat64, .seed = static_cast<std::uint64_t>(job.seed)});
  std::map<std::string, Moments> moments;
  Outcome outcome;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<data::Batch> batches;
    double targets = 0.0;
    for (std::int64_t micro = 0; micro < accumulation; ++micro) {
      batches.push_back(batch_of(step, micro, 0, 1, accumulation, job.model));
      targets += (batches.back().target != nn::kIgnoredTarget).sum().item<double>();
    }
    Tensor loss = torch::zeros({}, torch::kFloat64), auxiliary = torch::zeros({}, torch::kFloat64);
    for (const data::Batch& batch : batches) {
      nn::ForwardContext context;
      context.seed = static_cast<std::uint64_t>(job.seed);
      context.step = step;
      context.first_index = batch.first_index;
      const nn::LossResult result = model->loss(batch.input, batch.target, context);
      loss = loss + result.loss_sum / targets;
      if (result.auxiliary.defined()) auxiliary = auxiliary + result.auxiliary / static_cast<double>(accumulation);
    }
    for (Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    (loss + auxiliary).backward();
    outcome.losses.push_back(loss.item<double>());
    outcome.auxiliary_losses.push_back(auxiliary.item<double>());
    const torch::NoGradGuard no_grad;
    double squares = 0.0;
    for (const Tensor& parameter : model->parameters()) {
      if (parameter.grad().defined()) squares += parameter.grad().square().sum().item<double>();
    }
    outcome.norms.push_back(std::sqrt(squares));
    const double factor = std::min(1.0, job.optimizer.clip_norm / (std::sqrt(squares) + 1e-6));
    for (auto& item : model->named_parameters()) {
      const Tensor& gradient = item.value().grad();
      update(item.value(), moments[item.key()],
             gradient.defined() ? gradient * factor : torch::zeros_like(item.value()), job.optimizer,
             static_cast<double>(step + 1));
    }
  }
  for (const auto& item : model->named_parameters()) outcome.weights[item.key()] = item.value().detach();
  return outcome;
}

const Outcome& reference_of(const Case& exact_case) {
  static std::map<std::pair<std::string, std::int64_t>, Outcome> references;
  const auto key = std::make_pair(exact_case.model, exact_case.accumulation);
  auto found = references.find(key);
  if (found == references.end()) {
    found = references.emplace(key, run_case({exact_case.model, "dp=1", exact_case.accumulation})).first;
  }
  return found->second;
}

std::string first_difference(const Outcome& outcome, const Outcome& reference, Setting setting) {
  const double tolerance = setting.tolerance();
  const auto scalars = [&](const char* what, const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (i >= a.size() || !(relative(a[i], b[i]) <= tolerance)) {
        return fmt::format("{} of step {}: {:.17g} against {:.17g}", what, i + 1, i < a.size() ? a[i] : NAN, b[i]);
      }
    }
    return std::string();
  };
  for (const std::string& difference : {scalars("loss", outcome.losses, reference.losses),
                                        scalars("auxiliary loss", outcome.auxiliary_losses, reference.auxiliary_losses),
                                        scalars("gradient norm", outcome.norms, reference.norms),
                                        compare_maps("gradient", outcome.gradients, reference.gradients, tolerance),
                                        compare_maps("optimizer", outcome.state, reference.state, tolerance),
                                        compare_maps("weight", outcome.weights, reference.weights, tolerance)}) {
    if (!difference.empty()) return difference;
  }
  if (!outcome.replicas_differ.empty()) return "replicas: " + outcome.replicas_differ;
  return {};
}

double largest_error(const Outcome& outcome, const Outcome& reference) {
  constexpr double kMissing = std::numeric_limits<double>::infinity();
  double largest = 0.0;
  const auto scalars = [&](const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < b.size(); ++i) {
      largest = std::max(largest, i < a.size() ? relative(a[i], b[i]) : kMissing);
    }
  };
  const auto maps = [&](const parallel::TensorMap& a, const parallel::TensorMap& b) {
    for (const auto& [name, tensor] : b) {
      const auto found = a.find(name);
      const bool there = found != a.end() && found->second.sizes() == tensor.sizes();
      if (tensor.is_floating_point()) largest = std::max(largest, there ? relative(found->second, tensor) : kMissing);
    }
  };
  scalars(outcome.losses, reference.losses);
  scalars(outcome.auxiliary_losses, reference.auxiliary_losses);
  scalars(outcome.norms, reference.norms);
  maps(outcome.gradients, reference.gradients);
  maps(outcome.state, reference.state);
  maps(outcome.weights, reference.weights);
  return largest;
}

}  // namespace lockstep::exact
