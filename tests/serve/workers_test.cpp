#include "lockstep/serve/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "lockstep/base/file.h"

namespace lockstep::serve {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

TEST(Workers, give_one_answer_to_all_who_ask_the_same_at_once) {
  TemporaryFolder home;
  Workers workers(home.path(), {.shared_seconds = 60});
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> asked = 0, told = 0;
  std::promise<void> all;
  for (int i = 0; i < 64; ++i) {
    ASSERT_TRUE(workers.ask(
        "key",
        [&](Stores&) {
          ++asked;
          gone.wait();
          return answer_text(200, "text/plain", "answer");
        },
        [&](const Response& response) {
          EXPECT_EQ(*response.body, "answer");
          if (++told == 64) all.set_value();
        }));
  }
  go.set_value();
  ASSERT_EQ(all.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(workers.asked(), 1u);
}

std::string answer(Workers& workers, const std::string& key, const std::string& text) {
  std::promise<std::string> told;
  EXPECT_TRUE(workers.ask(
      key, [text](Stores&) { return answer_text(200, "text/plain", text); },
      [&](const Response& response) { told.set_value(*response.body); }));
  auto future = told.get_future();
  return future.wait_for(kPatience) == std::future_status::ready ? future.get() : "nothing";
}

TEST(Workers, forget_their_answers_when_something_is_changed) {
  TemporaryFolder home;
  Workers workers(home.path(), {.shared_seconds = 60});
  EXPECT_EQ(answer(workers, "a", "1"), "1");
  EXPECT_EQ(answer(workers, "a", "2"), "1");
  EXPECT_EQ(answer(workers, "b", "3"), "3");
  EXPECT_EQ(answer(workers, "", "changes"), "changes");
  EXPECT_EQ(answer(workers, "a", "4"), "4");
}

TEST(Workers, ask_again_when_an_answer_is_old) {
  TemporaryFolder home;
  Workers workers(home.path(), {.shared_seconds = -1});
  EXPECT_EQ(answer(workers, "a", "1"), "1");
  EXPECT_EQ(answer(workers, "a", "2"), "2");
}

TEST(Workers, refuse_when_too_many_wait) {
  TemporaryFolder home;
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  Workers workers(home.path(), {.threads = 1, .capacity = 4});
  int taken = 0;
  for (int i = 0; i < 20; ++i) {
    taken += workers.ask(
        std::to_string(i),
        [gone](Stores&) {
          gone.wait();
          return answer_text(200, "text/plain", "");
        },
        [](const Response&) {});
  }
  EXPECT_GE(taken, 4);
  EXPECT_LE(taken, 5);  // one may be under way
  go.set_value();
}

}  // namespace
}  // namespace lockstep::serve
