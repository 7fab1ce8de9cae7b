#include "lockstep/spec/job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/spec/job_identity.h"
#include "lockstep/spec/presets.h"

namespace lockstep::spec {
namespace {

using lockstep::testing::user_error;
namespace fs = std::filesystem;

const char* const kDemo = R"(model: gpt2-124m
cluster: 1x4xcpu
data: {kind: text, path: corpus, tokenizer: bytes}
batch: {micro: 4, accumulation: 2, sequence_length: 256}
optimizer: {kind: adamw, learning_rate: 3e-4, schedule: cosine, warmup_steps: 100}
steps: 200
layout: {dp: 4}
checkpoint: {directory: ckpt, every: 10m, keep: 3}
seed: 1
)";

const char* const kEverything = R"(name: all
model: {preset: llama2-7b, layers: 4, rope_scaling: {kind: llama3, factor: 8, original_max_sequence: 2048}}
cluster:
  groups: [{kind: H100, nodes: 2}, {kind: A100, nodes: 1, devices_per_node: 4}]
data: {kind: tokens, path: /d, tokenizer: /t, holdout: 0.013, evaluation_path: "/e f", shuffle: false,
       chat_template: llama2, packing: documents, field: body, on_bad: skip}
batch: {micro: 3, accumulation: 7, sequence_length: 1000, on_resize: scale, learning_rate_rule: sqrt,
        schedule: [{until: 10 steps, accumulation: 2}, {until: 2M tokens, global: 30}, {until: 9k samples, global: 60}]}
optimizer: {kind: sgd, learning_rate: 0.1, min_learning_rate: 0.01, schedule: linear, warmup_steps: 3,
            betas: [0.8, 0.9], epsilon: 1e-9, weight_decay: 0.3, decay: matrices, momentum: 0.7, nesterov: true, clip_norm: 0.1,
            state_precision: bf16}
loader: {num_workers: 3, prefetch_factor: 5}
communication: {backend: mpi, timeout: 1m30s, bucket: 3MB, compression: powersgd, powersgd_rank: 2,
                reduce_each_micro_step: true, reshard_after_forward: false}
evaluation: {every: 9, samples: 40, metrics: [perplexity, accuracy]}
checkpoint: {directory: /c, every_steps: 17, max_lost: 7m, keep: 9, preempt_file: /p, preempt_url: aws,
             preempt_text: terminate, stop_timeout: 90s}
recovery: {restarts: 4, standby: 2, wait: 7s, silence: 9s, snapshots: {every: 6}}
health: {nonfinite: rollback, skip_limit: 7, spike: stop, gradient_outlier: skip, rollback_steps: 9, max_rollbacks: 1,
         replica_check_every: 7, node_checks: record}
alerts: {slow_down: 0.04, mfu_drop: 0.09, below_prediction: 0.2, straggler: 0.3, loss_spike: 6, gradient_outlier: 7,
         loader_stall: 0.25, memory_creep: 0.5, checkpoint_overdue: 0.75, heartbeat: 3m, disk_filling: 1h, hold: 2s,
         pause: 5m, off: [straggler, mfu_drop], webhook: "env:HOOK", command: [mail, "-s", "a b; $c", me]}
layout: {pp: 2, dp: 5, tp: 2, zero: 0, schedule: 1f1b, recompute: selective, sequence_parallel: true,
         context_exchange: all_to_all, offload: optimizer, stage_layers: [1, 3]}
weights: "/w/my model"
lora: {rank: 8, alpha: 32.5, targets: [q_proj, down_proj]}
activation_offload: true
precision: bf16
tokens: 1.5B
seed: -12
threads_per_rank: 2
)";

// The demo with one line changed.
std::string demo_with(const std::string& from, const std::string& to) {
  std::string text = kDemo;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Job, metrics_that_make_no_sense_are_refused_by_name) {
  const auto message = [](const std::string& model, const std::string& data, const std::string& evaluation) {
    return user_error([&] {
      parse_job(
          "model: " + model + "\ncluster: 1x1xcpu\ndata: " + data + "\nevaluation: " + evaluation + "\nsteps: 1\n",
          "job.yaml");
    });
  };
  const std::string text = "{kind: text, path: t}", images = "{kind: mnist, path: m}";
  EXPECT_HAS(message("gpt2-124m", text, "{metrics: [f1]}"), "metric f1: gpt2-124m predicts tokens");
  EXPECT_HAS(message("mnist-cnn", images, "{metrics: [perplexity]}"), "predicts classes of samples");
  EXPECT_HAS(message("mnist-cnn", images, "{metrics: [f2]}"), "unknown metric `f2`");
  EXPECT_HAS(message("mnist-cnn", images, "{batches: 1, samples: 2}"), "both batches and samples");
  EXPECT_EQ(parse_job("model: mnist-cnn\ncluster: 1x1xcpu\ndata: {kind: mnist, path: m}\n"
                      "evaluation: {metrics: [f1, f1_micro, accuracy]}\nsteps: 1\n",
                      "job.yaml")
                .evaluation.metrics.size(),
            3u);
}

