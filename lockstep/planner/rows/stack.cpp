// Which software ran a published row, and what that software is known to do.
#include <algorithm>
#include <array>

#include "lockstep/base/text.h"
#include "lockstep/planner/rows/parts.h"

namespace lockstep::planner {
namespace {

constexpr double kChunkedLoss = 1.0 / 8;  // of the logits at a time
// Dettmers et al. 2023, section 3: 4 bits, and 0.127 for the constants of its blocks.
constexpr double kNf4 = 4.127 / 8;

struct StackRule {
  const char* in_source;
  const char* in_notes;  // of compile_or_notes; "": any
  const char* stack;
};

// First match wins.
constexpr std::array kRules{
    StackRule{"HF Ultra-Scale", "", "nanotron-0.5"},
    StackRule{"MosaicML", "MP=PURE", "llm-foundry-pure"},
    StackRule{"MosaicML", "", "llm-foundry"},
    StackRule{"vTrain", "", "megatron-deepspeed-vtrain"},
    StackRule{"tr3m", "", "megatron-deepspeed-tr3m"},
    StackRule{"BLOOM", "", "megatron-deepspeed-bloom"},
    StackRule{"Sep-2020", "", "megatron-2020"},
    StackRule{"SC'21", "", "megatron-sc21"},
    StackRule{"Korthikanti", "", "megatron-korthikanti"},
    StackRule{"Megatron-LM README", "", "megatron-2022"},
    StackRule{"Megatron-Core r0.8", "", "megatron-core-0.8"},
    StackRule{"Megatron-Bridge", "", "megatron-bridge"},
    StackRule{"DGX Cloud", "MaxText", "maxtext"},
    StackRule{"DGX Cloud Benchmarking recipes v25.02", "", "nemo-25.02"},
    StackRule{"DGX Cloud", "", "nemo-25.05"},
    StackRule{"NeMo Framework 23", "", "nemo-23"},
    StackRule{"NeMo long-sequence performance (25", "", "nemo-25.05"},
    StackRule{"NeMo", "", "nemo-24"},
    StackRule{"FSDP paper", "", "fsdp-paper"},
    StackRule{"Llama 3 Herd", "", "meta-llama3"},
    StackRule{"Llama 3.1 model card", "", "meta-llama3"},
    StackRule{"Llama 2 model card", "", "meta-llama"},
    StackRule{"LLaMA paper", "", "meta-llama"},
    StackRule{"DeepSeek", "", "deepseek"},
    StackRule{"DeepLearningExamples", "", "apex-ddp"},
    StackRule{"PAX", "no TE", "pax"},
    StackRule{"PAX", "", "pax-te"},
    StackRule{"ColossalAI", "", "colossalai"},
    StackRule{"nanoGPT", "torch.compile", "nanogpt-compile"},
    StackRule{"nanoGPT", "", "nanogpt"},
    StackRule{"Lockstep", "", "lockstep"},
    // Stacks without fitted runs: their peers price them (cost::peers_of), their facts are known.
    StackRule{"torchtitan", "", "torchtitan"},
    StackRule{"TorchTitan", "", "torchtitan"},
    StackRule{"DeepSpeed", "", "deepspeed"},
    StackRule{"torchtune", "", "pytorch-torchtune"},
    StackRule{"Axolotl", "", "transformers"},
    StackRule{"axolotl", "", "transformers"},
    StackRule{"Unsloth", "", "transformers"},
    StackRule{"Hugging Face", "", "transformers"},
    StackRule{"HuggingFace", "", "transformers"},
    StackRule{"transformers", "", "transformers"},
    StackRule{"Megatron", "", "megatron"},
    StackRule{"MaxText", "", "maxtext"},
    StackRule{"FSDP", "", "pytorch"},
    StackRule{"PyTorch", "", "pytorch"},
    StackRule{"Lightning", "", "pytorch"},
    StackRule{"LitGPT", "", "pytorch"},
    StackRule{"OLMo", "", "pytorch"},
};

// What a row's free text says of a stack without fitted runs.
struct TextRule {
  const char* in_text;  // letter case ignored
  void (*apply)(cost::StackFacts& facts);
};
constexpr std::array kTextRules{
    TextRule{"compile", [](cost::StackFacts& f) { f.fused_pointwise = true; }},
    TextRule{"liger",
             [](cost::StackFacts& f) {
               f.fused_pointwise = true;
               f.logits_share = kChunkedLoss;
             }},
    TextRule{"eager", [](cost::StackFacts& f) { f.fused_pointwise = false; }},
    TextRule{"no compile", [](cost::StackFacts& f) { f.fused_pointwise = false; }},
    TextRule{"without compile", [](cost::StackFacts& f) { f.fused_pointwise = false; }},
    TextRule{"no flash", [](cost::StackFacts& f) { f.flash_attention = false; }},
    TextRule{"chunked loss", [](cost::StackFacts& f) { f.logits_share = kChunkedLoss; }},
    TextRule{"chunked cross", [](cost::StackFacts& f) { f.logits_share = kChunkedLoss; }},
    TextRule{"cut cross", [](cost::StackFacts& f) { f.logits_share = kChunkedLoss; }},
    TextRule{"cut-cross", [](cost::StackFacts& f) { f.logits_share = kChunkedLoss; }},
    TextRule{"per-op", [](cost::StackFacts& f) { f.recomputes_every_second_product = true; }},
    TextRule{"selective op", [](cost::StackFacts& f) { f.recomputes_every_second_product = true; }},
    TextRule{"qlora", [](cost::StackFacts& f) { f.frozen_weight_bytes = kNf4; }},
    TextRule{"4-bit", [](cost::StackFacts& f) { f.frozen_weight_bytes = kNf4; }},
    TextRule{"4bit", [](cost::StackFacts& f) { f.frozen_weight_bytes = kNf4; }},
    TextRule{"nf4", [](cost::StackFacts& f) { f.frozen_weight_bytes = kNf4; }},
    TextRule{"8-bit base", [](cost::StackFacts& f) { f.frozen_weight_bytes = 1; }},
    TextRule{"pure bf16",
             [](cost::StackFacts& f) {
               f.master_copy = false;
               f.kept_gradient_bytes = 2;
             }},
    TextRule{"bf16 weights",
             [](cost::StackFacts& f) {
               f.master_copy = false;
               f.kept_gradient_bytes = 2;
             }},
};

// Megatron-LM before distributed optimizers and FlashAttention: fused softmax, bias-GELU and bias-dropout kernels;
// gradients reduced in 16 bits in one go after the last backward (arXiv:2104.04473, section 4).
constexpr cost::StackFacts kEarlyMegatron{.flash_attention = false,
                                          .fused_pointwise = true,
                                          .reduced_gradient_bytes = 2,
                                          .kept_gradient_bytes = 2,
                                          .dp_overlaps = false};

// NeMo and Megatron-Bridge recipes: attention and fused layers from Transformer Engine, sequence parallel with tp,
// distributed optimizer whose gradient reduction and parameter gathering overlap, gradients synchronised in bf16
// (`grad_sync_dtype: bf16` in the NeMo configurations, `grad_reduce_in_fp32: false` in Megatron-Bridge's).
constexpr cost::StackFacts kNemo{
    .reduced_gradient_bytes = 2, .kept_gradient_bytes = 2, .dp_overlaps = true, .sequence_parallel = true};

// PyTorch FSDP reduce-scatters in every micro-step (no no_sync), keeps sharded weights and gradients in fp32 and
// gathers weights in 16 bits. llm-foundry: FlashAttention, otherwise eager PyTorch. Composer's MP=DEFAULT reduces in
// fp32, MP=PURE in bf16.
constexpr cost::StackFacts kFsdp{
    .fused_pointwise = false, .reduces_each_micro_batch = true, .keeps_narrow_weights = false};

cost::StackFacts with_gradient_bytes(cost::StackFacts facts, double reduced, double kept) {
  facts.reduced_gradient_bytes = reduced;
  facts.kept_gradient_bytes = kept;
  return facts;
}

bool starts(std::string_view text, std::string_view prefix) { return text.starts_with(prefix); }

// Of the rules above, those whose runs are in validation/published: what their text says was seen by the fit.
bool has_fitted_runs(std::string_view stack) {
  constexpr std::array kWithout{"",        "torchtitan",        "deepspeed", "transformers",
                                "pytorch", "pytorch-torchtune", "megatron"};
  return std::find(kWithout.begin(), kWithout.end(), stack) == kWithout.end();
}

}  // namespace

std::string stack_of(const PublishedRow& row) {
  for (const StackRule& rule : kRules) {
    if (row.source.find(rule.in_source) == std::string::npos) continue;
    if (row.compile_or_notes.find(rule.in_notes) != std::string::npos) return rule.stack;
  }
  return "";
}

cost::StackFacts stack_facts(std::string_view stack) {
  if (stack == "nanotron-0.5") {
    // TP mode REDUCE_SCATTER (sequence parallel), gradients accumulated and reduced in fp32 from hooks in backward,
    // pipeline blocks dealt out by cost; FlashAttention-2, fused RMSNorm, otherwise eager PyTorch.
    // Asynchronous tensor parallelism keeps the gathered inputs; ZeRO-1 scatters and gathers after backward, parameter
    // by parameter.
    // DistributedDataParallel holds its 16-bit buckets beside the fp32 gradients, which its hook adds to.
    return {.fused_pointwise = false,
            .bucket_gradient_bytes = 2,
            .zero_overlaps = false,
            .keeps_gathered_inputs = true,
            .sequence_parallel = true,
            .stage_split = cost::StageSplit::kByCost};
  }
  if (stack == "lockstep") return cost::lockstep_facts();
  if (stack == "llm-foundry") return kFsdp;
  if (stack == "llm-foundry-pure") return with_gradient_bytes(kFsdp, 2, 4);
  if (stack == "fsdp-paper") {
    // minGPT without fused attention, whole model in bf16 (Zhao et al. 2023, section 5.4).
    cost::StackFacts facts = with_gradient_bytes(kFsdp, 2, 2);
    facts.flash_attention = false;
    return facts;
  }
  if (starts(stack, "megatron-deepspeed") || stack == "megatron-2020" || stack == "megatron-sc21" ||
      stack == "megatron-korthikanti" || stack == "megatron-2022") {
    return kEarlyMegatron;
  }
  if (stack == "megatron-core-0.8") {
    // README of r0.8: overlapped gradient reduction and parameter gathering, tp overlap; main gradients in fp32.
    return with_gradient_bytes(kNemo, 4, 4);
  }
  if (stack == "nemo-23") {
    // 23.07 had no FlashAttention in the default GPT recipe; distributed optimizer and sequence parallel it had.
    cost::StackFacts facts = kNemo;
    facts.flash_attention = false;
    return facts;
  }
  if (starts(stack, "nemo") || stack == "megatron-bridge") return kNemo;
  if (stack == "maxtext" || stack == "pax-te") return {.reduced_gradient_bytes = 2, .kept_gradient_bytes = 4};
  if (stack == "pax") return {.flash_attention = false, .reduced_gradient_bytes = 2, .kept_gradient_bytes = 4};
  if (stack == "meta-llama3") {
    // Grattafiori et al. 2024, section 3.3.2: fp32 accumulation and reduce-scatter, FSDP that keeps weights gathered.
    return {.sequence_parallel = true};
  }
  if (stack == "apex-ddp") {
    // NVIDIA DeepLearningExamples: fp16 gradients, bucketed all-reduce behind backward, JIT-fused bias-GELU.
    return {.flash_attention = false, .reduced_gradient_bytes = 2, .kept_gradient_bytes = 2};
  }
  // Its README of December 2022 is older than fused attention in PyTorch. Weights are fp32, autocast makes 16-bit ones.
  if (starts(stack, "nanogpt")) {
    cost::StackFacts facts = kFsdp;
    facts.flash_attention = false;
    facts.fused_pointwise = stack == "nanogpt-compile";
    return facts;
  }
  if (stack == "torchtitan") {
    // Mixed precision of FSDP2: fp32 shards, reduced in fp32; selective recompute keeps every second product
    // (torchtitan/models/*/parallelize: per-operator activation checkpointing).
    cost::StackFacts facts = kFsdp;
    facts.sequence_parallel = true;
    facts.recomputes_every_second_product = true;
    return facts;
  }
  if (stack == "pytorch" || starts(stack, "pytorch-") || stack == "transformers") return kFsdp;
  if (stack == "deepspeed") {
    cost::StackFacts facts = with_gradient_bytes(kFsdp, 2, 2);
    facts.keeps_narrow_weights = true;
    return facts;
  }
  return {};
}

cost::StackFacts facts_of(const PublishedRow& row, const std::string& stack) {
  cost::StackFacts facts = stack_facts(stack);
  // BLOOM's bf16 runs used DeepSpeed's BF16_Optimizer, which accumulates and reduces in fp32; its fp16 runs did not.
  if (stack.empty() && (row.sharding == "fsdp" || row.sharding == "hsdp")) facts = kFsdp;
  if (!has_fitted_runs(stack)) {
    const std::string text = row.source + " " + row.compile_or_notes + " " + row.task + " " + row.notes;
    for (const TextRule& rule : kTextRules) {
      if (contains(text, rule.in_text)) rule.apply(facts);
    }
  }
  if (row.task == "lora" || row.task == "qlora") {
    // Frozen weights have no fp32 copy; adapters are small either way.
    facts.keeps_narrow_weights = true;
    if (row.task == "qlora") facts.frozen_weight_bytes = kNf4;
  }
  if (stack == "megatron-deepspeed-bloom" && row.precision == "bf16") facts = with_gradient_bytes(facts, 4, 4);
  return facts;
}

spec::Lora adapters_of(const PublishedRow& row, RowNotes& notes) {
  spec::Lora lora;
  if (row.task != "lora" && row.task != "qlora") return lora;
  const std::string text = to_lower(row.compile_or_notes + " " + row.notes);
  const auto stated = number_after(text, "r=").value_or(number_after(text, "rank ").value_or(0));
  lora.rank = stated > 0 && stated <= 1024 ? stated : 16;
  if (stated != lora.rank) notes.add("rank of the adapters unknown: 16");
  lora.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  return lora;
}

}  // namespace lockstep::planner
