#include "lockstep/spec/job_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "lockstep/base/map_reader.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/spec/alerts_reader.h"
#include "lockstep/spec/backends.h"
#include "lockstep/spec/cluster_reader.h"
#include "lockstep/spec/evaluation_metrics.h"
#include "lockstep/spec/layout_keys.h"
#include "lockstep/spec/model_reader.h"
#include "lockstep/spec/stage_layers.h"
#include "lockstep/spec/usual_precision.h"

namespace lockstep::spec {
namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 60;  // room to add a batch without overflow
constexpr double kMostSeconds = 366.0 * 86400.0;             // clocks count milliseconds in 64 bits
constexpr double kLeastSilence = 2.0;                        // a busy machine delays a heartbeat

void require_at_most(MapReader& map, const char* key, double seconds) {
  if (seconds <= kMostSeconds) return;
  throw map.error_at(key, fmt::format("{} is longer than a year", key), "for example 5m");
}

constexpr std::int64_t kMostPadding = 1024;

void read_augment(MapReader& data_map, Data& data) {
  auto map = data_map.map("augment");
  if (!map) return;
  map->count("padding", data.augment.padding, 0, kMostPadding);
  map->real("scale", data.augment.scale, 1e-3, 1.0);
  map->boolean("flip", data.augment.flip);
  map->finish();
  if (data.kind != DataKind::kImages) {
    throw data_map.error_at("augment", fmt::format("data of kind {} is not augmented", to_string(data.kind)),
                            "use it with kind: images, or remove it");
  }
}

void read_sources(MapReader& map, Data& data) {
  const YamlNode* sources = map.find("sources");
  if (sources == nullptr) return map.require("path");
  if (map.has("path")) throw map.error_at("sources", "path and sources both say where the data is", "keep one of them");
  if (!sources->is_sequence() || sources->items.empty()) {
    throw map.error_at("sources", "sources is not a list", "[{path: a, weight: 3}, {path: b, weight: 1}]");
  }
  for (const YamlNode& node : sources->items) {
    MapReader source(node, "data.sources");
    DataSource& read = data.sources.emplace_back();
    source.require("path");
    source.path("path", read.path);
    source.real("weight", read.weight, 1e-9, 1e9);
    source.finish();
  }
  const bool pictures =
      data.kind == DataKind::kMnist || data.kind == DataKind::kCifar10 || data.kind == DataKind::kImages;
  if (!pictures) return;
  throw map.error_at("sources", fmt::format("data of kind {} is not mixed", to_string(data.kind)),
                     "mix text, tokens, instruction or classification data");
}

// Keys that are not ours belong to the data set, which is asked later (engine/probe.h).
void read_plugin_data(MapReader& map, Data& data) {
  data.kind = DataKind::kPlugin;
  if (!map.text("kind", data.plugin.name)) {
    throw map.error_at("plugin", "the data names a plugin and no `kind`", "add kind: NAME, as the plugin registers it");
  }
  check_plugin_name(map, "kind", PluginKind::kDataset, data.plugin);
  map.boolean("shuffle", data.shuffle);
  take_plugin_options(map.node(), {"kind", "shuffle"}, data.plugin);
  MapReader options(data.plugin.options, "data");
  const YamlNode* const path = options.find("path");
  if (path != nullptr && path->is_scalar()) options.path("path", data.path);
}

void check_packing(const MapReader& map, const Data& data) {
  const bool windows = data.kind == DataKind::kText || data.kind == DataKind::kTokens;
  if (data.packing == Packing::kDocuments && !windows && data.kind != DataKind::kInstruction) {
    throw map.error_at("packing", fmt::format("data of kind {} has no documents in a sequence", to_string(data.kind)),
                       "packing: documents is for text, tokens and instruction data");
  }
  if (data.packing == Packing::kNone && windows) {
    throw map.error_at("packing", fmt::format("data of kind {} always fills its sequences", to_string(data.kind)),
                       "packing: documents keeps attention within each document");
  }
}

void read_data(MapReader& job, Data& data) {
  job.require("data");
  auto map = job.map("data");
  if (!map) return;
  if (read_plugin_file(*map, data.plugin)) return read_plugin_data(*map, data);
  map->require("kind");
  map->choice("kind", data.kind);
  if (data.kind == DataKind::kPlugin) {
    throw map->error_at("kind", "a plugin's data is named by its file and its own kind",
                        "write {plugin: FILE.so, kind: NAME}");
  }
  map->path("path", data.path);
  std::string tokenizer;
  if (map->text("tokenizer", tokenizer)) {
    data.tokenizer = "bytes";
    if (tokenizer != "bytes") map->path("tokenizer", data.tokenizer);
  }
  map->real("holdout", data.holdout, 0.0, 0.9);
  map->path("evaluation_path", data.evaluation_path);
  map->boolean("shuffle", data.shuffle);
  map->choice("chat_template", data.chat_template);
  map->choice("packing", data.packing);
  check_packing(*map, data);
  map->name("field", data.field);
  map->choice("on_bad", data.on_bad);
  read_augment(*map, data);
  read_sources(*map, data);
  const bool has_inputs = map->texts("inputs", data.inputs), has_target = map->text("target", data.target);
  map->finish();
  if (data.kind != DataKind::kTensors && (has_inputs || has_target)) {
    throw map->error_at(has_inputs ? "inputs" : "target", "inputs and target name tensors of data of kind tensors",
                        "leave them out, or set kind: tensors");
  }
}

constexpr std::int64_t kMostAccumulation = 1 << 24;
constexpr std::int64_t kMostSamples = std::int64_t{1} << 40;  // of a step

void require_whole_micro_batches(const MapReader& map, const Batch& batch, std::int64_t global) {
  if (global % batch.micro == 0) return;
  throw map.error_at("global",
                     fmt::format("{} samples of a step do not divide into micro-batches of {}", global, batch.micro),
                     fmt::format("use {} or {}", std::max<std::int64_t>(1, global / batch.micro) * batch.micro,
                                 (global / batch.micro + 1) * batch.micro));
}

// `until: 100 steps`, `until: 2M tokens`.
void read_until(MapReader& map, BatchPhase& phase) {
  std::string text;
  map.require("until");
  if (!map.text("until", text)) return;
  const std::string trimmed(trim(text));
  const std::size_t space = trimmed.find_last_of(' ');
  const auto unit = space == std::string::npos ? std::nullopt : value_named<BatchUnit>(trimmed.substr(space + 1));
  if (!unit) {
    throw map.error_at("until", fmt::format("`{}` does not say what it counts", printable(text)),
                       "write 100 steps, 2M tokens or 50k samples");
  }
  phase.unit = *unit;
  phase.until = parse_count(trim(trimmed.substr(0, space)), map.node().find("until")->place());
  if (phase.until < 1 || phase.until > kMostTokens) throw map.error_at("until", "the phase is empty", "use 1 or more");
}

void read_phase(const YamlNode& node, Batch& batch) {
  MapReader map(node, "batch.schedule");
  BatchPhase phase;
  read_until(map, phase);
  const bool by_accumulation = map.count("accumulation", phase.accumulation, 1, kMostAccumulation);
  const bool by_global = map.count("global", phase.global, 1, kMostSamples);
  map.finish();
  if (by_accumulation == by_global) {
    throw map.error_at(by_global ? "global" : "until", "a phase needs one of accumulation and global",
                       "keep exactly one");
  }
  if (by_global) require_whole_micro_batches(map, batch, phase.global);
  const bool later =
      batch.schedule.empty() || batch.schedule.back().unit != phase.unit || batch.schedule.back().until < phase.until;
  if (!later) throw map.error_at("until", "the phase ends before it begins", "put the phases in order");
  batch.schedule.push_back(phase);
}

void read_batch(MapReader& job, Batch& batch) {
  auto map = job.map("batch");
  if (!map) return;
  map->count("micro", batch.micro, 1, 1 << 24);
  const bool by_accumulation = map->count("accumulation", batch.accumulation, 1, kMostAccumulation);
  const bool by_global = map->count("global", batch.global, 1, kMostSamples);
  map->count("sequence_length", batch.sequence_length, 0, std::int64_t{1} << 32);
  map->choice("on_resize", batch.on_resize);
  const bool rule = map->choice("learning_rate_rule", batch.learning_rate_rule);
  const YamlNode* phases = map->find("schedule");
  map->finish();
  if (by_global && by_accumulation) {
    throw map->error_at("global", "global and accumulation both give the samples of a step", "keep one of them");
  }
  if (by_global) require_whole_micro_batches(*map, batch, batch.global);
  const bool scales = batch.on_resize == OnResize::kScale;
  if (by_global && scales) {
    throw map->error_at("on_resize", "a step has `global` samples on any number of ranks", "use accumulation to scale");
  }
  if (rule && !scales) {
    throw map->error_at("learning_rate_rule", "the rule is for on_resize: scale", "leave it out");
  }
  if (phases == nullptr) return;
  if (!phases->is_sequence()) {
    throw map->error_at("schedule", "schedule is not a list of phases", "[{until: 100 steps, accumulation: 1}]");
  }
  for (const YamlNode& phase : phases->items) read_phase(phase, batch);
}

void read_schedule(MapReader& map, Optimizer& optimizer) {
  const bool plugin = read_plugin_file(map, optimizer.own_schedule);
  const YamlNode* const options = map.find("schedule_options");
  std::string name;
  const bool given = map.text("schedule", name);
  const bool ours = value_named<ScheduleKind>(name).value_or(ScheduleKind::kPlugin) != ScheduleKind::kPlugin;
  if (!plugin && given && !ours) {
    constexpr auto kNames = names_of(ScheduleKind{});
    map.word("schedule", name, std::span(kNames).first(kNames.size() - 1));
  }
  if (!plugin && options != nullptr) {
    throw map.error_at("schedule_options", "schedule_options are for a schedule of a plugin", "remove them");
  }
  if (ours) optimizer.schedule = *value_named<ScheduleKind>(name);
  if (!plugin) return;
  if (!given || ours) {
    throw map.error_at("plugin", "optimizer.plugin is given and no schedule of it",
                       "add schedule: NAME, as it registers it");
  }
  optimizer.schedule = ScheduleKind::kPlugin;
  optimizer.own_schedule = named_in(optimizer.own_schedule, name);
  if (options != nullptr) {
    if (!options->is_map()) throw map.error_at("schedule_options", "schedule_options is not a map", "{power: 2}");
    optimizer.own_schedule.options = *options;
  }
  check_plugin_name(map, "schedule", PluginKind::kSchedule, optimizer.own_schedule);
}

void read_optimizer(MapReader& job, Optimizer& optimizer) {
  auto map = job.map("optimizer");
  if (!map) return;
  map->choice("kind", optimizer.kind);
  map->real("learning_rate", optimizer.learning_rate, 0.0, 1e6);
  map->real("min_learning_rate", optimizer.min_learning_rate, 0.0, 1e6);
  read_schedule(*map, optimizer);
  map->count("warmup_steps", optimizer.warmup_steps, 0, kMostSteps);
  std::vector<double> betas = {optimizer.beta1, optimizer.beta2};
  map->reals("betas", betas, 0.0, 0.9999999999, 2);
  optimizer.beta1 = betas[0];
  optimizer.beta2 = betas[1];
  map->real("epsilon", optimizer.epsilon, 0.0, 1.0);
  map->real("weight_decay", optimizer.weight_decay, 0.0, 1e3);
  map->choice("decay", optimizer.decay);
  map->real("momentum", optimizer.momentum, 0.0, 0.9999999999);
  map->boolean("nesterov", optimizer.nesterov);
  map->real("clip_norm", optimizer.clip_norm, 0.0, 1e12);
  map->choice("state_precision", optimizer.state_precision, {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}});
  map->finish();
  if (optimizer.min_learning_rate > optimizer.learning_rate) {
    throw map->error_at("min_learning_rate",
                        fmt::format("min_learning_rate {} is above learning_rate {}", optimizer.min_learning_rate,
                                    optimizer.learning_rate),
                        "lower it");
  }
  if (optimizer.nesterov && optimizer.kind == OptimizerKind::kSgd && optimizer.momentum == 0.0) {
    throw map->error_at("nesterov", "nesterov needs momentum above 0", "set momentum: 0.9 or nesterov: false");
  }
}

