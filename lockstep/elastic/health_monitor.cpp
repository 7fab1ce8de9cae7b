#include "lockstep/elastic/health_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>

#include "lockstep/base/clock.h"
#include "lockstep/base/units.h"
#include "lockstep/telemetry/kernel_log.h"
#include "lockstep/telemetry/xid.h"

namespace lockstep::elastic {
namespace {

constexpr double kAgainSeconds = 600.0;
constexpr double kPeerSeconds = 2.0;

// The GPUs and the kernel's word on them: of a run that does not use them nothing is fatal, and of GPUs that the run
// cannot see (another job's) nothing is of interest.
class GpuCheck {
 public:
  explicit GpuCheck(const HealthOptions& options) : used_(options.gpus), open_(options.open_gpus) {}

  std::vector<Finding> look() {
    if (!opened_) gpus_ = open_ ? open_() : nullptr;
    opened_ = true;
    std::vector<Finding> findings;
    if (gpus_ == nullptr) {
      if (used_) {
        findings.push_back({Severity::kWarning, "gpu", "library", "the GPUs are not checked: NVML cannot be opened",
                            "install the NVIDIA driver's libnvidia-ml.so.1", 0});
      }
      if (!used_) findings.push_back({Severity::kOk, "gpu", "library", "none is looked at", "", 0});
      return findings;
    }
    std::vector<GpuState> now = gpus_->look();
    findings = judge_gpus(before_, now);
    for (const GpuXid& xid : gpus_->xids()) findings.push_back(telemetry::xid_finding(xid.code, xid.pci, 0, ""));
    for (Finding& finding : findings) {
      if (!used_) finding.severity = std::min(finding.severity, Severity::kWarning);
    }
    // One that is gone stays known, and lost.
    for (const GpuState& gpu : before_) {
      if (std::ranges::find(now, gpu.pci, &GpuState::pci) == now.end()) now.push_back(gpu);
    }
    std::erase_if(now, [](const GpuState& gpu) { return gpu.pci == "?"; });
    before_ = std::move(now);
    return findings;
  }

 private:
  const bool used_;
  const std::function<std::unique_ptr<Gpus>()> open_;
  bool opened_ = false;
  std::unique_ptr<Gpus> gpus_;
  std::vector<GpuState> before_;
};

class KernelCheck {
 public:
  explicit KernelCheck(const HealthOptions& options)
      : log_(options.kernel_log), seconds_(options.kernel_log_seconds), gpus_used_(options.gpus) {}

  std::vector<Finding> look(Moment moment) {
    if (!log_.problem().empty()) {
      return {{Severity::kInfo, "kernel", "log", "the kernel log is not checked: " + log_.problem(), "", 0}};
    }
    std::vector<Finding> findings;
    for (const telemetry::KernelLine& line : log_.read()) {
      std::optional<Finding> found = telemetry::finding_in(line.text);
      if (!found) continue;
      if (!gpus_used_ && found->check == "gpu") found->severity = std::min(found->severity, Severity::kWarning);
      if (moment == Moment::kBefore) {  // only what outlives the processes of then counts
        const bool counts = found->severity == Severity::kFatal && line.age_seconds <= seconds_;
        if (!counts) found->severity = Severity::kInfo;
        if (line.age_seconds > 1.0) found->what += fmt::format(", {} ago", format_seconds(line.age_seconds));
      }
      findings.push_back(std::move(*found));
    }
    if (findings.empty()) findings.push_back({Severity::kOk, "kernel", "log", "nothing bad in the kernel log", "", 0});
    return findings;
  }

 private:
  telemetry::KernelLog log_;
  const double seconds_;
  const bool gpus_used_;
};

}  // namespace

// What one kind of check found and has told.
struct HealthMonitor::Lane {
  std::string name;
  bool answered = false;             // the first round is over
  std::optional<double> busy_since;  // a round is under way
  std::vector<Finding> first, fresh;
};

struct HealthMonitor::Shared {
  struct Told {
    Severity severity;
    double when;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::map<std::string, Told> told;  // by check and subject
  std::vector<int> pids;

