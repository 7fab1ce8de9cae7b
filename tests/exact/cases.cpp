#include "tests/exact/cases.h"

namespace lockstep::exact {
namespace {

std::vector<Case> single_axes() {
  return {
      {"gpt", "dp=2"},
      {"gpt", "dp=8"},
      {"llama", "dp=4", 2},
      {"gpt", "shard=2,zero=1"},
      {"gpt", "shard=4,zero=2"},
      {"gpt", "shard=4,zero=3"},
      {"llama", "shard=2,zero=1", 2},
      {"llama", "shard=2,zero=2", 2},
      {"llama", "shard=2,zero=3", 2},
      {"llama", "shard=2,zero=2", 4, true},
      {"llama", "shard=4,zero=3", 2, true},
      {"gpt", "shard=8,zero=3"},
      {"gpt", "shard=2,zero=3", 2, false, false},
      {"gpt", "tp=2"},
      {"gpt", "tp=4"},
      {"gpt", "tp=2,sequence_parallel=true"},
      {"llama", "tp=2"},
      {"llama", "tp=4"},
      {"llama", "tp=4,sequence_parallel=true"},
      {"gpt", "pp=2,schedule=gpipe", 4},
      {"gpt", "pp=4,schedule=gpipe", 2},
      {"gpt", "pp=2,schedule=1f1b", 4},
      {"llama", "pp=4,schedule=1f1b", 8},
      {"gpt", "pp=2,virtual_stages=2,schedule=interleaved", 4},
      {"llama", "pp=2,virtual_stages=2,schedule=interleaved", 2},
      {"gpt", "pp=2,schedule=zero_bubble", 4},
      {"llama", "pp=4,schedule=zero_bubble", 8},
      {"gpt", "pp=2,virtual_stages=2,schedule=zero_bubble", 4},
      {"gpt", "pp=2,stage_layers=3+1", 4},
      {"llama", "pp=3,stage_layers=1+1+2,schedule=gpipe", 4},
      {"gpt", "cp=2"},
      {"llama", "cp=4"},
      {"gpt", "cp=2,context_exchange=all_to_all"},
      {"llama", "cp=4,context_exchange=all_to_all"},
      {"moe", "dp=2,ep=2"},
      {"moe", "dp=4,ep=4"},
      {"moe-capacity", "dp=2"},
      {"moe-capacity", "dp=4,ep=2", 2},
      {"ssm", "dp=2"},
      {"ssm", "shard=2,zero=3"},
      {"ssm", "tp=2"},
      {"ssm", "tp=2,sequence_parallel=true"},
      {"ssm", "cp=2"},
      {"ssm", "cp=4"},
      {"ssm", "pp=2,schedule=zero_bubble", 4},
  };
}

std::vector<Case> pairs_of_axes() {
  return {
      {"gpt", "dp=2,shard=2,zero=1"},
      {"gpt", "dp=2,shard=2,zero=2", 2},
      {"llama", "dp=2,shard=4,zero=3"},
      {"gpt", "dp=2,tp=2"},
      {"llama", "dp=2,tp=4,sequence_parallel=true", 2},
      {"gpt", "dp=2,pp=2", 4},
      {"gpt", "dp=2,cp=2"},
      {"llama", "shard=2,zero=3,tp=2"},
      {"gpt", "shard=2,zero=1,tp=2,sequence_parallel=true", 2},
      {"gpt", "shard=2,zero=2,pp=2", 2},
      {"gpt", "shard=2,zero=3,pp=2,virtual_stages=2", 2},
      {"llama", "shard=2,zero=1,pp=2,schedule=zero_bubble", 4},
      {"gpt", "shard=2,zero=3,cp=2"},
      {"llama", "cp=2,zero=3"},
      {"gpt", "cp=2,zero=1,context_exchange=all_to_all"},
      {"gpt", "tp=2,pp=2", 2},
      {"llama", "tp=2,sequence_parallel=true,pp=2", 4},
      {"gpt", "tp=2,cp=2,sequence_parallel=true"},
      {"llama", "tp=2,cp=2,context_exchange=all_to_all"},
      {"gpt", "pp=2,cp=2", 2},
      {"moe", "tp=2,dp=2,ep=2"},
      {"moe", "pp=2,dp=2,ep=2", 2},
      {"moe", "cp=2,ep=2"},
      {"moe", "shard=2,zero=3,ep=2"},
      {"moe", "shard=4,zero=2,ep=2", 2},
      {"moe-capacity", "cp=2,dp=2,ep=2"},
      {"moe-capacity", "cp=4,ep=2"},
      {"ssm", "tp=2,cp=2"},
      {"ssm", "dp=2,pp=2,schedule=gpipe", 2},
  };
}

std::vector<Case> triples_and_more() {
  return {
      {"gpt", "dp=2,tp=2,pp=2", 2},
      {"llama", "shard=2,zero=3,tp=2,pp=2", 2},
      {"gpt", "dp=2,shard=2,zero=2,tp=2"},
      {"llama", "tp=2,cp=2,pp=2,sequence_parallel=true", 2},
      {"gpt", "dp=2,cp=2,pp=2", 2},
      {"moe", "dp=2,shard=2,zero=3,ep=2,tp=2"},
      {"moe", "dp=2,shard=2,zero=1,ep=4"},
      {"moe", "tp=2,sequence_parallel=true,cp=2,dp=2,ep=4"},
      {"moe", "pp=2,shard=2,zero=3,ep=2,tp=2,schedule=zero_bubble", 2},
      {"gpt", "dp=2,shard=2,zero=3,tp=2,pp=2", 2},
      {"llama", "dp=2,shard=2,zero=1,cp=2,tp=2,sequence_parallel=true"},
      {"llama", "dp=2,pp=4,tp=2,schedule=zero_bubble", 4},
      {"ssm", "shard=2,zero=3,tp=2,pp=2", 2},
  };
}

std::vector<Case> recomputation_and_offload() {
  return {
      {"gpt", "dp=1,recompute=full", 2},
      {"gpt", "tp=2,recompute=selective"},
      {"llama", "tp=2,sequence_parallel=true,recompute=full"},
      {"gpt", "shard=2,zero=3,recompute=full", 2},
      {"llama", "cp=2,recompute=full"},
      {"llama", "cp=2,recompute=selective,context_exchange=all_to_all"},
      {"gpt", "pp=2,recompute=selective", 4},
      {"moe", "dp=2,ep=2,recompute=full"},
      {"ssm", "cp=2,recompute=full"},
      {"gpt", "pp=2,schedule=zero_bubble,recompute=full", 4},
      {"gpt", "shard=2,zero=3,offload=parameters"},
      {"llama", "shard=2,zero=1,offload=optimizer"},
      {"gpt", "dp=2,recompute=full", 2, false, true, true},
  };
}

// Buckets of gradients from one parameter to several, with accumulation, partial gradients, experts and pipelines.
std::vector<Case> buckets() {
  constexpr double kEach = 1e-6, kSome = 0.02;
  const auto with = [](Case exact_case, double bucket_mib) {
    exact_case.bucket_mib = bucket_mib;
    return exact_case;
  };
  return {
      with({"gpt", "dp=2"}, kEach),
      with({"gpt", "dp=4", 2}, kSome),
      with({"llama", "dp=2", 4}, kSome),
      with({"bert", "dp=2", 2}, kSome),
      with({"moe", "dp=2", 2}, kSome),
      with({"moe", "dp=4,ep=2", 2}, kSome),
      with({"gpt", "dp=2,recompute=full", 2}, kSome),
      with({"llama", "dp=2,tp=2,sequence_parallel=true", 2}, kSome),
      with({"gpt", "dp=2,pp=2,schedule=zero_bubble", 4}, kSome),
      with({"gpt", "dp=2,cp=2", 2}, kEach),
  };
}

}  // namespace

std::vector<Case> every_case() {
  std::vector<Case> all;
  for (const auto& part :
       {single_axes(), pairs_of_axes(), triples_and_more(), recomputation_and_offload(), buckets()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<Case> cases_of_relatives() {
  return {
      {"mistral", "tp=2"},
      {"mistral", "cp=2"},
      {"mistral", "cp=4"},
      {"mistral", "cp=2,context_exchange=all_to_all"},
      {"mistral", "pp=2,shard=2,zero=3", 2},
      {"qwen2", "tp=2"},
      {"qwen2", "tp=4,sequence_parallel=true"},
      {"qwen2", "pp=2,schedule=zero_bubble", 4},
      {"qwen2", "shard=2,zero=3"},
      {"qwen3", "tp=2,sequence_parallel=true"},
      {"qwen3", "tp=4"},
      {"qwen3", "shard=2,zero=3,pp=2", 2},
      {"qwen3-moe", "tp=2"},
      {"qwen3-moe", "dp=2,ep=2"},
      {"qwen3-moe", "pp=2,shard=2,zero=3", 2},
      {"gemma2", "tp=2,sequence_parallel=true"},
      {"gemma2", "cp=2"},
      {"gemma2", "tp=2,cp=2"},
      {"gemma2", "pp=2", 2},
      {"gemma2", "shard=2,zero=3,recompute=full"},
      {"gemma3", "tp=2"},
      {"gemma3", "cp=2,context_exchange=all_to_all"},
      {"gemma3", "pp=2,shard=2,zero=3", 2},
      {"phi3", "tp=2"},
      {"phi3", "cp=2"},
      {"phi3", "pp=2,shard=2,zero=3", 2},
      {"olmo", "tp=2,sequence_parallel=true"},
      {"olmo", "pp=2,shard=2,zero=3", 2},
      {"olmo2", "tp=2"},
      {"olmo2", "tp=4,sequence_parallel=true"},
      {"olmo2", "pp=2,shard=2,zero=3", 2},
      {"neox", "tp=2"},
      {"neox", "tp=2,sequence_parallel=true,recompute=full"},
      {"neox", "cp=2"},
      {"neox", "pp=2,schedule=zero_bubble", 4},
      {"neox", "shard=2,zero=3"},
      {"falcon", "tp=2"},
      {"falcon", "tp=4,sequence_parallel=true"},
      {"falcon", "pp=2,shard=2,zero=3", 2},
      {"falcon-new", "tp=2"},
      {"falcon-new", "cp=2,recompute=selective"},
      {"deepseek", "dp=2,ep=2"},
      {"deepseek", "tp=2"},
      {"deepseek", "pp=2", 2},
      {"deepseek", "shard=2,zero=3,ep=2"},
  };
}

std::vector<Case> cases_of_plugins() {
  return {
      {"plugin", "dp=2"},
      {"plugin", "dp=4", 2},
      {"plugin", "shard=2,zero=1"},
      {"plugin", "shard=2,zero=2", 2, true},
      {"plugin", "shard=2,zero=3"},
      {"plugin", "shard=4,zero=3", 2, false, false},
      {"plugin", "dp=2,shard=2,zero=3"},
      {"plugin", "pp=2,schedule=1f1b", 4},
      {"plugin", "pp=3,schedule=gpipe", 2},
      {"plugin", "pp=2,virtual_stages=2,schedule=interleaved", 2},
      {"plugin", "dp=2,pp=2", 2},
      {"plugin", "shard=2,zero=1,pp=2", 2},
      {"plugin", "shard=2,zero=3,pp=2", 2},
      {"plugin", "dp=2,recompute=full"},
      {"plugin", "shard=2,zero=3,pp=2,recompute=full", 2},
  };
}

}  // namespace lockstep::exact
