// Strategy: the next trial, as a pure function of what happened so far.
//
// The same (space, options, history) always gives the same proposal: a study that was killed and resumed continues as
// the undisturbed one would. Stages, in order: baseline (where the space has one), a few configurations far apart,
// explore with replication of the leaders, then the winner is chosen, then fresh launches of winner, control and
// reverted knobs, interleaved.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tune/models/prior.h"
#include "lockstep/tune/objectives/objective.h"
#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

class Evidence;

struct StrategyOptions {
  std::int64_t trials = 45;   // every evaluation counts
  double gpu_seconds = 0;     // 0: bounded by trials alone
  double trial_seconds = 60;  // what one evaluation may take
  std::uint64_t seed = 1;
  bool importance = true;           // reserve trials for reverting knobs
  std::int64_t confirmations = -1;  // fresh launches of the winner; -1: chosen from the number of trials
  const Prior* prior = nullptr;     // outlives the strategy
  // Several: the study looks for a front (objectives/front.h), without reverts. None or one: throughput.
  std::vector<Objective> objectives;
  double usd_per_device_hour = 0;  // for the objective `dollars`

  bool wants_front() const { return objectives.size() > 1; }
};

struct Proposal {
  Config config;
  Purpose purpose = Purpose::kExplore;
  std::string set_back_knob;  // kSetBack
  double budget_seconds = 0;
  std::string reason;  // one line for people: "expected improvement 2.1%, runs with 0.97"
};

// How the remaining trials and budget are divided.
struct Allocation {
  std::int64_t search = 0;    // baseline, explore, replicate
  std::int64_t confirm = 0;   // fresh launches of the winner
  std::int64_t control = 0;   // fresh launches of the default
  std::int64_t set_back = 0;  // all knobs together
};

class Strategy {
 public:
  Strategy(Space space, StrategyOptions options);

  // nullopt: the study is over. `pending` are trials under way (parallel studies).
  std::optional<Proposal> next(std::span<const Trial> history, std::span<const Trial> pending = {}) const;

  // The configuration that the search data point to (choice.h); nullopt while nothing ran. Uses baseline, explore and
  // replicate trials only, but for a fresh launch that failed.
  std::optional<Config> winner(std::span<const Trial> history) const;

  Allocation allocation(std::span<const Trial> history) const;

  const Space& space() const { return space_; }
  const StrategyOptions& options() const { return options_; }

 private:
  std::optional<Proposal> search(const Evidence& evidence, std::span<const Trial> history,
                                 std::span<const Trial> pending, std::int64_t trials) const;
  // The setting to launch again so that the machine's drift is known; null: not now.
  const Config* anchor_due(const Evidence& evidence, std::span<const Trial> history) const;

  Space space_;
  StrategyOptions options_;
};

}  // namespace lockstep::tune
