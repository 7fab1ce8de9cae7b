#include "lockstep/base/processor_share.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

TEST(ProcessorShare, is_what_ran_of_what_wanted_to_run) { EXPECT_DOUBLE_EQ(share_between({10, 5}, {13, 6}), 0.75); }

TEST(ProcessorShare, is_1_where_nothing_was_counted) {
  EXPECT_DOUBLE_EQ(share_between({}, {}), 1);
  EXPECT_DOUBLE_EQ(share_between({1, 2}, {3, 2}), 1) << "nobody was in the way";
}

TEST(ProcessorShare, readings_of_several_threads_add_up) {
  ProcessorTime sum{1, 2};
  sum += {3, 4};
  EXPECT_DOUBLE_EQ(sum.ran_seconds, 4);
  EXPECT_DOUBLE_EQ(sum.waited_seconds, 6);
}

TEST(ProcessorShare, of_a_process_has_every_thread) {
  if (!std::filesystem::exists("/proc/thread-self/schedstat")) GTEST_SKIP() << "this kernel does not count";
  EXPECT_EQ(thread_times_of(getpid()).count(gettid()), 1u);
  EXPECT_TRUE(thread_times_of(-1).empty()) << "a process that is gone";
}

TEST(ProcessorShare, the_busiest_thread_is_the_one_that_ran_longest_in_between) {
  const ThreadTimes before{{1, {100, 50}}, {2, {1, 1}}};
  const ThreadTimes after{{1, {101, 90}}, {2, {4, 2}}, {3, {900, 0}}};
  const ProcessorTime busiest = busiest_between(before, after);
  EXPECT_DOUBLE_EQ(busiest.ran_seconds, 3);
  EXPECT_DOUBLE_EQ(busiest.waited_seconds, 1);
  EXPECT_DOUBLE_EQ(busiest_between({}, after).ran_seconds, 0) << "thread 3 was not there before";
}

TEST(ProcessorShare, work_counts_as_time_on_a_core) {
  if (!std::filesystem::exists("/proc/thread-self/schedstat")) GTEST_SKIP() << "this kernel does not count";
  const ProcessorTime before = processor_time();
  const Stopwatch watch;
  while (processor_time().ran_seconds - before.ran_seconds < 0.01 && watch.seconds() < 60) {
  }
  const ProcessorTime after = processor_time();
  EXPECT_GE(after.ran_seconds - before.ran_seconds, 0.01);
  EXPECT_LE(after.ran_seconds - before.ran_seconds + after.waited_seconds - before.waited_seconds,
            watch.seconds() + 0.1);
}

}  // namespace
}  // namespace lockstep
