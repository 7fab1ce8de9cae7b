#include "lockstep/plan/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::plan {
namespace {

using Kind = PipelineTaskKind;

constexpr int kMostStages = 16, kMostMicroBatches = 64;

struct Form {
  Schedule schedule;
  int chunks;
};

const std::vector<Form> kForms{{Schedule::kGpipe, 1},       {Schedule::kOneForwardOneBackward, 1},
                               {Schedule::kInterleaved, 2}, {Schedule::kInterleaved, 3},
                               {Schedule::kInterleaved, 4}, {Schedule::kZeroBubble, 1},
                               {Schedule::kZeroBubble, 2}};

std::string name_of(const PipelineSchedule& table) {
  return std::string(to_string(table.schedule)) + " " + std::to_string(table.stages) + " stages x " +
         std::to_string(table.chunks) + " chunks x " + std::to_string(table.micro_batches) + " micro-batches";
}

void for_every_table(const std::function<void(const PipelineSchedule&)>& visit) {
  for (const Form& form : kForms) {
    for (int stages = 1; stages <= kMostStages; ++stages) {
      for (int micro = 1; micro <= kMostMicroBatches; ++micro) {
        visit(make_pipeline_schedule(form.schedule, stages, form.chunks, micro));
      }
    }
  }
}

std::string problem_of(const PipelineSchedule& table) { return find_schedule_problem(table).value_or(""); }

// --- The tables
TEST(PipelineSchedule, every_schedule_up_to_16_stages_and_64_micro_batches_is_right) {
  int tables = 0;
  for_every_table([&](const PipelineSchedule& table) {
    ASSERT_EQ(problem_of(table), "") << name_of(table);
    ++tables;
  });
  EXPECT_EQ(tables, static_cast<int>(kForms.size()) * kMostStages * kMostMicroBatches);
}

TEST(PipelineSchedule, ranks_hold_exactly_what_the_closed_form_says) {
  for_every_table([](const PipelineSchedule& table) {
    // ZB-V may let go of its second chunks before the last micro-batch has come where there are few.
    const bool exact =
        table.schedule != Schedule::kZeroBubble || table.chunks == 1 || table.micro_batches >= table.stages;
    for (int rank = 0; rank < table.stages; ++rank) {
      const auto most = chunks_in_flight(table.schedule, table.stages, rank, table.chunks, table.micro_batches);
      const int peak = peak_in_flight(table, rank);
      ASSERT_TRUE(exact ? peak == most : peak <= most) << name_of(table) << ", rank " << rank << ": " << peak;
    }
  });
}

TEST(PipelineSchedule, zero_bubble_holds_no_more_than_the_first_rank_of_1f1b) {
  for (const int chunks : {1, 2}) {
    const PipelineSchedule zero = make_pipeline_schedule(Schedule::kZeroBubble, 6, chunks, 30);
    const PipelineSchedule plain = make_pipeline_schedule(Schedule::kOneForwardOneBackward, 6, 1, 30);
    for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(peak_in_flight(zero, rank), chunks * peak_in_flight(plain, 0));
  }
}

TEST(PipelineSchedule, without_a_pipeline_every_micro_batch_goes_forward_and_back_at_once) {
  const PipelineSchedule table = make_pipeline_schedule(Schedule::kNone, 1, 1, 3);
  const std::vector<PipelineTask> expected{{Kind::kForward, 0, 0},  {Kind::kBackward, 0, 0}, {Kind::kForward, 0, 1},
                                           {Kind::kBackward, 0, 1}, {Kind::kForward, 0, 2},  {Kind::kBackward, 0, 2}};
  ASSERT_EQ(table.ranks.size(), 1u);
  EXPECT_EQ(table.ranks[0], expected);
  EXPECT_EQ(problem_of(table), "");
}

TEST(PipelineSchedule, interleaved_order_is_megatrons) {
  // Two ranks, two chunks, four micro-batches: rank 0 warms up with 2 (2 - 0 - 1) + (2 - 1) 2 = 4 forwards.
  const PipelineSchedule table = make_pipeline_schedule(Schedule::kInterleaved, 2, 2, 4);
  std::vector<std::pair<int, int>> forwards, backwards;  // chunk, micro-batch
  for (const PipelineTask& task : table.ranks[0]) {
    (task.kind == Kind::kForward ? forwards : backwards).emplace_back(task.chunk, task.micro);
  }
  EXPECT_EQ(forwards,
            (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}}));
  EXPECT_EQ(backwards,
            (std::vector<std::pair<int, int>>{{1, 0}, {1, 1}, {0, 0}, {0, 1}, {1, 2}, {1, 3}, {0, 2}, {0, 3}}));
  for (int k = 0; k < 5; ++k) EXPECT_EQ(table.ranks[0][static_cast<std::size_t>(k)].kind, Kind::kForward);
  EXPECT_EQ(table.ranks[0][5].kind, Kind::kBackward);
}