TEST(Job, packing_keeps_documents_apart_where_there_are_some) {
  EXPECT_HAS(user_error([] { parse_job(demo_with("tokenizer: bytes", "packing: false"), "job.yaml"); }),
             "always fills its sequences");
  EXPECT_EQ(parse_job(demo_with("tokenizer: bytes", "packing: documents"), "job.yaml").data.packing,
            Packing::kDocuments);
}

TEST(Job, reads_the_phases_of_a_batch) {
  const Job job = parse_job(kEverything, "all.yaml");
  ASSERT_EQ(job.batch.schedule.size(), 3u);
  EXPECT_EQ(job.batch.schedule[0], (BatchPhase{10, BatchUnit::kSteps, 2, 0}));
  EXPECT_EQ(job.batch.schedule[1], (BatchPhase{2'000'000, BatchUnit::kTokens, 0, 30}));
  EXPECT_EQ(job.batch.schedule[2], (BatchPhase{9000, BatchUnit::kSamples, 0, 60}));
  EXPECT_EQ(job.batch.learning_rate_rule, RateRule::kSqrt);
  const Job global = parse_job(demo_with("accumulation: 2", "global: 24"), "j.yaml");
  EXPECT_EQ(global.batch.global, 24);
  EXPECT_EQ(parse_job(to_yaml(global), "j.yaml").batch, global.batch);
}

