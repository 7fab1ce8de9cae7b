// The gate: every layout computes what one rank computes. fp64, one seed, one stream of tokens; loss, every gradient,
// its norm, optimizer state and weights after three steps, and the bits of whatever more than one rank holds.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "lockstep/nn/language_model.h"
#include "tests/exact/cases.h"

namespace lockstep::exact {
namespace {

class Layouts : public ::testing::TestWithParam<Case> {};

TEST_P(Layouts, equal_the_single_rank_run) {
  const Outcome outcome = run_case(GetParam());
  EXPECT_EQ(first_difference(outcome, reference_of(GetParam())), "") << GetParam().name();
}

std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return std::to_string(info.index) + "_" + name;
}

INSTANTIATE_TEST_SUITE_P(Exact, Layouts, ::testing::ValuesIn(every_case()), test_name);

}  // namespace
}  // namespace lockstep::exact

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks are threads already
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
