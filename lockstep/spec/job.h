// Job: Model + Cluster + data + goals, as the user wrote them. Fields keep the names of the job file
// (docs/reference/job-file.md). Its `tune:` section is for the tuner alone (tune/job/space.h) and leaves nothing here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/spec/alerts.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/data_policy.h"
#include "lockstep/spec/model.h"

namespace lockstep::spec {

enum class DataKind { kMnist, kCifar10, kImages, kText, kTokens, kClassification, kInstruction, kTensors, kPlugin };
constexpr auto names_of(DataKind) {
  return enum_names<DataKind::kPlugin>("mnist", "cifar10", "images", "text", "tokens", "classification", "instruction",
                                       "tensors", "plugin");
}
enum class OptimizerKind { kAdamW, kSgd };
constexpr auto names_of(OptimizerKind) { return enum_names<OptimizerKind::kSgd>("adamw", "sgd"); }
// What weight decay pulls on: every parameter, or those with two dims and more. Biases and norms are vectors.
enum class Decay { kAll, kMatrices };
constexpr auto names_of(Decay) { return enum_names<Decay::kMatrices>("all", "matrices"); }
enum class ScheduleKind { kConstant, kLinear, kCosine, kPlugin };
constexpr auto names_of(ScheduleKind) {
  return enum_names<ScheduleKind::kPlugin>("constant", "linear", "cosine", "plugin");
}
enum class Precision { kFp64, kFp32, kFp16, kBf16, kFp8 };
constexpr auto names_of(Precision) { return enum_names<Precision::kFp8>("fp64", "fp32", "fp16", "bf16", "fp8"); }
enum class Compression { kNone, kFp16, kBf16, kPowerSgd, kOneBit };
constexpr auto names_of(Compression) {
  return enum_names<Compression::kOneBit>("none", "fp16", "bf16", "powersgd", "onebit");
}
// What is done about a gradient that is not finite, and about a loss or a gradient that jumps
// (docs/reference/resume-and-health.md).
enum class OnNonfinite { kSkip, kRollback, kStop };
constexpr auto names_of(OnNonfinite) { return enum_names<OnNonfinite::kStop>("skip", "rollback", "stop"); }
enum class OnJump { kRecord, kSkip, kRollback, kStop };
constexpr auto names_of(OnJump) { return enum_names<OnJump::kStop>("record", "skip", "rollback", "stop"); }
// What is done about a node that its agent finds unhealthy (docs/reference/resume-and-health.md).
enum class NodeChecks { kAct, kRecord, kOff };
constexpr auto names_of(NodeChecks) { return enum_names<NodeChecks::kOff>("act", "record", "off"); }
// What becomes of the samples of a step when a run goes on with another number of data ranks, and, where they change,
// of the learning rate.
enum class OnResize { kKeepGlobal, kScale };
constexpr auto names_of(OnResize) { return enum_names<OnResize::kScale>("keep_global", "scale"); }
enum class RateRule { kLinear, kSqrt, kNone };
constexpr auto names_of(RateRule) { return enum_names<RateRule::kNone>("linear", "sqrt", "none"); }
enum class BatchUnit { kSteps, kTokens, kSamples };
constexpr auto names_of(BatchUnit) { return enum_names<BatchUnit::kSamples>("steps", "tokens", "samples"); }
// How the turns of a conversation are written; kAuto: as the tokenizer's files specify.
enum class ChatTemplate { kAuto, kChatml, kLlama2, kLlama3, kAlpaca, kPlain };
constexpr auto names_of(ChatTemplate) {
  return enum_names<ChatTemplate::kPlain>("auto", "chatml", "llama2", "llama3", "alpaca", "plain");
}

// Several examples or documents in one sequence: one each; one behind the other, where attention sees those before; or
// apart, where attention stays within each and positions begin anew.
enum class Packing { kNone, kTogether, kDocuments };
constexpr auto names_of(Packing) { return enum_names<Packing::kDocuments>("false", "true", "documents"); }

// A part of a mixture.
struct DataSource {
  std::string path;
  double weight = 1.0;  // above 0; only the ratios matter
  bool operator==(const DataSource&) const = default;
};

struct Data {
  DataKind kind = DataKind::kText;
  std::string path;                 // file or folder; "": `sources`
  std::string tokenizer = "bytes";  // "bytes", or a folder / file with Hugging Face tokenizer files
  double holdout = 0.05;            // text, tokens: share kept for evaluation, taken from the end
  std::string evaluation_path;      // instead of holdout
  bool shuffle = true;
  ChatTemplate chat_template = ChatTemplate::kAuto;  // instruction
  Packing packing = Packing::kTogether;              // text, tokens, instruction; kNone: instruction alone
  std::string field = "text";                        // text: the field or column of JSONL, CSV and Parquet files
  OnBad on_bad = OnBad::kRefuse;                     // text, images
  Augmentation augment = {};                         // images
  std::vector<DataSource> sources = {};              // a mixture instead of `path`
  std::vector<std::string> inputs;  // tensors: names of what the model reads, in order; empty: all but the target
  std::string target;               // tensors: "": none, for a module that returns its loss
  PluginUse plugin = {};            // kPlugin: a data set that a plugin registered; `path` is the option of that name
  bool operator==(const Data&) const = default;
};

// A part of the run with a batch of its own: until so many steps are done, or tokens or samples used.
struct BatchPhase {
  std::int64_t until = 0;  // `until: 100 steps`
  BatchUnit unit = BatchUnit::kSteps;
  std::int64_t accumulation = 0;  // exactly one of the two is above 0
  std::int64_t global = 0;
  bool operator==(const BatchPhase&) const = default;
};

struct Batch {
  std::int64_t micro = 1;                 // samples per rank per micro-step
  std::int64_t accumulation = 1;          // micro-steps per optimizer step; 1 where `global` is given
  std::int64_t sequence_length = 0;       // 0 for images; language models: the model's context unless given
  std::int64_t global = 0;                // samples per optimizer step; 0: micro x accumulation x data ranks
  std::vector<BatchPhase> schedule = {};  // before that; see spec/batch_schedule.h
  OnResize on_resize = OnResize::kKeepGlobal;
  RateRule learning_rate_rule = RateRule::kLinear;  // on_resize: scale
  bool operator==(const Batch&) const = default;
};

struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 3e-4;
  double min_learning_rate = 0.0;
  ScheduleKind schedule = ScheduleKind::kConstant;
  PluginUse own_schedule = {};  // kPlugin: one that a plugin registered
  std::int64_t warmup_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // AdamW: decoupled; SGD: L2
  Decay decay = Decay::kAll;   // of which parameters
  double momentum = 0.9;       // SGD
  bool nesterov = false;
  double clip_norm = 0.0;  // 0: no clipping
  // AdamW's moments: fp32, or bf16 with stochastic rounding, which only the fused CUDA step supports.
  Precision state_precision = Precision::kFp32;
  bool operator==(const Optimizer&) const = default;
};