TEST(Job, reads_the_file_of_the_manual) {
  const Job job = parse_job(kDemo, "demo.yaml");
  EXPECT_EQ(job.name, "demo");
  EXPECT_EQ(job.model, load_model("gpt2-124m"));
  EXPECT_EQ(job.cluster.devices(), 4);
  EXPECT_EQ(job.data.path, "corpus");
  EXPECT_EQ(job.batch.accumulation, 2);
  EXPECT_EQ(job.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(job.optimizer.schedule, ScheduleKind::kCosine);
  EXPECT_EQ(job.steps, 200);
  EXPECT_EQ(job.layout->axes.at("dp"), 4);
  EXPECT_EQ(job.checkpoint.every_seconds, 600.0);
}

TEST(Job, reads_every_key) {
  const Job job = parse_job(kEverything, "x.yaml");
  EXPECT_EQ(job.name, "all");
  EXPECT_EQ(job.data.holdout, 0.013);
  EXPECT_FALSE(job.data.shuffle);
  EXPECT_EQ(job.optimizer.beta1, 0.8);
  EXPECT_EQ(job.optimizer.beta2, 0.9);
  EXPECT_TRUE(job.optimizer.nesterov);
  EXPECT_EQ(job.communication.timeout_seconds, 90.0);
  EXPECT_EQ(job.communication.bucket_mib, 3e6 / 1048576);
  EXPECT_EQ(job.communication.compression, Compression::kPowerSgd);
  EXPECT_EQ(job.checkpoint.every_steps, 17);
  EXPECT_EQ(job.checkpoint.every_seconds, 0.0);  // by steps only
  EXPECT_EQ(job.layout->choices.at("recompute"), "selective");
  EXPECT_EQ(job.layout->choices.at("context_exchange"), "all_to_all");
  EXPECT_EQ(job.layout->choices.at("offload"), "optimizer");
  EXPECT_EQ(job.layout->stage_layers, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(job.data.chat_template, ChatTemplate::kLlama2);
  EXPECT_EQ(job.data.packing, Packing::kDocuments);
  EXPECT_EQ(job.optimizer.decay, Decay::kMatrices);
  EXPECT_EQ(job.evaluation.samples, 40);
  EXPECT_EQ(job.evaluation.metrics, (std::vector<std::string>{"perplexity", "accuracy"}));
  EXPECT_EQ(job.data.field, "body");
  EXPECT_EQ(job.data.on_bad, OnBad::kSkip);
  EXPECT_TRUE(job.communication.reduce_each_micro_step);
  EXPECT_FALSE(job.communication.reshard_after_forward);
  EXPECT_EQ(job.weights, "/w/my model");
  EXPECT_EQ(job.lora, (Lora{8, 32.5, {"q_proj", "down_proj"}}));
  EXPECT_TRUE(job.activation_offload);
  EXPECT_EQ(job.precision, Precision::kBf16);
  EXPECT_EQ(job.tokens, 1'500'000'000);
  EXPECT_EQ(job.seed, -12);
  EXPECT_EQ(job.threads_per_rank, 2);
}

// A job whose `data` is as given.
std::string with_data(const std::string& model, const std::string& data) {
  return "model: " + model + "\ncluster: 1x1xcpu\nsteps: 1\ndata: " + data + "\n";
}

TEST(Job, sources_and_augmentation_are_written_as_they_are_read) {
  const Job mixed =
      parse_job(with_data("gpt2-124m", "{kind: text, sources: [{path: /a, weight: 3}, {path: /b}]}"), "j.yaml");
  EXPECT_EQ(mixed.data.sources, (std::vector<DataSource>{{"/a", 3.0}, {"/b", 1.0}}));
  EXPECT_EQ(parse_job(to_yaml(mixed), "j.yaml"), mixed) << to_yaml(mixed);
  const Job images = parse_job(
      with_data("resnet18", "{kind: images, path: /p, augment: {padding: 4, scale: 0.25, flip: true}}"), "j.yaml");
  EXPECT_EQ(images.data.augment, (Augmentation{4, 0.25, true}));
  EXPECT_EQ(parse_job(to_yaml(images), "j.yaml"), images) << to_yaml(images);
}

TEST(Job, sources_and_augmentation_are_refused_where_they_mean_nothing) {
  const auto refused = [](const char* model, const char* data, const char* why) {
    try {
      parse_job(with_data(model, data), "j.yaml");
      ADD_FAILURE() << data << " was read";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("j.yaml:4:"), std::string::npos) << error.what();
    }
  };
  refused("gpt2-124m", "{kind: text, path: /a, sources: [{path: /b}]}", "keep one of them");
  refused("gpt2-124m", "{kind: text, sources: []}", "not a list");
  refused("gpt2-124m", "{kind: text, sources: [{weight: 2}]}", "path");
  refused("gpt2-124m", "{kind: text, sources: [{path: /b, weight: 0}]}", "weight");
  refused("gpt2-124m", "{kind: text}", "path");
  refused("resnet18", "{kind: images, sources: [{path: /b}]}", "is not mixed");
  refused("gpt2-124m", "{kind: text, path: /a, augment: {flip: true}}", "not augmented");
  refused("gpt2-124m", "{kind: text, path: /a, on_bad: ignore}", "on_bad");
}

TEST(Job, without_a_precision_takes_the_usual_one_of_the_devices) {
  const auto precision_on = [](const std::string& cluster) {
    const Job job = parse_job(demo_with("1x4xcpu", cluster), "j.yaml");
    EXPECT_EQ(parse_job(to_yaml(job), "j.yaml"), job) << to_yaml(job);
    return job.precision;
  };
  EXPECT_EQ(precision_on("1x4xcpu"), Precision::kFp32);
  EXPECT_EQ(precision_on("1x4xV100"), Precision::kFp16);
  EXPECT_EQ(precision_on("1x4xH100"), Precision::kBf16);
  const std::string said = demo_with("1x4xcpu", "1x4xH100") + "precision: fp32\n";
  EXPECT_EQ(parse_job(said, "j.yaml").precision, Precision::kFp32);
}

TEST(Job, survives_being_written_and_read) {
  for (const char* text : {kDemo, kEverything}) {
    const Job job = parse_job(text, "x.yaml");
    EXPECT_EQ(parse_job(to_yaml(job), "other.yaml"), job) << to_yaml(job);
    EXPECT_EQ(to_yaml(parse_job(to_yaml(job), "other.yaml")), to_yaml(job));
  }
}

TEST(Job, relative_paths_start_from_the_file_and_in_overrides_from_the_working_folder) {
  const TemporaryFolder folder;
  make_folders(folder.path() / "jobs");
  const fs::path file = folder.path() / "jobs" / "j.yaml";
  write_file_atomically(file, demo_with("path: corpus", "path: ../corpus"));
  EXPECT_EQ(load_job(file.string()).data.path, (folder.path() / "corpus").string());
  EXPECT_EQ(load_job(file.string()).checkpoint.directory, (folder.path() / "jobs/ckpt").string());
  EXPECT_EQ(load_job(file.string()).data.tokenizer, "bytes");
  EXPECT_EQ(load_job(file.string(), {"data.path=here"}).data.path, (fs::current_path() / "here").string());
  EXPECT_EQ(load_job(file.string(), {"data.tokenizer=tok"}).data.tokenizer, (fs::current_path() / "tok").string());
  EXPECT_EQ(load_job(file.string(), {"data.path=/abs"}).data.path, "/abs");
  EXPECT_EQ(load_job(file.string(), {"weights=w"}).weights, (fs::current_path() / "w").string());
  write_file_atomically(file, std::string(kDemo) + "weights: ../w\n");
  EXPECT_EQ(load_job(file.string()).weights, (folder.path() / "w").string());
}

TEST(Job, models_and_clusters_may_be_files_beside_the_job) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "tiny.yaml", "preset: gpt2-124m\nlayers: 2\n");
  write_file_atomically(folder.path() / "lab.yaml", "groups: [{kind: L4, devices_per_node: 4}]\n");
  std::string text = demo_with("gpt2-124m", "tiny.yaml");
  text.replace(text.find("1x4xcpu"), 7, "lab.yaml");
  write_file_atomically(folder.path() / "j.yaml", text);
  const Job job = load_job((folder.path() / "j.yaml").string());
  EXPECT_EQ(job.model.layers, 2);
  EXPECT_EQ(job.cluster.name, "lab");
}

