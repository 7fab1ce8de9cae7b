// Replayed traces: made ones of any schedule take as long as they were played, real ones as long as was measured, and
// what is not whole is told.
#include "lockstep/diagnose/foreign/replayed_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/sim/random.h"

namespace lockstep::diagnose {
namespace {

using plan::PipelineTaskKind;
using sim::Operation;
using sim::OperationKind;

struct Job {
  plan::Schedule schedule = plan::Schedule::kInterleaved;
  int stages = 4, chunks = 2, data_ranks = 2, micro_batches = 8, steps = 4;
  double slow_factor = 1.0;  // of data rank 1, stage 2
  double longest_pause = 0.004;
};

// Plays a step of one data rank by the table and writes down what happened; nothing of the replay's code is used. A
// receive is asked for when the computation before it in its direction has ended, a send when its own has.
class Player {
 public:
  Player(const Job& job, int data_rank, int step, double from, sim::Random& random, std::vector<Operation>& rows)
      : job_(job),
        data_rank_(data_rank),
        step_(step),
        from_(from),
        random_(random),
        rows_(rows),
        table_(plan::make_pipeline_schedule(job.schedule, job.stages, job.chunks, job.micro_batches)),
        workers_(static_cast<std::size_t>(job.stages)) {}

  // When each worker has ended its last computation.
  std::vector<double> play() {
    for (auto& worker : workers_) worker.free = worker.asked[0] = worker.asked[1] = from_;
    for (std::size_t done = 0; done < table_.ranks[0].size() * workers_.size();) {
      for (int stage = 0; stage < job_.stages; ++stage) done += advance(stage) ? 1 : 0;
    }
    std::vector<double> ends;
    for (const auto& worker : workers_) ends.push_back(worker.free);
    return ends;
  }

 private:
  struct Worker {
    std::size_t next = 0;
    double free = 0.0;
    double asked[2] = {0.0, 0.0};  // forward, backward: when the next receive is asked for
    double sent[2] = {0.0, 0.0};
    std::map<OperationKind, int> sequence;
  };
  struct Message {
    double begin = 0.0;
    std::size_t row = 0;
  };

  void add(int stage, OperationKind kind, double begin, double end, int position) {
    const int sequence = workers_[static_cast<std::size_t>(stage)].sequence[kind]++;
    const bool compute = sim::is_compute(kind);
    rows_.push_back({data_rank_, stage, data_rank_ + stage * job_.data_ranks, step_, kind, begin, end - begin, sequence,
                     compute ? position / job_.stages : -1, compute ? position : -1});
  }

  bool advance(int stage) {
    Worker& worker = workers_[static_cast<std::size_t>(stage)];
    const auto& tasks = table_.ranks[static_cast<std::size_t>(stage)];
    if (worker.next == tasks.size()) return false;
    const plan::PipelineTask task = tasks[worker.next];
    const bool forward = task.kind == PipelineTaskKind::kForward;
    const int way = forward ? 0 : 1, position = table_.position(stage, task.chunk);
    const int last = table_.positions() - 1;
    double ready = worker.free;
    if (forward ? position > 0 : position < last) {
      const auto message = on_the_way_.find({way, position, task.micro});
      if (message == on_the_way_.end()) return false;
      const double end = std::max(worker.asked[way], message->second.begin) + 0.001;
      add(stage, forward ? OperationKind::kForwardReceive : OperationKind::kBackwardReceive, worker.asked[way], end,
          -1);
      rows_[message->second.row].seconds = end - message->second.begin;
      workers_[static_cast<std::size_t>(rows_[message->second.row].stage)].sent[way] = end;
      ready = std::max(ready, end);
    }
    ready += job_.longest_pause * random_.uniform();
    const bool slow = data_rank_ == 1 && stage == 2;
    const double end =
        ready + (forward ? 0.05 : 0.1) * (1.0 + 0.01 * random_.uniform()) * (slow ? job_.slow_factor : 1.0);
    add(stage, forward ? OperationKind::kForwardCompute : OperationKind::kBackwardCompute, ready, end, position);
    worker.free = worker.asked[way] = end;
    if (forward ? position < last : position > 0) {
      on_the_way_[{way, forward ? position + 1 : position - 1, task.micro}] = {std::max(end, worker.sent[way]),
                                                                               rows_.size()};
      add(stage, forward ? OperationKind::kForwardSend : OperationKind::kBackwardSend, std::max(end, worker.sent[way]),
          std::max(end, worker.sent[way]), -1);
    }
    ++worker.next;
    return true;
  }

