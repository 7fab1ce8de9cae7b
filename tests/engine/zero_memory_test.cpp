// What a rank holds under each ZeRO stage, counted by the allocator, against what cost/ says it holds.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/cost/engine_memory.h"
#include "lockstep/engine/memory_counter.h"
#include "lockstep/engine/sharded_executor.h"
#include "tests/parallel/ranks.h"

namespace lockstep::engine {
namespace {

constexpr int kRanks = 4;
constexpr double kMiB = 1024.0 * 1024.0;

// 50 million parameters, and so few tokens that state is what counts.
spec::Job job_of(spec::Precision precision) {
  spec::Job job;
  job.model.name = "gpt-50m";
  job.model.arch = spec::Arch::kGpt;
  job.model.layers = 12;
  job.model.hidden = 512;
  job.model.heads = job.model.kv_heads = 8;
  job.model.head_dim = 64;
  job.model.ffn_hidden = 2048;
  job.model.vocab = 24000;
  job.model.max_sequence = 128;
  job.model.tied_embeddings = true;
  job.precision = precision;
  job.batch = {1, 1, 64};
  return job;
}

data::Batch batch_of(const spec::Job& job, std::int64_t rank) {
  data::Batch batch;
  const torch::Tensor tokens =
      (torch::arange(job.batch.sequence_length + 1) * 7919 + 31 * rank).remainder(job.model.vocab).unsqueeze(0);
  batch.input = tokens.narrow(1, 0, job.batch.sequence_length).clone();
  batch.target = tokens.narrow(1, 1, job.batch.sequence_length).clone();
  batch.samples = 1;
  batch.global_samples = kRanks;
  batch.first_index = rank;
  batch.last_of_step = true;
  return batch;
}

// The largest peak of the ranks over a whole step, after one that warms up.
double measured_peak(const spec::Job& job, const plan::Layout& layout) {
  std::mutex mutex;
  double peak = 0;
  parallel::run_ranks(kRanks, [&](comm::Communicator world) {
    MemoryCounter counter;
    const int rank = world.rank();
    {
      ShardedExecutor executor(job, plan::run_of(job, layout), world);
      executor.stage({batch_of(job, executor.data_rank())});
      executor.step({.step = 0, .learning_rate = 1e-4});
      counter.reset_peak();
      executor.stage({batch_of(job, executor.data_rank())});
      executor.step({.step = 1, .learning_rate = 1e-4});
      const std::lock_guard lock(mutex);
      peak = std::max(peak, static_cast<double>(counter.peak_bytes()));
    }
    world.barrier().wait();
    EXPECT_LT(counter.bytes(), 1 << 20) << "rank " << rank << " keeps memory";
  });
  return peak;
}

void expect_as_predicted(spec::Precision precision, const std::vector<std::int64_t>& stages) {
  const spec::Job job = job_of(precision);
  double before = 0;
  for (const std::int64_t zero : stages) {
    plan::Layout layout;
    layout.precision = precision;
    layout.zero = zero;
    (zero == 0 ? layout.dp : layout.shard) = kRanks;
    const double predicted = cost::engine_memory(plan::run_of(job, layout)).total();
    const double measured = measured_peak(job, layout);
    const auto bar = [](double bytes) { return std::string(static_cast<std::size_t>(bytes / (16 * kMiB)), '#'); };
    fmt::print("{} zero={}  predicted {:6.0f} MiB {}\n             measured  {:6.0f} MiB {}  {:+.1f}%\n",
               spec::to_string(precision), zero, predicted / kMiB, bar(predicted), measured / kMiB, bar(measured),
               100 * (measured / predicted - 1));
    EXPECT_NEAR(measured / predicted, 1.0, 0.10) << "zero=" << zero;
    if (before > 0) {
      EXPECT_LT(measured, before) << "zero=" << zero;
    }
    before = measured;
  }
}

TEST(ZeroMemory, falls_with_the_stage_as_predicted) { expect_as_predicted(spec::Precision::kFp32, {0, 1, 2, 3}); }

TEST(ZeroMemory, of_narrow_weights_with_wide_masters_too) { expect_as_predicted(spec::Precision::kBf16, {1, 3}); }

}  // namespace
}  // namespace lockstep::engine

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks are threads already
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