TEST(Job, errors_give_the_exact_place) {
  const auto error = [](const std::string& text) { return user_error([&] { parse_job(text, "j.yaml"); }); };
  EXPECT_EQ(error(demo_with("micro: 4", "mciro: 4")),
            "j.yaml:4:9: unknown key `mciro` in batch; did you mean `micro`?");
  EXPECT_EQ(error(demo_with("steps: 200", "setps: 200")), "j.yaml:6:1: unknown key `setps`; did you mean `steps`?");
  EXPECT_HAS(error(demo_with("every: 10m", "every: 10")), "j.yaml:8:38: `checkpoint.every`: `10` is not a duration");
  EXPECT_HAS(error(demo_with("gpt2-124m", "gpt2-124n")),
             "j.yaml:1:8: there is no model preset `gpt2-124n`; did you mean");
  EXPECT_HAS(error(demo_with("1x4xcpu", "1x4xgpu")), "j.yaml:2:10: there is no device kind `gpu`");
  EXPECT_HAS(error(demo_with("kind: text", "kind: txt")), "j.yaml:3:14: `data.kind` cannot be `txt`");
  EXPECT_HAS(error(demo_with("{dp: 4}", "{pd: 4}")), "j.yaml:7:10: unknown key `pd` in layout; did you mean `pp`?");
  EXPECT_HAS(error(demo_with("adamw", "adam")), "(did you mean `adamw`?)");
  EXPECT_HAS(error(demo_with("seed: 1", "seed: 1\nseed: 2")), "j.yaml:10:1: the key `seed` is given twice");
  EXPECT_HAS(error(demo_with("micro: 4", "micro: 0")), "j.yaml:4:16: `batch.micro` is 0");
  EXPECT_HAS(error("[]"), "a map was expected");
  EXPECT_HAS(error(""), "a map was expected");
}

TEST(Job, checkpoints_come_as_it_says_or_as_is_best) {
  const auto read = [](const std::string& value) {
    return parse_job(demo_with("every: 10m", value), "x").checkpoint.every_seconds;
  };
  EXPECT_EQ(read("every: 10m"), 600.0);
  EXPECT_EQ(read("every: 0s"), 0.0);
  EXPECT_EQ(read("every: auto"), CheckpointPolicy::kAuto);
  EXPECT_EQ(read("max_lost: 20m"), CheckpointPolicy::kAuto) << "nothing was said";
  EXPECT_EQ(read("every_steps: 20"), 0.0) << "by steps alone";
  EXPECT_EQ(read("every: auto, every_steps: 20"), CheckpointPolicy::kAuto);
  EXPECT_EQ(parse_job(kDemo, "x").checkpoint.max_lost_seconds, 1800.0);
  EXPECT_EQ(parse_job(kEverything, "x").checkpoint.max_lost_seconds, 420.0);
  EXPECT_THROW(read("every: often"), UserError);
  EXPECT_THROW(read("max_lost: 0s"), UserError);
}

TEST(Job, says_how_long_a_rank_may_be_silent) {
  EXPECT_EQ(parse_job(kDemo, "x").recovery.silence_seconds, 30.0);
  EXPECT_EQ(parse_job(kEverything, "x").recovery.silence_seconds, 9.0);
  const std::string error =
      user_error([] { parse_job(std::string(kDemo) + "recovery: {silence: 500ms}\n", "j.yaml"); });
  EXPECT_HAS(error, "ranks give a sign of life twice a second");
}