  const Job& job_;
  int data_rank_, step_;
  double from_;
  sim::Random& random_;
  std::vector<Operation>& rows_;
  plan::PipelineSchedule table_;
  std::vector<Worker> workers_;
  std::map<std::tuple<int, int, int>, Message> on_the_way_;  // direction, to which position, micro-batch
};

std::vector<Operation> play(const Job& job) {
  std::vector<Operation> rows;
  sim::Random random(3);
  double from = 100.0;
  for (int step = 0; step < job.steps; ++step) {
    std::vector<std::vector<double>> ready;  // [data rank][stage]
    for (int d = 0; d < job.data_ranks; ++d) ready.push_back(Player(job, d, step * 7, from, random, rows).play());
    double end_of_step = from;
    for (int stage = 0; stage < job.stages; ++stage) {
      double last = 0.0;
      for (const auto& own : ready) last = std::max(last, own[static_cast<std::size_t>(stage)]);
      for (int d = 0; d < job.data_ranks; ++d) {
        const double begin = ready[static_cast<std::size_t>(d)][static_cast<std::size_t>(stage)];
        rows.push_back({d, stage, d + stage * job.data_ranks, step * 7, OperationKind::kReduceScatterGradients, begin,
                        last + 0.02 - begin, 0, 0, -1});
      }
      end_of_step = std::max(end_of_step, last + 0.02);
    }
    from = end_of_step + 0.5;
  }
  return rows;
}

TEST(ReplayedTrace, takes_as_long_as_it_was_played_under_every_schedule) {
  for (const auto& [schedule, chunks] : {std::pair{plan::Schedule::kGpipe, 1},
                                         {plan::Schedule::kOneForwardOneBackward, 1},
                                         {plan::Schedule::kInterleaved, 2},
                                         {plan::Schedule::kInterleaved, 3}}) {
    for (const int stages : {2, 4}) {
      const Job job{.schedule = schedule, .stages = stages, .chunks = chunks};
      const ReplayedTrace replayed = replay_trace(play(job), "made");
      EXPECT_EQ(replayed.steps.size(), 4U);
      EXPECT_LT(replayed.error().worst, 1e-6) << plan::to_string(schedule) << " " << stages << "x" << chunks;
      // What other steps say about the pauses is not what they were, but near it; none at all is too short.
      EXPECT_LT(replayed.error_foretold().worst, 0.03);
      EXPECT_GT(replayed.error_without_pauses().mean, 0.01);
      EXPECT_LT(replayed.figures.replayed_seconds, replayed.figures.recorded_seconds);
      EXPECT_FALSE(replayed.worst);
    }
  }
}

TEST(ReplayedTrace, names_the_slow_worker_of_an_interleaved_pipeline) {
  const ReplayedTrace replayed = replay_trace(play({.slow_factor = 1.8}), "made");
  EXPECT_LT(replayed.error().worst, 1e-6);
  ASSERT_TRUE(replayed.worst);
  EXPECT_EQ(replayed.worst->cause, Cause::kSlowRank);
  EXPECT_EQ(replayed.worst->ranks, std::vector<int>{1 + 2 * 2});
  for (const ReplayedStep& step : replayed.steps) {
    ASSERT_TRUE(step.worst);
    EXPECT_EQ(step.worst->ranks, std::vector<int>{5});
    EXPECT_GT(step.slow_down(), 1.3);
  }
}

TEST(ReplayedTrace, does_not_depend_on_the_order_of_rows) {
  const std::vector<Operation> rows = play({});
  std::vector<Operation> other = rows;
  sim::Random random(9);
  for (std::size_t i = other.size(); i > 1; --i) std::swap(other[i - 1], other[random.below(i)]);
  EXPECT_EQ(to_json(replay_trace(rows, "t")), to_json(replay_trace(other, "t")));
}

TEST(ReplayedTrace, leaves_out_steps_that_are_not_whole) {
  const std::vector<Operation> rows = play({});
  std::vector<Operation> broken;
  for (const Operation& one : rows) {
    if (one.step == 0 && one.data_rank == 1 && one.stage == 3) continue;
    if (one.step == 7 && one.kind == OperationKind::kBackwardCompute && one.stage == 1 && one.sequence == 4) continue;
    broken.push_back(one);
    if (one.step == 14 && one.kind == OperationKind::kForwardCompute && one.sequence == 2) broken.push_back(one);
  }
  const ReplayedTrace replayed = replay_trace(broken, "t");
  ASSERT_EQ(replayed.left_out.size(), 3U);
  EXPECT_EQ(replayed.left_out[0].why, "nothing of data rank 1 of stage 3");
  EXPECT_EQ(replayed.left_out[1].why, "16 forwards and 15 backwards of data rank 0 of stage 1");
  EXPECT_EQ(replayed.left_out[2].why, "forward-compute 2 of data rank 0 of stage 0 is there twice");
  ASSERT_EQ(replayed.steps.size(), 1U);
  EXPECT_EQ(replayed.steps[0].figures.step, 21);
  EXPECT_LT(replayed.error().worst, 1e-6);
}

std::string problem_of(const std::vector<Operation>& rows, const char* mesh) {
  try {
    replay_trace(rows, "t.csv", plan::parse_layout(mesh));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ReplayedTrace, is_checked_against_the_mesh) {
  std::vector<Operation> rows = play({});
  EXPECT_EQ(problem_of(rows, "dp=2,pp=4,tp=1"), "");
  EXPECT_EQ(problem_of(rows, "dp=2,pp=4,tp=8"), "");  // one rank of each tensor-parallel group was recorded
  EXPECT_EQ(problem_of(rows, "dp=2,pp=4,virtual_stages=2"), "");
  EXPECT_NE(problem_of(rows, "dp=4,pp=4").find("the trace has 2 data ranks, --mesh"), std::string::npos);
  EXPECT_NE(problem_of(rows, "dp=2,pp=2").find("the trace has 4 stages"), std::string::npos);
  EXPECT_NE(problem_of(rows, "dp=2,pp=4,virtual_stages=3").find("2 chunks"), std::string::npos);
  rows.front().rank = 9;
  EXPECT_NE(problem_of(rows, "dp=2,pp=4").find("ranks"), std::string::npos);
  for (Operation& one : rows) one.rank += 100 - one.rank % 2;
  EXPECT_NE(problem_of(rows, "dp=2,pp=4"), "");
}

TEST(ReplayedTrace, without_a_whole_step_is_refused) {
  std::vector<Operation> rows = play({});
  std::erase_if(rows, [](const Operation& one) { return one.kind == OperationKind::kBackwardCompute; });
  EXPECT_NE(problem_of(rows, "dp=2,pp=4").find("no step is whole; step 0: 16 forwards and 0 backwards"),
            std::string::npos);
}

// The authors' simulator says what the slow-down is; their labels say what it comes from.
TEST(ReplayedTrace, of_published_traces_is_what_was_measured_and_what_their_authors_found) {
  const auto folder = std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/ops/stragglers";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the straggler traces are not at " << folder;
  const auto check = [&](const std::string& name, const char* mesh, Cause cause, const std::vector<int>& ranks) {
    const ReplayedTrace replayed = replay_file(folder / ("trace-" + name + ".csv.gz"), plan::parse_layout(mesh));
    const nlohmann::json authors = read_json_file(folder / ("result-" + name + ".json"));
    EXPECT_TRUE(replayed.left_out.empty());
    EXPECT_EQ(replayed.steps.size(), authors.at("step_t_base").size());
    EXPECT_LE(replayed.error().mean, 0.005) << name;
    EXPECT_LE(replayed.error().worst, 0.01) << name;
    EXPECT_NEAR(replayed.figures.slow_down(), authors.at("blocking_slowdown").get<double>(), 0.005);
    for (const ReplayedStep& step : replayed.steps) {
      const std::string number = std::to_string(step.figures.step);
      EXPECT_NEAR(step.figures.recorded_seconds, authors.at("step_t_base").at(number).get<double>(), 1e-4);
      EXPECT_NEAR(step.slow_down(), authors.at("blocking_step_slowdown").at(number).get<double>(), 0.01) << number;
    }
    ASSERT_TRUE(replayed.worst);
    EXPECT_EQ(replayed.worst->cause, cause);
    EXPECT_EQ(replayed.worst->ranks, ranks);
  };
  check("AR", "dp=4,pp=4,tp=4", Cause::kSlowRank, {0});
  check("ST", "dp=2,pp=4", Cause::kStageImbalance, {6, 7});
}

}  // namespace
}  // namespace lockstep::diagnose
