#include "lockstep/elastic/hang_report.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::elastic {
namespace {

constexpr double kSilentSeconds = 2.0;      // four heartbeats
constexpr std::size_t kShownFrames = 8;     // of a rank's own thread
constexpr std::size_t kShownThreads = 4;    // states, where there is no stack
constexpr std::size_t kKeptBytes = 16'000;  // of the stacks of a rank, in the event

std::string describe(const PendingOperation& operation) {
  std::string text = fmt::format("{} #{}", operation.kind, operation.sequence);
  if (operation.bytes > 0) text += " of " + format_bytes(static_cast<double>(operation.bytes));
  if (!operation.site.empty()) text += fmt::format(" ({})", operation.site);
  text += fmt::format(" in group \"{}\"", operation.group);
  if (operation.peer >= 0) text += fmt::format(" {} rank {}", operation.kind == "send" ? "to" : "from", operation.peer);
  return text;
}

bool is_silent(const RankState& rank) { return rank.silent_seconds > kSilentSeconds; }
bool is_blocked(const RankState& rank) { return !is_silent(rank) && !rank.operations.empty(); }

// What most ranks are in; among equals the oldest.
std::optional<PendingOperation> main_operation(const std::vector<RankState>& ranks) {
  std::optional<PendingOperation> best;
  std::size_t most = 0;
  for (const RankState& rank : ranks) {
    for (const PendingOperation& operation : rank.operations) {
      const auto in_it = static_cast<std::size_t>(std::ranges::count_if(ranks, [&](const RankState& other) {
        return std::ranges::find(other.operations, operation) != other.operations.end();
      }));
      if (in_it < most || (in_it == most && best && operation.seconds <= best->seconds)) continue;
      most = in_it;
      best = operation;
    }
  }
  return best;
}

// Whom a rank waits for that is not in the same operation.
std::set<int> absent_from(const PendingOperation& operation, const std::vector<RankState>& ranks) {
  std::set<int> absent;
  for (const RankState& rank : ranks) {
    const bool wanted = operation.peer >= 0
                            ? rank.rank == operation.peer
                            : std::ranges::find(operation.members, rank.rank) != operation.members.end();
    const auto same = [&](const PendingOperation& other) {
      if (operation.peer < 0) return other == operation;
      return other.group == operation.group && other.kind != operation.kind && other.peer >= 0 &&
             other.sequence == operation.sequence;
    };
    if (wanted && std::ranges::none_of(rank.operations, same)) absent.insert(rank.rank);
  }
  return absent;
}

// Those that give no sign of life; else those that others wait for and that wait for nobody; else whoever is elsewhere.
std::vector<int> find_missing(const std::vector<RankState>& ranks) {
  std::set<int> silent, idle, elsewhere;
  for (const RankState& rank : ranks) {
    if (is_silent(rank)) silent.insert(rank.rank);
    for (const PendingOperation& operation : rank.operations) elsewhere.merge(absent_from(operation, ranks));
  }
  for (const RankState& rank : ranks) {
    if (!is_blocked(rank) && rank.fault.empty() && elsewhere.contains(rank.rank)) idle.insert(rank.rank);
  }
  const std::set<int>& chosen = !silent.empty() ? silent : !idle.empty() ? idle : elsewhere;
  return {chosen.begin(), chosen.end()};
}

std::string where(const RankState& rank) {
  std::vector<std::string> parts;
  const bool silent = is_silent(rank);
  if (silent) parts.push_back(fmt::format("no sign of life for {:.0f} s", rank.silent_seconds));
  for (const PendingOperation& operation : rank.operations) {
    parts.push_back(fmt::format("{} for {:.0f} s", describe(operation), operation.seconds));
    if (parts.size() == 3) break;
  }
  if (rank.operations.empty() && !rank.fault.empty()) parts.push_back(rank.fault);
  if (rank.operations.empty() && !rank.phase.empty() && rank.phase != "comm") {
    parts.push_back(silent
                        ? fmt::format("last in {} of step {}", rank.phase, rank.step + 1)
                        : fmt::format("in {} of step {} for {:.0f} s", rank.phase, rank.step + 1, rank.phase_seconds));
  }
  if (parts.empty()) parts.push_back(rank.step < 0 ? "before its first step" : fmt::format("after step {}", rank.step));
  return join(parts, "; ");
}

// "/usr/lib/libx.so(_ZN1a1bEv+0x4c)[0x7f]" -> "a::b() in libx.so"; anything else as it is.
std::string readable_frame(const std::string& line) {
  const std::size_t open = line.find('('), plus = line.find('+', open), close = line.find(')', open);
  if (open == std::string::npos || close == std::string::npos || plus > close) return line;
  const std::string file = line.substr(0, open), library = file.substr(file.rfind('/') + 1);
  const std::string symbol = line.substr(open + 1, plus - open - 1);
  if (symbol.empty()) return library + "+" + line.substr(plus + 1, close - plus - 1);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  std::string text = status == 0 ? name.get() : symbol;
  if (const std::size_t arguments = text.find('('); status == 0 && arguments != std::string::npos && arguments > 0) {
    text = text.substr(0, arguments) + "()";
  }
  return text + " in " + library;
}

// The lines of the rank's own thread, which is the first that a process has; else the states of its threads.
std::vector<std::string> shown_stack(const std::string& stacks) {
  std::vector<std::string> states, frames;
  bool inside = false;
  std::string own;  // number of the process's first thread
  for (const std::string& line : split(stacks, '\n')) {
    if (line.starts_with("thread ")) {
      if (own.empty()) own = line.substr(7, line.find(' ', 7) - 7);
      states.push_back(line);
      inside = false;
    } else if (line.starts_with("stack of thread ")) {
      inside = line == "stack of thread " + own + ":";
    } else if (inside && !line.empty()) {
      frames.push_back(readable_frame(line));
    }
  }
  // The signal's own frames come first.
  if (frames.size() > 2) frames.erase(frames.begin(), frames.begin() + 2);
  if (frames.size() > kShownFrames) frames.resize(kShownFrames);
  if (states.size() > kShownThreads) states.resize(kShownThreads);
  return frames.empty() ? states : frames;
}

std::string name_of(const RankState& rank) {
  return rank.host.empty() ? fmt::format("rank {}", rank.rank) : fmt::format("rank {} ({})", rank.rank, rank.host);
}

}  // namespace