void read_loader(MapReader& job, Loader& loader) {
  auto map = job.map("loader");
  if (!map) return;
  map->count("num_workers", loader.num_workers, 0, 1024);
  map->count("prefetch_factor", loader.prefetch_factor, 1, 1024);
  map->finish();
}

void read_communication(MapReader& job, Communication& communication) {
  auto map = job.map("communication");
  if (!map) return;
  map->word("backend", communication.backend, kBackendWords);
  if (communication.backend == "auto") communication.backend.clear();
  map->seconds("timeout", communication.timeout_seconds);
  if (communication.timeout_seconds <= 0.0) throw map->error_at("timeout", "the timeout is 0", "for example 5m");
  require_at_most(*map, "timeout", communication.timeout_seconds);
  double bucket_bytes = communication.bucket_mib * kMiB;
  map->bytes("bucket", bucket_bytes);
  if (bucket_bytes <= 0.0) throw map->error_at("bucket", "the bucket is empty", "for example 25MiB");
  communication.bucket_mib = bucket_bytes / kMiB;
  map->choice("compression", communication.compression);
  map->count("powersgd_rank", communication.powersgd_rank, 1, 65536);
  map->boolean("reduce_each_micro_step", communication.reduce_each_micro_step);
  map->boolean("reshard_after_forward", communication.reshard_after_forward);
  map->finish();
}

