// Real files of other people's jobs with known faults. They are not part of the project: ../shared/data/ops, where it
// is.
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/diagnose/foreign/files.h"
#include "lockstep/diagnose/foreign/nccl_log.h"
#include "lockstep/diagnose/foreign/operations_csv.h"
#include "lockstep/diagnose/foreign/source.h"

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

TEST_F(GivenFiles, of_nsight_systems_get_their_label) {
  EXPECT_EQ(first_cause("nsight/h100_2gpu_1s.sqlite.gz"), "host_bound");
  EXPECT_EQ(first_cause("nsight/mfu_2gpu_before.sqlite.gz"), "exposed_communication");
  EXPECT_EQ(first_cause("nsight/healthy_1pct.sqlite.gz"), "nothing");
  EXPECT_EQ(diagnose_files({kData / "nsight/pipit_saxpy_mpi_a100.sqlite.gz"}).read.front().kind, "nsight");
}

// The authors' own replay: 1.973 and 1.179 times as long as without stragglers.
TEST_F(GivenFiles, of_operations_name_the_straggler_and_its_slow_down) {
  for (const auto& [file, cause, slow_down] : {std::tuple{"trace-AR.csv.gz", Cause::kSlowRank, 1.9730},
                                               std::tuple{"trace-ST.csv.gz", Cause::kStageImbalance, 1.1787}}) {
    const fs::path path = kData / "stragglers" / file;
    const Diagnosis diagnosis = diagnose_files({path});
    ASSERT_FALSE(diagnosis.findings.empty());
    EXPECT_EQ(diagnosis.findings[0].cause, cause);
    const StragglerFigures figures =
        straggler_figures(read_operations(read_all(*open_source(path), file, 1 << 30), file));
    EXPECT_NEAR(figures.slow_down() / slow_down, 1.0, 0.02) << file;
  }
}

TEST_F(GivenFiles, of_kernels_and_nccl_are_read) {
  EXPECT_EQ(first_cause("health/dmesg-with-xid-119.log"), "hardware_error");
  EXPECT_EQ(first_cause("health/kmsg.1.log"), "nothing");
  for (const auto& [file, gigabits] :
       {std::pair{"all_reduce_bench-a100-n4.txt", 40.5}, std::pair{"all_reduce_bench-32gb-n4.txt", 84.7}}) {
    const fs::path path = kData / "nccl_logs" / file;
    const NcclLog log = read_nccl_log(read_all(*open_source(path), file, 1 << 30));
    ASSERT_FALSE(log.bus_bandwidths.empty()) << file;
    EXPECT_NEAR(log.bus_bandwidths.back() * 8e-9, gigabits, 0.02 * gigabits) << file;
  }
  EXPECT_EQ(first_cause("nccl_logs/meg_gpt2_perf_n16-1999618.out.gz"), "nothing");
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
