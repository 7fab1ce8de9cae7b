// Exports of Nsight Systems of several schemas, made here, and the comparison of two profiles.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/diagnose/foreign/diff.h"
#include "lockstep/diagnose/foreign/files.h"
#include "lockstep/diagnose/foreign/kineto.h"
#include "lockstep/diagnose/foreign/nsight.h"
#include "tests/diagnose/trace_builder.h"

namespace lockstep::diagnose::test {
namespace {

namespace fs = std::filesystem;

// Times in microseconds.
class NsightFile {
 public:
  explicit NsightFile(fs::path file, bool old_schema = false) : path(std::move(file)), old_(old_schema) {
    sqlite3_open(path.c_str(), &handle_);
    run("BEGIN");
    run(std::string("CREATE TABLE ") + (old_ ? "EXPORT_META_DATA" : "META_DATA_EXPORT") + " (name TEXT, value TEXT)");
    run("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)");
    run(std::string("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, \"end\" INTEGER, deviceId INTEGER, "
                    "streamId INTEGER, "
                    "correlationId INTEGER, ") +
        (old_ ? "demangledName" : "globalPid INTEGER, shortName") + " INTEGER)");
    run("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, \"end\" INTEGER, correlationId INTEGER, nameId "
        "INTEGER, globalTid INTEGER)");
    run("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, \"end\" INTEGER, deviceId INTEGER, streamId INTEGER, "
        "correlationId INTEGER, "
        "copyKind INTEGER)");
  }
  ~NsightFile() { close(); }
  NsightFile(const NsightFile&) = delete;
  NsightFile& operator=(const NsightFile&) = delete;

  void close() {
    if (handle_ == nullptr) return;
    run("COMMIT");
    sqlite3_close(handle_);
    handle_ = nullptr;
  }

  void kernel(const std::string& name, double launch, double begin, double length, int device = 0) {
    ++correlation_;
    run(fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({}, {}, {}, {}, {})", ns(launch), ns(launch + 5),
                    correlation_, string("cudaLaunchKernel_v7000"), kProcess + 7));
    run(fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({}, {}, {}, 7, {}, {}{})", ns(begin),
                    ns(begin + length), device, correlation_, old_ ? "" : std::to_string(kProcess) + ", ",
                    string(name)));
  }
  void copy(double begin, double length, int kind) {
    run(fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({}, {}, 0, 8, 0, {})", ns(begin),
                    ns(begin + length), kind));
  }
  void range(const std::string& name, double begin, double end) {
    run("CREATE TABLE IF NOT EXISTS NVTX_EVENTS (start INTEGER, \"end\" INTEGER, eventType INTEGER, text TEXT, textId "
        "INTEGER, globalTid INTEGER)");
    run(fmt::format("INSERT INTO NVTX_EVENTS VALUES ({}, {}, 59, NULL, {}, {})", ns(begin), ns(end), string(name),
                    kProcess + 7));
  }

  fs::path path;

 private:
  static constexpr std::int64_t kProcess = std::int64_t{42} << 24;
  static std::int64_t ns(double microseconds) { return static_cast<std::int64_t>(microseconds * 1000.0); }
  int string(const std::string& text) {
    const auto [place, is_new] = strings_.try_emplace(text, static_cast<int>(strings_.size()) + 1);
    if (is_new) run(fmt::format("INSERT INTO StringIds VALUES ({}, '{}')", place->second, text));
    return place->second;
  }
  void run(const std::string& sql) {
    ASSERT_EQ(sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sql;
  }

  sqlite3* handle_ = nullptr;
  bool old_;
  int correlation_ = 0;
  std::map<std::string, int> strings_;
};

std::string first_cause(NsightFile& file) {
  file.close();
  const Diagnosis diagnosis = diagnose_files({file.path});
  EXPECT_EQ(diagnosis.read.at(0).kind, "nsight");
  return diagnosis.findings.empty() ? "nothing" : to_string(diagnosis.findings[0].cause);
}

class Nsight : public ::testing::TestWithParam<bool> {
 protected:
  TemporaryFolder folder_;
  NsightFile file_{folder_.path() / "a", GetParam()};
};

