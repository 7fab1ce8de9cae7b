// The gate: every layout computes what one rank computes. fp64, one seed, one stream of tokens; loss, every gradient,
// its norm, optimizer state and weights after three steps, and the bits of whatever more than one rank holds. The same
// on a GPU and in fp32, by the environment (exact_run.h); LOCKSTEP_EXACT_TABLE names a file for a line per layout.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "lockstep/nn/language_model.h"
#include "lockstep/nn/torch_compat.h"
#include "tests/exact/cases.h"

namespace lockstep::exact {
namespace {

class Layouts : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (setting_of_environment().device.is_cuda() && !nn::compat::has_cuda()) GTEST_SKIP() << "no GPU here";
  }
};

void note(const std::string& layout, double error, bool pass) {
  const char* const file = std::getenv("LOCKSTEP_EXACT_TABLE");
  if (file == nullptr) return;
  std::ofstream(file, std::ios::app) << fmt::format("{}\t{:.2e}\t{}\n", layout, error, pass ? "pass" : "FAIL");
}

TEST_P(Layouts, equal_the_single_rank_run) {
  const Outcome outcome = run_case(GetParam());
  const Outcome& reference = reference_of(GetParam());
  const std::string difference = first_difference(outcome, reference);
  note(GetParam().name(), largest_error(outcome, reference), difference.empty());
  EXPECT_EQ(difference, "") << GetParam().name();
}

std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return std::to_string(info.index) + "_" + name;
}

INSTANTIATE_TEST_SUITE_P(Exact, Layouts, ::testing::ValuesIn(every_case()), test_name);
INSTANTIATE_TEST_SUITE_P(Relatives, Layouts, ::testing::ValuesIn(cases_of_relatives()), test_name);
INSTANTIATE_TEST_SUITE_P(Plugins, Layouts, ::testing::ValuesIn(cases_of_plugins()), test_name);

// What all layouts are held against is independent of the engine's step.
class Reference : public ::testing::TestWithParam<std::string> {};

TEST_P(Reference, is_what_plain_autograd_computes) {
  if (setting_of_environment().device.is_cuda()) GTEST_SKIP() << "compared on the CPU";
  for (const std::int64_t accumulation : {1, 4}) {
    const Case one{GetParam(), "dp=1", accumulation};
    Outcome reference = reference_of(one);
    reference.gradients.clear();
    reference.state.clear();
    EXPECT_EQ(first_difference(reference, plain_run(GetParam(), accumulation)), "") << accumulation;
  }
}

INSTANTIATE_TEST_SUITE_P(Exact, Reference,
                         ::testing::Values("gpt", "gpt-odd", "bert", "llama", "moe", "moe-capacity", "moe-shared",
                                           "ssm", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo",
                                           "olmo2", "neox", "falcon", "falcon-new", "deepseek", "qwen3-moe", "plugin"),
                         [](const auto& which) { return std::to_string(which.index); });

// On a GPU: one rank there computes what one rank computes on the CPU.
class Models : public ::testing::TestWithParam<std::string> {};

TEST_P(Models, on_the_gpu_equal_the_cpu) {
  const Setting setting = setting_of_environment();
  if (!setting.device.is_cuda() || !nn::compat::has_cuda()) GTEST_SKIP() << "not asked for a GPU, or none here";
  // Other kernels round otherwise, which shows where a gradient is zero but for rounding (the bias of attention's
  // keys).
  const Setting on_cpu{torch::kCPU, setting.precision, /*slack=*/10.0};
  const Case one{GetParam(), "dp=1"};
  const Outcome outcome = run_case(one), reference = run_case(one, {}, comm::milliseconds{60'000}, on_cpu);
  const std::string difference = first_difference(outcome, reference, on_cpu);
  note(one.name() + " against the CPU", largest_error(outcome, reference), difference.empty());
  EXPECT_EQ(difference, "");
}

INSTANTIATE_TEST_SUITE_P(Exact, Models, ::testing::Values("gpt", "bert", "llama", "moe", "moe-capacity", "ssm"),
                         [](const auto& which) { return std::to_string(which.index); });

}  // namespace
}  // namespace lockstep::exact

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks are threads already
  if (lockstep::exact::setting_of_environment().device.is_cuda()) {
    // Replicas must have the same bits, so their kernels the same order; and what nobody wrote is NaN in this mode.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setAllowTF32CuDNN(false);
    at::globalContext().setAllowTF32CuBLAS(false);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
