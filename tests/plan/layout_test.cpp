#include "lockstep/plan/layout.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::plan {
namespace {

std::string problem_of(const Layout& layout, const spec::Model* model = nullptr) {
  return find_layout_problem(layout, model).value_or("");
}

spec::Model llama70b() {
  spec::Model model;
  model.name = "m";
  model.arch = spec::Arch::kLlama;
  model.layers = 80;
  model.hidden = 8192;
  model.heads = 64;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.ffn_hidden = 28672;
  return model;
}

TEST(Layout, world_is_the_product_of_the_five_axes_and_ep_is_none_of_them) {
  Layout layout;
  layout.pp = 2;
  layout.dp = 3;
  layout.shard = 5;
  layout.cp = 7;
  layout.tp = 11;
  layout.ep = 15;
  EXPECT_EQ(layout.world(), 2 * 3 * 5 * 7 * 11);
  EXPECT_EQ(layout.data_ranks(), 15);
  EXPECT_EQ(layout.sharding_ranks(), 35);
}

TEST(Layout, text_is_read_and_printed_back) {
  for (const char* text :
       {"dp=4", "dp=1", "dp=4,shard=8", "shard=8,zero=1", "pp=4,dp=2,tp=8,sequence_parallel=true",
        "pp=2,virtual_stages=2,stage_layers=8+8+7+9", "pp=4,stage_layers=8x3+7", "pp=6,stage_layers=7+8x4+7",
        "pp=4,schedule=gpipe", "dp=2,tp=2,recompute=selective,precision=bf16", "cp=4,zero=3"}) {
    const Layout layout = parse_layout(text);
    EXPECT_EQ(parse_layout(to_string(layout)), layout) << text << " printed as " << to_string(layout);
  }
  EXPECT_EQ(to_string(parse_layout("dp=4,shard=8,tp=1")), "dp=4,shard=8");
  EXPECT_EQ(to_string(parse_layout("pp=4,stage_layers=8+8+8+7")), "pp=4,stage_layers=8x3+7");
  EXPECT_THROW(parse_layout("pp=2,stage_layers=1x1000000000"), UserError);
  EXPECT_THROW(parse_layout("pp=2,stage_layers=8x0"), UserError);
}

TEST(Layout, sharding_defaults_to_stage_three_and_pipelines_to_1f1b) {
  EXPECT_EQ(parse_layout("shard=8").zero, 3);
  EXPECT_EQ(parse_layout("shard=8,zero=2").zero, 2);
  EXPECT_EQ(parse_layout("pp=4").schedule, Schedule::kOneForwardOneBackward);
  EXPECT_EQ(parse_layout("pp=4,virtual_stages=2").schedule, Schedule::kInterleaved);
}

TEST(Layout, text_errors_name_the_key_and_the_nearest_one) {
  try {
    parse_layout("dp=2,shrad=4");
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("shrad"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("`shard`"), std::string::npos) << error.what();
  }
  for (const char* text : {"dp", "dp=", "dp=two", "dp=2x", "dp=0", "dp=-1", "=4", "schedule=fast", "zero=4",
                           "dp=2,,tp=2", "dp=99999999999999999999", "dp=1000000,tp=1000000,pp=1000000"}) {
    EXPECT_THROW(parse_layout(text), UserError) << text;
  }
}

TEST(Layout, zero_and_shard_must_agree) {
  Layout layout;
  layout.shard = 4;
  EXPECT_NE(problem_of(layout).find("zero=0"), std::string::npos);
  layout.zero = 3;
  EXPECT_EQ(problem_of(layout), "");
  layout.shard = 1;
  EXPECT_NE(problem_of(layout).find("zero=3 needs ranks"), std::string::npos);
  layout.cp = 2;  // context-parallel ranks share the weights, so they are something to shard over
  EXPECT_EQ(problem_of(layout), "");
}

TEST(Layout, experts_divide_the_data_and_context_ranks) {
  Layout layout;
  layout.dp = 4;
  layout.ep = 8;
  EXPECT_NE(problem_of(layout).find("ep=8"), std::string::npos);
  layout.cp = 2;
  EXPECT_EQ(problem_of(layout), "");
}

TEST(Layout, schedules_need_a_pipeline_and_pipelines_a_schedule) {
  Layout layout;
  layout.schedule = Schedule::kGpipe;
  EXPECT_NE(problem_of(layout), "");
  layout.pp = 2;
  EXPECT_EQ(problem_of(layout), "");
  layout.schedule = Schedule::kNone;
  EXPECT_NE(problem_of(layout), "");
  layout.schedule = Schedule::kInterleaved;
  EXPECT_NE(problem_of(layout).find("virtual_stages"), std::string::npos);
  layout.virtual_stages = 2;
  EXPECT_EQ(problem_of(layout), "");
  layout.stage_layers = {1, 2};
  EXPECT_NE(problem_of(layout).find("stage_layers"), std::string::npos);
}

TEST(Layout, model_rules_name_what_does_not_divide) {
  const spec::Model model = llama70b();
  EXPECT_EQ(problem_of(parse_layout("tp=8"), &model), "");
  EXPECT_EQ(problem_of(parse_layout("tp=16"), &model), "");  // 8 key/value heads are replicated over 16 ranks
  EXPECT_NE(problem_of(parse_layout("tp=3"), &model).find("64 heads"), std::string::npos);
  EXPECT_NE(problem_of(parse_layout("pp=81"), &model).find("80 layers"), std::string::npos);
  EXPECT_NE(problem_of(parse_layout("pp=2,stage_layers=40+39"), &model).find("79 layers"), std::string::npos);
  EXPECT_NE(problem_of(parse_layout("dp=2,ep=2"), &model).find("experts"), std::string::npos);
}

TEST(Layout, job_files_choices_become_a_layout) {
  const spec::Job job = spec::parse_job(
      "model: gpt2-124m\ncluster: 1x4xcpu\ndata: {kind: text, path: d}\nsteps: 1\n"
      "layout: {shard: 2, cp: 2, context_exchange: all_to_all, offload: parameters}\n",
      "j.yaml");
  EXPECT_EQ(layout_from_request(*job.layout, job.precision),
            parse_layout("shard=2,cp=2,context_exchange=all_to_all,offload=parameters"));
}

TEST(Layout, job_files_axes_become_a_layout) {
  spec::LayoutRequest request;
  request.axes = {{"dp", 2}, {"tp", 4}};
  request.choices = {{"recompute", "full"}};
  request.sequence_parallel = true;
  const Layout layout = layout_from_request(request, spec::Precision::kBf16);
  EXPECT_EQ(layout, parse_layout("dp=2,tp=4,sequence_parallel=true,recompute=full,precision=bf16"));
}

}  // namespace
}  // namespace lockstep::plan
