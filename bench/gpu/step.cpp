// lockstep_gpu_step: trains a Llama-shaped model for some steps on one GPU and says how fast, with what memory, and
// where the time went. Exit codes as everywhere: 2 usage, 3 does not fit, 1 failed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/gpu/files.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/engine/fused/step.h"

namespace {

using lockstep::ExitCode;
using lockstep::UserError;
using namespace lockstep::engine::cuda;
using nlohmann::json;
constexpr double kPeakFlops = 989.5e12;  // H200, dense bf16

struct Arguments {
  std::string model = "1.36b", shape, precision = "bf16", scaling = "delayed", state = "fp32", graph = "on";
  std::string fused_mlp = "on", fused_rope = "on", own_attention = "on";
  std::string recompute = "none", gradients = "auto", init = "normal", trace, weights, tokens, save_gradients,
              gemm_table, save_gemm_table;
  std::int64_t micro_batch = 16, accumulation = 1, sequence = 0, warmup = 4, steps = 8, chunk_mib = 3200;
  int candidates = 8, tune_rounds = 0;
  double learning_rate = 1e-4, clip = 0;
  std::int64_t rate_warmup = 0;
  bool as_json = false, losses = false, choices = false, no_pipelined = false;
};

double rate_at(const Arguments& a, std::int64_t step) {
  return a.learning_rate * std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(a.rate_warmup + 1));
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  CLI::App app{"One training step of a dense transformer on one GPU, measured."};
  app.add_option("--model", a.model, "1.36b, 7b, 124m or tiny")->check(CLI::IsMember({"1.36b", "7b", "124m", "tiny"}));
  app.add_option("--shape", a.shape, "another model: layers,hidden,heads,ffn,vocab,seq[,kv_heads]");
  app.add_option("--micro-batch", a.micro_batch, "sequences per micro-batch");
  app.add_option("--accumulation", a.accumulation, "micro-batches per step");
  app.add_option("--seq", a.sequence, "tokens per sequence; 0: the model's");
  app.add_option("--precision", a.precision, "of linear layers")->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_option("--scaling", a.scaling, "of fp8")->check(CLI::IsMember({"delayed", "current"}));
  app.add_option("--state", a.state, "of AdamW's m and v")->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--gradients", a.gradients, "of matrices")->check(CLI::IsMember({"auto", "fp32", "bf16"}));
  app.add_option("--graph", a.graph, "CUDA graphs")->check(CLI::IsMember({"on", "off"}));
  app.add_option("--fused-mlp", a.fused_mlp, "products with SwiGLU inside, where they are faster")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--own-attention", a.own_attention, "cuDNN's graphs where the build has its frontend; off: libtorch's")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--fused-rope", a.fused_rope, "the product with rotary positions inside, where it is faster")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--recompute", a.recompute, "")->check(CLI::IsMember({"none", "selective", "full"}));
  app.add_option("--candidates", a.candidates, "GEMM algorithms timed per shape")->check(CLI::Range(1, 64));
  app.add_option("--gemm-table", a.gemm_table, "algorithms chosen before, for this library and device");
  app.add_option("--save-gemm-table", a.save_gemm_table, "write the algorithms chosen");
  app.add_option("--tune-rounds", a.tune_rounds, "choose GEMM algorithms inside micro-steps, so many rounds");
  app.add_option("--loss-chunk-mib", a.chunk_mib, "of logits at a time")->check(CLI::Range(1, 65536));
  app.add_option("--init", a.init, "first values: normal of the model's deviation, or as torch.nn's modules")
      ->check(CLI::IsMember({"normal", "torch"}));
  app.add_option("--lr", a.learning_rate, "learning rate");
  app.add_option("--lr-warmup", a.rate_warmup, "steps over which the rate rises to it")->check(CLI::NonNegativeNumber);
  app.add_option("--clip", a.clip, "limit of the gradient's norm; 0: none");
  app.add_option("--warmup", a.warmup, "steps before the measured ones");
  app.add_option("--steps", a.steps, "measured steps");
  app.add_option("--trace", a.trace, "write a Chrome trace of one more step, without graphs");
  app.add_option("--weights", a.weights, "first values, a safetensors file in fp32");
  app.add_option("--tokens", a.tokens, "int32 file: per step all tokens, then all targets; default: random");
  app.add_option("--save-gradients", a.save_gradients, "write the last step's gradients as safetensors");
  app.add_flag("--no-pipelined", a.no_pipelined, "leave out the steps that are submitted two at a time");
  app.add_flag("--losses", a.losses, "print every step's loss");
  app.add_flag("--choices", a.choices, "print the GEMM algorithms chosen");
  app.add_flag("--json", a.as_json, "one JSON object on stdout");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e) == 0 ? 0 : static_cast<int>(ExitCode::kUsage));
  }
  return a;
}

