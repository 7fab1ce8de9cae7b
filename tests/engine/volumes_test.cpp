// What the communicator counts while the engine trains equals what cost/ says the layout sends, byte for byte.
#include "tests/cost/volumes.h"

#include <gtest/gtest.h>

#include "lockstep/base/file.h"
#include "lockstep/engine/training_step.h"
#include "tests/data/testing.h"
#include "tests/parallel/ranks.h"

namespace lockstep::engine {
namespace {

constexpr int kSteps = 2;

// Widths are multiples of 32, so that no parameter is padded in the flat gradient; see the last test.
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
    std::int64_t padding = 0;  // bytes of the flat gradient that belong to no parameter
  };

  // Of every rank, averaged over kSteps steps that all counted the same.
  static std::vector<Counted> train(const spec::Job& job, int ranks) {
    std::vector<Counted> counted(static_cast<std::size_t>(ranks));
    parallel::run_ranks(ranks, [&](comm::Communicator group) {
      TrainingState state = build_training_state(job, group);
      group.reset_traffic();  // what made the ranks alike is no part of a step
      for (int step = 0; step < kSteps; ++step) run_step(state, job, group, {});
      const comm::Traffic traffic = group.traffic();
      Counted& mine = counted[static_cast<std::size_t>(group.rank())];
      const auto shared = static_cast<std::int64_t>(sizeof(state.shared_sums));  // loss and wishes
      mine.reduced = traffic[comm::OpKind::kAllReduce].bytes / kSteps - shared;
      mine.others = traffic.total_bytes() - traffic[comm::OpKind::kAllReduce].bytes;
      const parallel::FlatParameters& flat = *state.parameters;
      mine.padding =
          (flat.length() - flat.parameter_count()) * static_cast<std::int64_t>(flat.gradients().element_size());
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
      EXPECT_EQ(counted.padding, 0);
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

TEST_F(Volumes, padding_of_odd_parameters_is_all_that_the_counters_have_more) {
  const spec::Job job = job_of(cnn(10), 1, spec::Precision::kFp32);
  for (const Counted& counted : train(job, 2)) {
    EXPECT_EQ(counted.padding, 6 * 4);  // 10 biases, on a boundary of 64 bytes
    EXPECT_EQ(static_cast<double>(counted.reduced - counted.padding), predicted(job, 2));
  }
}

}  // namespace
}  // namespace lockstep::engine