TEST(PipelineSchedule, positions_run_over_the_ranks_again_and_again_but_back_in_a_v) {
  const PipelineSchedule around = make_pipeline_schedule(Schedule::kInterleaved, 4, 3, 4);
  EXPECT_EQ(around.position(1, 2), 9);
  const PipelineSchedule v = make_pipeline_schedule(Schedule::kZeroBubble, 4, 2, 4);
  EXPECT_EQ(v.position(0, 0), 0);
  EXPECT_EQ(v.position(3, 0), 3);
  EXPECT_EQ(v.position(3, 1), 4);
  EXPECT_EQ(v.position(0, 1), 7);
  for (const PipelineSchedule* table : {&around, &v}) {
    std::set<int> seen;
    for (int rank = 0; rank < table->stages; ++rank) {
      for (int chunk = 0; chunk < table->chunks; ++chunk) {
        const int position = table->position(rank, chunk);
        EXPECT_EQ(table->rank_of(position), rank);
        EXPECT_EQ(table->chunk_of(position), chunk);
        seen.insert(position);
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), table->positions());
  }
}

TEST(PipelineSchedule, asking_for_what_no_schedule_has_is_a_bug) {
  EXPECT_THROW(make_pipeline_schedule(Schedule::kNone, 2, 1, 1), InternalError);
  EXPECT_THROW(make_pipeline_schedule(Schedule::kGpipe, 2, 2, 1), InternalError);
  EXPECT_THROW(make_pipeline_schedule(Schedule::kZeroBubble, 2, 3, 1), InternalError);
  EXPECT_THROW(make_pipeline_schedule(Schedule::kGpipe, 2, 1, 0), InternalError);
}

// --- The verifier
void run_forwards_first(std::vector<PipelineTask>& tasks) {
  std::stable_partition(tasks.begin(), tasks.end(), [](const PipelineTask& t) { return t.kind == Kind::kForward; });
}

class MutatedSchedule : public ::testing::TestWithParam<Form> {
 protected:
  PipelineSchedule table_ = make_pipeline_schedule(GetParam().schedule, 4, GetParam().chunks, 10);
};

TEST_P(MutatedSchedule, is_refused_without_any_one_of_its_tasks) {
  for (std::size_t rank = 0; rank < table_.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < table_.ranks[rank].size(); ++i) {
      PipelineSchedule broken = table_;
      broken.ranks[rank].erase(broken.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NE(problem_of(broken).find("missing"), std::string::npos) << name_of(table_) << problem_of(broken);
    }
  }
}

TEST_P(MutatedSchedule, is_refused_with_any_one_of_its_tasks_twice) {
  for (std::size_t rank = 0; rank < table_.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < table_.ranks[rank].size(); ++i) {
      PipelineSchedule broken = table_;
      broken.ranks[rank].push_back(broken.ranks[rank][i]);
      EXPECT_NE(problem_of(broken).find("twice"), std::string::npos) << name_of(table_) << problem_of(broken);
    }
  }
}

