#include "lockstep/comm/plugins/fault_board.h"

#include <fmt/format.h>

namespace lockstep::comm {
namespace {

// How long healthy ranks may differ in noticing the same timeout.
constexpr auto kReportTime = std::chrono::milliseconds(1500);
constexpr auto kAskTime = std::chrono::milliseconds(200);

std::string encode(const BackendError& error) {
  const char kind = error.kind() == FaultKind::kPeerLost ? 'p' : error.kind() == FaultKind::kTimeout ? 't' : 'a';
  return fmt::format("{}{} {}", kind, error.rank(), error.detail());
}

BackendError decode(const std::string& text, const BackendError& otherwise) {
  const auto space = text.find(' ');
  if (text.size() < 3 || space == std::string::npos) return otherwise;
  const FaultKind kind = text[0] == 'p'   ? FaultKind::kPeerLost
                         : text[0] == 't' ? FaultKind::kTimeout
                                          : FaultKind::kAborted;
  return {kind, std::stoi(text.substr(1, space - 1)), text.substr(space + 1)};
}

}  // namespace

int FaultBoard::silent_rank() {
  store_.set(key("late/" + std::to_string(rank_)), "1");
  const auto deadline = Clock::now() + kReportTime;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    try {
      store_.get(key("late/" + std::to_string(rank)), deadline);
    } catch (const BackendError& error) {
      return error.kind() == FaultKind::kTimeout ? rank : -1;
    }
  }
  return -1;
}

BackendError FaultBoard::agree(const BackendError& error) {
  BackendError cause = error;
  if (error.kind() == FaultKind::kTimeout) {
    const auto asked = Clock::now();
    try {
      return decode(store_.get(key("cause"), asked + kAskTime), error);
    } catch (const BackendError&) {
      // No rank has named a cause. A store that took much longer than asked will not answer the next call either.
      if (Clock::now() - asked > 5 * kAskTime) return error;
    }
    if (const int silent = silent_rank(); silent >= 0) {
      cause = BackendError(FaultKind::kTimeout, silent, "did not answer in time");
    }
  }
  // A closed connection is seen at once, so the first who sees one need not ask the others.
  if (store_.add(key("claims"), 1) == 1) {
    store_.set(key("cause"), encode(cause));
    return cause;
  }
  return decode(store_.get(key("cause"), Clock::now() + kReportTime), cause);
}

BackendError FaultBoard::root_cause(const BackendError& error) noexcept {
  if (error.kind() == FaultKind::kAborted || !store_.present()) return error;
  try {
    return agree(error);
  } catch (...) {
    return error;
  }
}

}  // namespace lockstep::comm
