#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>

#include "fake_nvml.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/elastic/gpu_state.h"
#include "lockstep/elastic/health_monitor.h"
#include "lockstep/elastic/node_checks.h"
#include "lockstep/telemetry/kernel_log.h"
#include "lockstep/telemetry/xid.h"

namespace lockstep::elastic {
namespace {

namespace fs = std::filesystem;
using telemetry::finding_in;
using telemetry::KernelLine;
using telemetry::KernelLog;
using telemetry::known_xids;
using telemetry::meaning_of_xid;
using telemetry::parse_kernel_line;
using telemetry::xid_finding;
using telemetry::XidMeaning;

// A folder tree that stands for a machine.
class FakeMachine {
 public:
  FakeMachine() : folder_("health") {}
  explicit FakeMachine(const std::function<void(FakeMachine&)>& fill) : FakeMachine() { fill(*this); }
  std::string root() const { return folder_.path().string() + "/"; }
  FakeMachine& with(const std::string& path, const std::string& text) {
    fs::create_directories((folder_.path() / path).parent_path());
    write_file_atomically(folder_.path() / path, text);
    return *this;
  }
  FakeMachine& without(const std::string& path) {
    fs::remove_all(folder_.path() / path);
    return *this;
  }

 private:
  TemporaryFolder folder_;
};

const Finding* find(const std::vector<Finding>& findings, const std::string& piece) {
  for (const Finding& finding : findings) {
    if (finding.what.find(piece) != std::string::npos) return &finding;
  }
  return nullptr;
}

Severity worst(const std::vector<Finding>& findings) {
  Severity severity = Severity::kOk;
  for (const Finding& finding : findings) severity = std::max(severity, finding.severity);
  return severity;
}

// --- the kernel log --------------------------------------------------------------------------------------------------

TEST(KernelLog, tells_a_fault_of_the_hardware_from_one_of_the_program) {
  const auto lost = finding_in("NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.");
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->severity, Severity::kFatal);
  EXPECT_EQ(lost->subject, "xid 79 0000:9b:00");
  EXPECT_NE(lost->fix, "");
  const auto fault =
      finding_in("NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=train, Ch 00000010, intr 00000000. MMU Fault");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->severity, Severity::kApplication);
  EXPECT_EQ(fault->pid, 77);
  const auto remap = finding_in("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping");
  ASSERT_TRUE(remap);
  EXPECT_EQ(remap->severity, Severity::kInfo);
}

TEST(KernelLog, reads_old_and_new_forms_of_a_line) {
  EXPECT_EQ(finding_in("NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120")->subject, "xid 31 0000:01:00");
  EXPECT_EQ(
      finding_in("NVRM: Xid (PCI:0000:05:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit")->pid,
      0);
  EXPECT_EQ(finding_in("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.")->subject, "xid 79 0000:9b:00");
  EXPECT_EQ(finding_in("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress")->severity,
            Severity::kWarning);
  EXPECT_EQ(finding_in("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20009, Fatal, Link 12 LTSSM Fault")->severity,
            Severity::kFatal);
  const auto recovers = finding_in(
      "NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)");
  EXPECT_EQ(recovers->severity, Severity::kInfo);
  const auto asks = finding_in(
      "NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)");
  EXPECT_EQ(asks->severity, Severity::kFatal);
}

TEST(KernelLog, knows_processes_killed_for_want_of_memory_and_memory_that_is_broken) {
  EXPECT_EQ(finding_in("Out of memory: Killed process 1234 (lockstep) total-vm:123kB")->severity, Severity::kWarning);
  EXPECT_EQ(finding_in("Memory cgroup out of memory: Killed process 12 (lockstep)")->check, "memory");
  EXPECT_EQ(finding_in("Memory failure: 0x7f2b3: Killing lockstep:1234 due to hardware memory corruption")->severity,
            Severity::kFatal);
  EXPECT_EQ(finding_in("EXT4-fs (nvme0n1p1): Remounting filesystem read-only")->check, "disk");
  EXPECT_EQ(finding_in("blk_update_request: I/O error, dev sda, sector 12 op 0x0:(READ)")->subject, "errors of sda");
  EXPECT_FALSE(finding_in("IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready"));
}