void read_telemetry(MapReader& job, Telemetry& telemetry) {
  auto map = job.map("telemetry");
  if (!map) return;
  map->boolean("spans", telemetry.spans);
  map->finish();
}

void read_evaluation(MapReader& job, Evaluation& evaluation) {
  auto map = job.map("evaluation");
  if (!map) return;
  map->count("every", evaluation.every_steps, 0, kMostSteps);
  map->count("batches", evaluation.batches, 0, kMostSteps);
  map->count("samples", evaluation.samples, 0, kMostSamples);
  map->texts("metrics", evaluation.metrics);
  const bool plugin = read_plugin_file(*map, evaluation.plugin);
  map->finish();
  bool takes = false;
  for (const std::string& name : evaluation.metrics) {
    if (!plugin || value_named<Metric>(name)) continue;
    check_plugin_name(*map, "metrics", PluginKind::kMetric, named_in(evaluation.plugin, name));
    takes = true;
  }
  if (plugin && !takes) {
    throw map->error_at("plugin", "evaluation.plugin is given and no metric of it", "add metrics: [NAME]");
  }
  if (evaluation.batches > 0 && evaluation.samples > 0) {
    throw map->error_at("samples", "both batches and samples are given", "keep one");
  }
}

// Whether a key that otherwise holds a number says `auto`.
bool is_auto(MapReader& map, const char* key) {
  const YamlNode* node = map.find(key);
  return node != nullptr && node->is_scalar() && node->scalar == "auto";
}

