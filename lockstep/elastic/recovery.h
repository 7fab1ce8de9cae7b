// Recovery: what an agent does about ranks that die, hang or lose each other. Decisions alone: events come in with the
// time they happened, actions go out; the agent carries them out, and a simulation can play the same ones.
//
// A run is executed by one generation of ranks after the other. When a rank fails, its generation is broken: the
// survivors leave it (their processes stay, with their state in memory), a process that waits takes the place of the
// lost one, and all join the next generation. Ranks keep their numbers.
//
//   Recovery recovery({.world = 4, .standby = 1}, now);
//   for (const Action& action : recovery.decide(now)) ...     // spawn 5 workers
//   recovery.ready(worker, now); ... recovery.decide(now);    // when all are: join generation 1 as ranks 0..3
//   recovery.ended(worker, end, now); recovery.decide(now);   // abort, spawn; when the others left: join generation 2
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::elastic {

struct RecoveryLimits {
  int world = 1;
  int standby = 0;                // processes kept ready beside the ranks
  int restarts = 0;               // generations after the first before the run is given up
  int restarts_at_one_step = 3;   // of them, without a step done in between
  double start_seconds = 120.0;   // for a process to get ready
  double leave_seconds = 10.0;    // for a survivor to leave a broken generation
  double silence_seconds = 30.0;  // without a word of a process: it hangs
  double stall_seconds = 600.0;   // without a step anywhere
};

struct Action {
  enum class Kind {
    kSpawn,   // start process `worker`
    kJoin,    // tell it: be `rank` of `generation`
    kAbort,   // tell it: leave `generation`
    kKill,    // it hangs
    kGiveUp,  // end everything; `reason` is why no more is tried ("" where a failure was not one to recover from)
  };
  Kind kind = Kind::kSpawn;
  int worker = -1;
  int rank = -1;
  int generation = 0;
  std::string reason;

  bool operator==(const Action&) const = default;
};

class Recovery {
 public:
  Recovery(const RecoveryLimits& limits, double now);

  // Events. Workers are numbered as kSpawn numbers them; those of a worker that is gone are ignored.
  void heard(int worker, double now);  // any sign of life
  void ready(int worker, double now);  // it waits to join
  void stepped(int worker, std::int64_t step, double now);
  // It met a fault, left the generation and waits to join the next one.
  void left(int worker, int generation, const std::string& why, double now);
  // The process ended. `finished`: it did all its work. `recoverable`: another process may do better.
  void ended(int worker, bool finished, bool recoverable, const std::string& why, double now);
  // No rank is replaced from now on (the run was asked to stop).
  void stop_replacing() { replacing_ = false; }

  // What is to be done now; call it after events, and now and then for the limits.
  std::vector<Action> decide(double now);

  int generation() const { return generation_; }
  int rank_of(int worker) const;  // -1: it has none
  int restarts() const { return std::max(0, generation_ - 1); }
  // From the moment a failure was known to the first step after it, of every restart that got that far.
  const std::vector<double>& recovery_seconds() const { return recovery_seconds_; }
  std::int64_t furthest_step() const { return furthest_step_; }

 private:
  enum class State { kStarting, kWaiting, kMember, kLeaving, kKilled, kGone };
  struct Worker {
    State state = State::kStarting;
    int rank = -1;
    double since = 0.0;  // in this state
    double heard = 0.0;
  };

  Worker* find(int worker);
  void set(Worker& worker, State state, double now);
  void break_generation(const std::string& why, double now);
  void spawn(std::vector<Action>& actions, double now);
  void end_the_silent(std::vector<Action>& actions, double now);
  void clear_broken(std::vector<Action>& actions, double now);
  void form(std::vector<Action>& actions, double now);
  void keep_standby(std::vector<Action>& actions, double now);
  int count(State state) const;

  RecoveryLimits limits_;
  std::map<int, Worker> workers_;
  int next_worker_ = 0;
  int generation_ = 0;
  bool forming_ = true;     // ranks are missing
  bool broken_ = false;     // survivors have not all left
  bool finishing_ = false;  // a rank has done all its work
  bool replacing_ = true;
  bool over_ = false;
  std::string why_;               // the generation broke
  std::optional<double> failed_;  // when; until the first step after it
  double progress_ = 0.0;         // last step, or the last forming
  std::int64_t step_ = -1, furthest_step_ = -1, step_at_failure_ = -1;
  int at_one_step_ = 0;
  int failed_starts_ = 0;  // processes in a row that ended before they were ready
  std::vector<double> recovery_seconds_;
};

}  // namespace lockstep::elastic