TEST(Job, snapshots_are_taken_as_it_says_or_as_is_cheap) {
  EXPECT_EQ(parse_job(kDemo, "x").recovery.snapshots.every, Snapshots::kAuto);
  EXPECT_EQ(parse_job(kEverything, "x").recovery.snapshots.every, 6);
  const std::string wish = "\nrecovery: {snapshots: {every: ";
  EXPECT_EQ(parse_job(kDemo + wish + "auto}}\n", "x").recovery.snapshots.every, Snapshots::kAuto);
  EXPECT_EQ(parse_job(kDemo + wish + "0}}\n", "x").recovery.snapshots.every, 0);
  EXPECT_THROW(parse_job(kDemo + wish + "often}}\n", "x"), UserError);
  EXPECT_THROW(parse_job(kDemo + wish + "-1}}\n", "x"), UserError);
}

TEST(Job, names_where_notices_are_asked_for) {
  EXPECT_EQ(parse_job(kEverything, "x").checkpoint.preempt_url, "aws");
  EXPECT_EQ(parse_job(kEverything, "x").health.node_checks, NodeChecks::kRecord);
  const auto error = [](const std::string& keys) {
    return user_error([&] { parse_job(demo_with("every: 10m", "every: 10m, " + keys), "j.yaml"); });
  };
  EXPECT_HAS(error("preempt_url: https://a/"), "write aws, gcp, azure or a URL that begins with http://");
  EXPECT_HAS(error("preempt_text: TRUE"), "preempt_text is given and preempt_url is not");
}

TEST(Job, says_when_to_speak_up_and_to_whom) {
  const Alerts alerts = parse_job(kEverything, "x").alerts;
  EXPECT_EQ(alerts.slow_down, 0.04);
  EXPECT_EQ(alerts.heartbeat_seconds, 180.0);
  EXPECT_EQ(alerts.command, (std::vector<std::string>{"mail", "-s", "a b; $c", "me"}));
  EXPECT_FALSE(alerts.is_on(AlertRule::kStraggler));
  EXPECT_TRUE(alerts.is_on(AlertRule::kLossSpike));
  const auto error = [](const std::string& keys) {
    return user_error([&] { parse_job(kDemo + std::string("\nalerts: {") + keys + "}\n", "j.yaml"); });
  };
  EXPECT_HAS(error("slow_dwon: 0.1"), "did you mean `slow_down`?");
  EXPECT_HAS(error("slow_down: -1"), "alerts.slow_down");
  EXPECT_HAS(error("off: [slowdown]"), "did you mean `slow_down`?");
  EXPECT_HAS(error("command: []"), "the command is empty");
  EXPECT_HAS(error("webhook: hooks.example.org"), "webhook is not an address");
  EXPECT_HAS(error("webhook: 'env:a b'"), "after env: comes the name of a variable");
  EXPECT_HAS(error("webhook: 'file:here'"), "a path that begins with /");
  // What is secret neither goes into the record of a run nor into a message.
  const std::string secret = error("webhook: 'https://hooks.example.org/T0/B0/secret'");
  EXPECT_HAS(secret, "webhook: env:NAME");
  EXPECT_EQ(secret.find("/T0/"), std::string::npos) << secret;
}

TEST(Job, exactly_one_goal) {
  const auto error = [](const std::string& text) { return user_error([&] { parse_job(text, "j.yaml"); }); };
  EXPECT_HAS(error(demo_with("steps: 200", "steps: 200\ntokens: 4T")), "j.yaml:7:9: more than one of steps");
  EXPECT_HAS(error(demo_with("steps: 200\n", "")), "none of steps, tokens and epochs");
  EXPECT_EQ(parse_job(demo_with("steps: 200", "tokens: 4T"), "j").tokens, 4'000'000'000'000);
  EXPECT_EQ(parse_job(demo_with("steps: 200", "epochs: 1.5"), "j").epochs, 1.5);
}

TEST(Job, leaves_its_tune_section_to_the_tuner) {
  const Job plain = parse_job(kDemo, "job.yaml");
  EXPECT_EQ(parse_job(std::string(kDemo) + "tune: {knobs: {micro_batch: {choices: [1, 2]}}}\n", "job.yaml"), plain);
  EXPECT_HAS(user_error([] { parse_job(std::string(kDemo) + "tune: lockstep-cpu\n", "job.yaml"); }), "job.yaml:10");
}

TEST(Job, trains_every_weight_from_random_ones_unless_it_says_otherwise) {
  const Job job = parse_job(kDemo, "j.yaml");
  EXPECT_EQ(job.weights, "");
  EXPECT_EQ(job.lora.rank, 0);
  EXPECT_FALSE(job.activation_offload);
  EXPECT_FALSE(job.communication.reduce_each_micro_step);
  EXPECT_TRUE(job.communication.reshard_after_forward);
}

