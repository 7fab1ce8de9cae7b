#include "lockstep/planner/suggest/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"
#include "lockstep/planner/export/deepspeed.h"
#include "lockstep/planner/export/export.h"

namespace lockstep::planner {
namespace {

constexpr std::size_t kCommentBytes = 1000;  // of one text in a comment, which must stay on its line
constexpr std::array<const char*, 4> kKinds{"job", "torchrun", "deepspeed", "accelerate"};

// Whole minutes; checkpoints of small jobs whole seconds.
std::string interval_text(double seconds) {
  const double minutes = std::floor(seconds / 60);
  return minutes >= 1 ? fmt::format("{:.0f}m", minutes) : fmt::format("{:.0f}s", std::max(1.0, std::floor(seconds)));
}

// What the numbers below promise, for the head of a file.
std::string summary(const Suggestion& suggestion, const char* comment) {
  const plan::Candidate& plan = suggestion.candidate;
  const plan::Interval& speed = plan.prediction->tokens_per_second;
  const auto gpus = static_cast<double>(suggestion.cluster.devices());
  std::string text = fmt::format(
      "{0} {1}: {2} on {3}, {4} tokens x {5:g} epochs. Suggested by lockstep.\n"
      "{0} Predicted: {6:.0f} tokens/s per GPU (90%: {7:.0f} to {8:.0f}), {9} of {10} per GPU",
      comment, to_string(suggestion.task), printable(suggestion.model.name, kCommentBytes),
      printable(suggestion.cluster.name, kCommentBytes), format_count(suggestion.request.dataset_tokens),
      suggestion.epochs, speed.expected / gpus, speed.low / gpus, speed.high / gpus, format_bytes(plan.memory.total()),
      format_bytes(plan.memory.capacity));
  if (plan.cost) text += fmt::format(", {:.2g} days, {:.0f} USD", plan.cost->days, plan.cost->usd);
  text += "\n";
  for (const std::string& warning : suggestion.warnings)
    text += fmt::format("{} Warning: {}\n", comment, printable(warning, kCommentBytes));
  return text;
}

std::string model_text(const Suggestion& suggestion) {
  if (suggestion.interpolated) return "model:\n" + spec::to_yaml(suggestion.model, 2);
  const std::string& asked = suggestion.request.model;
  if (asked.empty()) return fmt::format("model: {}\n", yaml_quote(suggestion.model.name));
  // A file or folder is found again from anywhere.
  const bool is_path = std::filesystem::exists(asked);
  return fmt::format("model: {}\n", yaml_quote(is_path ? std::filesystem::absolute(asked).string() : asked));
}

std::string cluster_text(const Suggestion& suggestion) {
  const std::string& asked = suggestion.request.cluster;
  if (asked.empty()) return fmt::format("cluster: {}\n", yaml_quote(suggestion.cluster.name));
  const bool is_path = std::filesystem::exists(asked);
  return fmt::format("cluster: {}\n", yaml_quote(is_path ? std::filesystem::absolute(asked).string() : asked));
}

std::string data_text(const Suggestion& suggestion) {
  if (suggestion.task == Task::kPretrain) {
    return "data: {kind: tokens, path: data/tokens}          # token shards; or {kind: text, path: ..., tokenizer: "
           "...}\n";
  }
  return "weights: data/model                              # Hugging Face folder to start from\n"
         "data: {kind: instruction, path: data/train.jsonl, tokenizer: data/model}\n";
}

// "auto" stays unset.
std::string exports(const Suggestion& suggestion) {
  std::string text;
  for (const EnvironmentVariable& variable : suggestion.environment) {
    if (variable.value == "auto") {
      text += fmt::format("# {} stays unset: {}\n", variable.name, printable(variable.reason, kCommentBytes));
      continue;
    }
    // Values come from this program or from a study's file: quoted, so that none can be a command.
    text += fmt::format("# {}\nexport {}={}\n", printable(variable.reason, kCommentBytes), variable.name,
                        shell_quoted(variable.value));
  }
  return text;
}

const char* fsdp_word(const plan::Layout& layout) {
  const bool hybrid = layout.dp > 1;
  if (layout.zero == 3) return hybrid ? "hybrid_shard" : "full_shard";
  return hybrid ? "hybrid_shard_zero2" : "shard_grad_op";
}

// In the names of Hugging Face's Trainer.
std::vector<std::string> trainer_arguments(const Suggestion& suggestion) {
  const plan::Candidate& plan = suggestion.candidate;
  std::vector<std::string> lines{fmt::format("--per_device_train_batch_size {}", plan.batch.micro),
                                 fmt::format("--gradient_accumulation_steps {}", plan.batch.accumulation),
                                 fmt::format("--max_steps {}", suggestion.steps),
                                 fmt::format("--learning_rate {:.2g} --lr_scheduler_type cosine --warmup_steps {}",
                                             suggestion.optimizer.learning_rate, suggestion.optimizer.warmup_steps),
                                 fmt::format("--weight_decay {:g} --adam_beta2 {:g} --max_grad_norm 1.0",
                                             suggestion.optimizer.weight_decay, suggestion.optimizer.beta2),
                                 fmt::format("--dataloader_num_workers {} --dataloader_prefetch_factor {}",
                                             suggestion.loader.num_workers, suggestion.loader.prefetch_factor)};
  const spec::Precision precision = plan.layout.precision;
  if (precision == spec::Precision::kBf16) lines.emplace_back("--bf16 true");
  if (precision == spec::Precision::kFp16) lines.emplace_back("--fp16 true");
  if (plan.layout.recompute == plan::Recompute::kFull) lines.emplace_back("--gradient_checkpointing true");
  if (plan.layout.zero > 0) {
    const char* offload = plan.layout.offload == plan::Offload::kNone ? "" : " offload";
    lines.push_back(fmt::format("--fsdp '{} auto_wrap{}'", fsdp_word(plan.layout), offload));
  }
  const double step = plan.prediction->step_seconds.expected;
  if (plan.checkpoint) {
    const double every = std::max(1.0, std::floor(plan.checkpoint->interval_seconds / step));
    lines.push_back(fmt::format("--save_strategy steps --save_steps {:.0f}", every));
  }
  return lines;
}

}  // namespace

SuggestionFile parse_suggestion_file(std::string_view text) {
  const auto found = std::find(kKinds.begin(), kKinds.end(), to_lower(trim(text)));
  if (found == kKinds.end()) {
    throw bad_input(fmt::format("there is no format `{}`", printable(text)),
                    did_you_mean(text, {kKinds.begin(), kKinds.end()}));
  }
  return static_cast<SuggestionFile>(found - kKinds.begin());
}

SuggestionFile file_kind_of(const std::filesystem::path& path) {
  const std::string name = to_lower(path.filename().string()), ending = to_lower(path.extension().string());
  if (ending == ".sh") return SuggestionFile::kTorchrun;
  if (ending == ".json") return SuggestionFile::kDeepspeed;
  if (ending == ".yaml" || ending == ".yml") {
    return name.find("accelerate") != std::string::npos ? SuggestionFile::kAccelerate : SuggestionFile::kJob;
  }
  throw bad_input(fmt::format("`{}`: its name does not say what to write", printable(path.string())),
                  "call it job.yaml, torchrun.sh, deepspeed.json or accelerate.yaml, or give --format");
}

Stack stack_of(SuggestionFile kind) { return static_cast<Stack>(kind); }

Suggestion for_stack(const Suggestion& suggestion, Stack stack) {
  if (suggestion.request.stack == stack) return suggestion;
  SuggestRequest request = suggestion.request;
  request.stack = stack;
  return suggest(request);
}

std::string job_yaml(const Suggestion& suggestion) {
  const plan::Candidate& plan = suggestion.candidate;
  const OptimizerAdvice& optimizer = suggestion.optimizer;
  std::string text = summary(suggestion, "#");
  text +=
      "# Bring the data (paths below are placeholders); `lockstep plan THIS_FILE` prices it, `lockstep train` runs "
      "it.\n";
  text += model_text(suggestion) + cluster_text(suggestion) + data_text(suggestion);
  if (suggestion.lora.rank > 0) {
    text += fmt::format("lora: {{rank: {}, alpha: {:g}, targets: [{}]}}\n", suggestion.lora.rank, suggestion.lora.alpha,
                        join(suggestion.lora.targets, ", "));
  }
  text += job_layout_line(plan.layout);
  text += fmt::format("precision: {}\n", spec::to_string(plan.layout.precision));
  text += fmt::format("batch: {{micro: {}, accumulation: {}, sequence_length: {}}}\n", plan.batch.micro,
                      plan.batch.accumulation, plan.batch.sequence_length);
  text += fmt::format(
      "optimizer: {{kind: adamw, learning_rate: {:.2g}, min_learning_rate: {:.2g}, schedule: cosine, "
      "warmup_steps: {},\n            betas: [0.9, {:g}], weight_decay: {:g}, clip_norm: 1.0}}\n",
      optimizer.learning_rate, optimizer.learning_rate / 10, optimizer.warmup_steps, optimizer.beta2,
      optimizer.weight_decay);
  text += fmt::format("loader: {{num_workers: {}, prefetch_factor: {}}}\n", suggestion.loader.num_workers,
                      suggestion.loader.prefetch_factor);
  if (plan.checkpoint) {
    text += fmt::format("checkpoint: {{every: {}, keep: 2}}\n", interval_text(plan.checkpoint->interval_seconds));
  }
  text += fmt::format("tokens: {:.0f}\nseed: 1\n", suggestion.tokens);
  return text;
}

std::string torchrun_script(const Suggestion& asked) {
  const bool ours = asked.request.stack == Stack::kLockstep;
  const Suggestion suggestion = ours ? asked : for_stack(asked, Stack::kTorchrun);
  const spec::NodeGroup& group = suggestion.cluster.groups.front();
  std::string text = "#!/usr/bin/env bash\n" + summary(suggestion, "#");
  text += fmt::format("# Start it on every node{}.\n",
                      group.nodes > 1 ? ", with MASTER_ADDR set to the first one's address" : "");
  text += "set -euo pipefail\n\n" + exports(suggestion) + "\n";
  text += fmt::format("launch=(torchrun --nnodes={} --nproc-per-node={}", group.nodes, group.devices_per_node);
  text += group.nodes > 1 ? "\n        --rdzv-backend=c10d --rdzv-id=\"${RDZV_ID:-lockstep}\"\n"
                            "        --rdzv-endpoint=\"${MASTER_ADDR:?address of the first node}:"
                            "${MASTER_PORT:-29500}\")\n"
                          : " --standalone)\n";
  if (ours) return text + "exec \"${launch[@]}\" --no-python lockstep train \"${JOB:-job.yaml}\" \"$@\"\n";
  text += "# In the names of Hugging Face's Trainer; your script may call them otherwise.\narguments=(\n";
  for (const std::string& line : trainer_arguments(suggestion)) text += fmt::format("  {}\n", line);
  return text + ")\nexec \"${launch[@]}\" \"${TRAIN_SCRIPT:-train.py}\" \"${arguments[@]}\" \"$@\"\n";
}

nlohmann::ordered_json deepspeed_config(const Suggestion& asked) {
  using nlohmann::ordered_json;
  const Suggestion suggestion = for_stack(asked, Stack::kDeepspeed);
  const plan::Candidate& plan = suggestion.candidate;
  ordered_json config = deepspeed_core(plan.layout, plan.batch);
  const OptimizerAdvice& optimizer = suggestion.optimizer;
  config["optimizer"] = {{"type", "AdamW"},
                         {"params",
                          {{"lr", optimizer.learning_rate},
                           {"betas", {0.9, optimizer.beta2}},
                           {"eps", 1e-8},
                           {"weight_decay", optimizer.weight_decay}}}};
  // Cosine to a tenth, as the reasons say.
  config["scheduler"] = {{"type", "WarmupCosineLR"},
                         {"params",
                          {{"total_num_steps", suggestion.steps},
                           {"warmup_min_ratio", 0.0},
                           {"warmup_num_steps", optimizer.warmup_steps},
                           {"cos_min_ratio", 0.1}}}};
  return config;
}

std::string accelerate_config(const Suggestion& asked) {
  const Suggestion suggestion = for_stack(asked, Stack::kAccelerate);
  const plan::Candidate& plan = suggestion.candidate;
  const plan::Layout& layout = plan.layout;
  const spec::NodeGroup& group = suggestion.cluster.groups.front();
  const std::int64_t gpus = suggestion.cluster.devices();
  std::string text = summary(suggestion, "#");
  text += fmt::format(
      "# Its own arguments belong to the script: per_device_train_batch_size {}, gradient_accumulation_steps {},\n"
      "# max_steps {}, learning_rate {:.2g}, dataloader_num_workers {}{}.\n",
      plan.batch.micro, plan.batch.accumulation, suggestion.steps, suggestion.optimizer.learning_rate,
      suggestion.loader.num_workers,
      layout.recompute == plan::Recompute::kFull && layout.zero == 0 ? ", gradient_checkpointing true" : "");
  text += "compute_environment: LOCAL_MACHINE\ndebug: false\n";
  text += fmt::format("distributed_type: {}\n", gpus == 1 ? "'NO'" : layout.zero > 0 ? "FSDP" : "MULTI_GPU");
  text += "downcast_bf16: 'no'\nenable_cpu_affinity: false\n";
  if (layout.zero > 0) {
    const bool hybrid = layout.dp > 1;
    text += "fsdp_config:\n";
    text += fmt::format("  fsdp_version: {}\n", hybrid ? 1 : 2);
    text += "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
    text += fmt::format("  fsdp_activation_checkpointing: {}\n", layout.recompute == plan::Recompute::kFull);
    text += fmt::format("  fsdp_offload_params: {}\n", layout.offload != plan::Offload::kNone);
    if (hybrid) {
      text += fmt::format("  fsdp_sharding_strategy: {}\n", layout.zero == 3 ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2");
    } else {
      text += fmt::format("  fsdp_reshard_after_forward: {}\n", layout.zero == 3);
    }
    text += "  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_cpu_ram_efficient_loading: true\n";
    if (hybrid) text += "  fsdp_sync_module_states: true\n  fsdp_use_orig_params: true\n";
  }
  text += "gpu_ids: all\nmachine_rank: 0\nmain_training_function: main\n";
  if (group.nodes > 1) {
    text += "main_process_ip: 127.0.0.1                       # address of the first node\nmain_process_port: 29500\n";
  }
  text += fmt::format("mixed_precision: {}\nnum_machines: {}\nnum_processes: {}\n",
                      layout.precision == spec::Precision::kFp32 ? "'no'" : spec::to_string(layout.precision),
                      group.nodes, gpus);
  text += "rdzv_backend: static\nsame_network: true\ntpu_use_cluster: false\nuse_cpu: false\n";
  return text;
}

std::string file_text(const Suggestion& suggestion, SuggestionFile kind) {
  switch (kind) {
    case SuggestionFile::kJob:
      return job_yaml(suggestion);
    case SuggestionFile::kTorchrun:
      return torchrun_script(suggestion);
    case SuggestionFile::kDeepspeed:
      return deepspeed_config(suggestion).dump(2) + "\n";
    case SuggestionFile::kAccelerate:
      return accelerate_config(suggestion);
  }
  return {};
}

}  // namespace lockstep::planner
