// Arguments of Megatron-LM's pretrain_gpt.py (megatron/training/arguments.py) and overrides of NeMo's Megatron-Bridge
// (megatron/bridge/training/config.py): the same layout in two spellings.
#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/yaml.h"
#include "lockstep/planner/export/export.h"

namespace lockstep::planner {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string number(std::int64_t value) { return std::to_string(value); }

bool is_glu(const spec::Model& model) {
  return model.arch == spec::Arch::kLlama || model.arch == spec::Arch::kMoe ? model.decoder.gated_mlp : false;
}

// Replicas of the shards: instances of the distributed optimizer.
std::int64_t instances_of(const plan::Layout& layout) { return layout.zero == 1 ? layout.dp : 1; }

void require_spelt(const spec::Model& model) {
  const bool known =
      model.arch == spec::Arch::kGpt || model.arch == spec::Arch::kLlama || model.arch == spec::Arch::kMoe;
  if (known && model.decoder.parallel_block == spec::ParallelBlock::kNone) return;
  throw UserError(ExitCode::kAnswerIsNo,
                  fmt::format("Megatron-LM's arguments for {} ({}) are not written", printable(model.name),
                              spec::to_string(model.arch)),
                  "export the plan of a GPT, Llama or Mixtral, or as a job file");
}

Pairs model_arguments(const spec::Model& model, std::int64_t sequence) {
  Pairs pairs{{"--num-layers", number(model.layers)},
              {"--hidden-size", number(model.hidden)},
              {"--ffn-hidden-size", number(spec::mlp_width(model, 0))},
              {"--num-attention-heads", number(model.heads)},
              {"--kv-channels", number(spec::value_dim(model))},
              {"--seq-length", number(sequence)},
              {"--max-position-embeddings", number(std::max(model.max_sequence, sequence))}};
  if (spec::is_latent(model)) {
    const std::int64_t rotated = spec::rotary_dim(model);
    pairs.emplace_back("--multi-latent-attention", "");
    if (model.decoder.query_rank > 0) pairs.emplace_back("--q-lora-rank", number(model.decoder.query_rank));
    pairs.emplace_back("--kv-lora-rank", number(model.decoder.key_value_rank));
    pairs.emplace_back("--qk-head-dim", number(model.head_dim - rotated));
    pairs.emplace_back("--qk-pos-emb-head-dim", number(rotated));
    pairs.emplace_back("--v-head-dim", number(model.decoder.value_dim));
  }
  if (model.kv_heads != model.heads) {
    pairs.emplace_back("--group-query-attention", "");
    pairs.emplace_back("--num-query-groups", number(model.kv_heads));
  }
  if (model.arch != spec::Arch::kGpt) {
    pairs.emplace_back("--position-embedding-type", "rope");
    pairs.emplace_back("--rotary-base", fmt::format("{:.0f}", model.rope_theta));
    const double rotated = spec::is_latent(model) ? 1.0 : model.decoder.rotary_fraction;
    pairs.emplace_back("--rotary-percent", fmt::format("{:g}", rotated));
    if (model.decoder.norm == spec::NormKind::kRms) pairs.emplace_back("--normalization", "RMSNorm");
  }
  if (is_glu(model)) pairs.emplace_back("--swiglu", "");
  if (!model.bias) pairs.emplace_back("--disable-bias-linear", "");
  if (model.decoder.qkv_bias) pairs.emplace_back("--add-qkv-bias", "");
  if (model.decoder.qk_norm != spec::QkNorm::kNone) pairs.emplace_back("--qk-layernorm", "");
  if (!model.tied_embeddings) pairs.emplace_back("--untie-embeddings-and-output-weights", "");
  if (model.experts > 0) {
    pairs.emplace_back("--num-experts", number(model.experts));
    pairs.emplace_back("--moe-router-topk", number(model.experts_per_token));
    pairs.emplace_back("--moe-ffn-hidden-size", number(model.ffn_hidden));
    if (const std::int64_t dense = model.decoder.dense_layers; dense > 0) {
      pairs.emplace_back("--moe-layer-freq", fmt::format("\"([0]*{}+[1]*{})\"", dense, model.layers - dense));
    }
    pairs.emplace_back("--moe-token-dispatcher-type", "alltoall");
    if (model.shared_experts > 0) {
      pairs.emplace_back("--moe-shared-expert-intermediate-size", number(model.shared_experts * model.ffn_hidden));
    }
  }
  return pairs;
}

Pairs layout_arguments(const spec::Model& model, const plan::Layout& layout) {
  Pairs pairs{{"--tensor-model-parallel-size", number(layout.tp)},
              {"--pipeline-model-parallel-size", number(layout.pp)},
              {"--context-parallel-size", number(layout.cp)}};
  if (layout.virtual_stages > 1) {
    pairs.emplace_back("--num-layers-per-virtual-pipeline-stage",
                       number(model.layers / (layout.pp * layout.virtual_stages)));
  }
  if (layout.cp > 1) {
    const bool ring = layout.context_exchange == plan::ContextExchange::kRing;
    pairs.emplace_back("--cp-comm-type", ring ? "p2p" : "a2a");
  }
  if (model.experts > 0) pairs.emplace_back("--expert-model-parallel-size", number(layout.ep));
  if (layout.sequence_parallel) pairs.emplace_back("--sequence-parallel", "");
  if (layout.zero == 1) {
    pairs.emplace_back("--use-distributed-optimizer", "");
    pairs.emplace_back("--overlap-param-gather", "");
    if (instances_of(layout) > 1) {
      pairs.emplace_back("--num-distributed-optimizer-instances", number(instances_of(layout)));
    }
  }
  if (layout.data_ranks() > 1) pairs.emplace_back("--overlap-grad-reduce", "");
  if (layout.recompute == plan::Recompute::kSelective) pairs.emplace_back("--recompute-activations", "");
  if (layout.recompute == plan::Recompute::kFull) {
    pairs.emplace_back("--recompute-granularity", "full");
    pairs.emplace_back("--recompute-method", "uniform");
    pairs.emplace_back("--recompute-num-layers", "1");
  }
  if (layout.offload == plan::Offload::kOptimizer) pairs.emplace_back("--optimizer-cpu-offload", "");
  if (layout.precision == spec::Precision::kBf16) pairs.emplace_back("--bf16", "");
  if (layout.precision == spec::Precision::kFp16) pairs.emplace_back("--fp16", "");
  if (layout.precision == spec::Precision::kFp8) {
    pairs.emplace_back("--bf16", "");
    pairs.emplace_back("--fp8-format", "hybrid");
  }
  return pairs;
}

std::string arguments_text(const char* heading, const Pairs& pairs) {
  std::string text = fmt::format("{}=(\n", heading);
  for (const auto& [flag, value] : pairs)
    text += value.empty() ? fmt::format("  {}\n", flag) : fmt::format("  {} {}\n", flag, value);
  return text + ")\n";
}

std::string yaml_section(const char* name, const Pairs& pairs) {
  std::string text = fmt::format("{}:\n", name);
  for (const auto& [key, value] : pairs) text += fmt::format("  {}: {}\n", key, value);
  return text;
}

std::string truth(bool value) { return value ? "true" : "false"; }

}  // namespace

