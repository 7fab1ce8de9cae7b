// Configurations of spaces onto jobs: by fields, and by the words of `lockstep train`, which must mean the same.
#include "lockstep/tune/job/knobs.h"

#include <gtest/gtest.h>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/tune/job/space.h"

namespace lockstep::tune {
namespace {

using lockstep::testing::has;
using lockstep::testing::user_error;

const char* const kCpuJob =
    R"(model: {arch: gpt, name: tiny, layers: 2, hidden: 32, heads: 4, vocab: 256, max_sequence: 32}
cluster: 1x2xcpu
data: {kind: text, path: /usr/share/common-licenses, tokenizer: bytes}
batch: {micro: 2, accumulation: 4, sequence_length: 32}
loader: {num_workers: 2}
steps: 5
)";

const char* const kGpuJob = R"(model: llama2-7b
cluster: 1x8xH100
data: {kind: tokens, path: /nowhere, tokenizer: bytes}
layout: {shard: 8, zero: 3, recompute: selective}
batch: {micro: 2, accumulation: 4, sequence_length: 2048}
steps: 5
)";

spec::Job job_of(const std::string& text) { return spec::parse_job(text, "job.yaml"); }

JobKnobs knobs_of(const std::string& space, const std::string& job = kGpuJob) {
  return JobKnobs(Space::parse(space, "space.yaml"), job_of(job));
}

Config config_of(const JobKnobs& knobs, const nlohmann::json& values) {
  return knobs.space().from_json(values, "config");
}

plan::Layout layout_of(const spec::Job& job) { return plan::layout_from_request(*job.layout, job.precision); }

TEST(JobKnobs, well_known_names_find_their_fields) {
  const JobKnobs knobs = knobs_of(R"(knobs:
  micro_batch: {choices: [1, 2, 4]}
  gradient_accumulation: {choices: [1, 2, 4]}
  num_workers: {int: [0, 8]}
  prefetch_factor: {int: [1, 8]}
  bucket_mib: {choices: [0.5, 25]}
  omp_threads: {int: [1, 4]}
  precision: {choices: [bf16, fp8]}
  recompute: {choices: [none, full]}
)");
  const spec::Job job = knobs.apply(config_of(knobs, {{"micro_batch", 4},
                                                      {"gradient_accumulation", 2},
                                                      {"num_workers", 3},
                                                      {"prefetch_factor", 5},
                                                      {"bucket_mib", 0.5},
                                                      {"omp_threads", 2},
                                                      {"precision", "fp8"},
                                                      {"recompute", "full"}}));
  EXPECT_EQ(job.batch.micro, 4);
  EXPECT_EQ(job.batch.accumulation, 2);
  EXPECT_EQ(job.loader.num_workers, 3);
  EXPECT_EQ(job.loader.prefetch_factor, 5);
  EXPECT_EQ(job.communication.bucket_mib, 0.5);
  EXPECT_EQ(job.threads_per_rank, 2);
  EXPECT_EQ(job.precision, spec::Precision::kFp8);
  EXPECT_EQ(layout_of(job).recompute, plan::Recompute::kFull);
}

TEST(JobKnobs, a_target_in_the_space_wins_over_the_name) {
  const JobKnobs knobs = knobs_of("knobs: {tp: {choices: [1, 2], target: batch.micro}}");
  const spec::Job job = knobs.apply(config_of(knobs, {{"tp", 1}}));
  EXPECT_EQ(job.batch.micro, 1);
  EXPECT_EQ(layout_of(job).tp, 1);
}