struct Loader {
  std::int64_t num_workers = 1;
  std::int64_t prefetch_factor = 2;
  bool operator==(const Loader&) const = default;
};

struct Communication {
  std::string backend;  // "", local, gloo, mpi, nccl; "": chosen from where the run is started
  double timeout_seconds = 300.0;
  double bucket_mib = 25.0;
  Compression compression = Compression::kNone;
  std::int64_t powersgd_rank = 4;
  bool reduce_each_micro_step = false;  // ZeRO-2 and 3: reduce gradients in every micro-step instead of once per step
  bool reshard_after_forward = true;    // ZeRO-3: free gathered weights after forward and gather again for backward
  bool operator==(const Communication&) const = default;
};

// What a run records beside its metrics (docs/reference/run-store.md).
struct Telemetry {
  bool spans = true;  // what each rank did when
  bool operator==(const Telemetry&) const = default;
};

struct Evaluation {
  std::int64_t every_steps = 0;           // 0: only at the end
  std::int64_t batches = 0;               // 0: the whole evaluation set
  PluginUse plugin = {};                  // metrics that are not ours are looked up there
  std::int64_t samples = 0;               // the first so many, on any layout; 0: as `batches` says
  std::vector<std::string> metrics = {};  // beside the loss (spec/evaluation_metrics.h)
  bool operator==(const Evaluation&) const = default;
};

struct CheckpointPolicy {
  static constexpr double kAuto = -1.0;
  std::string directory;         // "": under the run folder
  double every_seconds = kAuto;  // `every`: kAuto: as the plan says, then as measured; 0: not by time. Becomes 0 when
                                 // only every_steps is given
  std::int64_t every_steps = 0;  // `every_steps: 100`; 0: not by steps. Both: the earlier one
  double max_lost_seconds = 1800.0;  // `max_lost: 30m`: the most work that a failure may cost where `every` is auto
  std::int64_t keep = 3;
  bool at_end = true;              // `final: false`: nothing is saved after the last step
  std::string preempt_file;        // once it is there the run saves and ends with exit code 75; "": none
  std::string preempt_url;         // the same, once it answers 200: "aws", "gcp", "azure" or http://...; "": none
  std::string preempt_text;        // and the answer holds this; "": whatever it holds
  double stop_seconds = 300.0;     // `stop_timeout`: from a stop signal until ranks that have not ended are killed
  double timeout_seconds = 600.0;  // `timeout: 10m`: a save that takes longer has failed
  bool operator==(const CheckpointPolicy&) const = default;
};