lockstep::spec::Model model_of(const std::string& name) {
  lockstep::spec::Model m;
  m.name = name;
  m.arch = lockstep::spec::Arch::kLlama;
  const auto set = [&m](int vocab, int hidden, int layers, int heads, int ffn, int seq) {
    m.vocab = vocab, m.hidden = hidden, m.layers = layers, m.heads = m.kv_heads = heads, m.ffn_hidden = ffn;
    m.max_sequence = seq;
  };
  if (name == "1.36b") set(32000, 2048, 24, 16, 5632, 2048);
  if (name == "7b") set(32000, 4096, 32, 32, 11008, 2048);
  if (name == "124m") set(50304, 768, 12, 12, 2048, 1024);
  if (name == "tiny") set(512, 256, 4, 4, 704, 256);
  m.norm_epsilon = 1e-5;
  return m;
}

// "24,1024,16,2816,32000,2048": layers, hidden, heads, ffn, vocab, sequence, and heads of k and v where they are fewer.
lockstep::spec::Model model_of_shape(const std::string& text) {
  std::vector<std::int64_t> v;
  for (const std::string& word : lockstep::split(text, ',')) v.push_back(lockstep::parse_integer(word));
  if (v.size() < 6 || v.size() > 7) throw UserError(ExitCode::kUsage, "--shape wants six or seven numbers");
  lockstep::spec::Model m;
  m.name = text;
  m.arch = lockstep::spec::Arch::kLlama;
  m.layers = v[0], m.hidden = v[1], m.heads = v[2], m.ffn_hidden = v[3], m.vocab = v[4], m.max_sequence = v[5];
  m.kv_heads = v.size() == 7 ? v[6] : v[2];
  m.norm_epsilon = 1e-5;
  return m;
}

FusedOptions options_of(const Arguments& a) {
  FusedOptions o;
  o.micro_batch = a.micro_batch;
  o.accumulation = a.accumulation;
  o.sequence_length = a.sequence;
  o.precision = a.precision == "fp8" ? LinearPrecision::kFp8 : LinearPrecision::kBf16;
  o.fp8_scaling = a.scaling == "current" ? Fp8Scaling::kCurrent : Fp8Scaling::kDelayed;
  o.states = a.state == "bf16" ? StatePrecision::kBf16 : StatePrecision::kFloat;
  if (a.gradients != "auto") o.gradients = a.gradients == "bf16" ? GradientPrecision::kBf16 : GradientPrecision::kFloat;
  o.recompute = a.recompute == "none"        ? Recompute::kNone
                : a.recompute == "selective" ? Recompute::kSelective
                                             : Recompute::kFull;
  o.graph = a.graph == "on";
  o.fused_mlp = a.fused_mlp == "on";
  o.fused_rope = a.fused_rope == "on";
  o.own_attention_graphs = a.own_attention == "on";
  o.gemm_candidates = a.candidates;
  o.loss_chunk_bytes = a.chunk_mib << 20;
  o.clip = a.clip;
  o.gemm_table = a.gemm_table;
  return o;
}