TEST(JobKnobs, ranks_that_tensor_and_pipeline_leave_go_to_the_shards) {
  const JobKnobs knobs =
      knobs_of("knobs: {zero: {choices: [0, 1, 3]}, tp: {choices: [1, 2, 8]}, pp: {choices: [1, 2]}}");
  const auto layout = [&](int zero, int tp, int pp) {
    return layout_of(knobs.apply(config_of(knobs, {{"zero", zero}, {"tp", tp}, {"pp", pp}})));
  };
  EXPECT_EQ(layout(3, 1, 1).shard, 8);
  EXPECT_EQ(layout(3, 1, 1).dp, 1);
  EXPECT_EQ(layout(3, 2, 2).shard, 2);
  EXPECT_EQ(layout(0, 2, 1).dp, 4);
  EXPECT_EQ(layout(0, 2, 1).shard, 1);
  EXPECT_EQ(layout(3, 2, 2).schedule, plan::Schedule::kOneForwardOneBackward);
  // Nobody is left to share the state with, so no stage means anything.
  EXPECT_EQ(layout(3, 8, 1).zero, 0);
  for (const int zero : {0, 1, 3})
    for (const int tp : {1, 2, 8})
      EXPECT_EQ(plan::find_layout_problem(layout(zero, tp, 1)), std::nullopt) << zero << ' ' << tp;
}

TEST(JobKnobs, hybrid_sharding_keeps_its_replicas) {
  std::string text = kGpuJob;
  text.replace(text.find("{shard: 8"), 9, "{dp: 2, shard: 4");
  const JobKnobs knobs = knobs_of("knobs: {recompute: {choices: [none, full]}, tp: {choices: [1, 2]}}", text);
  const plan::Layout layout = layout_of(knobs.apply(config_of(knobs, {{"recompute", "full"}, {"tp", 2}})));
  EXPECT_EQ(layout.dp, 2);
  EXPECT_EQ(layout.shard, 2);
}

TEST(JobKnobs, ranks_on_a_cpu_are_ranks_of_this_machine) {
  const JobKnobs knobs = knobs_of("knobs: {ranks: {choices: [1, 2, 4]}}", kCpuJob);
  const Config four = config_of(knobs, {{"ranks", 4}});
  const spec::Job job = knobs.apply(four);
  EXPECT_EQ(job.cluster, spec::load_cluster("1x4xcpu"));
  EXPECT_EQ(knobs.ranks(four), 4);
  EXPECT_EQ(knobs.overrides(four), std::vector<std::string>{"cluster=1x4xcpu"});
}

TEST(JobKnobs, variables_go_to_the_environment) {
  const JobKnobs knobs =
      knobs_of("knobs: {NCCL_ALGO: {choices: [auto, Ring, Tree]}, my_env: {choices: [a, b], target: env}}");
  const Config config = config_of(knobs, {{"NCCL_ALGO", "Tree"}, {"my_env", "b"}});
  EXPECT_EQ(knobs.environment(config), (std::map<std::string, std::string>{{"NCCL_ALGO", "Tree"}, {"my_env", "b"}}));
  const Config automatic = config_of(knobs, {{"NCCL_ALGO", "auto"}, {"my_env", "a"}});
  EXPECT_EQ(knobs.environment(automatic), (std::map<std::string, std::string>{{"my_env", "a"}}));
  EXPECT_TRUE(knobs.overrides(config).empty());
  EXPECT_EQ(knobs.apply(config), knobs.base());
}

TEST(JobKnobs, an_inactive_knob_leaves_the_job_as_it_is) {
  const JobKnobs knobs = knobs_of(R"(knobs:
  num_workers: {choices: [0, 1]}
  prefetch_factor: {choices: [4, 8], when: num_workers > 0}
)");
  const Config config = config_of(knobs, {{"num_workers", 0}});
  EXPECT_EQ(knobs.apply(config).loader.prefetch_factor, 2);
  EXPECT_EQ(knobs.overrides(config), std::vector<std::string>{"loader.num_workers=0"});
}

