#include "lockstep/cli/engine_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace lockstep::cli {
namespace {

class PrepareCompute : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}) unsetenv(name);
  }
  void TearDown() override { SetUp(); }

  static std::string value(const char* name) {
    const char* found = std::getenv(name);
    return found == nullptr ? "" : found;
  }
};

// libgomp turns 300,000 times by itself before it sleeps: on a busy machine a rank of two threads then trained at a
// fortieth of its speed.
TEST_F(PrepareCompute, threads_of_a_rank_soon_sleep_while_they_wait) {
  prepare_compute(2);
  EXPECT_EQ(value("OMP_NUM_THREADS"), "2");
  ASSERT_NE(value("GOMP_SPINCOUNT"), "");
  EXPECT_LE(std::stoi(value("GOMP_SPINCOUNT")), 10000);
}

TEST_F(PrepareCompute, a_wait_policy_or_count_that_the_user_set_is_kept) {
  setenv("OMP_WAIT_POLICY", "active", 1);
  prepare_compute(2);
  EXPECT_EQ(value("GOMP_SPINCOUNT"), "");
  unsetenv("OMP_WAIT_POLICY");
  setenv("GOMP_SPINCOUNT", "77", 1);
  prepare_compute(2);
  EXPECT_EQ(value("GOMP_SPINCOUNT"), "77");
}

}  // namespace
}  // namespace lockstep::cli