TEST_P(MutatedSchedule, is_refused_with_any_one_of_its_tasks_on_another_rank) {
  for (std::size_t rank = 0; rank < table_.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < table_.ranks[rank].size(); ++i) {
      PipelineSchedule broken = table_;
      const std::size_t other = (rank + 1) % table_.ranks.size();
      broken.ranks[other].push_back(broken.ranks[rank][i]);
      broken.ranks[rank].erase(broken.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NE(problem_of(broken), "") << name_of(table_);
    }
  }
}

// Two tasks of one kind, or of one (chunk, micro-batch), have one right order.
TEST_P(MutatedSchedule, is_refused_with_tasks_swapped_that_depend_on_each_other_or_arrive_in_order) {
  for (std::size_t rank = 0; rank < table_.ranks.size(); ++rank) {
    const std::size_t count = table_.ranks[rank].size();
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = i + 1; j < count; ++j) {
        PipelineSchedule broken = table_;
        PipelineTask& a = broken.ranks[rank][i];
        PipelineTask& b = broken.ranks[rank][j];
        const bool same_stream = a.kind == b.kind && a.chunk == b.chunk && a.kind != Kind::kWeightGradient;
        const bool same_work = a.chunk == b.chunk && a.micro == b.micro;
        if (!same_stream && !same_work) continue;
        std::swap(a, b);
        ASSERT_NE(problem_of(broken), "") << name_of(table_) << ": " << i << " and " << j << " of rank " << rank;
      }
    }
  }
}

TEST(PipelineSchedule, a_rank_that_runs_ahead_of_what_it_may_hold_is_refused) {
  for (const Form& form : kForms) {
    if (form.schedule == Schedule::kGpipe) continue;  // holds everything anyway
    PipelineSchedule table = make_pipeline_schedule(form.schedule, 4, form.chunks, 10);
    for (std::vector<PipelineTask>& tasks : table.ranks) run_forwards_first(tasks);
    EXPECT_NE(problem_of(table).find("holds"), std::string::npos) << problem_of(table);
  }
}

TEST(PipelineSchedule, a_table_with_a_problem_never_reaches_a_rank) {
  PipelineSchedule table = make_pipeline_schedule(Schedule::kOneForwardOneBackward, 2, 1, 4);
  EXPECT_EQ(verified(table).ranks.size(), 2u);
  table.ranks[1].pop_back();
  EXPECT_THROW(verified(table), InternalError);
}

TEST(PipelineSchedule, ranks_that_wait_for_each_other_are_refused) {
  for (const Form& form : kForms) {
    if (form.schedule == Schedule::kGpipe) continue;  // has no backward before the last forward
    PipelineSchedule table = make_pipeline_schedule(form.schedule, 4, form.chunks, 10);
    // The last rank wants every forward before its first backward, the first a backward before its last forward.
    run_forwards_first(table.ranks.back());
    EXPECT_NE(problem_of(table).find("waits forever"), std::string::npos) << problem_of(table);
    EXPECT_THROW(play(table, std::vector<TaskSeconds>(static_cast<std::size_t>(table.positions()))), InternalError);
  }
}

TEST_P(MutatedSchedule, is_refused_where_it_names_what_does_not_exist) {
  for (const PipelineTask& stranger : {PipelineTask{Kind::kForward, -1, 0}, PipelineTask{Kind::kForward, 4, 0},
                                       PipelineTask{Kind::kForward, 0, 10}, PipelineTask{Kind::kForward, 0, -1}}) {
    PipelineSchedule broken = table_;
    broken.ranks[0][0] = stranger;
    EXPECT_NE(problem_of(broken).find("does not exist"), std::string::npos) << problem_of(broken);
  }
  PipelineSchedule broken = table_;
  broken.ranks.pop_back();
  EXPECT_NE(problem_of(broken), "");
}

