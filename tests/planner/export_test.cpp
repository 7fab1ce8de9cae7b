// Plans as files: our job file says the same plan again, exactly; those of other frameworks say its layout and batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/planner/capabilities.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/export/export.h"
#include "lockstep/planner/question.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

struct Planned {
  SearchRequest request;
  plan::Candidate best;
};

Planned plan_of(const std::string& model, const std::string& cluster, const std::string& stack = "",
                const std::string& layout = "") {
  SearchRequest request = testing::request_of(model, cluster);
  request.framework = find_capabilities(stack);
  request.tokens = 1e9;
  if (!layout.empty()) fix_layout(request, plan::parse_layout(layout), 1);
  request = complete(request);
  const Explained explained = explain(request, {.what_ifs = false});
  return {explained.request, explained.plan.best};
}

std::string text_of(const Planned& planned, PlanExport kind, std::size_t file = 0) {
  return export_plan(planned.request, planned.best, kind).at(file).text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Export, a_job_file_is_the_plan_again) {
  for (const auto& [model, cluster] :
       {std::pair("llama2-13b", "4x8xH100"), std::pair("mixtral-8x7b", "2x8xH100"), std::pair("gpt-100b", "8x8xA100"),
        std::pair("llama3-8b", "2x8xA100"), std::pair("mamba-2.8b", "1x8xA100"), std::pair("gemma2-9b", "1x8xH100")}) {
    SCOPED_TRACE(model);
    const Planned planned = plan_of(model, cluster);
    const TemporaryFolder folder;
    const std::string file = (folder.path() / "job.yaml").string();
    write_file_atomically(file, text_of(planned, PlanExport::kJob));
    const spec::Job job = spec::load_job(file);
    EXPECT_EQ(job.cluster, planned.request.cluster);
    const SearchRequest again = question_of(job, planned.request.profile);
    EXPECT_EQ(again.global_sequences, planned.request.global_sequences);
    EXPECT_EQ(again.tokens, planned.request.tokens);
    const SearchResult result = search(again);
    ASSERT_FALSE(result.best.empty());
    const Ranked& best = result.best.front();
    EXPECT_EQ(best.layout, planned.best.layout);
    EXPECT_EQ(best.batch, planned.best.batch);
    EXPECT_EQ(best.price.memory.total(), planned.best.memory.total());
    // Given, it is priced without what choosing costs.
    EXPECT_DOUBLE_EQ(best.price.step_seconds(), planned.best.breakdown->total() - planned.best.breakdown->selection);
  }
}

TEST(Export, what_a_framework_cannot_run_is_refused_with_the_stack_that_plans_for_it) {
  const Planned planned = plan_of("llama2-13b", "4x8xH100", "", "dp=4,shard=4,zero=1,tp=2,sequence_parallel=true");
  for (const PlanExport kind : {PlanExport::kTorchrun, PlanExport::kDeepspeed}) {
    try {
      export_plan(planned.request, planned.best, kind);
      FAIL() << "exported";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
      EXPECT_TRUE(has(error.what(), "--stack ")) << error.what();
    }
  }
  EXPECT_NO_THROW(export_plan(planned.request, planned.best, PlanExport::kMegatron));
}

TEST(Export, deepspeed_has_batch_and_stage) {
  const Planned planned = plan_of("llama2-7b", "1x8xH100", "deepspeed", "shard=8,zero=3,recompute=full");
  const auto config = nlohmann::json::parse(text_of(planned, PlanExport::kDeepspeed));
  EXPECT_EQ(config.at("train_batch_size"), planned.best.batch.global_sequences);
  EXPECT_EQ(config.at("train_micro_batch_size_per_gpu"), planned.best.batch.micro);
  EXPECT_EQ(config.at("zero_optimization").at("stage"), 3);
  EXPECT_TRUE(config.at("bf16").at("enabled"));
}

TEST(Export, a_search_for_deepspeeds_file_leaves_out_what_is_code_there) {
  SearchRequest request = testing::request_of("llama2-7b", "1x8xA100");
  request.framework = find_capabilities("deepspeed");
  keep_to_export(request, PlanExport::kDeepspeed);
  request = complete(request);
  const Explained explained = explain(request, {.what_ifs = false});
  EXPECT_NO_THROW(export_plan(explained.request, explained.plan.best, PlanExport::kDeepspeed));
}