// Copies of the state in the memory of the ranks and of their peers.
struct Snapshots {
  static constexpr std::int64_t kAuto = -1;
  std::int64_t every = kAuto;  // steps; kAuto: where the layout needs them, as often as is cheap; 0: none
  bool operator==(const Snapshots&) const = default;
};

// What the agent does when ranks fail.
struct RecoveryPolicy {
  std::int64_t restarts = 10;     // before the run is given up; 0: the first failure ends it
  std::int64_t standby = 1;       // processes per node kept ready to take a lost rank's place
  double wait_seconds = 2.0;      // `wait`: for a lost node to be replaced, before the run goes on with fewer
  double silence_seconds = 30.0;  // `silence`: without a sign of life a rank counts as hung
  Snapshots snapshots;
  bool operator==(const RecoveryPolicy&) const = default;
};

struct Health {
  OnNonfinite nonfinite = OnNonfinite::kSkip;
  std::int64_t most_skips = 0;  // `skip_limit`: skipped steps in a row that end the run; 0: 10, with fp16 50
  OnJump spike = OnJump::kRecord;
  OnJump gradient_outlier = OnJump::kRecord;
  std::int64_t rollback_steps = 20;        // how far a rollback goes back at least, and how often state is kept for it
  std::int64_t most_rollbacks = 3;         // `max_rollbacks`: the next one ends the run
  std::int64_t replica_check_every = 100;  // steps between two comparisons of what ranks hold alike; 0: never
  NodeChecks node_checks = NodeChecks::kAct;
  bool rolls_back() const {
    return nonfinite == OnNonfinite::kRollback || spike == OnJump::kRollback || gradient_outlier == OnJump::kRollback;
  }
  // Whether an update waits for the verdict on its loss and gradient.
  bool judges_updates() const { return spike == OnJump::kSkip || gradient_outlier == OnJump::kSkip; }
  bool operator==(const Health&) const = default;
};

// Low-rank adapters (Hu et al. 2021): the weights of `targets` stay as they are, W + alpha / rank x B A is applied and
// only A and B are trained.
struct Lora {
  std::int64_t rank = 0;  // 0: no adapters, every weight is trained
  double alpha = 16;
  std::vector<std::string> targets;  // names of linear layers, without the path: q_proj, v_proj
  bool operator==(const Lora&) const = default;
};

// Axes given by the user; unset ones are 1 (see plan::Layout for the value the engine executes).
struct LayoutRequest {
  std::map<std::string, std::int64_t> axes;    // pp dp shard cp tp ep zero virtual_stages
  std::map<std::string, std::string> choices;  // schedule recompute context_exchange offload
  bool sequence_parallel = false;
  std::vector<std::int64_t> stage_layers;  // uneven pipeline stages, sum = model layers; empty: even
  bool operator==(const LayoutRequest&) const = default;
};

struct Job {
  std::string name;  // file stem
  Model model;
  Cluster cluster;
  Data data;
  Batch batch;
  Optimizer optimizer;
  Loader loader;
  Communication communication;
  Evaluation evaluation;
  Telemetry telemetry;
  CheckpointPolicy checkpoint;
  RecoveryPolicy recovery;
  Health health;
  Alerts alerts;
  std::optional<LayoutRequest> layout;
  std::string plan_file;  // `plan: FILE`
  std::string weights;    // pretrained weights to start from: Hugging Face folder or file; "": random ones
  Lora lora;
  bool activation_offload = false;  // activations wait in host memory for the backward pass
  Precision precision = Precision::kFp32;
  std::int64_t steps = 0;  // exactly one of steps, tokens, epochs is set
  std::int64_t tokens = 0;
  double epochs = 0.0;
  std::int64_t seed = 1;
  std::int64_t threads_per_rank = 0;  // CPU threads; 0: cores / ranks on the node, at least 1
  bool operator==(const Job&) const = default;
};

// What the job takes from plugins, by the section whose keys their options are.
std::vector<std::pair<const char*, PluginUse*>> plugins_of(Job& job);

// Reads a job file and applies `key=value` overrides ("batch.micro=8"); relative paths in the file are taken from
// the file's folder, in overrides from the working directory. Throws UserError with file:line:column and the nearest
// key. An override of steps, tokens or epochs replaces the one in the file; layout and plan replace each other.
Job load_job(const std::string& path, const std::vector<std::string>& overrides = {});

// The job as YAML that load_job() reads back to the same value; this is what the run store and checkpoints keep.
std::string to_yaml(const Job& job);
// Relative paths in `yaml_text` are kept as written.
Job parse_job(const std::string& yaml_text, const std::string& name_for_errors);

}  // namespace lockstep::spec