TEST(KernelLog, has_each_code_once_with_a_meaning_and_a_fix) {
  std::set<int> codes;
  for (const XidMeaning& xid : known_xids()) {
    EXPECT_TRUE(codes.insert(xid.code).second) << xid.code;
    EXPECT_NE(std::string(xid.meaning), "") << xid.code;
    EXPECT_NE(std::string(xid.fix), "") << xid.code;
  }
  EXPECT_EQ(meaning_of_xid(99999).severity, Severity::kWarning);
}

TEST(KernelLog, does_not_believe_what_programs_write_into_it) {
  EXPECT_EQ(parse_kernel_line("6,3964,206764307,-;nvidia-nvswitch2: open")->text, "nvidia-nvswitch2: open");
  EXPECT_EQ(parse_kernel_line("[Sun Feb 23 16:24:18 2025] NVRM: x")->text, "NVRM: x");
  EXPECT_FALSE(parse_kernel_line("12,3964,206764307,-;NVRM: Xid (PCI:0000:9b:00): 79, made up"));
  EXPECT_FALSE(parse_kernel_line(" SUBSYSTEM=pci"));
}

TEST(KernelLog, follows_a_file_that_grows_and_one_that_was_cut) {
  TemporaryFolder folder;
  const fs::path file = folder.path() / "log";
  std::ofstream(file) << "first\nhal";
  KernelLog log(file.string());
  ASSERT_EQ(log.problem(), "");
  ASSERT_EQ(log.read().size(), 1U);
  std::ofstream(file, std::ios::app) << "f\n";
  const auto more = log.read();
  ASSERT_EQ(more.size(), 1U);
  EXPECT_EQ(more[0].text, "half");
  std::ofstream(file, std::ios::trunc) << "new\n";
  ASSERT_EQ(log.read().size(), 1U);
}

TEST(KernelLog, of_this_machine_is_read_without_waiting) {
  KernelLog log("/dev/kmsg");
  if (!log.problem().empty()) GTEST_SKIP() << log.problem();
  log.read();
  EXPECT_LT(log.read().size(), 1000U);
}

TEST(KernelLog, finds_the_one_broken_gpu_in_a_real_log) {
  const fs::path file = fs::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/ops/health/dmesg-with-xid-119.log";
  if (!fs::exists(file)) GTEST_SKIP() << "needs " << file;
  std::set<std::string> subjects;
  for (const KernelLine& line : KernelLog(file.string()).read()) {
    if (const auto finding = finding_in(line.text)) {
      EXPECT_EQ(finding->severity, Severity::kFatal);
      subjects.insert(finding->subject);
    }
  }
  EXPECT_EQ(subjects, std::set<std::string>{"xid 119 0000:9b:00"});
}

TEST(KernelLog, finds_nothing_in_a_real_log_of_a_sound_machine) {
  const fs::path file = fs::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/ops/health/kmsg.1.log";
  if (!fs::exists(file)) GTEST_SKIP() << "needs " << file;
  const auto lines = KernelLog(file.string()).read();
  EXPECT_GT(lines.size(), 40U);
  for (const KernelLine& line : lines) EXPECT_FALSE(finding_in(line.text)) << line.text;
}

// --- disks -----------------------------------------------------------------------------------------------------------

TEST(Disk, is_well_where_a_file_can_be_written) {
  TemporaryFolder folder;
  const auto findings = look_at_folder({"the run store", folder.path() / "not" / "there yet"}, Moment::kBefore);
  EXPECT_EQ(worst(findings), Severity::kOk) << findings[0].what;
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Disk, that_is_read_only_is_fatal_where_the_run_writes_and_a_warning_elsewhere) {
  EXPECT_EQ(worst(look_at_folder({"the checkpoint folder", "/proc/self"}, Moment::kBefore)), Severity::kFatal);
  EXPECT_EQ(worst(look_at_folder({"the checkpoint folder", "/proc/self"}, Moment::kDuring)), Severity::kFatal);
  EXPECT_EQ(worst(look_at_folder({"TMPDIR", "/proc/self", 0.0, false}, Moment::kBefore)), Severity::kWarning);
}