// Batches of random tokens (targets are the tokens themselves, as in the PyTorch peer), or those of a file in order.
class Batches {
 public:
  Batches(const Arguments& a, std::int64_t count, std::int64_t vocab) : count_(count) {
    if (!a.tokens.empty()) {
      data_ = lockstep::bench::read_int32(a.tokens);
    } else {
      std::mt19937 random(1);
      std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(vocab - 1));
      for (int batch = 0; batch < 4; ++batch) {
        const std::size_t begin = data_.size();
        for (std::int64_t i = 0; i < count; ++i) data_.push_back(token(random));
        data_.resize(data_.size() + count);
        std::copy_n(data_.begin() + static_cast<std::ptrdiff_t>(begin), count, data_.end() - count);
      }
    }
    if (data_.size() < static_cast<std::size_t>(2 * count))
      throw UserError(ExitCode::kUsage, "the file of tokens is too short");
  }
  const std::int32_t* tokens(std::int64_t step) const {
    return data_.data() + step % (static_cast<std::int64_t>(data_.size()) / (2 * count_)) * 2 * count_;
  }
  const std::int32_t* targets(std::int64_t step) const { return tokens(step) + count_; }

 private:
  std::int64_t count_;
  std::vector<std::int32_t> data_;
};

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

json family_table(const std::vector<StepTimeline::Operation>& operations) {
  const auto sums = StepTimeline::by_family(operations);
  json table = json::object();
  for (int f = 0; f < static_cast<int>(Family::kCount); ++f)
    if (sums[f] > 0) table[to_string(static_cast<Family>(f))] = std::round(sums[f] * 1e3) / 1e3;
  return table;
}
json operation_table(const std::vector<StepTimeline::Operation>& operations) {
  json table = json::object();
  for (const auto& o : operations) table[o.name] = table.value(o.name, 0.0) + (o.end_ms - o.begin_ms);
  for (auto& value : table) value = std::round(value.get<double>() * 1e3) / 1e3;
  return table;
}

struct Measured {
  double first_step_s = 0;
  std::vector<double> step_ms, stall_ms;
  std::vector<float> losses;
};

Measured train(FusedStep& step, const Batches& batches, const Arguments& a) {
  Measured m;
  for (std::int64_t i = 0; i < a.warmup + a.steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto r = step.step(batches.tokens(i), batches.targets(i), rate_at(a, i));
    if (i == 0) m.first_step_s = lockstep::bench::seconds_since_process_start();
    m.losses.push_back(r.loss);
    if (!std::isfinite(r.loss)) throw std::runtime_error(fmt::format("the loss of step {} is {}", i, r.loss));
    if (i < a.warmup) continue;
    m.step_ms.push_back(seconds_since(begin) * 1e3);
    m.stall_ms.push_back(r.input_stall_ms);
  }
  std::sort(m.step_ms.begin(), m.step_ms.end());
  std::sort(m.stall_ms.begin(), m.stall_ms.end());
  return m;
}

// The same with the next step submitted before the last is waited for, as a training loop would.
double pipelined_ms(FusedStep& step, const Batches& batches, const Arguments& a) {
  const std::int64_t steps = std::min<std::int64_t>(a.steps, 8);
  const auto begin = std::chrono::steady_clock::now();
  step.submit(batches.tokens(0), batches.targets(0), a.learning_rate);
  for (std::int64_t i = 1; i < steps; ++i) {
    step.submit(batches.tokens(i), batches.targets(i), a.learning_rate);
    step.wait();
  }
  step.wait();
  return seconds_since(begin) * 1e3 / static_cast<double>(steps);
}

void load_weights(FusedStep& step, const std::string& file) {
  const lockstep::bench::TensorFile tensors(file);
  for (const auto& p : step.parameters()) step.load(p.name, tensors.read(p.name));
}

