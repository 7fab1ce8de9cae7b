// Real files of other people's jobs with known faults. They are not part of the project: ../shared/data/ops, where it
// is.
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/diagnose/foreign/files.h"

namespace lockstep::diagnose {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/ops";

class GivenFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kData)) GTEST_SKIP() << kData << " is not there: other people's traces are not part of the project";
  }

  static std::string first_cause(const fs::path& file) {
    const Diagnosis diagnosis = diagnose_files({kData / file});
    EXPECT_LE(diagnosis.findings.size(), kMostFindings);
    return diagnosis.findings.empty() ? "nothing" : to_string(diagnosis.findings.front().cause);
  }
};

TEST_F(GivenFiles, of_the_pytorch_profiler_get_their_label) {
  EXPECT_EQ(first_cause("kineto/kineto_resnet50_num_workers_0.json.gz"), "loader");
  EXPECT_EQ(first_cause("kineto/hta_2ranks_many_allreduce.json.gz"), "small_messages");
  EXPECT_EQ(first_cause("kineto/hta_128ranks_sampled_rank0.json.gz"), "exposed_communication");
  EXPECT_EQ(first_cause("kineto/hta_128ranks_sampled_rank1.json.gz"), "exposed_communication");
  EXPECT_EQ(first_cause("kineto/hta_ns_resolution.json.gz"), "nothing");
  EXPECT_EQ(first_cause("kineto/hta_diff_test_v100_rank1of2.json.gz"), "nothing");
}

TEST_F(GivenFiles, of_odd_profilers_are_read) {
  EXPECT_EQ(first_cause("kineto/hta_bad_no_distributed_info.json.gz"), "nothing");
  EXPECT_EQ(first_cause("kineto/hta_cpu_only_rank34of300.json.gz"), "nothing");
  EXPECT_EQ(diagnose_files({kData / "kineto/hta_rocm_mi250.json.gz"}).read.front().kind, "kineto");
}

TEST_F(GivenFiles, of_the_flight_recorder_name_the_injected_ranks) {
  for (const char* const folder : {"gpu_error_2nd", "lock_gil_1st"}) {
    const Diagnosis diagnosis = diagnose_files({kData / "flight_recorder" / folder});
    EXPECT_EQ(diagnosis.read.size(), 16U);
    ASSERT_EQ(diagnosis.findings.size(), 1U);
    EXPECT_EQ(diagnosis.findings[0].cause, Cause::kHang);
    EXPECT_EQ(diagnosis.findings[0].ranks, (std::vector<int>{9, 14})) << folder;
  }
}

}  // namespace
}  // namespace lockstep::diagnose
