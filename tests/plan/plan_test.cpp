#include "lockstep/plan/plan.h"

#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::plan {
namespace {

Plan sample_plan() {
  Plan plan;
  plan.model.name = "tiny";
  plan.model.arch = spec::Arch::kLlama;
  plan.model.layers = 3;
  plan.model.hidden = 192;
  plan.model.heads = plan.model.kv_heads = 6;
  plan.model.head_dim = 32;
  plan.model.ffn_hidden = 512;
  plan.model.vocab = 257;
  plan.model.max_sequence = 128;
  plan.model.activation = spec::Activation::kSilu;
  plan.model.rope_scaling.kind = spec::RopeScaling::Kind::kLlama3;
  plan.model.rope_scaling.factor = 8.25;
  plan.model.dropout = 0.1;
  plan.model.stage_blocks = {3, 4};
  spec::NodeGroup group;
  group.name = "g";
  group.nodes = 2;
  group.devices_per_node = 4;
  group.device.kind = "H100";
  group.device.memory_bytes = 80e9;
  group.intra.kind = spec::LinkKind::kNvlink;
  group.nic.kind = spec::LinkKind::kRoce;
  group.nic.bytes_per_second = 1.0 / 3.0;
  plan.cluster.name = "2x4xH100";
  plan.cluster.groups = {group};
  plan.best.layout = parse_layout("dp=8,precision=bf16");
  plan.best.batch = {.micro = 3, .accumulation = 2, .global_sequences = 48, .sequence_length = 128};
  plan.best.knobs.bucket_mib = 12.5;
  plan.best.knobs.nccl_groups = "dp:algorithm=Ring,channels=8;tp:protocol=LL128";
  plan.best.memory = {.parameters = 1e9 / 3, .gradients = 2e9, .optimizer = 4e9, .activations = 7, .capacity = 80e9};
  plan.best.prediction = Prediction{{0.1, 0.2, 0.3}, {10, 20, 30}, {1, 2, 3}, {0.4, 0.5, 0.6}};
  plan.best.breakdown = TimeBreakdown{.compute = 0.1, .dp_comm = 0.05, .optimizer = 0.05};
  plan.best.cost = Cost{1.5, 2.5, 3.5};
  plan.best.checkpoint = CheckpointCadence{600, 300, 0.99};
  plan.best.reasons = {"because", "\"quoted\""};
  Candidate other = plan.best;
  other.layout = parse_layout("dp=4,tp=2");
  other.batch.global_sequences = 24;
  other.prediction.reset();
  other.breakdown.reset();
  other.cost.reset();
  other.checkpoint.reset();
  other.why_not = "slower";
  plan.alternatives = {other};
  plan.search = {12, 7, 0.003};
  plan.profile = "here";
  return plan;
}

// The message of reading the sample with one change; "" when it was accepted.
std::string error_after(const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json document = to_json(sample_plan());
  change(document);
  try {
    read_plan(document, "p.json");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(PlanFile, comes_back_bit_for_bit_through_text) {
  const Plan plan = sample_plan();
  const Plan back = read_plan(nlohmann::json::parse(to_json(plan).dump()), "p.json");
  EXPECT_EQ(back.model, plan.model);
  EXPECT_EQ(back.cluster, plan.cluster);
  EXPECT_EQ(back.best, plan.best);
  EXPECT_EQ(back.alternatives, plan.alternatives);
  EXPECT_EQ(back.search, plan.search);
  EXPECT_EQ(back.profile, plan.profile);
  EXPECT_EQ(to_json(back), to_json(plan));
}

TEST(PlanFile, keeps_how_tokens_are_balanced_over_experts) {
  Plan plan = sample_plan();
  plan.model.router_auxiliary_loss = 0.02;
  plan.model.capacity_factor = 1.25;
  EXPECT_EQ(read_plan(nlohmann::json::parse(to_json(plan).dump()), "p.json").model, plan.model);
}

TEST(PlanFile, keeps_the_blocks_of_llamas_relatives) {
  for (const char* preset : {"gemma2-9b", "gemma3-1b", "neox-20b", "deepseek-moe-16b"}) {
    Plan plan = sample_plan();
    plan.model = spec::load_model(preset);
    plan.model.rope_scaling = {.kind = spec::RopeScaling::Kind::kLongRope, .factor = 0, .original_max_sequence = 9};
    plan.model.rope_scaling.short_factors = {1.0, 2.5};
    plan.model.rope_scaling.attention_factor = 1.25;
    EXPECT_EQ(read_plan(nlohmann::json::parse(to_json(plan).dump()), "p.json").model, plan.model) << preset;
  }
}

TEST(PlanFile, has_the_documented_names) {
  const nlohmann::json json = to_json(sample_plan());
  EXPECT_EQ(json["schema"], "lockstep.plan/1");
  for (const char* key : {"pp", "dp", "shard", "zero", "cp", "tp", "ep"})
    EXPECT_TRUE(json["best"]["layout"].contains(key)) << key;
  for (const char* key : {"micro", "accumulation", "global_sequences", "sequence_length"})
    EXPECT_TRUE(json["best"]["batch"].contains(key)) << key;
  for (const char* key :
       {"total", "parameters", "gradients", "optimizer", "activations", "buffers", "overhead", "capacity"}) {
    EXPECT_TRUE(json["best"]["memory_gib"].contains(key)) << key;
  }
  for (const char* key : {"tokens_per_second", "tokens_per_second_per_gpu", "step_seconds", "mfu"}) {
    EXPECT_TRUE(json["best"]["prediction"][key].is_number()) << key;
    EXPECT_TRUE(json["best"]["prediction"]["intervals"][key].contains("low")) << key;
  }
  for (const char* key : {"compute", "tp_comm", "dp_comm", "pp_comm", "bubble", "optimizer", "other"}) {
    EXPECT_TRUE(json["best"]["breakdown_seconds"].contains(key)) << key;
  }
  EXPECT_EQ(json["best"]["memory_gib"]["capacity"].get<double>(), 80e9 / (1024.0 * 1024 * 1024));
  EXPECT_EQ(json["best"]["prediction"]["tokens_per_second_per_gpu"].get<double>(), 20.0 / 8);
  EXPECT_EQ(json["alternatives"][0]["why_not"], "slower");
}

TEST(PlanFile, errors_name_the_document_and_the_path) {
  EXPECT_EQ(error_after([](nlohmann::json&) {}), "");
  const std::string message = error_after([](nlohmann::json& json) { json["best"]["layout"]["dp"] = "eight"; });
  EXPECT_EQ(message, "p.json: `best.layout.dp` is not a whole number of 64 bits; write a whole number");
  EXPECT_NE(
      error_after([](nlohmann::json& json) { json["best"]["layout"].erase("dp"); }).find("`best.layout.dp` is missing"),
      std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) {
              json["best"]["bacth"] = 1;
            }).find("`best.bacth` is an unknown key; did you mean `batch`?"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) {
              json["alternatives"][0]["knobs"]["x"] = 1;
            }).find("alternatives[0].knobs.x"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["schema"] = "lockstep.plan/2"; }).find("lockstep.plan/1"),
            std::string::npos);
}