INSTANTIATE_TEST_SUITE_P(Every, MutatedSchedule, ::testing::ValuesIn(kForms), [](const auto& each) {
  return std::string("s") + std::to_string(static_cast<int>(each.param.schedule)) + "_chunks" +
         std::to_string(each.param.chunks);
});

TEST(PipelineSchedule, backward_is_whole_or_split_but_not_both) {
  PipelineSchedule table = make_pipeline_schedule(Schedule::kOneForwardOneBackward, 1, 1, 2);
  table.ranks[0].push_back({Kind::kWeightGradient, 0, 0});
  EXPECT_NE(problem_of(table).find("both whole and split"), std::string::npos) << problem_of(table);
}

// --- Played in time
constexpr TaskSeconds kUneven{.forward = 1, .backward_input = 1.5, .backward_weight = 0.75, .send = 0.25};

TEST(PlayedSchedule, a_rank_does_one_thing_at_a_time_and_all_of_its_work) {
  for (const Form& form : kForms) {
    for (const int stages : {1, 2, 5}) {
      const PipelineSchedule table = make_pipeline_schedule(form.schedule, stages, form.chunks, 7);
      const auto played = play(table, std::vector<TaskSeconds>(static_cast<std::size_t>(table.positions()), kUneven));
      std::map<int, double> free;
      for (const PlayedTask& task : played) {
        EXPECT_GE(task.start, free[task.rank]);
        free[task.rank] = task.end;
      }
      for (int rank = 0; rank < stages; ++rank) {
        EXPECT_NEAR(busy_seconds(played, rank), 7 * form.chunks * 3.25, 1e-9);
        EXPECT_NEAR(idle_seconds(played, rank) + busy_seconds(played, rank), step_seconds(played), 1e-9);
      }
    }
  }
}

TEST(PlayedSchedule, nothing_starts_before_its_inputs_have_travelled) {
  for (const Form& form : kForms) {
    const PipelineSchedule table = make_pipeline_schedule(form.schedule, 4, form.chunks, 9);
    const auto played = play(table, std::vector<TaskSeconds>(static_cast<std::size_t>(table.positions()), kUneven));
    std::map<std::pair<int, int>, double> forward, gradient;  // (position, micro-batch) -> end
    const auto place = [&](const PlayedTask& task) {
      return std::pair(table.position(task.rank, task.task.chunk), task.task.micro);
    };
    for (const PlayedTask& task : played) {
      if (task.task.kind == Kind::kForward)
        forward[place(task)] = task.end;
      else if (task.task.kind != Kind::kWeightGradient)
        gradient[place(task)] = task.end;
    }
    const auto travel = [&](int from, int to) { return table.rank_of(from) == table.rank_of(to) ? 0 : kUneven.send; };
    for (const PlayedTask& task : played) {
      const auto [position, micro] = place(task);
      if (task.task.kind == Kind::kForward && position > 0) {
        EXPECT_GE(task.start, forward.at({position - 1, micro}) + travel(position - 1, position));
      }
      if (task.task.kind == Kind::kBackward || task.task.kind == Kind::kInputGradient) {
        EXPECT_GE(task.start, forward.at({position, micro}));
        if (position + 1 < table.positions()) {
          EXPECT_GE(task.start, gradient.at({position + 1, micro}) + travel(position + 1, position));
        }
      }
      if (task.task.kind == Kind::kWeightGradient) {
        EXPECT_GE(task.start, gradient.at({position, micro}));
      }
    }
  }
}

TEST(PlayedSchedule, one_stage_is_never_idle) {
  const PipelineSchedule table = make_pipeline_schedule(Schedule::kNone, 1, 1, 5);
  EXPECT_NEAR(idle_share(play(table, {kUneven}), 1), 0, 1e-12);
}

}  // namespace
}  // namespace lockstep::plan