TEST_P(Nsight, a_busy_device_gets_no_finding) {
  for (int i = 0; i < 200; ++i) file_.kernel("gemm", i * 1010.0, i * 1010.0 + 5, 1000);
  EXPECT_EQ(first_cause(file_), "nothing");
}

TEST_P(Nsight, a_device_that_waits_for_the_program_is_host_bound) {
  for (int i = 0; i < 50; ++i) file_.kernel("gemm", i * 2000.0, i * 2000.0 + 5, 1000);
  EXPECT_EQ(first_cause(file_), "host_bound");
}

TEST_P(Nsight, copies_from_the_host_while_nothing_is_computed_are_host_bound) {
  for (int i = 0; i < 50; ++i) {
    file_.kernel("gemm", i * 1000.0, i * 1000.0 + 5, 300);
    file_.copy(i * 1000.0 + 306, 690, 1);
  }
  EXPECT_EQ(first_cause(file_), "host_bound");
}

TEST_P(Nsight, communication_that_nothing_hides_is_named) {
  for (int i = 0; i < 40; ++i) {
    file_.kernel("gemm", i * 1000.0, i * 1000.0 + 5, 800);
    file_.kernel("ncclDevKernel_SendRecv", i * 1000.0 + 10, i * 1000.0 + 806, 190);
  }
  EXPECT_EQ(first_cause(file_), "exposed_communication");
}

TEST_P(Nsight, ranges_of_nvtx_tell_of_the_loader) {
  for (int i = 0; i < 40; ++i) {
    file_.range("DataLoader.next", i * 1000.0 + 500, i * 1000.0 + 998);
    file_.kernel("gemm", i * 1000.0 + 999, i * 1000.0 + 1005, 480);
  }
  EXPECT_EQ(first_cause(file_), "loader");
}

INSTANTIATE_TEST_SUITE_P(Schemas, Nsight, ::testing::Bool());

TEST(NsightFiles, that_are_not_whole_are_refused) {
  const TemporaryFolder folder;
  NsightFile file(folder.path() / "a");
  for (int i = 0; i < 2000; ++i) file.kernel("gemm", i * 1000.0, i * 1000.0 + 5, 990);
  file.close();
  const std::string whole = read_file(file.path);
  for (const std::size_t size : {std::size_t{20}, std::size_t{100}, std::size_t{5000}, whole.size() / 2}) {
    const fs::path cut = folder.path() / "cut";
    std::ofstream(cut, std::ios::binary) << whole.substr(0, size);
    EXPECT_THROW(diagnose_files({cut}), UserError) << size;
  }
  NsightFile empty(folder.path() / "empty");
  empty.close();
  try {
    diagnose_files({empty.path});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("holds no work of a GPU"), std::string::npos) << error.what();
  }
}

TEST(Diff, says_what_changed_per_step) {
  const auto trace = [](const StepShape& shape) {
    const std::string json = job(shape, 6).json();
    return std::vector<Trace>{read_kineto(*memory_source(json), "t")};
  };
  const DiagnosisDiff diff = diff_traces(trace(StepShape{.synchronize = true}),
                                         trace(StepShape{.bucket_us = 2'000.0, .overlap = false, .synchronize = true}));
  const auto part = [&](const char* what) {
    return *std::find_if(diff.parts.begin(), diff.parts.end(),
                         [&](const ChangedTime& line) { return line.what == what; });
  };
  EXPECT_NEAR(part("computing").change(), 0.0, 1e-5);
  EXPECT_NEAR(part("exposed communication").after, 6 * 2e-3, 1e-4);
  double sum = 0.0;
  for (const ChangedTime& line : diff.parts) sum += line.change();
  EXPECT_NEAR(sum, diff.step.change(), 1e-6);  // nothing is left over
  ASSERT_FALSE(diff.kernels.empty());
  EXPECT_EQ(diff.kernels[0].name, "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
  EXPECT_NE(to_text(diff).find("times as long"), std::string::npos);
  EXPECT_EQ(to_json(diff)["schema"], "lockstep.diagnosis_diff/1");
}

TEST(Diff, needs_profiles) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "log") << "h:1:1 [0] NCCL INFO Using network IB\n";
  EXPECT_THROW(diff_files(folder.path() / "log", folder.path() / "log"), UserError);
}

}  // namespace
}  // namespace lockstep::diagnose::test