TEST(Export, megatron_and_nemo_have_the_same_layout) {
  const Planned planned = plan_of("llama2-70b", "16x8xH100", "megatron",
                                  "pp=2,dp=2,shard=4,zero=1,tp=8,sequence_parallel=true,recompute=selective,"
                                  "virtual_stages=5,schedule=interleaved");
  const std::string megatron = text_of(planned, PlanExport::kMegatron), nemo = text_of(planned, PlanExport::kNemo);
  for (const char* flag :
       {"--tensor-model-parallel-size 8\n", "--pipeline-model-parallel-size 2\n", "--sequence-parallel\n",
        "--num-layers-per-virtual-pipeline-stage 8\n", "--use-distributed-optimizer\n",
        "--num-distributed-optimizer-instances 2\n", "--recompute-activations\n", "--bf16\n", "--num-query-groups 8\n",
        "--swiglu\n", "--num-layers 80\n"}) {
    EXPECT_TRUE(has(megatron, flag)) << flag;
  }
  for (const char* line : {"  tensor_model_parallel_size: 8\n", "  pipeline_model_parallel_size: 2\n",
                           "  virtual_pipeline_model_parallel_size: 5\n", "  num_distributed_optimizer_instances: 2\n",
                           "  recompute_granularity: selective\n"}) {
    EXPECT_TRUE(has(nemo, line)) << line;
  }
}

TEST(Export, megatron_spells_latent_attention_and_dense_layers_before_experts) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "deepseek-v2-lite.json").string();
  write_file_atomically(file, R"({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
    "kv_lora_rank": 512, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
    "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "first_k_dense_replace": 1, "max_position_embeddings": 4096, "vocab_size": 102400})");
  const Planned planned = plan_of(file, "2x8xH100", "megatron");
  const std::string text = text_of(planned, PlanExport::kMegatron);
  for (const char* flag : {"--multi-latent-attention\n", "--kv-lora-rank 512\n", "--qk-head-dim 128\n",
                           "--qk-pos-emb-head-dim 64\n", "--v-head-dim 128\n", "--ffn-hidden-size 10944\n",
                           "--moe-ffn-hidden-size 1408\n", "--moe-layer-freq \"([0]*1+[1]*26)\"\n"}) {
    EXPECT_TRUE(has(text, flag)) << flag << text;
  }
  EXPECT_FALSE(has(text, "--q-lora-rank"));
  EXPECT_THROW(export_plan(planned.request, planned.best, PlanExport::kJob), UserError) << "nothing here trains it";
}

TEST(Export, torchtitan_has_every_degree) {
  const Planned planned =
      plan_of("llama3-70b", "8x8xH100", "torchtitan", "dp=2,shard=8,zero=3,tp=4,sequence_parallel=true,recompute=full");
  const std::string text = text_of(planned, PlanExport::kTorchtitan);
  for (const char* line :
       {"config.parallelism.data_parallel_replicate_degree = 2\n",
        "config.parallelism.data_parallel_shard_degree = 8\n", "config.parallelism.tensor_parallel_degree = 4\n",
        "config.parallelism.fsdp_reshard_after_forward = \"always\"\n",
        "config.activation_checkpoint = FullAC.Config()\n"}) {
    EXPECT_TRUE(has(text, line)) << line;
  }
  const Planned other = plan_of("gpt-10b", "1x8xH100", "torchtitan");
  EXPECT_THROW(export_plan(other.request, other.best, PlanExport::kTorchtitan), UserError);
}

TEST(Export, the_script_of_fsdp_has_mesh_batch_and_stage) {
  const Planned planned = plan_of("llama2-7b", "2x8xH100", "fsdp", "dp=2,shard=8,zero=3,recompute=full");
  const auto files = export_plan(planned.request, planned.best, PlanExport::kTorchrun);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_TRUE(files[0].executable);
  EXPECT_TRUE(has(files[0].text, "torchrun --nnodes=2 --nproc-per-node=8"));
  EXPECT_TRUE(has(files[1].text, "REPLICAS, SHARDS, ZERO = 2, 8, 3\n"));
  EXPECT_TRUE(has(files[1].text, "RECOMPUTE, OFFLOAD = True, False\n"));
}

}  // namespace
}  // namespace lockstep::planner