TEST(Job, adapters_go_on_queries_and_values_unless_it_says_otherwise) {
  const auto lora = [](const std::string& model, const std::string& text) {
    return parse_job(demo_with("gpt2-124m", model) + "lora: " + text + "\n", "j.yaml").lora;
  };
  EXPECT_EQ(lora("gpt2-124m", "{rank: 8}"), (Lora{8, 16, {"c_attn"}}));
  EXPECT_EQ(lora("llama2-7b", "{rank: 4, alpha: 8}"), (Lora{4, 8, {"q_proj", "v_proj"}}));
  EXPECT_EQ(lora("bert-base", "{rank: 4, targets: [dense]}"), (Lora{4, 16, {"dense"}}));
  const auto error = [&](const std::string& text) { return user_error([&] { lora("llama2-7b", text); }); };
  EXPECT_HAS(error("{alpha: 8}"), "the key `lora.rank` is missing");
  EXPECT_HAS(error("{rank: 0}"), "j.yaml:10:14: `lora.rank` is 0");
  EXPECT_HAS(error("{rank: 8, targets: []}"), "lora.targets is empty");
  EXPECT_HAS(error("{rank: 8, targets: q_proj}"), "`lora.targets` is a value, a list was expected");
  EXPECT_HAS(error("{rank: 8, targets: [q_prj]}"), "llama has no linear layer `q_prj`; did you mean `q_proj`?");
  EXPECT_HAS(user_error([] {
               parse_job("model: mnist-cnn\ncluster: 1x1xcpu\ndata: {kind: mnist, path: d}\nepochs: 1\nlora: {rank: 2}",
                         "j.yaml");
             }),
             "j.yaml:5:7: adapters need a language model");
}

// What axes and model make of it is for plan/nearest_layout.h to say.
TEST(Job, axes_of_a_layout_are_counts) {
  const auto error = [](const std::string& layout) {
    return user_error([&] { parse_job(demo_with("{dp: 4}", layout), "j.yaml"); });
  };
  EXPECT_HAS(error("{dp: 4, zero: 4}"), "0 to 3");
  EXPECT_HAS(error("{dp: 0}"), "`layout.dp` is 0");
  EXPECT_HAS(error("{pp: 4, stage_layers: [3, 3, -1, 7]}"), "stage_layers");
  EXPECT_NO_THROW(parse_job(demo_with("{dp: 4}", "{pp: 4, stage_layers: [3, 3, 3, 3]}"), "j"));
  const std::vector<std::int64_t> as_plans_write_it = {4, 3, 3, 2};
  EXPECT_EQ(parse_job(demo_with("{dp: 4}", "{pp: 4, stage_layers: 4+3x2+2}"), "j").layout->stage_layers,
            as_plans_write_it);
  EXPECT_HAS(error("{pp: 4, stage_layers: 4+x}"), "stage_layers");
  EXPECT_NO_THROW(parse_job(demo_with("{dp: 4}", "{shard: 4, zero: 3}"), "j"));
}

TEST(Job, data_must_fit_the_model) {
  const auto error = [](const std::string& text) { return user_error([&] { parse_job(text, "j.yaml"); }); };
  EXPECT_HAS(error(demo_with("kind: text", "kind: mnist")), "data of kind mnist cannot train gpt2-124m");
  EXPECT_HAS(error(demo_with("sequence_length: 256", "sequence_length: 2000")), "longer than the 1024 positions");
  const std::string image = "cluster: 1x2xcpu\ndata: {kind: cifar10, path: d}\nepochs: 1\nmodel: ";
  EXPECT_HAS(error(image + "resnet50"), "set model.image_size: 32");
  EXPECT_HAS(error(image + "mnist-cnn"), "the model takes images of 1x28x28, CIFAR-10 has 3x32x32");
  EXPECT_HAS(error(image + "{preset: cifar-cnn, classes: 4}"), "4 classes");
  EXPECT_NO_THROW(parse_job(image + "{preset: resnet50, classes: 10, image_size: 32}", "j"));
}

TEST(Job, instruction_data_needs_a_model_that_predicts_the_next_token) {
  const auto with = [](const std::string& model) {
    std::string text = demo_with("kind: text", "kind: instruction");
    return text.replace(text.find("gpt2-124m"), 9, model);
  };
  EXPECT_NO_THROW(parse_job(with("gpt2-124m"), "j"));
  EXPECT_HAS(user_error([&] { parse_job(with("bert-base"), "j.yaml"); }), "predict the next token; use text, tokens");
  EXPECT_HAS(user_error([&] { parse_job(with("{preset: gpt2-124m, classes: 2}"), "j.yaml"); }),
             "instruction data does not train a model with classes; set model.classes: 0");
  EXPECT_HAS(user_error([&] { parse_job(with("{preset: gpt2-124m, vocab: 99}"), "j.yaml"); }), "cannot hold bytes");
}