// The words must make `lockstep train` run the very job that is priced.
TEST(JobKnobs, overrides_mean_what_apply_does) {
  const TemporaryFolder folder;
  const struct {
    const char* job;
    const char* space;
  } cases[] = {{kCpuJob, R"(knobs:
  ranks: {choices: [1, 2, 4]}
  micro_batch: {choices: [1, 2, 4, 8]}
  accumulation: {choices: [1, 2, 4, 8]}
  bucket_mib: {choices: [0.25, 1, 25]}
  num_workers: {choices: [0, 1, 2]}
  prefetch_factor: {choices: [1, 2], when: num_workers > 0}
  omp_threads: {choices: [1, 2]}
  compression: {choices: [none, fp16, powersgd]}
  shuffle: {choices: [true, false], target: data.shuffle}
)"},
               {kCpuJob, "knobs: {zero: {choices: [0, 1, 2, 3]}, ranks: {choices: [1, 2, 4]}, tp: {choices: [1, 2]}}"},
               {kGpuJob, R"(knobs:
  zero: {choices: [0, 1, 2, 3]}
  tp: {choices: [1, 2, 4, 8]}
  pp: {choices: [1, 2, 4]}
  schedule: {choices: [none, 1f1b, gpipe]}
  sequence_parallel: {choices: [true, false]}
  recompute: {choices: [none, selective, full]}
  reshard_after_forward: {choices: [true, false]}
  precision: {choices: [bf16, fp16, fp8]}
)"}};
  Random random(7);
  for (const auto& item : cases) {
    const std::string path = (folder.path() / "job.yaml").string();
    write_file_atomically(path, item.job);
    const JobKnobs knobs(Space::parse(item.space, "space.yaml"), spec::load_job(path));
    for (int i = 0; i < 200; ++i) {
      const Config config = knobs.space().sample(random);
      const spec::Job wanted = knobs.apply(config);
      spec::Job read = spec::load_job(path, knobs.overrides(config));
      // A layout may be written in more than one way.
      ASSERT_EQ(read.layout.has_value(), wanted.layout.has_value()) << knobs.space().to_text(config);
      if (wanted.layout) {
        EXPECT_EQ(layout_of(read), layout_of(wanted)) << knobs.space().to_text(config);
      }
      read.layout = wanted.layout;
      EXPECT_EQ(read, wanted) << knobs.space().to_text(config);
    }
  }
}

TEST(JobKnobs, knobs_that_no_job_has_are_refused_with_the_nearest_field) {
  EXPECT_TRUE(has(user_error([] { knobs_of("knobs: {warp_speed: {int: [1, 9]}}"); }), "warp_speed"));
  const auto typo = user_error([] { knobs_of("knobs: {x: {int: [1, 9], target: layout.zerro}}"); });
  EXPECT_TRUE(has(typo, "layout.zero"));
  const auto twice =
      user_error([] { knobs_of("knobs: {micro_batch: {int: [1, 2]}, mb: {int: [1, 2], target: batch.micro}}"); });
  EXPECT_TRUE(has(twice, "already"));
}

TEST(JobKnobs, levels_that_a_field_cannot_take_are_refused_at_once) {
  for (const char* space :
       {"knobs: {micro_batch: {int: [0, 4]}}", "knobs: {zero: {int: [0, 4]}}", "knobs: {precision: {choices: [bf17]}}",
        "knobs: {recompute: {choices: [some]}}", "knobs: {shuffle: {choices: [maybe], target: data.shuffle}}"}) {
    EXPECT_TRUE(has(user_error([&] { knobs_of(space); }), "knob `")) << space;
  }
}

std::string file_with(const TemporaryFolder& folder, const std::string& text) {
  const std::string path = (folder.path() / "job.yaml").string();
  write_file_atomically(path, text);
  return path;
}

TEST(JobSpace, of_the_tune_section_takes_its_defaults_from_the_job) {
  const TemporaryFolder folder;
  const std::string path = file_with(folder, std::string(kCpuJob) + R"(tune:
  knobs:
    micro_batch: {choices: [1, 2, 4, 8]}
    accumulation: {choices: [1, 2, 4, 8]}
    num_workers: {choices: [0, 1, 2, 4]}
    bucket_mib: {choices: [1, 25], default: 1}
)");
  const spec::Job job = spec::load_job(path);
  const Space space = space_for_job(job, path, "");
  const nlohmann::json usual = space.to_json(space.default_config());
  EXPECT_EQ(usual, (nlohmann::json{{"micro_batch", 2}, {"accumulation", 4}, {"num_workers", 2}, {"bucket_mib", 1}}));
  // And the global batch stays that of the job.
  Random random(3);
  for (int i = 0; i < 50; ++i) {
    const spec::Job drawn = JobKnobs(space, job).apply(space.sample(random));
    EXPECT_EQ(drawn.batch.micro * drawn.batch.accumulation, 8);
  }
}

TEST(JobSpace, a_tune_section_with_a_slip_names_its_place) {
  const TemporaryFolder folder;
  const std::string path = file_with(folder, std::string(kCpuJob) + "tune:\n  knbos: {ranks: {choices: [1, 2]}}\n");
  const auto error = user_error([&] { space_for_job(spec::load_job(path), path, ""); });
  EXPECT_TRUE(has(error, "job.yaml:8:3"));
  EXPECT_TRUE(has(error, "`knobs`"));
}

// `lockstep tune JOB --simulate` without a space of its own.
TEST(JobSpace, of_a_gpu_job_is_the_preset_narrowed_to_what_it_can_run) {
  const TemporaryFolder folder;
  const std::string path = file_with(folder, kGpuJob);
  const spec::Job job = spec::load_job(path);
  const Space space = space_for_job(job, path, "");
  const JobKnobs knobs(space, job);
  const spec::Job usual = knobs.apply(space.default_config());
  EXPECT_EQ(usual.batch, job.batch);
  EXPECT_EQ(layout_of(usual), layout_of(job));
  Random random(11);
  for (int i = 0; i < 300; ++i) {
    const Config config = space.sample(random);
    const spec::Job drawn = knobs.apply(config);
    const plan::Layout layout = layout_of(drawn);
    EXPECT_EQ(layout.world(), 8) << space.to_text(config);
    EXPECT_EQ(plan::find_layout_problem(layout, &job.model), std::nullopt) << space.to_text(config);
    EXPECT_EQ(drawn.batch.micro * drawn.batch.accumulation * layout.data_ranks(), 64) << space.to_text(config);
    EXPECT_EQ(drawn.precision, job.precision) << space.to_text(config);  // `train` has no fp8 on several GPUs
  }
}

TEST(JobSpace, levels_that_the_devices_do_not_have_are_gone) {
  std::string text = kGpuJob;
  text.replace(text.find("1x8xH100"), 8, "1x4xA100");
  text.replace(text.find("shard: 8"), 8, "shard: 4");
  const TemporaryFolder folder;
  const std::string path = file_with(folder, text);
  const Space space = space_for_job(spec::load_job(path), path, "");
  EXPECT_EQ(space.find("precision"), std::nullopt);  // bf16 alone is left
  for (const Value& tp : space.knobs()[space.find("tp").value()].choices) EXPECT_LE(std::get<std::int64_t>(tp), 4);
}

// One device: nothing travels between ranks, so nothing of it is turned; fp8 is the fused step's, of Llamas.
TEST(JobSpace, one_device_has_no_knobs_between_ranks) {
  for (const auto& [model, has_fp8] : {std::pair<std::string, bool>{"llama3.2-1b", true}, {"gpt2-124m", false}}) {
    std::string text = kGpuJob;
    text.replace(text.find("llama2-7b"), 9, model);
    text.replace(text.find("1x8xH100"), 8, "1x1xH100");
    text.replace(text.find("shard: 8, zero: 3"), 17, "dp: 1");
    text.replace(text.find("2048"), 4, "1024");
    const TemporaryFolder folder;
    const std::string path = file_with(folder, text);
    const Space space = space_for_job(spec::load_job(path), path, "");
    for (const char* name : {"bucket_mib", "NCCL_ALGO", "NCCL_PROTO"})
      EXPECT_EQ(space.find(name), std::nullopt) << name;
    EXPECT_EQ(space.knobs()[space.find("zero").value()].choices.size(), 1u);
    EXPECT_NE(space.find("recompute"), std::nullopt);
    EXPECT_EQ(space.find("precision").has_value(), has_fp8) << model;
  }
}

TEST(JobSpace, a_job_without_a_layout_starts_from_the_planner) {
  std::string text = kGpuJob;
  text.erase(text.find("layout:"), text.find("batch:") - text.find("layout:"));
  const spec::Job job = job_to_tune(job_of(text));
  ASSERT_TRUE(job.layout.has_value());
  EXPECT_EQ(plan::find_layout_problem(layout_of(job), &job.model), std::nullopt);
  EXPECT_EQ(job.batch.micro * job.batch.accumulation * layout_of(job).data_ranks(), 64);
}

}  // namespace
}  // namespace lockstep::tune
