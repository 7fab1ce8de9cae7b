// A bit that flips in one replica is found and its rank named; replicas that are alike never complain. Ranks are
// threads.
#include "lockstep/engine/replica_check.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "lockstep/engine/sharded_executor.h"
#include "lockstep/engine/training_step.h"
#include "lockstep/nn/torch_compat.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

struct Case {
  const char* layout;
  const char* model = "llama";
  spec::Precision precision = spec::Precision::kFp32;
  const char* compression = "none";
};

class Replicas {
 public:
  // Three steps; `spoil` is called on every rank after the second. Returns the report after the third, of each rank.
  std::vector<ReplicaReport> train(const Case& setup,
                                   const std::function<void(int rank, ShardedExecutor&)>& spoil = {}) {
    const bool experts = std::string(setup.model) == "moe";
    spec::Job job = runs_.job(
        fmt::format("batch: {{micro: 2, accumulation: 2, sequence_length: 16}}\ncommunication: {{compression: {}}}\n"
                    "steps: 9\n",
                    setup.compression),
        fmt::format("{{arch: {}, name: tiny, layers: 4, hidden: 16, heads: 4, ffn_hidden: 32, vocab: 256, "
                    "max_sequence: 16{}}}",
                    setup.model, experts ? ", experts: 4, experts_per_token: 2" : ""));
    job.precision = setup.precision;
    job.cluster = {};
    plan::Layout layout = plan::parse_layout(setup.layout);
    layout.precision = job.precision;
    const plan::Run run = plan::run_of(job, layout);
    const int ranks = static_cast<int>(layout.world());
    comm::LocalWorld world(ranks, comm::milliseconds{120'000});
    std::vector<ReplicaReport> reports(static_cast<std::size_t>(ranks));
    std::mutex mutex;
    std::string problem;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank, communicator = world.communicator(rank)]() mutable {
        try {
          nn::compat::set_compute_threads(1);
          TrainingState state = build_training_state(job, run, communicator);
          ReplicaCheck check(communicator);
          EXPECT_TRUE(check.compare(*state.executor).agrees()) << setup.layout;
          while (state.step < 3) {
            if (state.step == 2 && spoil) spoil(rank, dynamic_cast<ShardedExecutor&>(*state.executor));
            run_step(state, {});
          }
          reports[static_cast<std::size_t>(rank)] = check.compare(*state.executor);
          communicator.barrier().wait();
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          if (problem.empty()) problem = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(problem, "") << setup.layout;
    return reports;
  }

 private:
  TrainingRuns runs_;
};

class SoundReplicas : public ::testing::TestWithParam<Case> {};

TEST_P(SoundReplicas, agree) {
  Replicas replicas;
  for (const ReplicaReport& report : replicas.train(GetParam())) {
    EXPECT_TRUE(report.agrees()) << GetParam().layout << ": " << report.tensor;
    EXPECT_GT(report.tensors, 0);
  }
}

constexpr auto kBf16 = spec::Precision::kBf16;
INSTANTIATE_TEST_SUITE_P(Layouts, SoundReplicas,
                         ::testing::Values(Case{"dp=3"}, Case{"dp=3", "gpt", kBf16}, Case{"dp=2,shard=2,zero=3"},
                                           Case{"dp=2,shard=2,zero=2", "llama", kBf16}, Case{"dp=2,shard=2,zero=1"},
                                           Case{"tp=2,pp=2"}, Case{"tp=2,pp=2", "gpt", kBf16}, Case{"dp=2,tp=2"},
                                           Case{"dp=2,cp=2"}, Case{"dp=4,ep=2", "moe"},

                                           Case{"dp=2", "llama", spec::Precision::kFp32, "powersgd"},
                                           Case{"dp=2", "llama", spec::Precision::kFp32, "onebit"}));

// One bit of the first element, which an update does not round away.
void flip(const torch::Tensor& values) { static_cast<unsigned char*>(values.data_ptr())[1] ^= 0x10; }

TEST(ReplicaCheck, a_flipped_bit_in_the_weights_names_the_rank) {
  Replicas replicas;
  for (const Case& setup : {Case{"dp=3"}, Case{"dp=3,shard=2,zero=3"}, Case{"dp=3", "gpt", kBf16}}) {
    const auto reports = replicas.train(setup, [](int rank, ShardedExecutor& executor) {
      if (rank == 1) flip(executor.model().shards().back()->master());
    });
    for (const ReplicaReport& report : reports) {
      EXPECT_EQ(report.odd_ranks, std::vector<int>{1}) << setup.layout;
      EXPECT_FALSE(report.tensor.empty());
    }
  }
}

TEST(ReplicaCheck, a_flipped_bit_in_the_optimizer_state_names_the_rank) {
  Replicas replicas;
  const auto reports = replicas.train({"dp=3"}, [](int rank, ShardedExecutor& executor) {
    if (rank == 2) flip(executor.optimizer().slot(*executor.model().shards().back(), 1));
  });
  for (const ReplicaReport& report : reports) EXPECT_EQ(report.odd_ranks, std::vector<int>{2});
}

TEST(ReplicaCheck, two_replicas_that_differ_do_not_know_who_is_right) {
  Replicas replicas;
  const auto reports = replicas.train({"dp=2"}, [](int rank, ShardedExecutor& executor) {
    if (rank == 1) flip(executor.model().shards().back()->master());
  });
  for (const ReplicaReport& report : reports) {
    EXPECT_FALSE(report.agrees());
    EXPECT_TRUE(report.odd_ranks.empty());
    EXPECT_EQ(report.holders, (std::vector<int>{0, 1}));
  }
  EXPECT_NE(describe(reports[0], 3, {"a", "b"}).find("nobody knows"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::engine