  // Under the mutex: whether this is news.
  bool is_news(const Finding& finding, double now) {
    if (finding.severity == Severity::kOk) return false;
    const std::string key = finding.check + " " + finding.subject;
    const auto known = told.find(key);
    if (known != told.end() && finding.severity <= known->second.severity && now - known->second.when < kAgainSeconds) {
      return false;
    }
    told[key] = {finding.severity, now};
    return true;
  }
};

HealthOptions health_options_from_environment() {
  HealthOptions options;
  if (const char* const log = std::getenv("LOCKSTEP_KERNEL_LOG"); log != nullptr && *log != 0) options.kernel_log = log;
  if (const char* const nvml = std::getenv("LOCKSTEP_NVML"); nvml != nullptr && *nvml != 0) {
    options.open_gpus = [library = std::string(nvml)] { return open_nvml(library); };
  }
  return options;
}

HealthMonitor::HealthMonitor(HealthOptions options)
    : options_(std::move(options)), shared_(std::make_shared<Shared>()) {
  // Rounds own what they use: they may outlive this object.
  for (const WatchedFolder& folder : options_.folders) {
    add("disk", 30.0, [folder](Moment moment) { return look_at_folder(folder, moment); });
  }
  add("memory", 5.0,
      [shared = shared_, before = std::optional<MemoryState>(), needed = options_.needed_memory,
       root = options_.root](Moment) mutable {
        std::vector<int> pids;
        {
          const std::lock_guard lock(shared->mutex);
          pids = shared->pids;
        }
        const MemoryState now = read_memory(root);
        auto findings = judge_memory(before ? &*before : nullptr, now, needed, resident_bytes(pids, root));
        before = now;
        return findings;
      });
  add("link", 2.0,
      [before = Links(), names = options_.interfaces, nodes = options_.nodes,
       root = options_.root](Moment moment) mutable {
        const Links now = read_links(names, root);
        std::vector<Finding> findings = judge_links(before, now);
        for (const auto& [name, link] : now) before.try_emplace(name, link);
        for (const auto& [name, link] : now) before[name].errors = link.errors, before[name].failures = link.failures;
        if (moment == Moment::kBefore && nodes && !nodes->on_loopback()) {
          for (Finding& finding : look_at_peers(*nodes, kPeerSeconds)) findings.push_back(std::move(finding));
        }
        return findings;
      });
  add("gpu", 10.0, [check = std::make_shared<GpuCheck>(options_)](Moment) { return check->look(); });
  add("kernel", 1.0, [check = std::make_shared<KernelCheck>(options_)](Moment moment) { return check->look(moment); });
}

void HealthMonitor::add(const std::string& name, double every_seconds,
                        std::function<std::vector<Finding>(Moment)> look) {
  Lane* lane = nullptr;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->lanes.push_back(std::make_unique<Lane>());
    lane = shared_->lanes.back().get();
    lane->name = name;
  }
  threads_.emplace_back(options_.pace * every_seconds, [shared = shared_, lane, check = std::move(look)] {
    bool answered = false;
    {
      const std::lock_guard lock(shared->mutex);
      lane->busy_since = monotonic_seconds();
      answered = lane->answered;
    }
    std::vector<Finding> findings;
    try {
      findings = check(answered ? Moment::kDuring : Moment::kBefore);
    } catch (const std::exception& error) {
      findings.push_back(
          {Severity::kWarning, lane->name, "check", fmt::format("the check failed: {}", error.what()), "", 0});
    }
    const std::lock_guard lock(shared->mutex);
    lane->busy_since.reset();
    lane->answered = true;
    for (Finding& finding : findings) (answered ? lane->fresh : lane->first).push_back(std::move(finding));
    shared->changed.notify_all();
  });
}

std::vector<Finding> HealthMonitor::first() {
  std::vector<Finding> findings;
  std::unique_lock lock(shared_->mutex);
  const auto all_answered = [&] {
    return std::ranges::all_of(shared_->lanes, [](const auto& lane) { return lane->answered; });
  };
  shared_->changed.wait_for(lock, std::chrono::duration<double>(options_.answer_seconds), all_answered);
  for (const auto& lane : shared_->lanes) {
    if (!lane->answered) {
      const bool disk = lane->name == "disk";
      findings.push_back({disk ? Severity::kFatal : Severity::kWarning, lane->name, "answer",
                          fmt::format("no answer in {:.0f} s", options_.answer_seconds),
                          disk ? "is a network file system out of reach? see `mount` and `df`" : "see dmesg", 0});
    }
    for (Finding& finding : lane->first) findings.push_back(std::move(finding));
    lane->first.clear();
  }
  for (const Finding& finding : findings) shared_->is_news(finding, monotonic_seconds());
  return findings;
}

std::vector<Finding> HealthMonitor::take() {
  std::vector<Finding> findings;
  const double now = monotonic_seconds();
  const std::lock_guard lock(shared_->mutex);
  for (const auto& lane : shared_->lanes) {
    if (lane->busy_since && now - *lane->busy_since > options_.answer_seconds) {
      lane->fresh.push_back({Severity::kWarning, lane->name, "answer",
                             fmt::format("the check gives no answer for {:.0f} s", now - *lane->busy_since),
                             "a file system or a driver may hang; see dmesg", 0});
    }
    for (Finding& finding : lane->fresh) {
      if (shared_->is_news(finding, now)) findings.push_back(std::move(finding));
    }
    lane->fresh.clear();
  }
  return findings;
}

void HealthMonitor::watch_processes(std::vector<int> pids) {
  const std::lock_guard lock(shared_->mutex);
  shared_->pids = std::move(pids);
}

}  // namespace lockstep::elastic
