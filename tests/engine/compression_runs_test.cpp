// Gradient compression wherever dp > 1 and zero = 0: fewer bytes move, training changes a little and still learns.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/engine/sharded_executor.h"
#include "tests/engine/training_run.h"
#include "tests/parallel/ranks.h"

namespace lockstep::engine {
namespace {

using spec::Compression;

struct Setup {
  std::string name, model, layout;
  std::int64_t accumulation = 1;
  std::int64_t lora = 0;
  friend void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.name; }
};

const std::string kSizes = "layers: 2, hidden: 64, heads: 4, ffn_hidden: 128, vocab: 256, max_sequence: 64";
const std::vector<Setup> kSetups = {
    {"replicas", "{arch: gpt, name: m, tied_embeddings: true, " + kSizes + "}", "dp=2", 1},
    {"recompute", "{arch: gpt, name: m, tied_embeddings: true, " + kSizes + "}", "dp=2,recompute=full", 2},
    {"lora", "{arch: llama, name: m, " + kSizes + "}", "dp=2", 1, 8},
    {"bert", "{arch: bert, name: m, tied_embeddings: true, type_vocab: 2, " + kSizes + "}", "dp=2", 1},
    {"moe", "{arch: moe, name: m, bias: false, experts: 4, experts_per_token: 2, " + kSizes + "}", "dp=2", 1},
    {"pipeline", "{arch: llama, name: m, " + kSizes + "}", "pp=2,dp=2", 2},
    {"tensor", "{arch: llama, name: m, " + kSizes + "}", "tp=2,dp=2", 1},
    {"context", "{arch: llama, name: m, " + kSizes + "}", "cp=2,dp=2", 1},
};

struct Trained {
  std::vector<double> losses;
  std::int64_t gradient_bytes = 0;  // of the last step, in the group that sums gradients
};

Trained trained(const Setup& setup, Compression compression, int steps = 12) {
  spec::Job job = TrainingRuns().job({}, setup.model);
  job.cluster = {};
  job.precision = spec::Precision::kFp32;
  job.batch = {2, setup.accumulation, 32};
  job.lora.rank = setup.lora;
  if (setup.lora > 0) job.lora.targets = {"q_proj", "v_proj", "up_proj", "down_proj"};
  job.optimizer.clip_norm = 0.0;
  job.communication.compression = compression;
  job.communication.powersgd_rank = 2;
  job.communication.bucket_mib = 0.05;
  plan::Layout layout = plan::parse_layout(setup.layout);
  layout.precision = job.precision;
  Trained run;
  std::mutex mutex;
  parallel::run_ranks(static_cast<int>(layout.world()), [&](comm::Communicator world) {
    const int rank = world.rank();
    ShardedExecutor executor(job, plan::run_of(job, layout), world);
    for (int step = 0; step < steps; ++step) {
      std::vector<data::Batch> batches;
      for (std::int64_t micro = 0; micro < setup.accumulation; ++micro) {
        data::Batch batch;
        const std::int64_t first = 97 * (executor.data_rank() + 2 * micro);
        const torch::Tensor tokens = (torch::arange(2 * 33) * 7 + first).remainder(128).view({2, 33});
        batch.input = tokens.narrow(1, 0, 32).clone();
        batch.target = tokens.narrow(1, 1, 32).clone();
        batch.samples = 2;
        batch.global_samples = 2 * layout.data_ranks() * setup.accumulation;
        batch.first_index = 2 * (executor.data_rank() + layout.data_ranks() * micro);
        batch.last_of_step = micro + 1 == setup.accumulation;
        batches.push_back(batch);
      }
      executor.stage(std::move(batches));
      executor.model().groups().reset_traffic();
      const StepResult result = executor.step({.step = step, .learning_rate = setup.lora > 0 ? 5e-2 : 5e-3});
      const std::lock_guard lock(mutex);
      if (rank == 0) run.losses.push_back(result.loss);
      if (rank == 0) run.gradient_bytes = executor.model().groups().everyone.traffic().total_bytes();
    }
    world.barrier().wait();
  });
  return run;
}

class CompressionRuns : public ::testing::TestWithParam<Setup> {};

TEST_P(CompressionRuns, move_fewer_bytes_and_still_learn) {
  const Trained plain = trained(GetParam(), Compression::kNone);
  ASSERT_LT(plain.losses.back(), 0.98 * plain.losses.front());
  for (const Compression kind : {Compression::kBf16, Compression::kPowerSgd, Compression::kOneBit}) {
    const Trained run = trained(GetParam(), kind);
    const double most = kind == Compression::kBf16 ? 0.6 : 0.8;
    EXPECT_LT(static_cast<double>(run.gradient_bytes), most * static_cast<double>(plain.gradient_bytes))
        << spec::to_string(kind);
    EXPECT_NE(run.losses, plain.losses) << spec::to_string(kind);
    EXPECT_LT(run.losses.back(), 0.99 * run.losses.front()) << spec::to_string(kind);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CompressionRuns, ::testing::ValuesIn(kSetups),
                         [](const auto& setup) { return setup.param.name; });

TEST(CompressionRefused, where_gradients_are_sharded) {
  EXPECT_THROW(trained({"zero", kSetups[0].model, "shard=2,zero=1"}, Compression::kPowerSgd, 1), UserError);
}

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks are threads already
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
