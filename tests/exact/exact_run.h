// Three optimizer steps of a small model under a layout, ranks as threads, and everything there is to compare.
//
// On the CPU in fp64, unless the environment says otherwise: LOCKSTEP_EXACT_DEVICE=cuda (all ranks on the first GPU),
// LOCKSTEP_EXACT_PRECISION=fp32.
#pragma once

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/job.h"

namespace lockstep::exact {

inline constexpr int kSteps = 3;
inline constexpr std::int64_t kSamples = 8;    // of every global batch
inline constexpr std::int64_t kSequence = 16;  // tokens of a sample

struct Setting {
  torch::Device device = torch::kCPU;
  spec::Precision precision = spec::Precision::kFp64;
  double slack = 1.0;

  // Of the largest element of a tensor.
  double tolerance() const { return slack * (precision == spec::Precision::kFp64 ? 1e-10 : 1e-4); }
};
Setting setting_of_environment();

struct Case {
  // gpt, gpt-odd, bert, llama, llama-mqa, moe, moe-capacity, moe-shared, ssm; or a relative of Llama: mistral, qwen2,
  // qwen3, qwen3-moe, gemma2, gemma3, phi3, olmo, olmo2, neox, falcon, falcon-new, deepseek; or plugin: the template
  // that users copy (examples/own-model), with a loss of its own
  std::string model;
  std::string layout;  // as plan::parse_layout reads it
  std::int64_t accumulation = 1;
  bool reduce_each_micro_step = false;
  bool reshard_after_forward = true;
  bool activation_offload = false;
  double bucket_mib = 25.0;

  std::string name() const;
  friend void PrintTo(const Case& exact_case, std::ostream* out) { *out << exact_case.name(); }
};

spec::Model model_of(const std::string& name);
plan::Layout layout_of(const Case& exact_case);
spec::Job job_of(const Case& exact_case);

struct RankTraffic {
  std::int64_t stage = 0;
  std::map<std::string, comm::Traffic> groups;  // by group name, of the last step
  // Rows of one forward of the last step that this rank's routers sent to experts and its experts got: nn::MoeMlp's
  // own figures, over all its layers and micro-batches.
  std::int64_t expert_rows_sent = 0;
  std::int64_t expert_rows_received = 0;
};

struct Outcome {
  std::vector<double> losses, auxiliary_losses, norms;  // by step
  parallel::TensorMap gradients, state, weights;        // whole tensors after the last step
  std::vector<RankTraffic> traffic;                     // by rank
  std::string replicas_differ;  // where two ranks hold different bits of the same element; "": nowhere
};

// `wrap` may replace a rank's communicator by one that lies (mutants). Throws what the first failing rank threw.
using Wrap = std::function<comm::Communicator(comm::Communicator, int rank)>;
Outcome run_case(const Case& exact_case, const Wrap& wrap = {}, comm::milliseconds timeout = comm::milliseconds{60'000},
                 Setting setting = setting_of_environment());

// One rank's micro-batch `micro` of a step, cut as data::Loader cuts a global batch.
data::Batch batch_of(std::int64_t step, std::int64_t micro, std::int64_t rank, std::int64_t ranks,
                     std::int64_t accumulation, const spec::Model& model);

// The same steps without the engine: the whole model, libtorch's autograd, AdamW written out. Gradients and optimizer
// state are left out.
Outcome plain_run(const std::string& model, std::int64_t accumulation);

// The single-rank run of the same model and accumulation; cached, thread-safe not at all.
const Outcome& reference_of(const Case& exact_case);

// The first difference beyond tolerance x max(max|b|, 1e-4) per tensor, or between replicas; "" when equal.
std::string first_difference(const Outcome& outcome, const Outcome& reference,
                             Setting setting = setting_of_environment());

// The largest difference of a loss, a norm or a tensor, in units of max(max|b|, 1e-4); infinite when one is missing.
double largest_error(const Outcome& outcome, const Outcome& reference);

}  // namespace lockstep::exact
