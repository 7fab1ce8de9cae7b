#include <fmt/format.h>

#include <csignal>
#include <cstring>
#include <limits>

#include "lockstep/elastic/root_cause.h"

namespace lockstep::elastic {
namespace {

std::string kind_of(const RankEnd& end) { return end.error ? end.error->value("kind", "internal") : ""; }

// Lower explains more. Ranks that report a lost peer or a timeout are witnesses, not causes.
int witness_level(const RankEnd& end) {
  if (end.ended_by_agent && !end.error) return 9;  // it only hung on until we ended it
  const std::string kind = kind_of(end);
  if (end.signal != 0 && !end.ended_by_agent && kind.empty()) return 0;
  if (kind == "user") return 1;
  if (kind == "internal") return 2;
  if (kind.empty()) return 3;  // exited non-zero without a word
  if (kind == "timeout") return 4;
  if (kind == "peer_lost") return 5;
  return 6;
}

bool failed(const RankEnd& end) {
  const bool stopped_as_asked = end.signal == 0 && end.exit_code == 130;
  return end.ended_by_agent || (!stopped_as_asked && (end.signal != 0 || end.exit_code != 0));
}

std::string describe(const RankEnd& end, const HostOfRank& host_of) {
  const std::string who = rank_name(end.rank, host_of);
  if (end.error) {
    const int suspect = end.error->value("suspect_rank", -1);
    const std::string host = suspect >= 0 && suspect != end.rank && host_of ? host_of(suspect) : "";
    return fmt::format("{}: {}{}", who, end.error->value("message", "failed"),
                       host.empty() ? "" : fmt::format(" (rank {} is on {})", suspect, host));
  }
  if (end.signal == SIGKILL) {
    return who + " was killed (signal 9, SIGKILL): by hand or by the kernel for want of memory (see dmesg)";
  }
  if (end.signal != 0) return fmt::format("{} died of signal {} ({})", who, end.signal, strsignal(end.signal));
  return fmt::format("{} ended with exit code {} and no message", who, end.exit_code);
}

}  // namespace

std::string rank_name(int rank, const HostOfRank& host_of) {
  const std::string host = host_of ? host_of(rank) : "";
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, host);
}

std::optional<RootCause> find_root_cause(const std::vector<RankEnd>& ends, const HostOfRank& host_of) {
  const RankEnd* worst = nullptr;
  int level = std::numeric_limits<int>::max();
  for (const RankEnd& end : ends) {
    if (failed(end) && witness_level(end) < level) {
      worst = &end;
      level = witness_level(end);
    }
  }
  if (worst == nullptr) return std::nullopt;
  RootCause cause{worst->rank, 1, describe(*worst, host_of)};
  if (worst->error) cause.exit_code = worst->error->value("exit_code", 1);
  return cause;
}

}  // namespace lockstep::elastic
