#include "lockstep/elastic/node_checks.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/elastic/sockets.h"

namespace lockstep::elastic {
namespace {

namespace fs = std::filesystem;

constexpr double kLittleSpace = 64.0 * kMiB;
constexpr double kLittleMemory = 256.0 * kMiB;
constexpr double kLittleShare = 0.02;    // of the memory
constexpr std::size_t kMostPeers = 64;   // that are tried before the start
constexpr std::int64_t kFewErrors = 10;  // of a link, between two looks: not worth a word
constexpr std::uint64_t kSmallFile = 1 << 20;

// Of file systems that live on other machines: that they are read-only says nothing about this node.
constexpr std::int64_t kRemote[] = {NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, 0xff534d42,     0xfe534d42,
                                    0x0bd00bd3,      0x47504653,      0x00c36400,     0x19830326,
                                    V9FS_MAGIC,      0x65735546,      AFS_SUPER_MAGIC};

std::string read_text(const fs::path& path) {
  try {
    return std::string(trim(read_file(path, kSmallFile)));
  } catch (const UserError&) {
    return "";
  }
}

std::int64_t read_number(const fs::path& path) { return std::strtoll(read_text(path).c_str(), nullptr, 10); }

// "key value" and "key: value kB" lines.
double value_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key, 0) != 0 || line.size() == key.size()) continue;
    const char next = line[key.size()];
    if (next != ':' && next != ' ') continue;
    const double value = std::strtod(line.c_str() + key.size() + 1, nullptr);
    return line.find(" kB") == std::string::npos ? value : value * kKiB;
  }
  return 0.0;
}

fs::path existing_folder(const fs::path& path) {
  fs::path folder = fs::absolute(path.empty() ? "." : path);
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder != folder.parent_path()) folder = folder.parent_path();
  return folder;
}

bool is_remote(const fs::path& folder) {
  struct statfs status {};
  if (::statfs(folder.c_str(), &status) != 0) return false;
  const auto kind = static_cast<std::int64_t>(static_cast<std::uint32_t>(status.f_type));
  return std::find(std::begin(kRemote), std::end(kRemote), kind) != std::end(kRemote);
}

// The error that writing a file there ends with; 0: none.
int try_to_write(const fs::path& folder) {
  std::string name = (folder / ".lockstep-health-XXXXXX").string();
  const UniqueFd file(::mkstemp(name.data()));
  if (!file) return errno;
  const int error = ::write(file.get(), "x", 1) == 1 ? 0 : errno;
  ::unlink(name.c_str());
  return error;
}

// During a run saves have retries of their own: only a disk of this node that takes nothing any more is its fault.
Finding not_writable(const WatchedFolder& folder, const fs::path& there, int error, Moment moment) {
  const bool full = error == ENOSPC || error == EDQUOT;
  const bool fatal = folder.needed && (moment == Moment::kBefore || (!full && !is_remote(there)));
  return {fatal ? Severity::kFatal : Severity::kWarning,
          "disk",
          folder.name,
          fmt::format("{} {} cannot be written: {}", folder.name, printable_path(folder.path), std::strerror(error)),
          full ? "free some space, or choose another folder"
               : "mount it for writing, make it writable, or choose another folder",
          0};
}

struct Cgroup {
  double limit = std::numeric_limits<double>::infinity();
  double left = std::numeric_limits<double>::infinity();
  std::int64_t oom_kills = -1;
};

// One level of the hierarchy, version 2 or 1. What is only cached can be had back.
void take_level(const fs::path& folder, bool second, Cgroup& group) {
  const std::string text = read_text(folder / (second ? "memory.max" : "memory.limit_in_bytes"));
  const std::string stat = read_text(folder / "memory.stat");
  const double limit = text.empty() || text == "max" ? 0.0 : std::strtod(text.c_str(), nullptr);
  constexpr double kNoLimit = 1e18;  // version 1 writes a number that no machine has
  if (limit > 0.0 && limit < kNoLimit) {
    const double used =
        static_cast<double>(read_number(folder / (second ? "memory.current" : "memory.usage_in_bytes")));
    const double cached = value_of(stat, second ? "inactive_file" : "total_inactive_file");
    group.limit = std::min(group.limit, limit);
    group.left = std::min(group.left, std::max(0.0, limit - used + cached));
  }
  if (group.oom_kills < 0) {
    const std::string events = read_text(folder / (second ? "memory.events" : "memory.oom_control"));
    if (!events.empty()) group.oom_kills = static_cast<std::int64_t>(value_of(events, "oom_kill"));
  }
}

