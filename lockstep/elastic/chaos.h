// Chaos: faults on purpose, described by text and carried out at an exact place of a run.
//
//   kill rank=2 step=20; stop rank=1 for=15s; slow rank=0 x3; nan rank=1 step=9; full-disk; corrupt checkpoint
//
// Events are separated by `;`. The words of an event may stand in any order behind its kind. A rank tells the agent
// before an event happens (command::kChaos), and the agent does not hand it out again: it happens once, whoever takes
// the rank's place. docs/reference/chaos.md lists the kinds.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"

namespace lockstep::elastic {

enum class ChaosKind {
  kKill,      // SIGKILL
  kExit,      // exit code 1 without a word
  kAbort,     // SIGABRT
  kSegfault,  // SIGSEGV
  kStop,      // SIGSTOP for `seconds`
  kFreeze,    // SIGSTOP for good
  kHang,      // no step any more, heartbeats go on; for `seconds`, or for good
  kSlow,      // every `phase` takes `factor` times as long, or `delay_seconds` longer; for `seconds`, or to the end
  kNan,       // the gradient of one step is not a number
  kFlip,      // one bit of one weight
  kSever,     // its connections are cut
  kFullDisk,  // writes of checkpoints fail: one, or all for `seconds`
  kSlowDisk,  // the next write of a checkpoint takes `seconds`
  kCorrupt,   // a byte of the next checkpoint that is complete
  kSlowLink,  // its exchanges pass `bytes_per_second` at most, or take `delay_seconds` longer
  kLeak,      // every step holds `bytes` more
};
constexpr auto names_of(ChaosKind) {
  return enum_names<ChaosKind::kLeak>("kill", "exit", "abort", "segfault", "stop", "freeze", "hang", "slow", "nan",
                                      "flip", "sever", "full-disk", "slow-disk", "corrupt", "slow-link", "leak");
}

// Where in the life of a rank an event that ends it happens.
enum class ChaosPlace {
  kStep,        // before the step
  kCollective,  // when the `at`-th operation of the step begins
  kSave,        // at the `at`-th call that writes a checkpoint
  kJoin,        // when it is to join a later generation
  kRecovery,    // while it takes over the state in one
};
constexpr auto names_of(ChaosPlace) {
  return enum_names<ChaosPlace::kRecovery>("step", "collective", "save", "join", "recovery");
}

// What of a step `slow` slows down.
enum class ChaosPhase { kStep, kForward, kBackward, kOptimizer, kLoader, kCheckpoint };
constexpr auto names_of(ChaosPhase) {
  return enum_names<ChaosPhase::kCheckpoint>("step", "forward", "backward", "optimizer", "loader", "checkpoint");
}
inline constexpr std::size_t kChaosPhases = names_of(ChaosPhase{}).size();

struct ChaosEvent {
  int number = 0;  // among those of the run
  ChaosKind kind = ChaosKind::kKill;
  bool standby = false;   // of a process that waits, not of the rank
  int rank = 0;           // to which it happens, or which watches for the step
  std::int64_t step = 1;  // not before this step, counted from 1
  ChaosPlace place = ChaosPlace::kStep;
  std::int64_t at = 1;
  double seconds = 0.0;  // 0: for good
  double factor = 1.0;
  ChaosPhase phase = ChaosPhase::kStep;
  double delay_seconds = 0.0;     // more for each micro-batch, or exchange
  double bytes = 0.0;             // of a step
  double bytes_per_second = 0.0;  // 0: no limit
  std::string text;               // as it was written, of one rank

  bool operator==(const ChaosEvent&) const = default;
};

// Throws UserError with the column and the nearest word. `world`: ranks of the run.
std::vector<ChaosEvent> parse_chaos(const std::string& text, int world);

// A line for each kind, for --help.
std::string chaos_help();

nlohmann::json to_json(const std::vector<ChaosEvent>& events);
std::vector<ChaosEvent> chaos_events_from_json(const nlohmann::json& value);

}  // namespace lockstep::elastic