TEST(Job, sequence_length_defaults_to_the_models_context) {
  EXPECT_EQ(parse_job(demo_with(", sequence_length: 256", ""), "j").batch.sequence_length, 1024);
}

class JobOverrides : public ::testing::Test {
 protected:
  JobOverrides() : file_((folder_.path() / "j.yaml").string()) { write_file_atomically(file_, kDemo); }
  Job load(const std::vector<std::string>& overrides) { return load_job(file_, overrides); }
  std::string error(const std::vector<std::string>& overrides) {
    return user_error([&] { load(overrides); });
  }

  TemporaryFolder folder_;
  std::string file_;
};

TEST_F(JobOverrides, change_any_field) {
  const Job job = load({"batch.micro=16", "optimizer.betas=[0.9, 0.95]", "precision=bf16", "loader.num_workers=0",
                        "cluster=1x2xcpu", "layout.dp=2"});
  EXPECT_EQ(job.batch.micro, 16);
  EXPECT_EQ(job.batch.accumulation, 2);
  EXPECT_EQ(job.optimizer.beta2, 0.95);
  EXPECT_EQ(job.precision, Precision::kBf16);
  EXPECT_EQ(job.loader.num_workers, 0);
  EXPECT_EQ(job.cluster.devices(), 2);
}

TEST_F(JobOverrides, reach_into_a_preset) {
  EXPECT_EQ(load({"model.layers=2"}).model.layers, 2);
  EXPECT_EQ(load({"model=gpt2-355m", "model.layers=2"}).model.hidden, 1024);
}

TEST_F(JobOverrides, reach_into_a_model_file_and_a_hugging_face_folder) {
  const fs::path file = folder_.path() / "tiny.yaml", folder = folder_.path() / "encoder";
  write_file_atomically(file, "arch: gpt\nlayers: 2\nhidden: 64\nheads: 4\nvocab: 256\nmax_sequence: 512\n");
  make_folders(folder);
  write_file_atomically(folder / "config.json", R"({"model_type": "bert", "hidden_size": 384, "intermediate_size": 1536,
    "num_attention_heads": 12, "num_hidden_layers": 6, "vocab_size": 30522})");
  const Job small = load({"model=" + file.string(), "model.heads=8"});
  EXPECT_EQ(small.model.name, "tiny");
  EXPECT_EQ(small.model.head_dim, 8);
  const Job encoder = load({"model=" + folder.string(), "model.classes=2", "data.kind=classification"});
  EXPECT_EQ(encoder.model.name, "encoder");
  EXPECT_EQ(encoder.model.classes, 2);
  EXPECT_EQ(encoder.model.hidden, 384);
  write_file_atomically(file, "preset: gpt2-124m\n");
  EXPECT_HAS(error({"model=" + file.string(), "model.heads=8"}), "is not a model with `arch`");
  const std::string missing = (folder_.path() / "none.yaml").string();
  EXPECT_HAS(user_error(
                 [&] {
                   load({"model=" + missing, "model.heads=8"});
                 },
                 ExitCode::kEnvironment),
             "does not exist");
}

TEST_F(JobOverrides, replace_the_goal_and_the_layout) {
  const Job job = load({"tokens=1M"});
  EXPECT_EQ(job.tokens, 1'000'000);
  EXPECT_EQ(job.steps, 0);
  EXPECT_FALSE(load({"plan=p.json"}).layout.has_value());
  EXPECT_HAS(error({"tokens=1M", "epochs=2"}), "more than one of steps");
}

TEST_F(JobOverrides, errors_name_the_override) {
  EXPECT_EQ(error({"batch.mciro=4"}), "override batch.mciro=4: unknown key `mciro` in batch; did you mean `micro`?");
  EXPECT_HAS(error({"btach.micro=4"}), "override btach.micro=4: unknown key `btach`; did you mean `batch`?");
  EXPECT_HAS(error({"batch.micro=four"}), "override batch.micro=four: `batch.micro`: `four` is not a count");
  EXPECT_HAS(error({"model.hiden=4"}), "override model.hiden=4: unknown key `hiden` in model; did you mean `hidden`?");
  EXPECT_HAS(error({"steps"}), "override steps: an override is written key=value");
  EXPECT_HAS(error({"steps="}), "override steps=: `steps` has no value");
  EXPECT_HAS(error({"steps.x=1"}), "override steps.x=1: `steps` is a value, not a map");
}

