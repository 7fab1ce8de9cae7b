// SpanLog: phases add up to the step, the innermost counts, and spans of all threads come out in order.
#include "lockstep/telemetry/span_log.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/telemetry/group_label.h"
#include "lockstep/telemetry/ranges.h"

namespace lockstep::telemetry {
namespace {

double sum_of_phases(const SpanLog::Step& step) {
  return std::accumulate(step.phases.begin(), step.phases.end(), 0.0) - step[Phase::kOutside];
}

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(SpanLog, phases_of_a_step_add_up_to_it_and_the_innermost_counts) {
  SpanLog log(3);
  const CurrentSpanLog current(&log);
  log.begin_step(true);
  {
    const SpanScope forward({.kind = SpanKind::kForward, .micro = 1, .stage = 2});
    sleep_ms(4);
    const SpanScope wait({.kind = SpanKind::kWait, .name = "all_reduce", .site = "tp: mlp"});
    sleep_ms(8);
  }
  sleep_ms(2);
  const SpanLog::Step step = log.end_step(7, false);
  EXPECT_NEAR(sum_of_phases(step), step.seconds, 1e-9);
  EXPECT_GE(step[Phase::kForward], 0.004);
  EXPECT_GE(step[Phase::kComm], 0.008);
  EXPECT_GE(step[Phase::kHost], 0.002);
  EXPECT_EQ(step[Phase::kBackward], 0.0);
  ASSERT_EQ(step.spans.spans.size(), 3U);
  EXPECT_EQ(step.spans.rank, 3);
  EXPECT_EQ(step.spans.step, 7);
  EXPECT_EQ(step.spans.spans[0].kind, SpanKind::kStep);
  EXPECT_EQ(step.spans.spans[1].kind, SpanKind::kForward);
  EXPECT_EQ(step.spans.spans[1].stage, 2);
  EXPECT_EQ(step.spans.text(step.spans.spans[2].name), "all_reduce (tp: mlp)");
  EXPECT_GE(step.spans.spans[1].seconds, step.spans.spans[2].seconds);
}

TEST(SpanLog, an_evaluation_is_no_part_of_the_step_and_a_checkpoint_keeps_its_waits) {
  SpanLog log(0);
  const CurrentSpanLog current(&log);
  log.begin_step(false);
  {
    const SpanScope evaluation({.kind = SpanKind::kEvaluation});
    const SpanScope wait({.kind = SpanKind::kWait});
    sleep_ms(5);
  }
  {
    const SpanScope checkpoint({.kind = SpanKind::kCheckpoint});
    const SpanScope wait({.kind = SpanKind::kWait});
    sleep_ms(5);
  }
  const SpanLog::Step step = log.end_step(1, false);
  EXPECT_GE(step[Phase::kOutside], 0.005);
  EXPECT_GE(step[Phase::kCheckpoint], 0.005);
  EXPECT_EQ(step[Phase::kComm], 0.0);
  EXPECT_NEAR(sum_of_phases(step), step.seconds, 1e-9);
  EXPECT_TRUE(step.spans.spans.empty());
}

TEST(SpanLog, a_step_begins_where_the_one_before_ended) {
  SpanLog log(0);
  log.begin_step(true);
  sleep_ms(3);
  const SpanLog::Step first = log.end_step(1, true);
  const SpanLog::Step second = log.end_step(2, true);
  EXPECT_NEAR(second.spans.time, first.spans.time + first.seconds, 1e-3);
}

TEST(SpanLog, spans_of_other_threads_are_kept_in_order_and_change_no_phase) {
  SpanLog log(0);
  const CurrentSpanLog current(&log);
  log.begin_step(true);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(SpanLog::current(), nullptr);
      for (int j = 0; j < 500; ++j) {
        const SpanScope span(&log, {.kind = SpanKind::kLoad, .lane = SpanLane::kLoader, .name = "make a batch"});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const SpanLog::Step step = log.end_step(1, true);
  ASSERT_EQ(step.spans.spans.size(), 2001U);
  EXPECT_TRUE(std::is_sorted(step.spans.spans.begin(), step.spans.spans.end(),
                             [](const Span& a, const Span& b) { return a.begin < b.begin; }));
  EXPECT_EQ(step[Phase::kData], 0.0);
  EXPECT_EQ(step.spans.names->size(), 1U);
}

TEST(SpanLog, what_is_too_much_is_counted) {
  SpanLog log(0, 10);
  log.begin_step(true);
  for (int i = 0; i < 25; ++i) log.add({.name = "x"}, 1.0, 2.0);
  const SpanLog::Step step = log.end_step(1, true);
  EXPECT_EQ(step.spans.spans.size(), 11U);
  EXPECT_EQ(step.lost_spans, 15U);
  EXPECT_EQ(log.end_step(2, true).lost_spans, 0U);
}

TEST(SpanLog, a_wait_for_peers_is_never_more_than_the_communication) {
  SpanLog log(0);
  log.begin_step(false);
  log.add_wait(3.0);
  EXPECT_EQ(log.end_step(1, false).wait_seconds, 0.0);
}

TEST(SpanLog, seconds_are_moved_at_most_as_far_as_they_go) {
  SpanLog log(0);
  const CurrentSpanLog current(&log);
  log.begin_step(false);
  {
    const SpanScope compute({.name = "fused step"}, Phase::kCompute);
    sleep_ms(2);
  }
  log.move(Phase::kCompute, Phase::kData, 100.0);
  const SpanLog::Step step = log.end_step(1, false);
  EXPECT_EQ(step[Phase::kCompute], 0.0);
  EXPECT_GE(step[Phase::kData], 0.002);
  EXPECT_NEAR(sum_of_phases(step), step.seconds, 1e-9);
}

TEST(SpanLog, a_disturbance_is_inside_the_span_that_it_slows_down) {
  SpanLog log(0);
  const CurrentSpanLog current(&log);
  log.disturb([](const SpanMark& mark, double) {
    if (mark.kind == SpanKind::kForward) sleep_ms(5);
  });
  log.begin_step(true);
  { const SpanScope forward({.kind = SpanKind::kForward}); }
  { const SpanScope backward({.kind = SpanKind::kBackward}); }
  const SpanLog::Step step = log.end_step(1, false);
  EXPECT_GE(step[Phase::kForward], 0.005);
  EXPECT_GE(step.spans.spans[1].seconds, 0.005F);
}

std::vector<std::string> told_ranges;

TEST(SpanLog, spans_of_the_own_thread_are_ranges_for_a_profiler) {
  show_ranges({[](const char* name) {
                 told_ranges.emplace_back(name);
                 return 0;
               },
               [] {
                 told_ranges.emplace_back("end");
                 return 0;
               }});
  SpanLog log(0);
  const CurrentSpanLog current(&log);
  log.begin_step(false);
  {
    const SpanScope forward({.kind = SpanKind::kForward});
    const SpanScope norm({.kind = SpanKind::kOptimizer, .name = "norm"});
    const SpanScope batch(&log, {.kind = SpanKind::kLoad, .lane = SpanLane::kLoader});
  }
  show_ranges({});
  EXPECT_EQ(told_ranges, (std::vector<std::string>{"forward", "norm", "end", "end"}));
}

TEST(GroupLabel, names_the_members_and_is_read_back) {
  const auto text = [](std::vector<int> ranks) { return to_text({"tp", std::move(ranks)}); };
  EXPECT_EQ(text({0, 1, 2, 3}), "tp:0-3");
  EXPECT_EQ(text({4, 5}), "tp:4,5");
  EXPECT_EQ(text({0, 8, 16, 24}), "tp:0-24/8");
  EXPECT_EQ(text({7}), "tp:7");
  EXPECT_EQ(text({3, 1, 0}), "tp:3,1,0");
  for (const std::vector<int>& ranks :
       {std::vector<int>{0, 1, 2, 3}, {4, 5}, {0, 8, 16, 24}, {7}, {3, 1, 0}, {0, 1, 2, 10, 20, 30, 5}}) {
    const auto label = parse_group_label(text(ranks));
    ASSERT_TRUE(label) << text(ranks);
    EXPECT_EQ(label->ranks, ranks) << text(ranks);
    EXPECT_EQ(label->name, "tp");
  }
  for (const char* wrong : {"", "dp", "dp:", "dp:x", "dp:3-1", "dp:0-4/0", "dp:1,", "dp:0-2000000000", "dp:-1"}) {
    EXPECT_FALSE(parse_group_label(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::telemetry