void read_preempt_url(MapReader& map, CheckpointPolicy& policy) {
  const bool given = map.name("preempt_url", policy.preempt_url);
  const std::string& url = policy.preempt_url;
  if (given && url != "aws" && url != "gcp" && url != "azure" && url.rfind("http://", 0) != 0) {
    throw map.error_at("preempt_url", fmt::format("`checkpoint.preempt_url` cannot be `{}`", printable(url)),
                       "write aws, gcp, azure or a URL that begins with http://");
  }
  if (map.name("preempt_text", policy.preempt_text) && !given) {
    throw map.error_at("preempt_text", "preempt_text is given and preempt_url is not", "add preempt_url");
  }
}

void read_checkpoint(MapReader& job, CheckpointPolicy& policy) {
  auto map = job.map("checkpoint");
  if (!map) return;
  map->path("directory", policy.directory);
  const bool automatic = is_auto(*map, "every");
  const bool by_time = automatic || map->seconds("every", policy.every_seconds);
  const bool by_steps = map->count("every_steps", policy.every_steps, 0, kMostSteps);
  if (automatic) policy.every_seconds = CheckpointPolicy::kAuto;
  if (by_steps && !by_time) policy.every_seconds = 0.0;
  map->seconds("max_lost", policy.max_lost_seconds);
  if (policy.max_lost_seconds <= 0.0) throw map->error_at("max_lost", "no work at all may be lost", "for example 30m");
  require_at_most(*map, "max_lost", policy.max_lost_seconds);
  map->count("keep", policy.keep, 1, 1 << 20);
  map->boolean("final", policy.at_end);
  map->path("preempt_file", policy.preempt_file);
  read_preempt_url(*map, policy);
  map->seconds("stop_timeout", policy.stop_seconds);
  require_at_most(*map, "stop_timeout", policy.stop_seconds);
  map->seconds("timeout", policy.timeout_seconds);
  if (policy.timeout_seconds <= 0.0) throw map->error_at("timeout", "the timeout is 0", "for example 10m");
  require_at_most(*map, "timeout", policy.timeout_seconds);
  map->finish();
}