TEST(JobFiles, of_the_repository_load_and_are_embedded) {
  const std::string folder = std::string(LOCKSTEP_SOURCE_DIR) + "/specs/jobs";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    const Job job = load_job(entry.path().string());
    EXPECT_EQ(job.name, entry.path().stem().string());
    EXPECT_EQ(parse_job(to_yaml(job), "j.yaml"), job) << entry.path();
    const EmbeddedSpec* embedded = find_embedded(embedded_jobs(), job.name);
    ASSERT_NE(embedded, nullptr) << job.name;
    EXPECT_EQ(embedded->text, read_file(entry.path())) << job.name;
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(JobFiles, mnist_data_lies_in_the_repository) {
  const Job job = load_job(std::string(LOCKSTEP_SOURCE_DIR) + "/specs/jobs/mnist-cnn.yaml");
  EXPECT_EQ(fs::path(job.data.path), fs::path(LOCKSTEP_SOURCE_DIR).lexically_normal() / "data/mnist");
  EXPECT_EQ(parameter_count(job.model), 1'199'882);
}

// The manual and the readers drift apart unless something holds them together.
TEST(JobFiles, the_manual_names_every_key_and_its_example_works) {
  const std::string manual = read_file(std::string(LOCKSTEP_SOURCE_DIR) + "/docs/reference/job-file.md");
  const std::size_t begin = manual.find("```yaml\n") + 8;
  parse_job(manual.substr(begin, manual.find("```", begin) - begin), "docs/reference/job-file.md");
  std::string written = to_yaml(parse_job(kEverything, "j.yaml"));  // has every key of the job's own sections
  written.erase(written.find("model:"), written.find("data:") - written.find("model:"));
  std::istringstream lines(written);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t start = line.find_first_not_of(' ');
    const std::string key = line.substr(start, line.find(':') - start);
    EXPECT_HAS(manual, "`" + key + "`");
  }
}

TEST(JobFiles, a_missing_file_is_an_environment_error) {
  EXPECT_HAS(user_error([] { load_job("/no/such/job.yaml"); }, ExitCode::kEnvironment), "/no/such/job.yaml");
}

TEST(JobFiles, a_module_says_what_pictures_are_made_into) {
  const auto job = [](const std::string& model) {
    return "model: {torchscript: net.pt, loss: cross_entropy, digest: here" + model +
           "}\ncluster: 1x1xcpu\ndata: {kind: images, path: p}\nbatch: {micro: 1}\nsteps: 1\n";
  };
  EXPECT_HAS(user_error([&] { parse_job(job(""), "j"); }), "set model.image_size and model.classes");
  EXPECT_HAS(user_error([&] { parse_job(job(", image_size: 32"), "j"); }), "`model.classes` is missing");
  const Job read = parse_job(job(", image_size: 32, classes: 7"), "j");
  EXPECT_EQ((std::vector{read.model.image_size, read.model.image_channels, read.model.classes}),
            (std::vector<std::int64_t>{32, 3, 7}));
  EXPECT_EQ(parse_job(to_yaml(read), "again").model, read.model);
  // What we write ourselves is not offered.
  const std::string error = user_error([&] { parse_job(job(", colour: red"), "j"); });
  EXPECT_HAS(error, "unknown key `colour`");
  EXPECT_EQ(error.find("facts"), std::string::npos) << error;
}

TEST(JobIdentity, a_change_is_named_by_its_key) {
  const Job before = parse_job(kEverything, "job");
  EXPECT_TRUE(changes_between(before, before).empty());
  Job now = before;
  now.seed += 1;
  now.optimizer.beta2 = 0.5;
  now.name = "other";
  const std::vector<KeyChange> changes = changes_between(before, now);
  ASSERT_EQ(changes.size(), 2U) << to_string(changes);
  EXPECT_EQ(changes[0].key, "optimizer.betas");
  EXPECT_EQ(changes[1].to_string(), fmt::format("seed {}, now {}", before.seed, now.seed));
}

TEST(JobIdentity, keys_have_their_roles) {
  for (const char* key : {"seed", "data.path", "data.shuffle", "model.layers", "lora.rank", "batch.sequence_length"}) {
    EXPECT_TRUE(is_identity(key)) << key;
  }
  for (const char* key :
       {"steps", "batch.micro", "optimizer.learning_rate", "checkpoint.keep", "name", "cluster.name"}) {
    EXPECT_FALSE(is_identity(key)) << key;
  }
  for (const char* key : {"seed", "optimizer.learning_rate", "checkpoint.every_steps", "steps", "model.dropout"}) {
    EXPECT_TRUE(is_shared_by_ranks(key)) << key;
  }
  for (const char* key : {"data.path", "checkpoint.directory", "threads_per_rank", "loader.num_workers"}) {
    EXPECT_FALSE(is_shared_by_ranks(key)) << key;
  }
}

}  // namespace
}  // namespace lockstep::spec