// From the process's own group up to the root: every level may have a limit.
Cgroup read_cgroup(const std::string& root) {
  Cgroup group;
  std::istringstream lines(read_text(root + "proc/self/cgroup"));
  std::string path = "/";
  bool second = true;
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() < 3) continue;
    if (parts[1] == "memory") path = parts[2], second = false;
    if (parts[1].empty() && second) path = parts[2];
  }
  const fs::path top = root + (second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
  for (fs::path level = path;; level = level.parent_path()) {
    take_level(top / level.relative_path(), second, group);
    if (level == level.parent_path()) break;
  }
  return group;
}

LinkState read_interface(const fs::path& folder) {
  LinkState link;
  std::error_code ignored;
  link.there = fs::exists(folder, ignored);
  if (!link.there) return link;
  const std::string state = read_text(folder / "operstate");
  // Loopback and tunnels are "unknown" while they work; what has no carrier file is not up.
  link.up = state == "up" || (state == "unknown" && read_text(folder / "carrier") == "1");
  link.errors = read_number(folder / "statistics/rx_errors") + read_number(folder / "statistics/tx_errors");
  link.failures = read_number(folder / "carrier_down_count");
  return link;
}

void read_infiniband(const std::string& root, Links& links) {
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(root + "sys/class/infiniband", ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ignored)) {
      LinkState link;
      link.there = true;
      link.up = read_text(port.path() / "state").find("ACTIVE") != std::string::npos;
      link.errors = read_number(port.path() / "counters/symbol_error");
      link.failures = read_number(port.path() / "counters/link_downed");
      links[fmt::format("{} port {}", device.path().filename().string(), port.path().filename().string())] = link;
    }
  }
}

}  // namespace

std::vector<Finding> look_at_folder(const WatchedFolder& folder, Moment moment) {
  const fs::path there = existing_folder(folder.path);
  struct statvfs status {};
  if (::statvfs(there.c_str(), &status) != 0) return {not_writable(folder, there, errno, moment)};
  if ((status.f_flag & ST_RDONLY) != 0) return {not_writable(folder, there, EROFS, moment)};
  const double free = static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
  const std::string place = fmt::format("{} free at {} ({})", format_bytes(free), printable_path(there), folder.name);
  if (const int error = try_to_write(there); error != 0) return {not_writable(folder, there, error, moment)};
  if (folder.needed_bytes > 0.0 && free < folder.needed_bytes) {
    const bool fatal = folder.needed && moment == Moment::kBefore;
    return {{fatal ? Severity::kFatal : Severity::kWarning, "disk", folder.name,
             fmt::format("{}, a checkpoint needs about {}", place, format_bytes(folder.needed_bytes)),
             "free some space, or choose another folder", 0}};
  }
  if (free < std::max(kLittleSpace, 2 * folder.needed_bytes)) {
    return {{Severity::kWarning, "disk", folder.name, place, "free some space", 0}};
  }
  return {{Severity::kOk, "disk", folder.name, place, "", 0}};
}

MemoryState read_memory(const std::string& root) {
  const std::string info = read_text(root + "proc/meminfo");
  MemoryState state{value_of(info, "MemTotal"), value_of(info, "MemAvailable"), 0, false};
  const Cgroup group = read_cgroup(root);
  state.limited = group.limit < state.total;
  if (state.limited) state.total = group.limit;
  state.available = std::min(state.available, group.left);
  state.oom_kills = group.oom_kills >= 0
                        ? group.oom_kills
                        : static_cast<std::int64_t>(value_of(read_text(root + "proc/vmstat"), "oom_kill"));
  return state;
}