std::vector<PendingOperation> pending_operations(const nlohmann::json& heartbeat) {
  std::vector<PendingOperation> operations;
  const auto given = heartbeat.find("operations");
  if (given == heartbeat.end() || !given->is_array()) return operations;
  for (const nlohmann::json& one : *given) {
    if (!one.is_object()) continue;
    operations.push_back({.kind = one.value("kind", ""),
                          .group = one.value("group", ""),
                          .members = one.value("members", std::vector<int>()),
                          .sequence = one.value("sequence", std::int64_t{0}),
                          .bytes = one.value("bytes", std::int64_t{0}),
                          .site = one.value("site", ""),
                          .peer = one.value("peer", -1),
                          .seconds = one.value("seconds", 0.0),
                          .timeout_seconds = one.value("timeout_seconds", 0.0)});
  }
  return operations;
}

HangReport describe_hang(const std::string& why, const std::vector<RankState>& ranks) {
  HangReport report;
  report.missing = find_missing(ranks);
  const auto operation = main_operation(ranks);
  std::vector<std::string> missing;
  for (const RankState& rank : ranks) {
    if (std::ranges::find(report.missing, rank.rank) != report.missing.end()) missing.push_back(name_of(rank));
  }
  report.line = fmt::format("hang: {}; {}{}", why,
                            missing.empty()
                                ? "nobody is missing"
                                : fmt::format("{} {} missing", join(missing, ", "), missing.size() == 1 ? "is" : "are"),
                            operation ? ", the others are in " + describe(*operation) : "");
  report.text = report.line;
  nlohmann::json states = nlohmann::json::array();
  std::map<std::vector<std::string>, int> shown;  // stacks, and of which rank
  for (const RankState& rank : ranks) {
    const std::string place = where(rank);
    report.text += fmt::format("\n  {}: {}", name_of(rank), place);
    const std::vector<std::string> stack = shown_stack(rank.stacks);
    const auto [first, is_new] = shown.emplace(stack, rank.rank);
    if (!is_new && !stack.empty()) report.text += fmt::format("\n      the same stack as rank {}", first->second);
    for (const std::string& line : is_new ? stack : std::vector<std::string>{}) {
      report.text += "\n      " + printable(line, 160);
    }
    states.push_back({{"rank", rank.rank}, {"where", place}, {"stack", rank.stacks.substr(0, kKeptBytes)}});
  }
  report.data = {{"missing", report.missing}, {"ranks", states}, {"reason", why}};
  if (operation) {
    report.data["collective"] =
        operation->site.empty() ? operation->kind : fmt::format("{} ({})", operation->kind, operation->site);
    report.data["group"] = operation->group;
    report.data["sequence"] = operation->sequence;
    report.data["bytes"] = operation->bytes;
  }
  return report;
}

}  // namespace lockstep::elastic