void read_health(MapReader& job, Health& health) {
  auto map = job.map("health");
  if (!map) return;
  map->choice("nonfinite", health.nonfinite);
  map->count("skip_limit", health.most_skips, 0, kMostSteps);
  map->choice("spike", health.spike);
  map->choice("gradient_outlier", health.gradient_outlier);
  map->count("rollback_steps", health.rollback_steps, 1, kMostSteps);
  map->count("max_rollbacks", health.most_rollbacks, 0, kMostSteps);
  map->count("replica_check_every", health.replica_check_every, 0, kMostSteps);
  map->choice("node_checks", health.node_checks);
  map->finish();
}

void read_snapshots(MapReader& recovery, Snapshots& snapshots) {
  auto map = recovery.map("snapshots");
  if (!map) return;
  if (is_auto(*map, "every")) {
    snapshots.every = Snapshots::kAuto;
  } else {
    map->count("every", snapshots.every, 0, kMostSteps);
  }
  map->finish();
}

void read_recovery(MapReader& job, RecoveryPolicy& policy) {
  auto map = job.map("recovery");
  if (!map) return;
  map->count("restarts", policy.restarts, 0, 1 << 20);
  map->count("standby", policy.standby, 0, 4096);
  map->seconds("wait", policy.wait_seconds);
  require_at_most(*map, "wait", policy.wait_seconds);
  map->seconds("silence", policy.silence_seconds);
  if (policy.silence_seconds < kLeastSilence) {
    throw map->error_at("silence", "ranks give a sign of life twice a second", "give at least 2s");
  }
  require_at_most(*map, "silence", policy.silence_seconds);
  read_snapshots(*map, policy.snapshots);
  map->finish();
}

void read_layout(MapReader& job, Job& result) {
  auto map = job.map("layout");
  if (!map) return;
  LayoutRequest layout;
  for (const LayoutKey& key : kLayoutKeys) {
    const std::string name = key.name;
    if (name == "sequence_parallel" || name == "precision") continue;  // a field of its own; the job's
    std::int64_t size = 0;
    std::string choice;
    if (key.is_axis() && map->count(name, size, key.least, key.most)) layout.axes[name] = size;
    if (!key.is_axis() && map->word(name, choice, key.choices)) layout.choices[name] = choice;
  }
  map->boolean("sequence_parallel", layout.sequence_parallel);
  if (const YamlNode* layers = map->find("stage_layers"); layers != nullptr && layers->is_scalar()) {
    layout.stage_layers = parse_stage_layers(layers->scalar, layers->place());  // as plans write it: 8x3+7
  } else {
    map->counts("stage_layers", layout.stage_layers, 0);  // a stage may hold embedding or head alone
  }
  map->finish();
  result.layout = std::move(layout);
}

// The linear layers that adapters may go on, by the names they have in Hugging Face's files of that architecture; the
// first `usual` ones are those of the paper (queries and values).
struct AdapterTargets {
  std::vector<std::string> names;
  std::size_t usual;
};