std::vector<Finding> judge_memory(const MemoryState* before, const MemoryState& now, double needed, double held) {
  const std::string limit = now.limited ? "of the container's limit of " : "of ";
  const std::string place =
      fmt::format("{} available {}{}", format_bytes(now.available), limit, format_bytes(now.total));
  std::vector<Finding> findings;
  if (before != nullptr && now.oom_kills > before->oom_kills) {
    findings.push_back({Severity::kWarning, "memory", "killed",
                        fmt::format("the kernel killed {} {} for want of memory", now.oom_kills - before->oom_kills,
                                    now.oom_kills - before->oom_kills == 1 ? "process" : "processes"),
                        "lower batch.micro or the ranks per node, or give the job more memory", 0});
  }
  if (now.total <= 0.0) return findings;
  if (before == nullptr && needed > now.available) {
    const bool fatal = needed > 2 * now.available;
    findings.push_back({fatal ? Severity::kFatal : Severity::kWarning, "memory", "available",
                        fmt::format("{}, the ranks of this node need about {}", place, format_bytes(needed)),
                        "end other programs, or use fewer ranks per node or a smaller batch.micro", 0});
  } else if (now.available < std::max(kLittleMemory, kLittleShare * now.total)) {
    const std::string ranks = held > 0.0 ? fmt::format(", the ranks hold {}", format_bytes(held)) : "";
    findings.push_back({Severity::kWarning, "memory", "available", place + ranks,
                        "end other programs, or use fewer ranks per node or a smaller batch.micro", 0});
  }
  if (findings.empty()) findings.push_back({Severity::kOk, "memory", "available", place, "", 0});
  return findings;
}

double resident_bytes(const std::vector<int>& pids, const std::string& root) {
  double bytes = 0.0;
  for (const int pid : pids) bytes += value_of(read_text(fmt::format("{}proc/{}/status", root, pid)), "VmRSS");
  return bytes;
}

Links read_links(const std::vector<std::string>& interfaces, const std::string& root) {
  Links links;
  const fs::path folder = root + "sys/class/net";
  for (const std::string& name : interfaces) links[name] = read_interface(folder / name);
  read_infiniband(root, links);
  return links;
}

std::vector<Finding> judge_links(const Links& before, const Links& now) {
  std::vector<Finding> findings;
  for (const auto& [name, link] : now) {
    const auto known = before.find(name);
    const bool infiniband = name.find(" port ") != std::string::npos;
    if (!link.up && infiniband && (known == before.end() || !known->second.up)) continue;
    if (!link.there || !link.up) {
      findings.push_back({Severity::kFatal, "link", name,
                          name + (link.there ? " is down or has no carrier" : " is not there any more"),
                          "look at its cable, its switch and `ip link`", 0});
      continue;
    }
    const LinkState& old = known == before.end() ? link : known->second;
    if (link.errors - old.errors >= kFewErrors || link.failures > old.failures) {
      findings.push_back({Severity::kWarning, "link", name,
                          fmt::format("{}: {} new errors, went down {} times since the last look", name,
                                      link.errors - old.errors, link.failures - old.failures),
                          "look at its cable and its switch", 0});
      continue;
    }
    findings.push_back({Severity::kOk, "link", name, name + " is up", "", 0});
  }
  return findings;
}

std::vector<Finding> look_at_peers(const NodeList& nodes, double seconds) {
  std::vector<Finding> findings;
  const auto silent = [&](const NodeAddress& node, const std::string& why) {
    findings.push_back({Severity::kWarning, "link", "node " + node.host,
                        fmt::format("node {} cannot be reached: {}", node.host, why),
                        "check its name, its address, --interface and the firewalls between the nodes", 0});
  };
  std::vector<std::pair<const NodeAddress*, UniqueFd>> tried;
  std::vector<pollfd> polled;
  for (std::size_t i = 0; i < nodes.nodes.size() && tried.size() < kMostPeers; ++i) {
    if (static_cast<int>(i) == nodes.self) continue;
    UniqueFd fd = begin_to_connect(nodes.nodes[i].host, nodes.nodes[i].port);
    if (!fd) {
      silent(nodes.nodes[i], "its name is unknown, or no route leads there");
      continue;
    }
    polled.push_back({fd.get(), POLLOUT, 0});
    tried.emplace_back(&nodes.nodes[i], std::move(fd));
  }
  const Deadline deadline = Deadline::after(seconds);
  for (std::size_t i = 0; i < tried.size(); ++i) {
    while (::poll(&polled[i], 1, deadline.remaining_milliseconds()) <= 0 && !deadline.expired()) {
    }
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(tried[i].second.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (polled[i].revents == 0) error = ETIMEDOUT;
    if (error != 0 && error != ECONNREFUSED) silent(*tried[i].first, std::strerror(error));
  }
  return findings;
}

}  // namespace lockstep::elastic