std::string export_megatron(const SearchRequest& request, const plan::Candidate& plan) {
  require_spelt(request.model);
  std::string text = "#!/usr/bin/env bash\n" + plan_summary(request, plan, "#");
  text +=
      "# For a checkout of Megatron-LM (MEGATRON). Yours: data, tokenizer, learning rate.\n"
      "set -euo pipefail\n\n";
  text += arguments_text("model", model_arguments(request.model, plan.batch.sequence_length));
  text += arguments_text("layout", layout_arguments(request.model, plan.layout));
  Pairs batch{{"--micro-batch-size", number(plan.batch.micro)},
              {"--global-batch-size", number(plan.batch.global_sequences)}};
  if (const std::int64_t steps = steps_of(request, plan); steps > 0) batch.emplace_back("--train-iters", number(steps));
  text += arguments_text("batch", batch);
  text += fmt::format(
      "\n{} \\\n  \"${{MEGATRON:?folder of Megatron-LM}}/pretrain_gpt.py\" \\\n"
      "  \"${{model[@]}}\" \"${{layout[@]}}\" \"${{batch[@]}}\" \"$@\"\n",
      torchrun_command(request.cluster));
  return text;
}

std::string export_nemo(const SearchRequest& request, const plan::Candidate& plan) {
  require_spelt(request.model);
  const plan::Layout& layout = plan.layout;
  Pairs model{{"tensor_model_parallel_size", number(layout.tp)},
              {"pipeline_model_parallel_size", number(layout.pp)},
              {"context_parallel_size", number(layout.cp)},
              {"sequence_parallel", truth(layout.sequence_parallel)},
              {"seq_length", number(plan.batch.sequence_length)}};
  if (layout.virtual_stages > 1)
    model.emplace_back("virtual_pipeline_model_parallel_size", number(layout.virtual_stages));
  if (request.model.experts > 0) model.emplace_back("expert_model_parallel_size", number(layout.ep));
  if (layout.recompute != plan::Recompute::kNone) {
    const bool full = layout.recompute == plan::Recompute::kFull;
    model.emplace_back("recompute_granularity", full ? "full" : "selective");
    if (full) model.emplace_back("recompute_method", "uniform");
    if (full) model.emplace_back("recompute_num_layers", "1");
  }
  Pairs train{{"micro_batch_size", number(plan.batch.micro)},
              {"global_batch_size", number(plan.batch.global_sequences)}};
  if (const std::int64_t steps = steps_of(request, plan); steps > 0) train.emplace_back("train_iters", number(steps));
  const Pairs ddp{{"use_distributed_optimizer", truth(layout.zero == 1)},
                  {"overlap_grad_reduce", truth(layout.data_ranks() > 1)},
                  {"overlap_param_gather", truth(layout.zero == 1)},
                  {"num_distributed_optimizer_instances", number(instances_of(layout))}};
  std::string text = plan_summary(request, plan, "#");
  text += "# Overrides for a recipe of Megatron-Bridge that has this model: run_recipe.py --config-file nemo.yaml\n";
  return text + yaml_section("model", model) + yaml_section("train", train) + yaml_section("ddp", ddp);
}

}  // namespace lockstep::planner