json report(const Arguments& a, FusedStep& step, const Measured& m, const Batches& batches) {
  const FusedShape& s = step.shape();
  const double median = m.step_ms[m.step_ms.size() / 2];
  std::int64_t parameters = 0;
  for (const auto& p : step.parameters()) parameters += p.place.count();
  const double tokens = static_cast<double>(s.rows() * a.accumulation), rate = tokens / median * 1e3;
  const double flops = 6.0 * static_cast<double>(parameters - s.vocab * s.hidden) +
                       6.0 * static_cast<double>(s.layers * s.hidden * s.seq);
  const auto memory = step.memory();
  json out{{"model", a.shape.empty() ? a.model : a.shape},
           {"shape",
            {{"layers", s.layers},
             {"hidden", s.hidden},
             {"heads", s.heads},
             {"kv_heads", s.kv_heads},
             {"ffn", s.ffn},
             {"vocab", s.vocab}}},
           {"micro_batch", a.micro_batch},
           {"accumulation", a.accumulation},
           {"sequence", s.seq},
           {"precision", a.precision},
           {"state", a.state},
           {"graph", a.graph},
           {"recompute", a.recompute},
           {"parameters", parameters},
           {"step_ms", median},
           {"min_ms", m.step_ms.front()},
           {"max_ms", m.step_ms.back()},
           {"tokens_per_second", rate},
           {"mfu", rate * flops / kPeakFlops},
           {"first_step_seconds", m.first_step_s},
           {"peak_gib", static_cast<double>(memory.total()) / (1 << 30)},
           {"arena_bytes", memory.arena_bytes},
           {"attention_bytes", memory.attention_bytes},
           {"arena_gib", static_cast<double>(memory.arena_bytes) / (1 << 30)},
           {"input_stall_ms", m.stall_ms[m.stall_ms.size() / 2]},
           {"input_stall_max_ms", m.stall_ms.back()},
           {"first_loss", m.losses.front()},
           {"last_loss", m.losses.back()}};
  if (a.tokens.empty() && !a.no_pipelined) out["pipelined_ms"] = pipelined_ms(step, batches, a);
  if (a.losses) out["losses"] = m.losses;
  if (a.choices)
    for (const auto& c : step.gemm_choices())
      out["gemm_choices"].push_back(fmt::format("{}: {} of {}, {:.3f} ms (first {:.3f})", c.shape, c.chosen,
                                                c.candidates, c.best_ms, c.first_ms));
  return out;
}

int run(const Arguments& a) {
  FusedStep step(a.shape.empty() ? model_of(a.model) : model_of_shape(a.shape), options_of(a));
  a.init == "torch" ? step.initialize_as_torch(1) : step.initialize(1);
  if (!a.weights.empty()) load_weights(step, a.weights);
  const Batches batches(a, step.shape().rows() * a.accumulation, step.shape().vocab);
  if (a.tune_rounds > 0) {
    step.step(batches.tokens(0), batches.targets(0), 0.0);
    step.tune_gemms(a.tune_rounds);
  }
  const Measured measured = train(step, batches, a);
  if (!a.save_gradients.empty()) {
    lockstep::bench::TensorWriter writer;
    for (const auto& p : step.parameters()) writer.add(p.name, {p.place.out, p.place.in}, step.save_gradient(p.name));
    writer.write(a.save_gradients);
  }
  if (!a.save_gemm_table.empty()) step.save_gemm_table(a.save_gemm_table);
  json out = report(a, step, measured, batches);
  if (!a.trace.empty()) {
    const auto operations = step.profile(batches.tokens(0), batches.targets(0), a.learning_rate);
    std::ofstream(a.trace) << StepTimeline::chrome_trace(operations);
    out["family_ms"] = family_table(operations);
    out["operation_ms"] = operation_table(operations);
  }
  if (a.as_json)
    std::cout << out.dump() << '\n';
  else
    for (const auto& [key, value] : out.items()) std::cout << key << ": " << value.dump() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  try {
    return run(arguments);
  } catch (const UserError& e) {
    std::cerr << "lockstep_gpu_step: " << e.what() << '\n';
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::cerr << "lockstep_gpu_step: " << e.what() << '\n';
    return static_cast<int>(ExitCode::kRunFailed);
  }
}