TEST(Disk, without_room_for_a_checkpoint_is_refused_before_the_start_and_told_during_the_run) {
  TemporaryFolder folder;
  const WatchedFolder watched{"the checkpoint folder", folder.path(), 1e18};
  EXPECT_EQ(worst(look_at_folder(watched, Moment::kBefore)), Severity::kFatal);
  EXPECT_EQ(worst(look_at_folder(watched, Moment::kDuring)), Severity::kWarning);
}

// --- memory ----------------------------------------------------------------------------------------------------------

void with_limit(FakeMachine& machine) {
  machine.with("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   8388608 kB\n");
  machine.with("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  machine.with("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  machine.with("sys/fs/cgroup/slurm/job_7/step_0/memory.events", "low 0\noom 1\noom_kill 1\n");
  machine.with("sys/fs/cgroup/slurm/job_7/memory.max", "4294967296\n");
  machine.with("sys/fs/cgroup/slurm/job_7/memory.current", "3221225472\n");
  machine.with("sys/fs/cgroup/slurm/job_7/memory.stat", "anon 5\ninactive_file 1073741824\n");
}

TEST(Memory, is_what_the_tightest_limit_above_the_process_leaves) {
  const FakeMachine machine(with_limit);
  const MemoryState state = read_memory(machine.root());
  EXPECT_TRUE(state.limited);
  EXPECT_EQ(state.total, 4294967296.0);
  EXPECT_EQ(state.available, 2147483648.0);  // 1 GiB, and 1 GiB that is only cached
  EXPECT_EQ(state.oom_kills, 1);
}

TEST(Memory, that_is_far_too_small_for_the_ranks_is_fatal_before_the_start) {
  const MemoryState state{16e9, 4e9, 0, false};
  EXPECT_EQ(worst(judge_memory(nullptr, state, 3e9, 0)), Severity::kOk);
  EXPECT_EQ(worst(judge_memory(nullptr, state, 5e9, 0)), Severity::kWarning);
  EXPECT_EQ(worst(judge_memory(nullptr, state, 9e9, 0)), Severity::kFatal);
  EXPECT_EQ(worst(judge_memory(&state, state, 9e9, 0)), Severity::kOk);  // they hold it already
}

TEST(Memory, that_runs_out_and_kills_are_told) {
  const MemoryState before{16e9, 4e9, 3, false}, now{16e9, 1e8, 5, false};
  const auto findings = judge_memory(&before, now, 0, 7 * 1073741824.0);
  EXPECT_NE(find(findings, "killed 2 processes"), nullptr);
  EXPECT_NE(find(findings, "the ranks hold 7"), nullptr);
  EXPECT_EQ(worst(findings), Severity::kWarning);
}

// --- links -----------------------------------------------------------------------------------------------------------

void with_links(FakeMachine& machine) {
  machine.with("sys/class/net/eth1/operstate", "up\n").with("sys/class/net/eth1/carrier", "1\n");
  machine.with("sys/class/net/eth1/statistics/rx_errors", "5\n").with("sys/class/net/eth1/statistics/tx_errors", "0\n");
  machine.with("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  machine.with("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
}

TEST(Links, that_are_up_are_well_and_unused_infiniband_ports_are_not_of_interest) {
  const FakeMachine machine(with_links);
  const auto findings = judge_links({}, read_links({"eth1"}, machine.root()));
  EXPECT_EQ(worst(findings), Severity::kOk);
  EXPECT_EQ(findings.size(), 2U);
}

TEST(Links, that_lose_their_carrier_are_fatal) {
  FakeMachine machine(with_links);
  const Links before = read_links({"eth1"}, machine.root());
  machine.with("sys/class/net/eth1/operstate", "down\n");
  EXPECT_EQ(find(judge_links(before, read_links({"eth1"}, machine.root())), "eth1")->severity, Severity::kFatal);
  machine.with("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  EXPECT_EQ(find(judge_links(before, read_links({}, machine.root())), "mlx5_0 port 1")->severity, Severity::kFatal);
  machine.without("sys/class/net/eth1");
  EXPECT_NE(find(judge_links(before, read_links({"eth1"}, machine.root())), "not there any more"), nullptr);
}

TEST(Links, whose_errors_rise_are_warnings) {
  FakeMachine machine(with_links);
  const Links before = read_links({"eth1"}, machine.root());
  machine.with("sys/class/net/eth1/statistics/rx_errors", "105\n");
  const auto findings = judge_links(before, read_links({"eth1"}, machine.root()));
  ASSERT_NE(find(findings, "100 new errors"), nullptr);
  EXPECT_EQ(worst(findings), Severity::kWarning);
}

TEST(Links, to_a_node_whose_name_is_unknown_are_told) {
  const NodeList nodes{{{"127.0.0.1", 1}, {"no-such-host.invalid", 1}}, 0, "flags"};
  const auto findings = look_at_peers(nodes, 1.0);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].what.find("no-such-host.invalid"), std::string::npos);
}

TEST(Links, to_a_node_where_no_agent_runs_yet_are_well) {
  const NodeList nodes{{{"127.0.0.1", 1}, {"127.0.0.1", 2}}, 0, "flags"};
  EXPECT_TRUE(look_at_peers(nodes, 5.0).empty());
}

// --- GPUs ------------------------------------------------------------------------------------------------------------

class FakeGpus : public ::testing::Test {
 protected:
  FakeGpus() : library_(dlopen(FAKE_NVML_FILE, RTLD_NOW)) {
    state_ = reinterpret_cast<FakeNvml* (*)()>(dlsym(library_, "fake_nvml_state"))();
    *state_ = FakeNvml{};
    gpus_ = open_nvml(FAKE_NVML_FILE);
  }
  ~FakeGpus() override { dlclose(library_); }

  std::vector<Finding> look() {
    std::vector<GpuState> now = gpus_->look();
    auto findings = judge_gpus(before_, now);
    before_ = std::move(now);
    return findings;
  }

  void* library_;
  FakeNvml* state_;
  std::unique_ptr<Gpus> gpus_;
  std::vector<GpuState> before_;
};

TEST_F(FakeGpus, that_are_well_are_listed_with_their_place_and_temperature) {
  const auto findings = look();
  EXPECT_EQ(worst(findings), Severity::kOk);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[1].what, "GPU 1 (Made-up GPU, 0000:9b:00) is well, 40 degrees");
}

