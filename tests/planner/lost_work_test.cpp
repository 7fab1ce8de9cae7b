#include "lockstep/planner/lost_work.h"

#include <gtest/gtest.h>

#include "lockstep/planner/explain/explain.h"
#include "tests/base/expect_user_error.h"
#include "tests/planner/small_requests.h"

namespace lockstep::planner {
namespace {

using lockstep::testing::user_error;
using testing::request_of;

// 100 s until a checkpoint is durable, most of them to write it.
CadenceQuestion slow_storage(double max_lost_seconds) {
  CadenceQuestion question;
  question.state_bytes = 1e12;
  question.write_bytes_per_second = 1e10;
  question.host_copy_bytes_per_second = 1e12;
  question.failures_per_second = 1.0 / 86400;
  question.max_lost_seconds = max_lost_seconds;
  return question;
}

TEST(LostWork, the_remedy_is_the_slowest_storage_that_keeps_the_bound) {
  CadenceQuestion question = slow_storage(120);
  const LostWorkRemedy remedy = cheapest_remedy(question);
  ASSERT_GT(remedy.write_bytes_per_second, question.write_bytes_per_second);
  question.write_bytes_per_second = remedy.write_bytes_per_second;
  EXPECT_LE(choose_cadence(question).worst_lost_seconds, 120);
  question.write_bytes_per_second = 0.99 * remedy.write_bytes_per_second;
  EXPECT_GT(choose_cadence(question).worst_lost_seconds, 120);
}

TEST(LostWork, where_the_step_is_too_long_no_storage_helps_and_a_shorter_step_does) {
  CadenceQuestion question = slow_storage(120);
  question.step_seconds = 150;
  const LostWorkRemedy remedy = cheapest_remedy(question);
  EXPECT_EQ(remedy.write_bytes_per_second, 0);
  EXPECT_EQ(remedy.step_seconds, 0) << "storage is too slow as well";
  question.write_bytes_per_second = 1e12;
  const LostWorkRemedy shorter = cheapest_remedy(question);
  EXPECT_EQ(shorter.write_bytes_per_second, 0);
  ASSERT_GT(shorter.step_seconds, 0);
  EXPECT_LT(shorter.step_seconds, 120);
  question.step_seconds = shorter.step_seconds;
  EXPECT_LE(choose_cadence(question).worst_lost_seconds, 120);
}

SearchRequest on_slow_storage() {
  SearchRequest request = request_of("llama2-13b", "4x8xH100");
  request.cluster.storage.write_bytes_per_second = 0.1e9;
  request.requires_max_lost = true;
  return request;
}

TEST(LostWork, a_plan_that_cannot_keep_the_bound_is_refused_with_reason_and_remedy) {
  const std::string refusal =
      user_error([] { explain(on_slow_storage(), {.what_ifs = false}); }, ExitCode::kAnswerIsNo);
  EXPECT_HAS(refusal, "the bound on lost work cannot be kept: a failure may cost 1h");
  EXPECT_HAS(refusal, "allowed are 30m 0s");
  EXPECT_HAS(refusal, "storage writes 100 MB/s");
  EXPECT_HAS(refusal, "storage that writes ");
  EXPECT_HAS(refusal, "--max-lost");
}

TEST(LostWork, the_answer_is_no_and_not_a_mistake) {
  try {
    explain(on_slow_storage(), {.what_ifs = false});
    FAIL() << "it was not refused";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
  }
}

TEST(LostWork, the_storage_that_the_refusal_names_is_enough) {
  SearchRequest request = on_slow_storage();
  const std::int64_t devices = request.cluster.devices();
  CadenceQuestion question = cadence_question(request.model, request.cluster, 0, request.max_lost_seconds);
  request.requires_max_lost = false;
  const plan::Candidate best = explain(request, {.what_ifs = false}).plan.best;
  ASSERT_EQ(best.layout.world(), devices);
  question.step_seconds = best.prediction->step_seconds.expected;
  request.cluster.storage.write_bytes_per_second = 1.001 * cheapest_remedy(question).write_bytes_per_second;
  request.requires_max_lost = true;
  EXPECT_NO_THROW(explain(request, {.what_ifs = false}));
}

TEST(LostWork, a_bound_that_nobody_asked_for_refuses_nothing) {
  SearchRequest request = on_slow_storage();
  request.requires_max_lost = false;
  const plan::Plan plan = explain(request, {.what_ifs = false}).plan;
  EXPECT_GT(plan.best.checkpoint->worst_lost_seconds, request.max_lost_seconds) << "and the plan says so";
}

TEST(LostWork, a_larger_bound_is_accepted) {
  SearchRequest request = on_slow_storage();
  request.max_lost_seconds = 7200;
  EXPECT_NO_THROW(explain(request, {.what_ifs = false}));
}

}  // namespace
}  // namespace lockstep::planner
