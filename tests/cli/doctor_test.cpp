#include "lockstep/cli/doctor.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/base/file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

// A folder tree that stands for a machine.
class FakeMachine {
 public:
  FakeMachine() : folder_("doctor") {}
  std::string root() const { return folder_.path().string() + "/"; }
  FakeMachine& with(const std::string& path, const std::string& text) {
    fs::create_directories((folder_.path() / path).parent_path());
    write_file_atomically(folder_.path() / path, text);
    return *this;
  }

 private:
  TemporaryFolder folder_;
};

const Check& find(const std::vector<Check>& checks, const std::string& name) {
  for (const Check& check : checks) {
    if (check.name == name) return check;
  }
  static const Check none{"none", CheckStatus::kFail, "no such check", ""};
  return none;
}

TEST(Doctor, notices_the_reference_blas_and_says_what_to_install) {
  EXPECT_EQ(identify_blas(FAKE_BLAS_FILE), BlasKind::kReference);
  const Check check = check_blas(FAKE_BLAS_FILE);
  EXPECT_EQ(check.status, CheckStatus::kFail);
  EXPECT_NE(check.fix.find("apt-get install libopenblas0-pthread"), std::string::npos);
}

TEST(Doctor, accepts_openblas_under_the_same_file_name) {
  EXPECT_EQ(identify_blas(FAKE_OPENBLAS_FILE), BlasKind::kOpenBlas);
  EXPECT_EQ(check_blas(FAKE_OPENBLAS_FILE).status, CheckStatus::kOk);
}

TEST(Doctor, finds_the_blas_that_the_engines_libtorch_would_really_get) {
  const std::vector<Check> checks = probe_engine(FAKE_ENGINE_FILE);
  EXPECT_EQ(find(checks, "libtorch").status, CheckStatus::kOk);
  EXPECT_NE(find(checks, "libtorch").detail.find("9.99"), std::string::npos);
  EXPECT_EQ(find(checks, "blas").status, CheckStatus::kFail);
}

TEST(Doctor, tells_debians_reference_blas_from_openblas) {
  const std::string folder = "/usr/lib/x86_64-linux-gnu/";
  if (!fs::exists(folder + "blas/libblas.so.3") || !fs::exists(folder + "openblas-pthread/libblas.so.3")) {
    GTEST_SKIP() << "needs libblas3 and libopenblas0-pthread";
  }
  EXPECT_EQ(identify_blas(folder + "blas/libblas.so.3"), BlasKind::kReference);
  EXPECT_EQ(identify_blas(folder + "openblas-pthread/libblas.so.3"), BlasKind::kOpenBlas);
}

TEST(Doctor, a_missing_engine_or_blas_fails_with_a_fix) {
  const std::vector<Check> checks = probe_engine("/nowhere/liblockstep_engine.so");
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].status, CheckStatus::kFail);
  EXPECT_FALSE(checks[0].fix.empty());
  EXPECT_FALSE(identify_blas("/nowhere/libblas.so.3").has_value());
  EXPECT_EQ(check_blas("/nowhere/libblas.so.3").status, CheckStatus::kFail);
  EXPECT_EQ(probe_plugin("/nowhere", "gloo").status, CheckStatus::kFail);
}

TEST(Doctor, reads_cores_and_instruction_sets) {
  FakeMachine machine;
  machine.with("proc/cpuinfo",
               "processor\t: 0\nmodel name\t: Fast One\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\n");
  const Check check = probe_cpu(machine.root());
  EXPECT_EQ(check.status, CheckStatus::kOk);
  EXPECT_EQ(check.detail, "2 x Fast One (AVX2, AVX-512)");
  machine.with("proc/cpuinfo", "processor\t: 0\nmodel name\t: Old\nflags\t\t: fpu sse2 avx512_unknown\n");
  EXPECT_EQ(probe_cpu(machine.root()).status, CheckStatus::kWarn);
}

