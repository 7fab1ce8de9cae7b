// What the communicator counts while the engine trains equals what cost/ says the layout sends, byte for byte.
#include "tests/cost/volumes.h"

#include <gtest/gtest.h>

#include "lockstep/base/file.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/sharded_executor.h"
#include "tests/data/testing.h"
#include "tests/parallel/ranks.h"

namespace lockstep::engine {
namespace {

constexpr int kSteps = 2;

spec::Model transformer(spec::Arch arch) {
  spec::Model model;
  model.name = spec::to_string(arch);
  model.arch = arch;
  model.layers = 2;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = arch == spec::Arch::kLlama ? 2 : 4;
  model.head_dim = 16;
  model.ffn_hidden = 96;
  model.vocab = 256;
  model.max_sequence = 32;
  model.tied_embeddings = arch == spec::Arch::kGpt;
  model.bias = arch == spec::Arch::kGpt;
  if (arch == spec::Arch::kLlama) model.activation = spec::Activation::kSilu;
  return model;
}

spec::Model cnn(std::int64_t classes) {
  spec::Model model;
  model.name = "cnn";
  model.arch = spec::Arch::kCifarCnn;
  model.image_size = 32;
  model.image_channels = 3;
  model.classes = classes;
  return model;
}

class Volumes : public ::testing::Test {
 protected:
  Volumes() {
    data::testing::write(folder_.path() / "text.txt", std::string(20000, 'x'));
    data::testing::write(folder_.path() / "images.bin", data::testing::cifar_records(0, 64));
  }

  spec::Job job_of(const spec::Model& model, std::int64_t accumulation, spec::Precision precision) const {
    spec::Job job;
    job.model = model;
    job.precision = precision;
    job.steps = kSteps;
    job.batch = {.micro = 2, .accumulation = accumulation, .sequence_length = model.max_sequence};
    job.data.kind = model.is_language_model() ? spec::DataKind::kText : spec::DataKind::kCifar10;
    job.data.path = (folder_.path() / (model.is_language_model() ? "text.txt" : "images.bin")).string();
    job.communication.bucket_mib = 0.02;  // several buckets: their sum is what counts
    return job;
  }

  struct Counted {
    std::int64_t reduced = 0;  // bytes of all-reduce in one step, all of them but the loss
    std::int64_t others = 0;   // bytes of every other kind of operation
  };

  // Of every rank, averaged over kSteps steps that all counted the same.
  static std::vector<Counted> train(const spec::Job& job, int ranks) {
    std::vector<Counted> counted(static_cast<std::size_t>(ranks));
    parallel::run_ranks(ranks, [&](comm::Communicator group) {
      plan::Layout layout;
      layout.dp = ranks;
      layout.precision = job.precision;
      ShardedOptions options;
      options.targets_per_sample = 1;  // known: nothing is counted
      const data::Datasets datasets = data::open_datasets(job);
      ShardedExecutor executor(job, plan::run_of(job, layout), group, options);
      data::LoaderOptions loading;
      loading.micro = job.batch.micro;
      loading.accumulation = job.batch.accumulation;
      loading.data_rank = executor.data_rank();
      loading.data_world = ranks;
      data::Loader loader(datasets.train, loading);
      executor.model().groups().reset_traffic();  // what made the ranks alike is not part of a step
      for (int step = 0; step < kSteps; ++step) {
        std::vector<data::Batch> batches;
        while (batches.empty() || !batches.back().last_of_step) batches.push_back(loader.next());
        executor.stage(std::move(batches));
        executor.step({.step = step, .learning_rate = 1e-3});
      }
      Counted& mine = counted[static_cast<std::size_t>(group.rank())];
      for (const auto& [name, traffic] : executor.model().groups().traffic()) {
        if (name == executor.model().groups().world.name()) continue;  // loss, norm and requests to save or stop
        mine.reduced += traffic[comm::OpKind::kAllReduce].bytes / kSteps;
        mine.others += traffic.total_bytes() - traffic[comm::OpKind::kAllReduce].bytes;
      }
      group.barrier().wait();
    });
    return counted;
  }

  static double predicted(const spec::Job& job, int ranks) {
    plan::Layout layout;
    layout.dp = ranks;
    layout.precision = job.precision;
    const plan::BatchPlan batch{.micro = job.batch.micro,
                                .accumulation = job.batch.accumulation,
                                .global_sequences = job.batch.micro * job.batch.accumulation * ranks,
                                .sequence_length = job.batch.sequence_length};
    const cost::Volumes volumes = cost::communication_volumes(job.model, layout, batch, cost::StackFacts{});
    EXPECT_EQ(volumes.total(), volumes.at(cost::CommAxis::kDp, cost::CollectiveOp::kAllReduce));
    return volumes.total();
  }

  static void expect_equal(const spec::Job& job, int ranks) {
    for (const Counted& counted : train(job, ranks)) {
      EXPECT_EQ(static_cast<double>(counted.reduced), predicted(job, ranks))
          << job.model.name << ", " << ranks << " ranks, " << spec::to_string(job.precision);
      EXPECT_EQ(counted.others, 0);
    }
  }

  TemporaryFolder folder_;
};

TEST_F(Volumes, of_gpt_llama_and_cnn_equal_the_counters_for_any_ranks_and_accumulation) {
  for (const spec::Model& model : {transformer(spec::Arch::kGpt), transformer(spec::Arch::kLlama), cnn(32)}) {
    for (const int ranks : {2, 3}) {
      for (const std::int64_t accumulation : {1, 3}) {
        expect_equal(job_of(model, accumulation, spec::Precision::kFp32), ranks);
      }
    }
  }
}

TEST_F(Volumes, gradients_of_16_bit_models_travel_in_32_and_those_of_fp64_in_64) {
  const spec::Model gpt = transformer(spec::Arch::kGpt);
  const double bf16 = predicted(job_of(gpt, 1, spec::Precision::kBf16), 2);
  EXPECT_EQ(bf16, predicted(job_of(gpt, 1, spec::Precision::kFp32), 2));
  EXPECT_EQ(2 * bf16, predicted(job_of(gpt, 1, spec::Precision::kFp64), 2));
  expect_equal(job_of(gpt, 2, spec::Precision::kBf16), 2);
  expect_equal(job_of(gpt, 2, spec::Precision::kFp64), 2);
}

TEST_F(Volumes, one_rank_reduces_no_gradient) {
  expect_equal(job_of(transformer(spec::Arch::kGpt), 2, spec::Precision::kFp32), 1);
}

TEST_F(Volumes, odd_parameters_are_not_padded) { expect_equal(job_of(cnn(10), 1, spec::Precision::kFp32), 2); }

}  // namespace
}  // namespace lockstep::engine
