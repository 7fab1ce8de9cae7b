#include "lockstep/telemetry/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/xid.h"

namespace lockstep::telemetry {
namespace {

constexpr int kMostRecords = 1'000'000;  // of one read: a kernel that writes faster is not waited for

std::optional<std::int64_t> number_at(std::string_view text) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> number_after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  return at == std::string_view::npos ? std::nullopt : number_at(text.substr(at + mark.size()));
}

bool has(std::string_view text, std::string_view piece) { return text.find(piece) != std::string_view::npos; }

// "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
std::optional<NodeFinding> xid_in(const std::string& text) {
  const std::size_t mark = text.find("NVRM: Xid (");
  if (mark == std::string::npos) return std::nullopt;
  const std::size_t open = text.find('(', mark), close = text.find("): ", open);
  if (close == std::string::npos) return std::nullopt;
  const auto code = number_at(std::string_view(text).substr(close + 3));
  if (!code || *code < 0 || *code > 100'000) return std::nullopt;
  const std::string pci = pci_place(text.substr(open + 1, close - open - 1));
  const std::size_t comma = text.find(", ", close + 3);
  const int pid = static_cast<int>(number_after(text, "pid=").value_or(0));
  return xid_finding(static_cast<int>(*code), printable(pci), pid,
                     comma == std::string::npos ? "" : text.substr(comma + 2));
}

// "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress ..."
std::optional<NodeFinding> sxid_in(const std::string& text) {
  const std::size_t mark = text.find("SXid (");
  const std::size_t close = mark == std::string::npos ? mark : text.find("): ", mark);
  if (close == std::string::npos) return std::nullopt;
  const auto code = number_at(std::string_view(text).substr(close + 3));
  if (!code) return std::nullopt;
  const std::string pci = printable(pci_place(text.substr(mark + 6, close - mark - 6)));
  const bool fatal = has(text, ", Fatal");
  return NodeFinding{fatal ? Severity::kFatal : Severity::kWarning,
                     "gpu",
                     fmt::format("sxid {} {}", *code, pci),
                     fmt::format("SXid {} of NVSwitch {}: {} ({})", *code, pci, fatal ? "fatal" : "not fatal",
                                 printable(text.substr(close + 3), 120)),
                     fatal ? "restart fabric manager and reset all GPUs of the node, or reboot it" : "",
                     0};
}

std::optional<NodeFinding> gpu_line(const std::string& text) {
  if (auto found = xid_in(text)) return found;
  if (auto found = sxid_in(text)) return found;
  const std::size_t gone = text.find("NVRM: GPU ");
  if (gone == std::string::npos || !has(text, "has fallen off the bus")) return std::nullopt;
  const std::string rest = text.substr(gone + 10);
  return xid_finding(79, printable(pci_place(rest.substr(0, rest.find_first_of(" ,")))), 0, "");
}

std::optional<NodeFinding> memory_line(const std::string& text) {
  if (has(text, "Out of memory: Killed process") || has(text, "Memory cgroup out of memory: Killed process")) {
    const auto pid = number_after(text, "Killed process ");
    return NodeFinding{Severity::kWarning,
                       "memory",
                       fmt::format("killed {}", pid.value_or(0)),
                       fmt::format("the kernel killed a process for want of memory: {}", printable(text, 120)),
                       "lower batch.micro or the ranks per node, or give the job more memory",
                       0};
  }
  if (has(text, "due to hardware memory corruption") || has(text, "Uncorrected hardware memory error")) {
    return NodeFinding{Severity::kFatal,
                       "memory",
                       "broken",
                       "memory of this node is broken: " + printable(text, 120),
                       "have the memory module replaced",
                       0};
  }
  return std::nullopt;
}

std::optional<NodeFinding> disk_line(const std::string& text) {
  if (has(text, "Remounting filesystem read-only") || has(text, "remounting filesystem read-only")) {
    return NodeFinding{Severity::kWarning,
                       "disk",
                       "remounted",
                       "a file system became read-only: " + printable(text, 120),
                       "look at its disk, repair the file system and mount it again",
                       0};
  }
  if (has(text, "I/O error, dev ") || has(text, "critical medium error, dev ")) {
    const std::string device = text.substr(text.find(", dev ") + 6);
    const std::string name = printable(device.substr(0, device.find_first_of(", ")));
    return NodeFinding{Severity::kWarning,
                       "disk",
                       "errors of " + name,
                       "disk " + name + ": " + printable(text, 120),
                       "look at the disk (smartctl) before it fails",
                       0};
  }
  return std::nullopt;
}

}  // namespace

std::optional<NodeFinding> finding_in(const std::string& text) {
  if (auto found = gpu_line(text)) return found;
  if (auto found = memory_line(text)) return found;
  return disk_line(text);
}

std::optional<KernelLine> parse_kernel_line(std::string_view line) {
  if (line.empty() || line.front() == ' ') return std::nullopt;  // a record's dictionary
  if (line.front() == '[') {
    const std::size_t end = line.find("] ");
    if (end != std::string_view::npos) return KernelLine{std::string(line.substr(end + 2)), 0.0};
  }
  const std::size_t end = line.find(';');
  const auto level = number_at(line);
  if (end == std::string_view::npos || !level) return KernelLine{std::string(line), 0.0};
  constexpr std::int64_t kLevels = 8;
  if (*level >= kLevels) return std::nullopt;  // not the kernel's own: any program may write there
  KernelLine parsed{std::string(line.substr(end + 1)), 0.0};
  const std::vector<std::string> fields = split(line.substr(0, end), ',');
  if (fields.size() > 2) {
    parsed.age_seconds = monotonic_seconds() - static_cast<double>(number_at(fields[2]).value_or(0)) / 1e6;
  }
  return parsed;
}

KernelLog::KernelLog(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (!fd_) {
    problem_ = fmt::format("{} cannot be read: {}", path, std::strerror(errno));
    return;
  }
  struct stat status {};
  device_ = ::fstat(fd_.get(), &status) == 0 && S_ISCHR(status.st_mode);
}

std::vector<KernelLine> KernelLog::read() {
  if (!fd_) return {};
  return device_ ? read_records() : read_file_lines();
}

std::vector<KernelLine> KernelLog::read_records() {
  std::vector<KernelLine> lines;
  char buffer[16384];
  for (int count = 0; count < kMostRecords; ++count) {
    const ssize_t got = ::read(fd_.get(), buffer, sizeof(buffer));
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;  // some were overwritten before we came
    if (got <= 0) break;
    const std::string_view record(buffer, static_cast<std::size_t>(got));
    if (auto line = parse_kernel_line(record.substr(0, record.find('\n')))) lines.push_back(std::move(*line));
  }
  return lines;
}

std::vector<KernelLine> KernelLog::read_file_lines() {
  std::vector<KernelLine> lines;
  struct stat status {};
  if (::fstat(fd_.get(), &status) == 0 && status.st_size < ::lseek(fd_.get(), 0, SEEK_CUR)) {
    ::lseek(fd_.get(), 0, SEEK_SET);  // it was cut
    partial_.clear();
  }
  char buffer[65536];
  for (ssize_t got; (got = ::read(fd_.get(), buffer, sizeof(buffer))) > 0;) {
    partial_.append(buffer, static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      auto line = parse_kernel_line(std::string_view(partial_).substr(begin, end - begin));
      if (!line) continue;
      line->age_seconds = 0.0;
      lines.push_back(std::move(*line));
    }
    partial_.erase(0, begin);
  }
  return lines;
}

}  // namespace lockstep::telemetry
