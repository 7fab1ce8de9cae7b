#include "lockstep/diagnose/foreign/nccl_log.h"

#include <array>
#include <charconv>
#include <optional>

#include "lockstep/base/text.h"

namespace lockstep::diagnose {
namespace {

constexpr std::size_t kMostKept = 100'000;  // rings, problems, ranks: a log of hostile length stays small in memory

bool has(std::string_view text, std::string_view piece) { return text.find(piece) != std::string_view::npos; }

template <class Number = int>
std::optional<Number> number_at(std::string_view text) {
  text = trim(text);
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

template <class Number = int>
std::optional<Number> number_after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  return at == std::string_view::npos ? std::nullopt : number_at<Number>(text.substr(at + mark.size()));
}

// "host:123:456 [3] " before the mark; old and new forms may have more in front of it.
struct Sender {
  std::string host;
  int device = -1;
};

Sender sender_of(std::string_view before) {
  Sender sender;
  const std::size_t open = before.rfind('['), close = before.rfind(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return sender;
  sender.device = number_at(before.substr(open + 1, close - open - 1)).value_or(-1);
  std::string_view place = trim(before.substr(0, open));
  if (const std::size_t space = place.find_last_of(" >\t"); space != std::string_view::npos)
    place.remove_prefix(space + 1);
  sender.host = std::string(place.substr(0, place.find(':')));
  return sender;
}

class NcclLogReader {
 public:
  NcclLog read(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      take(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return std::move(log_);
  }

 private:
  void take(std::string_view line) {
    if (const std::size_t at = line.find("NCCL INFO "); at != std::string_view::npos) {
      return take_info(sender_of(line.substr(0, at)), line.substr(at + 10));
    }
    if (const std::size_t at = line.find("NCCL WARN "); at != std::string_view::npos) {
      return take_warning(sender_of(line.substr(0, at)), line.substr(at + 10));
    }
    take_version(line);
    take_other(line);
  }

  void take_version(std::string_view line) {
    for (std::size_t at = 0; (at = line.find("NCCL version ", at)) != std::string_view::npos; at += 13) {
      const std::string_view rest = line.substr(at + 13);
      const std::size_t end = rest.find_first_not_of("0123456789.");
      const std::string version(rest.substr(0, end));
      if (version.size() >= 3 && log_.versions.size() < 100) log_.versions.insert(version);
    }
  }

  void take_info(const Sender& sender, std::string_view text) {
    take_version(text);
    if (text.starts_with("Channel ")) return take_channel(text);
    if (has(text, " rank ") && has(text, " nranks ")) return take_rank(sender, text);
    if (text.starts_with("NET/IB : Using ")) return take_adapters(text);
    if (text.starts_with("NCCL_") && has(text, "set by environment") && log_.settings.size() < 1000) {
      const std::string_view name = text.substr(0, text.find(' '));
      const std::size_t to = text.find(" to ");
      std::string setting(name);
      if (to != std::string_view::npos) setting += "=" + std::string(trim(text.substr(to + 4)));
      while (!setting.empty() && setting.back() == '.') setting.pop_back();
      log_.settings.insert(setting);
    }
  }

  // "comm 0x7f rank 3 nranks 16 cudaDev 3 [nvmlDev 3] busId 8a000 [commId 0x1] - Init COMPLETE"
  void take_rank(const Sender& sender, std::string_view text) {
    const int rank = number_after(text, " rank ").value_or(-1), ranks = number_after(text, " nranks ").value_or(0);
    if (rank < 0 || rank >= ranks || log_.hosts.size() > kMostKept) return;
    if (ranks > largest_) {  // the others are its parts
      largest_ = ranks;
      log_.hosts.clear();
      log_.ranks.clear();
      log_.rings.clear();
    }
    if (ranks < largest_) return;
    log_.hosts[rank] = sender.host;
    log_.ranks[{sender.host, number_after(text, " cudaDev ").value_or(sender.device)}] = rank;
  }

  void take_channel(std::string_view text) {
    const std::size_t via = text.find(" via ");
    if (via != std::string_view::npos) return take_connection(text.substr(via + 5), has(text, "[receive]"));
    // "Channel 00/02 :    0   1   2   3": the ring. Smaller communicators have them too.
    const std::size_t colon = text.find(" : ");
    if (colon == std::string_view::npos || has(text, "->") || log_.rings.size() > 1000) return;
    std::vector<int> ring;
    for (const std::string& word : split(text.substr(colon + 3), ' ')) {
      if (word.empty()) continue;
      const auto rank = number_at(word);
      if (!rank || *rank < 0 || ring.size() > kMostKept) return;
      ring.push_back(*rank);
    }
    if (ring.size() > 1 && std::cmp_greater_equal(ring.size(), longest_ring_)) {
      if (std::cmp_greater(ring.size(), longest_ring_)) log_.rings.clear();
      longest_ring_ = static_cast<int>(ring.size());
      log_.rings.push_back(std::move(ring));
    }
  }

  void take_connection(std::string_view way, bool receiving) {
    if (way.starts_with("P2P")) {
      ++log_.within_p2p;
    } else if (way.starts_with("SHM") || way.starts_with("direct shared memory")) {
      ++log_.within_shared;
    } else if (way.starts_with("NET/") && !receiving) {  // both ends tell of it
      const std::string_view rest = way.substr(4);
      if (rest.starts_with("Socket")) {
        ++log_.between_sockets;
        return;
      }
      ++(has(way, "GDRDMA") ? log_.between_direct : log_.between_staged);
      const std::vector<std::string> parts = split(rest.substr(0, rest.find(' ')), '/');
      if (parts.size() > 1) log_.adapters_used.insert(parts[1]);
    }
  }

  // "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
  void take_adapters(std::string_view text) {
    for (const std::string& word : split(text.substr(0, text.find(';')), ' ')) {
      const std::size_t bracket = word.find(']'), colon = word.find(':', bracket == std::string::npos ? 0 : bracket);
      if (word.starts_with("[") && bracket != std::string::npos && colon != std::string::npos &&
          log_.adapters.size() < 1000) {
        log_.adapters.insert(word.substr(bracket + 1, colon - bracket - 1));
      }
    }
  }

  void add_problem(const Sender& sender, std::string_view text) {
    if (log_.problems.size() > kMostKept) return;
    NcclProblem problem{sender.host, sender.device, -1, printable(std::string(trim(text)), 240)};
    const auto rank = log_.ranks.find({sender.host, sender.device});
    if (rank != log_.ranks.end()) problem.rank = rank->second;
    log_.problems.push_back(std::move(problem));
  }

  void take_warning(const Sender& sender, std::string_view text) {
    // What NCCL warns of and goes on.
    constexpr std::array<std::string_view, 6> kHarmless = {"NET/Plugin", "Could not find",       "NUMA",
                                                           "MTU",        "Missing \"iommu=pt\"", "Linux kernel"};
    for (const std::string_view piece : kHarmless) {
      if (has(text, piece)) return;
    }
    add_problem(sender, text);
  }

  void take_other(std::string_view line) {
    if (has(line, "Watchdog caught collective operation timeout")) {
      log_.hung = true;
      Sender sender;
      add_problem(sender, line.substr(line.find("Watchdog")));
      log_.problems.back().rank = number_after(line, "[Rank ").value_or(-1);
    } else if (has(line, "ncclUnhandledCudaError") || has(line, "ncclSystemError") || has(line, "ncclRemoteError") ||
               has(line, "unhandled system error") || has(line, "unhandled cuda error") ||
               has(line, "ncclInternalError")) {
      add_problem({}, line.substr(std::min(line.size(), line.find("nccl"))));
    }
    take_bandwidth(line);
  }

  // " busbw: 40.4907  Gbps" and nccl-tests' "# Avg bus bandwidth    : 123.4" (GB/s).
  void take_bandwidth(std::string_view line) {
    if (log_.bus_bandwidths.size() > kMostKept) return;
    if (const auto value = number_after<double>(line, "busbw:"); value && *value > 0.0) {
      const double unit = has(line, "Gbps") ? 1e9 / 8.0 : has(line, "GBps") || has(line, "GB/s") ? 1e9 : 0.0;
      if (unit > 0.0) log_.bus_bandwidths.push_back(*value * unit);
    } else if (const std::size_t at = line.find("Avg bus bandwidth"); at != std::string_view::npos) {
      if (const auto mean = number_after<double>(line.substr(at), ":"); mean && *mean > 0.0) {
        log_.bus_bandwidths.push_back(*mean * 1e9);
      }
    }
  }

  NcclLog log_;
  int largest_ = 0;
  int longest_ring_ = 0;
};

}  // namespace

NcclLog read_nccl_log(std::string_view text) { return NcclLogReader().read(text); }

}  // namespace lockstep::diagnose
