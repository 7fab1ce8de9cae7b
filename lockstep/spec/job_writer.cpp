#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"
#include "lockstep/spec/alerts_reader.h"
#include "lockstep/spec/job.h"

namespace lockstep::spec {
namespace {

const char* yes_no(bool value) { return value ? "true" : "false"; }

std::string data_text(const Data& data) {
  if (data.kind == DataKind::kPlugin) {
    return fmt::format("data:\n  kind: {}\n{}  shuffle: {}\n", yaml_quote(data.plugin.name),
                       plugin_lines(data.plugin, 2), yes_no(data.shuffle));
  }
  std::string text = fmt::format("data:\n  kind: {}\n", to_string(data.kind));
  if (data.sources.empty()) text += fmt::format("  path: {}\n", yaml_quote(data.path));
  if (!data.sources.empty()) text += "  sources:\n";
  for (const DataSource& source : data.sources) {
    text += fmt::format("    - {{path: {}, weight: {}}}\n", yaml_quote(source.path), exact_real(source.weight));
  }
  text += fmt::format("  tokenizer: {}\n  holdout: {}\n", yaml_quote(data.tokenizer), exact_real(data.holdout));
  if (!data.evaluation_path.empty()) text += fmt::format("  evaluation_path: {}\n", yaml_quote(data.evaluation_path));
  text += fmt::format("  field: {}\n  on_bad: {}\n", yaml_quote(data.field), to_string(data.on_bad));
  if (data.kind == DataKind::kImages) {
    text += fmt::format("  augment: {{padding: {}, scale: {}, flip: {}}}\n", data.augment.padding,
                        exact_real(data.augment.scale), yes_no(data.augment.flip));
  }
  std::vector<std::string> inputs;
  for (const std::string& name : data.inputs) inputs.push_back(yaml_quote(name));
  if (!inputs.empty()) text += fmt::format("  inputs: [{}]\n", join(inputs, ", "));
  if (!data.target.empty()) text += fmt::format("  target: {}\n", yaml_quote(data.target));
  return text + fmt::format("  shuffle: {}\n  chat_template: {}\n  packing: {}\n", yes_no(data.shuffle),
                            to_string(data.chat_template), to_string(data.packing));
}

std::string batch_text(const Batch& batch) {
  const auto size = [](std::int64_t accumulation, std::int64_t global) {
    return global > 0 ? fmt::format("global: {}", global) : fmt::format("accumulation: {}", accumulation);
  };
  std::string text = fmt::format("batch:\n  micro: {}\n  {}\n  sequence_length: {}\n", batch.micro,
                                 size(batch.accumulation, batch.global), batch.sequence_length);
  std::vector<std::string> phases;
  for (const BatchPhase& phase : batch.schedule) {
    phases.push_back(fmt::format("{{until: {} {}, {}}}", phase.until, to_string(phase.unit),
                                 size(phase.accumulation, phase.global)));
  }
  if (!phases.empty()) text += fmt::format("  schedule: [{}]\n", join(phases, ", "));
  text += fmt::format("  on_resize: {}\n", to_string(batch.on_resize));
  if (batch.on_resize != OnResize::kScale) return text;
  return text + fmt::format("  learning_rate_rule: {}\n", to_string(batch.learning_rate_rule));
}

std::string optimizer_text(const Optimizer& optimizer) {
  std::string text =
      fmt::format("optimizer:\n  kind: {}\n  learning_rate: {}\n  min_learning_rate: {}\n", to_string(optimizer.kind),
                  exact_real(optimizer.learning_rate), exact_real(optimizer.min_learning_rate));
  const bool own = optimizer.schedule == ScheduleKind::kPlugin;
  if (own) text += plugin_file_lines(optimizer.own_schedule, 2);
  if (own) text += fmt::format("  schedule_options: {}\n", flow_text(optimizer.own_schedule.options));
  text +=
      fmt::format("  schedule: {}\n  warmup_steps: {}\n  betas: [{}, {}]\n  epsilon: {}\n",
                  own ? yaml_quote(optimizer.own_schedule.name) : to_string(optimizer.schedule), optimizer.warmup_steps,
                  exact_real(optimizer.beta1), exact_real(optimizer.beta2), exact_real(optimizer.epsilon));
  text += fmt::format("  weight_decay: {}\n  decay: {}\n  momentum: {}\n  nesterov: {}\n",
                      exact_real(optimizer.weight_decay), to_string(optimizer.decay), exact_real(optimizer.momentum),
                      yes_no(optimizer.nesterov));
  return text + fmt::format("  clip_norm: {}\n  state_precision: {}\n", exact_real(optimizer.clip_norm),
                            to_string(optimizer.state_precision));
}

std::string communication_text(const Communication& communication) {
  const std::string text = fmt::format(
      "communication:\n  backend: {}\n  timeout: {}\n  bucket: {}\n  compression: {}\n  powersgd_rank: {}\n",
      communication.backend.empty() ? "auto" : communication.backend, exact_seconds(communication.timeout_seconds),
      exact_bytes(communication.bucket_mib * kMiB), to_string(communication.compression), communication.powersgd_rank);
  return text + fmt::format("  reduce_each_micro_step: {}\n  reshard_after_forward: {}\n",
                            yes_no(communication.reduce_each_micro_step), yes_no(communication.reshard_after_forward));
}

std::string evaluation_text(const Evaluation& evaluation) {
  std::string text =
      fmt::format("evaluation:\n  every: {}\n  batches: {}\n", evaluation.every_steps, evaluation.batches);
  if (evaluation.samples > 0) text += fmt::format("  samples: {}\n", evaluation.samples);
  std::vector<std::string> names;
  if (evaluation.plugin.used()) text += plugin_file_lines(evaluation.plugin, 2);
  for (const std::string& name : evaluation.metrics) names.push_back(yaml_quote(name));
  if (!names.empty()) text += fmt::format("  metrics: [{}]\n", join(names, ", "));
  return text;
}

std::string lora_text(const Lora& lora) {
  return fmt::format("lora:\n  rank: {}\n  alpha: {}\n  targets: [{}]\n", lora.rank, exact_real(lora.alpha),
                     join(lora.targets, ", "));
}

std::string checkpoint_text(const CheckpointPolicy& policy) {
  std::string text = "checkpoint:\n";
  if (!policy.directory.empty()) text += fmt::format("  directory: {}\n", yaml_quote(policy.directory));
  if (!policy.preempt_file.empty()) text += fmt::format("  preempt_file: {}\n", yaml_quote(policy.preempt_file));
  if (!policy.preempt_url.empty()) text += fmt::format("  preempt_url: {}\n", yaml_quote(policy.preempt_url));
  if (!policy.preempt_text.empty()) text += fmt::format("  preempt_text: {}\n", yaml_quote(policy.preempt_text));
  const bool automatic = policy.every_seconds == CheckpointPolicy::kAuto;
  return text + fmt::format(
                    "  every: {}\n  every_steps: {}\n  max_lost: {}\n  keep: {}\n  final: {}\n  timeout: {}\n"
                    "  stop_timeout: {}\n",
                    automatic ? "auto" : exact_seconds(policy.every_seconds), policy.every_steps,
                    exact_seconds(policy.max_lost_seconds), policy.keep, policy.at_end,
                    exact_seconds(policy.timeout_seconds), exact_seconds(policy.stop_seconds));
}

std::string health_text(const Health& health) {
  return fmt::format(
      "health:\n  nonfinite: {}\n  skip_limit: {}\n  spike: {}\n  gradient_outlier: {}\n  rollback_steps: {}\n"
      "  max_rollbacks: {}\n  replica_check_every: {}\n  node_checks: {}\n",
      to_string(health.nonfinite), health.most_skips, to_string(health.spike), to_string(health.gradient_outlier),
      health.rollback_steps, health.most_rollbacks, health.replica_check_every, to_string(health.node_checks));
}

std::string recovery_text(const RecoveryPolicy& policy) {
  const std::int64_t every = policy.snapshots.every;
  return fmt::format(
      "recovery:\n  restarts: {}\n  standby: {}\n  wait: {}\n  silence: {}\n  snapshots:\n    every: {}\n",
      policy.restarts, policy.standby, exact_seconds(policy.wait_seconds), exact_seconds(policy.silence_seconds),
      every == Snapshots::kAuto ? "auto" : std::to_string(every));
}

std::string layout_text(const LayoutRequest& layout) {
  std::string text = "layout:\n";
  for (const auto& [axis, size] : layout.axes) text += fmt::format("  {}: {}\n", axis, size);
  for (const auto& [name, choice] : layout.choices) text += fmt::format("  {}: {}\n", name, choice);
  text += fmt::format("  sequence_parallel: {}\n", yes_no(layout.sequence_parallel));
  std::vector<std::string> layers;
  for (const std::int64_t count : layout.stage_layers) layers.push_back(std::to_string(count));
  if (!layers.empty()) text += fmt::format("  stage_layers: [{}]\n", join(layers, ", "));
  return text;
}

std::string goal_text(const Job& job) {
  std::string text;
  if (job.steps > 0) text += fmt::format("steps: {}\n", job.steps);
  if (job.tokens > 0) text += fmt::format("tokens: {}\n", job.tokens);
  if (job.epochs > 0) text += fmt::format("epochs: {}\n", exact_real(job.epochs));
  return text;
}

}  // namespace

std::string to_yaml(const Job& job) {
  std::string text = fmt::format("name: {}\n", yaml_quote(job.name));
  text += "model:\n" + to_yaml(job.model, 2);
  text += "cluster:\n" + to_yaml(job.cluster, 2);
  text += data_text(job.data);
  text += batch_text(job.batch);
  text += optimizer_text(job.optimizer);
  text += fmt::format("loader:\n  num_workers: {}\n  prefetch_factor: {}\n", job.loader.num_workers,
                      job.loader.prefetch_factor);
  text += communication_text(job.communication);
  text += evaluation_text(job.evaluation);
  text += fmt::format("telemetry:\n  spans: {}\n", yes_no(job.telemetry.spans));
  text += checkpoint_text(job.checkpoint);
  text += recovery_text(job.recovery);
  text += health_text(job.health);
  text += alerts_text(job.alerts);
  if (job.layout) text += layout_text(*job.layout);
  if (!job.plan_file.empty()) text += fmt::format("plan: {}\n", yaml_quote(job.plan_file));
  if (!job.weights.empty()) text += fmt::format("weights: {}\n", yaml_quote(job.weights));
  if (job.lora.rank > 0) text += lora_text(job.lora);
  text += fmt::format("activation_offload: {}\n", yes_no(job.activation_offload));
  text += fmt::format("precision: {}\n", to_string(job.precision));
  text += goal_text(job);
  return text + fmt::format("seed: {}\nthreads_per_rank: {}\n", job.seed, job.threads_per_rank);
}

}  // namespace lockstep::spec