AdapterTargets adapter_targets(const Model& model) {
  switch (model.arch) {
    case Arch::kGpt:
      return {{"c_attn", "c_proj", "c_fc"}, 1};
    case Arch::kBert:
      return {{"query", "value", "key", "dense"}, 2};
    case Arch::kLlama:
      return {{"q_proj", "v_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, 2};
    case Arch::kMoe:
      if (model.decoder.family != Family::kLlama) {
        return {{"q_proj", "v_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, 2};
      }
      return {{"q_proj", "v_proj", "k_proj", "o_proj", "w1", "w2", "w3"}, 2};
    case Arch::kMamba:
      return {{"in_proj", "x_proj", "out_proj"}, 1};
    default:
      return {{}, 0};
  }
}

void read_lora(MapReader& job, Job& result) {
  auto map = job.map("lora");
  if (!map) return;
  Lora& lora = result.lora;
  map->require("rank");
  map->count("rank", lora.rank, 1, 65536);
  map->real("alpha", lora.alpha, 1e-6, 1e6);
  const AdapterTargets known = adapter_targets(result.model);
  if (known.names.empty()) throw job.error_at("lora", "adapters need a language model", "remove lora");
  lora.targets.assign(known.names.begin(), known.names.begin() + static_cast<std::ptrdiff_t>(known.usual));
  map->texts("targets", lora.targets);
  map->finish();
  if (lora.targets.empty()) throw map->error_at("targets", "lora.targets is empty", "name at least one layer");
  for (const std::string& name : lora.targets) {
    if (std::find(known.names.begin(), known.names.end(), name) != known.names.end()) continue;
    throw map->error_at("targets",
                        fmt::format("{} has no linear layer `{}`", to_string(result.model.arch), printable(name)),
                        did_you_mean(name, known.names));
  }
}

void read_goal(MapReader& job, Job& result) {
  const bool steps = job.count("steps", result.steps, 1, kMostSteps);
  const bool tokens = job.count("tokens", result.tokens, 1, kMostTokens);
  const bool epochs = job.real("epochs", result.epochs, 1e-6, 1e9);
  const int given = static_cast<int>(steps) + static_cast<int>(tokens) + static_cast<int>(epochs);
  if (given > 1) {
    throw job.error_at(steps ? (tokens ? "tokens" : "epochs") : "epochs", "more than one of steps, tokens and epochs",
                       "keep exactly one");
  }
}

struct ImageFormat {
  const char* name;
  std::int64_t size, channels;
};

void check_image_format(MapReader& job, const Job& result) {
  const ImageFormat format =
      result.data.kind == DataKind::kMnist ? ImageFormat{"MNIST", 28, 1} : ImageFormat{"CIFAR-10", 32, 3};
  const Model& model = result.model;
  if (model.image_size != format.size || model.image_channels != format.channels) {
    throw job.error_at(
        "model",
        fmt::format("the model takes images of {}x{}x{}, {} has {}x{}x{}", model.image_channels, model.image_size,
                    model.image_size, format.name, format.channels, format.size, format.size),
        fmt::format("set model.image_size: {} and model.image_channels: {}", format.size, format.channels));
  }
  if (model.classes < 10) {
    throw job.error_at("model", fmt::format("the model has {} classes, {} has 10", model.classes, format.name),
                       "set model.classes: 10");
  }
}

void check_images(MapReader& job, const Job& result) {
  if (result.data.kind != DataKind::kImages) check_image_format(job, result);  // else the files say what they hold
  if (result.batch.sequence_length != 0) {
    throw job.error_at("batch", "images have no sequence_length", "remove batch.sequence_length");
  }
  if (result.tokens != 0) throw job.error_at("tokens", "images have no tokens", "use steps or epochs");
  for (const BatchPhase& phase : result.batch.schedule) {
    if (phase.unit != BatchUnit::kTokens) continue;
    throw job.error_at("batch", "images have no tokens to end a phase of the batch after", "use steps or samples");
  }
}

void check_language(MapReader& job, Job& result) {
  Batch& batch = result.batch;
  const Model& model = result.model;
  if (batch.sequence_length == 0) batch.sequence_length = model.max_sequence;
  const bool learned = model.arch == Arch::kGpt || model.arch == Arch::kBert;
  if (learned && batch.sequence_length > model.max_sequence) {
    throw job.error_at("batch",
                       fmt::format("sequence_length {} is longer than the {} positions of the model",
                                   batch.sequence_length, model.max_sequence),
                       "shorten it or set model.max_sequence");
  }
  const DataKind kind = result.data.kind;
  if (kind != DataKind::kTokens && result.data.tokenizer == "bytes" && model.vocab < 256) {
    throw job.error_at("model", fmt::format("a vocabulary of {} cannot hold bytes", model.vocab),
                       "set model.vocab to at least 256");
  }
  if (kind == DataKind::kClassification && model.classes == 0) {
    throw job.error_at("model", "classification data needs a model with classes", "set model.classes");
  }
  if (kind != DataKind::kClassification && model.classes > 0) {
    throw job.error_at("data", fmt::format("{} data does not train a model with classes", to_string(kind)),
                       "set model.classes: 0, or use classification data");
  }
  if (result.data.packing == Packing::kDocuments && model.arch == Arch::kBert) {
    throw job.error_at("data", "packing: documents is for models that predict the next token", "set packing: true");
  }
  if (kind == DataKind::kInstruction && model.arch == Arch::kBert) {
    throw job.error_at("data", "instruction data trains models that predict the next token",
                       "use text, tokens or classification data");
  }
}

// The plugin says what its samples are.
void check_plugin_data(Job& result) {
  const bool length = result.model.is_language_model() && result.batch.sequence_length == 0;
  if (length) result.batch.sequence_length = result.model.max_sequence;
}

// A module from Python reads whatever it is given; what the data itself must be told is asked for.
void check_script(MapReader& job, const Job& result) {
  const DataKind kind = result.data.kind;
  if (kind == DataKind::kImages && result.model.image_size == 0) {
    const bool module = result.model.arch == Arch::kTorchScript;
    throw job.error_at("data", fmt::format("{} does not say what pictures are made into", origin_of(result.model)),
                       module ? "set model.image_size and model.classes, for example 32 and 10"
                              : "write them as tensors (kind: tensors), or a data set of the plugin");
  }
  const bool windows = kind == DataKind::kText || kind == DataKind::kTokens || kind == DataKind::kClassification ||
                       kind == DataKind::kInstruction;
  if (windows && result.batch.sequence_length == 0) {
    throw job.error_at("batch", fmt::format("data of kind {} needs a length", to_string(kind)),
                       "set batch.sequence_length");
  }
}

void check_data_fits_model(MapReader& job, Job& result) {
  if (result.data.kind == DataKind::kPlugin) return check_plugin_data(result);
  if (result.model.is_scripted()) return check_script(job, result);
  if (result.data.kind == DataKind::kTensors) {
    throw job.error_at("data", fmt::format("data of kind tensors cannot train {}", printable(result.model.name)),
                       "it is for modules from Python: model: {torchscript: FILE, loss: ...}");
  }
  const bool images = result.data.kind == DataKind::kMnist || result.data.kind == DataKind::kCifar10 ||
                      result.data.kind == DataKind::kImages;
  if (images != result.model.is_image_model()) {
    throw job.error_at(
        "data",
        fmt::format("data of kind {} cannot train {}, which takes {}", to_string(result.data.kind),
                    printable(result.model.name), images ? "tokens" : "images"),
        images ? "use text, tokens, classification or instruction data" : "use mnist, cifar10 or images data");
  }
  images ? check_images(job, result) : check_language(job, result);
}

}  // namespace

Job read_job(const YamlNode& root, const std::string& default_name) {
  MapReader reader(root, "");
  Job job;
  job.name = printable(default_name, kLongestName);
  reader.name("name", job.name);
  reader.require("model");
  reader.require("cluster");
  if (const YamlNode* model = reader.find("model")) job.model = read_model(*model, "model", "inline");
  if (const YamlNode* cluster = reader.find("cluster")) job.cluster = read_cluster(*cluster, "cluster", "inline");
  read_data(reader, job.data);
  read_batch(reader, job.batch);
  read_optimizer(reader, job.optimizer);
  read_loader(reader, job.loader);
  read_communication(reader, job.communication);
  read_evaluation(reader, job.evaluation);
  read_telemetry(reader, job.telemetry);
  read_checkpoint(reader, job.checkpoint);
  read_recovery(reader, job.recovery);
  read_health(reader, job.health);
  read_alerts(reader, job.alerts);
  read_layout(reader, job);
  reader.path("plan", job.plan_file);
  reader.path("weights", job.weights);
  read_lora(reader, job);
  reader.boolean("activation_offload", job.activation_offload);
  job.precision = usual_precision(job.cluster);
  reader.choice("precision", job.precision);
  read_goal(reader, job);
  reader.integer("seed", job.seed);
  reader.count("threads_per_rank", job.threads_per_rank, 0, 4096);
  reader.map("tune");    // the space of a study; `lockstep tune` reads it
  reader.map("launch");  // where it is submitted; `lockstep launch` reads it
  reader.finish();
  if (job.steps == 0 && job.tokens == 0 && job.epochs == 0.0) {
    throw bad_input("none of steps, tokens and epochs is given", "add one, for example `steps: 200`", root.place());
  }
  if (job.layout && !job.plan_file.empty()) {
    throw reader.error_at("plan", "both layout and plan are given", "keep one: a plan holds its layout");
  }
  check_data_fits_model(reader, job);
  for (const std::string& name : job.evaluation.metrics) {
    const auto problem = metric_problem(name, job);
    if (problem) throw reader.error_at("evaluation", problem->text, problem->fix);
  }
  return job;
}

}  // namespace lockstep::spec
