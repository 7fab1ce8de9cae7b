// Stragglers of pipelined jobs, made: what was made slow is named, and the slow-down is what was put in.
#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/diagnose/foreign/operations_csv.h"

namespace lockstep::diagnose {
namespace {

using sim::Operation;
using sim::OperationKind;

struct Pipeline {
  int stages = 4;
  int data_ranks = 4;
  int micro_batches = 8;
  int steps = 3;
  // Seconds of a forward; a backward takes twice as long.
  std::function<double(int data_rank, int stage, int step, int micro)> forward = [](int, int, int, int) { return 0.1; };
};

// Plays GPipe (all forwards, then all backwards) and writes down what happened; nothing of the detector's code is used.
std::vector<Operation> play(const Pipeline& job) {
  std::vector<Operation> rows;
  double begin_of_step = 0.0;
  constexpr double kSend = 0.001;
  for (int step = 0; step < job.steps; ++step) {
    double end_of_step = 0.0;
    std::vector<std::pair<int, double>> arrivals;  // worker, when it is ready to reduce
    for (int d = 0; d < job.data_ranks; ++d) {
      std::vector<double> free(static_cast<std::size_t>(job.stages), begin_of_step);
      const auto add = [&](int stage, OperationKind kind, double begin, double end, int sequence, bool compute) {
        rows.push_back({d, stage, d + stage * job.data_ranks, step, kind, begin, end - begin, sequence,
                        compute ? 0 : -1, compute ? stage : -1});
      };
      for (const bool forward : {true, false}) {
        const OperationKind compute = forward ? OperationKind::kForwardCompute : OperationKind::kBackwardCompute;
        for (int m = 0; m < job.micro_batches; ++m) {
          double arrived = begin_of_step;
          for (int i = 0; i < job.stages; ++i) {
            const int stage = forward ? i : job.stages - 1 - i;
            double& own = free[static_cast<std::size_t>(stage)];
            if (i > 0) {  // sender and receiver meet
              add(stage, forward ? OperationKind::kForwardReceive : OperationKind::kBackwardReceive, own,
                  std::max(own, arrived) + kSend, m, false);
              const int sender = forward ? stage - 1 : stage + 1;
              add(sender, forward ? OperationKind::kForwardSend : OperationKind::kBackwardSend, arrived,
                  std::max(own, arrived) + kSend, m, false);
              own = std::max(own, arrived) + kSend;
            }
            const double seconds = job.forward(d, stage, step, m) * (forward ? 1.0 : 2.0);
            add(stage, compute, own, own + seconds, m, true);
            own += seconds;
            arrived = own;
          }
        }
      }
      for (int stage = 0; stage < job.stages; ++stage)
        arrivals.emplace_back(d * 100 + stage, free[static_cast<std::size_t>(stage)]);
    }
    for (const auto& [worker, ready] : arrivals) {
      double last = 0.0;
      for (const auto& [other, when] : arrivals) last = other % 100 == worker % 100 ? std::max(last, when) : last;
      rows.push_back({worker / 100, worker % 100, worker / 100 + worker % 100 * job.data_ranks, step,
                      OperationKind::kReduceScatterGradients, ready, last + 0.05 - ready, 0, 0, -1});
      end_of_step = std::max(end_of_step, last + 0.05);
    }
    begin_of_step = end_of_step;
  }
  return rows;
}

Diagnosis settled(const Pipeline& job) {
  Diagnosis diagnosis;
  diagnosis.findings = straggler_findings(straggler_figures(play(job)));
  settle(diagnosis);
  return diagnosis;
}

TEST(Stragglers, the_replay_takes_as_long_as_what_was_played) {
  Pipeline job;
  job.forward = [](int d, int stage, int step, int micro) {
    return 0.1 + 0.01 * ((d * 7 + stage * 5 + step * 3 + micro) % 4);
  };
  const StragglerFigures figures = straggler_figures(play(job));
  EXPECT_NEAR(figures.replayed_seconds, figures.recorded_seconds, 1e-3 * figures.recorded_seconds);
}

TEST(Stragglers, an_even_job_has_none) {
  const Diagnosis diagnosis = settled(Pipeline{});
  EXPECT_TRUE(diagnosis.findings.empty());
  EXPECT_NEAR(straggler_figures(play(Pipeline{})).slow_down(), 1.0, 1e-6);
}

TEST(Stragglers, a_slow_worker_is_named_with_the_slow_down) {
  Pipeline job;
  job.forward = [](int d, int stage, int, int) { return d == 2 && stage == 1 ? 0.2 : 0.1; };
  const std::vector<Finding> found = settled(job).findings;
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].cause, Cause::kSlowRank);
  EXPECT_EQ(found[0].ranks, std::vector<int>{2 + 1 * 4});
  // 8 micro-batches of 0.6 s through the slow stage and 3 of 0.3 s before and after it, against 11 of 0.3 s.
  const StragglerFigures figures = straggler_figures(play(job));
  EXPECT_NEAR(figures.replayed_seconds / figures.without_slow_workers, (8 * 0.6 + 3 * 0.3) / (11 * 0.3), 0.03);
}

TEST(Stragglers, a_long_last_stage_is_a_stage_imbalance) {
  Pipeline job;
  job.forward = [](int, int stage, int, int) { return stage == 3 ? 0.15 : 0.1; };
  const std::vector<Finding> found = settled(job).findings;
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].cause, Cause::kStageImbalance);
  EXPECT_EQ(found[0].ranks, (std::vector<int>{12, 13, 14, 15}));
}

TEST(Stragglers, micro_batches_of_different_length_are_a_data_imbalance) {
  Pipeline job;
  job.steps = 8;
  job.forward = [](int d, int, int step, int micro) {
    return 0.06 + 0.02 * ((d * 11 + step * 7 + micro * 13 + d * micro * 3) % 5);
  };
  const std::vector<Finding> found = settled(job).findings;
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].cause, Cause::kDataImbalance);
}

std::string problem_of(const std::string& text) {
  try {
    read_operations(text, "t.csv");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Operations, are_read_by_the_names_of_columns) {
  const std::string header = "rank,dp_rank,stage,step,optype,start_ts,duration,seq_id\n";
  const auto rows =
      read_operations(header + "3,1,2,7,forward-compute,0.5,0.25,4\n3,1,2,7,unheard-of,0.5,0.25,4\n", "t.csv");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].rank, 3);
  EXPECT_EQ(rows[0].data_rank, 1);
  EXPECT_EQ(rows[0].seconds, 0.25);
  EXPECT_EQ(problem_of(header + "3,1,2,7,forward-compute,zero,0.25,4\n"),
            "t.csv:2: `start_ts` must be a number, not `zero`");
  EXPECT_EQ(problem_of(header + "3,1,2\n"), "t.csv:2: 3 fields, where the first line has 8");
  EXPECT_EQ(problem_of("rank,optype,start_ts\n"), "t.csv:1: column `dp_rank` is missing");
  EXPECT_EQ(problem_of(header + "3,1,-2,7,forward-compute,0.5,0.25,4\n"),
            "t.csv:2: `stage` must be between 0 and 1000000, not -2");
  EXPECT_NE(problem_of(header + "3,1,2,7,forward-compute,0.5,-1,4\n"), "");
}

}  // namespace
}  // namespace lockstep::diagnose