TEST_F(FakeGpus, that_fall_off_the_bus_are_fatal) {
  look();
  state_->gpus[1].lost = true;
  const auto findings = look();
  ASSERT_NE(find(findings, "GPU is lost"), nullptr);
  EXPECT_EQ(find(findings, "GPU is lost")->severity, Severity::kFatal);
  state_->count = 1;
  EXPECT_NE(find(look(), "does not list it any more"), nullptr);
}

TEST_F(FakeGpus, with_bad_memory_are_fatal_only_when_it_cannot_be_replaced) {
  state_->gpus[0].remap_pending = 1;
  EXPECT_EQ(worst(look()), Severity::kWarning);
  state_->gpus[0].remap_failed = 1;
  EXPECT_EQ(worst(look()), Severity::kFatal);
}

TEST_F(FakeGpus, with_new_uncorrectable_errors_are_told_with_their_number) {
  state_->gpus[0].uncorrected = 2;
  EXPECT_NE(find(look(), "has had 2 uncorrectable"), nullptr);
  EXPECT_EQ(worst(look()), Severity::kOk);
  state_->gpus[0].uncorrected = 5;
  EXPECT_NE(find(look(), "3 new uncorrectable"), nullptr);
}

TEST_F(FakeGpus, that_are_slowed_down_by_heat_are_told_and_a_power_cap_is_not_a_fault) {
  state_->gpus[0].slowdowns = 0x4;  // the power limit, which is usual under load
  EXPECT_EQ(worst(look()), Severity::kOk);
  state_->gpus[0].slowdowns = kSlowHeatHardware | kSlowHardware;
  state_->gpus[0].temperature = 91;
  const auto findings = look();
  EXPECT_NE(find(findings, "slowed down by heat, 345 of 1980 MHz, 91 degrees"), nullptr);
}

TEST_F(FakeGpus, tell_xids_where_the_kernel_log_cannot_be_read) {
  look();
  state_->gpus[1].xid = 79;
  const auto xids = gpus_->xids();
  ASSERT_EQ(xids.size(), 1U);
  EXPECT_EQ(xid_finding(xids[0].code, xids[0].pci, 0, "").subject, "xid 79 0000:9b:00");
  EXPECT_TRUE(gpus_->xids().empty());
}