TEST(Doctor, warns_when_the_container_may_use_fewer_cores_than_it_sees) {
  FakeMachine machine;
  machine.with("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(probe_cpu_limit(machine.root(), 8).status, CheckStatus::kWarn);
  EXPECT_NE(probe_cpu_limit(machine.root(), 8).detail.find("1.5 of the 8"), std::string::npos);
  EXPECT_EQ(probe_cpu_limit(machine.root(), 1).status, CheckStatus::kOk);
  machine.with("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(probe_cpu_limit(machine.root(), 8).status, CheckStatus::kOk);
  FakeMachine old;
  old.with("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n").with("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(probe_cpu_limit(old.root(), 4).status, CheckStatus::kWarn);
}

TEST(Doctor, memory_is_what_the_container_leaves) {
  FakeMachine machine;
  machine.with("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n");
  EXPECT_EQ(probe_memory(machine.root()).status, CheckStatus::kOk);
  machine.with("sys/fs/cgroup/memory.max", "1073741824\n").with("sys/fs/cgroup/memory.current", "536870912\n");
  const Check check = probe_memory(machine.root());
  EXPECT_EQ(check.status, CheckStatus::kWarn);
  EXPECT_NE(check.detail.find("512"), std::string::npos) << check.detail;
}

TEST(Doctor, gpu_states) {
  FakeMachine machine;
  machine.with("dev/null", "").with("dev/nvidiactl", "");
  EXPECT_EQ(probe_gpu(machine.root(), {}).detail, kNoGpu);
  machine.with("dev/nvidia0", "").with("dev/nvidia1", "");
  EXPECT_EQ(probe_gpu(machine.root(), {}).status, CheckStatus::kFail);
  machine.with("proc/driver/nvidia/version", "NVRM version: 1\n");
  const Check check = probe_gpu(machine.root(), {{"CUDA_VISIBLE_DEVICES", "1"}});
  EXPECT_EQ(check.status, CheckStatus::kOk);
  EXPECT_EQ(check.detail, "2 NVIDIA GPUs, CUDA_VISIBLE_DEVICES=1");
}

TEST(Doctor, launchers_are_recognised_by_their_variables) {
  EXPECT_NE(probe_launcher({}).detail.find("none"), std::string::npos);
  EXPECT_NE(probe_launcher({{"SLURM_JOB_ID", "77"}}).detail.find("Slurm job 77"), std::string::npos);
  EXPECT_NE(probe_launcher({{"OMPI_COMM_WORLD_SIZE", "4"}}).detail.find("Open MPI"), std::string::npos);
}

TEST(Doctor, a_run_store_that_cannot_be_written_fails) {
  const TemporaryFolder folder("store");
  EXPECT_EQ(probe_run_store((folder.path() / "a/b/runs.sqlite").string()).status, CheckStatus::kOk);
  EXPECT_TRUE(fs::is_empty(folder.path()));  // nothing is left behind
  EXPECT_EQ(probe_run_store("/proc/lockstep/runs.sqlite").status, CheckStatus::kFail);
  EXPECT_EQ(probe_disk((folder.path() / "a").string()).detail.find("free at") == std::string::npos, false);
}

TEST(Doctor, few_open_files_are_a_warning_with_the_command) {
  EXPECT_EQ(probe_open_files(1024, 4096).status, CheckStatus::kOk);
  EXPECT_EQ(probe_open_files(64, 512).status, CheckStatus::kWarn);
  EXPECT_EQ(probe_open_files(64, 512).fix, "ulimit -n 512");
}

TEST(Doctor, loopback_and_clock_work_here) {
  EXPECT_EQ(probe_loopback().status, CheckStatus::kOk) << probe_loopback().detail;
  EXPECT_EQ(probe_clock().status, CheckStatus::kOk) << probe_clock().detail;
}

TEST(Doctor, exit_code_is_four_when_something_fails_and_json_names_it) {
  const TemporaryFolder folder("doctor");
  DoctorOptions options;
  options.json = true;
  options.run_store = folder.path().string();
  options.engine_library = FAKE_ENGINE_FILE;
  options.plugin_directory = folder.path().string();
  options.environment = {{"HOME", "/"}};
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_doctor(options), 4);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("\"schema\":\"lockstep.doctor/1\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"ok\":false"), std::string::npos) << text;
  EXPECT_NE(text.find("reference BLAS"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::cli
