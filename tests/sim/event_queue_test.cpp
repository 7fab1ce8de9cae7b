#include "lockstep/sim/event_queue.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/sim/random.h"

namespace lockstep::sim {
namespace {

TEST(EventQueue, gives_events_by_time_and_equal_times_as_they_came) {
  EventQueue queue;
  std::multimap<double, std::uint32_t> expected;  // keeps the order of equal keys
  Random random(7);
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const auto time = static_cast<double>(random.below(100));
    queue.add(time, i);
    expected.emplace(time, i);
    if (i % 3 != 0) continue;
    const auto [first, what] = queue.pop();
    EXPECT_EQ(first, expected.begin()->first);
    EXPECT_EQ(what, expected.begin()->second);
    expected.erase(expected.begin());
  }
  EXPECT_EQ(queue.size(), expected.size());
  for (const auto& [time, what] : expected) {
    EXPECT_EQ(queue.next_time(), time);
    EXPECT_EQ(queue.pop().what, what);
  }
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace lockstep::sim