TEST(Nvml, that_is_not_there_is_not_an_error) { EXPECT_EQ(open_nvml("/nowhere/libnvidia-ml.so.1"), nullptr); }

// --- the monitor -----------------------------------------------------------------------------------------------------

HealthOptions quiet(const fs::path& log) {
  HealthOptions options;
  options.kernel_log = log.string();
  options.open_gpus = nullptr;
  options.pace = 0.02;
  return options;
}

// Until something new is found, or half a minute.
std::vector<Finding> wait_for_news(HealthMonitor& monitor) {
  const Deadline deadline = Deadline::after(30.0);
  while (!deadline.expired()) {
    auto findings = monitor.take();
    if (!findings.empty()) return findings;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

TEST(HealthMonitor, tells_first_what_is_well_too_and_later_only_what_is_new) {
  TemporaryFolder folder;
  const fs::path log = folder.path() / "log";
  std::ofstream(log) << "nothing\n";
  HealthMonitor monitor(quiet(log));
  EXPECT_NE(find(monitor.first(), "nothing bad in the kernel log"), nullptr);
  const std::string line = "Memory failure: 0x7f2b3: Killing a due to hardware memory corruption\n";
  std::ofstream(log, std::ios::app) << line;
  const auto news = wait_for_news(monitor);
  ASSERT_EQ(news.size(), 1U);
  EXPECT_EQ(news[0].severity, Severity::kFatal);
  std::ofstream(log, std::ios::app) << line << "EXT4-fs (sda): Remounting filesystem read-only\n";
  const auto more = wait_for_news(monitor);
  ASSERT_EQ(more.size(), 1U);  // the first is not told again
  EXPECT_EQ(more[0].check, "disk");
}

TEST(HealthMonitor, holds_old_faults_against_a_node_and_old_errors_of_programs_not) {
  TemporaryFolder folder;
  const fs::path log = folder.path() / "log";
  std::ofstream(log) << "NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=train, MMU Fault\n"
                     << "Out of memory: Killed process 1234 (x)\n";
  HealthOptions options = quiet(log);
  options.gpus = true;
  options.open_gpus = [] { return std::unique_ptr<Gpus>(); };
  for (const Finding& finding : HealthMonitor(options).first()) {
    if (finding.subject == "library") continue;
    EXPECT_LE(finding.severity, Severity::kInfo) << finding.what;
  }
  std::ofstream(log, std::ios::app) << "NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=train, gone\n";
  EXPECT_EQ(worst(HealthMonitor(options).first()), Severity::kFatal);
  options.gpus = false;  // a run that computes elsewhere
  EXPECT_LT(worst(HealthMonitor(options).first()), Severity::kFatal);
}

// GPUs of a driver that hangs until it is released.
class HungGpus final : public Gpus {
 public:
  struct Latch {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
  };
  explicit HungGpus(std::shared_ptr<Latch> latch) : latch_(std::move(latch)) {}
  std::vector<GpuState> look() override {
    std::unique_lock lock(latch_->mutex);
    latch_->changed.wait(lock, [&] { return latch_->open; });
    return {};
  }
  std::vector<GpuXid> xids() override { return {}; }

 private:
  std::shared_ptr<Latch> latch_;
};

TEST(HealthMonitor, does_not_wait_for_a_driver_that_hangs) {
  const auto latch = std::make_shared<HungGpus::Latch>();
  HealthOptions options = quiet("/nowhere");
  options.gpus = true;
  options.open_gpus = [latch] { return std::make_unique<HungGpus>(latch); };
  options.answer_seconds = 0.3;
  {
    HealthMonitor monitor(options);
    const auto findings = monitor.first();
    ASSERT_NE(find(findings, "no answer"), nullptr);
    EXPECT_EQ(find(findings, "no answer")->check, "gpu");
    EXPECT_NE(find(findings, "available"), nullptr);  // the others answered
  }                                                   // and going does not wait for it either
  const std::lock_guard lock(latch->mutex);
  latch->open = true;
  latch->changed.notify_all();
}

}  // namespace
}  // namespace lockstep::elastic