TEST(PlanFile, figures_that_contradict_each_other_are_refused) {
  EXPECT_NE(error_after([](nlohmann::json& json) {
              json["best"]["batch"]["global_sequences"] = 47;
            }).find("global_sequences"),
            std::string::npos);
  EXPECT_NE(
      error_after([](nlohmann::json& json) { json["best"]["memory_gib"]["total"] = 1.0; }).find("memory_gib.total"),
      std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["best"]["layout"]["dp"] = 16; }).find("16 ranks"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["best"]["layout"]["zero"] = 3; }).find("zero=3"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) {
              json["best"]["prediction"]["intervals"]["mfu"]["low"] = 0.7;
            }).find("low <= expected"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["best"]["prediction"]["mfu"] = 0.9; }).find("prediction.mfu"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["best"]["batch"]["micro"] = INT64_MAX; }), "");
  EXPECT_NE(error_after([](nlohmann::json& json) { json["best"]["batch"]["micro"] = 18446744073709551615ull; }), "");
}

TEST(PlanFile, is_kept_on_disk_and_a_missing_one_is_the_environments_fault) {
  const TemporaryFolder folder("plan");
  const std::string path = (folder.path() / "plan.json").string();
  save_plan(sample_plan(), path);
  EXPECT_EQ(load_plan(path).best, sample_plan().best);
  try {
    load_plan(path + ".none");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
  }
  write_file_atomically(path, "{\"schema\": ");
  EXPECT_THROW(load_plan(path), UserError);
}

}  // namespace
}  // namespace lockstep::plan
