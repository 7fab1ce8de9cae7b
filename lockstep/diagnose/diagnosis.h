// What is wrong with a run, as an expert would say it: at most three findings, the dearest first, none where the run is
// healthy. The same for recorded runs and for other programs' traces (docs/reference/diagnose.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::diagnose {

enum class Cause {
  kLoader = 0,  // ranks wait for data
  kHostBound,   // the device waits for the program
  kLaunchBound,
  kExposedCommunication,
  kSmallMessages,
  kSlowLink,
  kSlowRank,
  kStageImbalance,
  kDataImbalance,
  kExpertImbalance,
  kBubble,
  kMemoryPressure,
  kCheckpointStall,
  kThrottling,
  kOversubscription,
  kWrongPlacement,
  kRecompute,
  kHang,
  kCrash,
  kHardwareError,
};
constexpr auto names_of(Cause) {
  return enum_names<Cause::kHardwareError>(
      "loader", "host_bound", "launch_bound", "exposed_communication", "small_messages", "slow_link", "slow_rank",
      "stage_imbalance", "data_imbalance", "expert_imbalance", "bubble", "memory_pressure", "checkpoint_stall",
      "throttling", "oversubscription", "wrong_placement", "recompute", "hang", "crash", "hardware_error");
}

struct Finding {
  Cause cause = Cause::kLoader;
  double confidence = 0.0;         // 0 to 1
  double cost_percent = 0.0;       // of the time of a step; 100 where nothing goes on
  double cost_usd_per_hour = 0.0;  // 0: no price is known
  std::vector<int> ranks;          // that are the cause; empty: all of them alike
  std::string evidence;            // one sentence with its figures
  std::string fix;                 // a command or a setting, then why
  double gain_percent = 0.0;       // more tokens/s after the fix, predicted; 0: not known
};

// What was read to come to it.
struct ReadFile {
  std::string file;  // or the id of a run
  std::string kind;  // "run", "kineto", "nsight", "nccl_log", "flight_recorder", "kernel_log", "operations"
  int ranks = 0;
};

struct Diagnosis {
  std::vector<ReadFile> read;
  std::vector<Finding> findings;  // by cost
};

inline constexpr std::size_t kMostFindings = 3;
inline constexpr double kWorthSayingPercent = 4.0;  // less is within what steps differ by anyway

// Sorts by cost (the surer first among equals), drops what costs less than kWorthSayingPercent and figures that are not
// numbers, keeps the first kMostFindings.
void settle(Diagnosis& diagnosis);

std::string to_text(const Diagnosis& diagnosis, const telemetry::TerminalStyle& style = {});
nlohmann::json to_json(const Diagnosis& diagnosis);  // lockstep.diagnosis/1

}  // namespace lockstep::diagnose
