// Recovery: what is done about ranks that die, hang or lose each other, and about nodes that come and go. Decisions
// alone: events come in with the time they happened, actions go out; agents carry them out, and a simulation can play
// the same ones.
//
// A run is executed by one generation of ranks after the other. When a rank fails, its generation is broken: the
// survivors leave it (their processes stay, with their state in memory), a process that waits takes the place of the
// lost one, and all join the next generation. Ranks keep their numbers while the number of nodes stays. A node that is
// lost is replaced by one that is spare; without one the run goes on with fewer nodes, and with more when some come.
//
// Processes that take no commands cannot leave (`whole`): those of a broken generation are ended, and new ones take all
// places. A worker of theirs is a place on a node until it joins; then its process starts.
//
//   Recovery recovery({.ranks_per_node = 4, .standby = 1}, now);
//   recovery.node_joined(0, now);
//   for (const Action& action : recovery.decide(now)) ...     // spawn workers
//   recovery.ready(worker, now); ... recovery.decide(now);    // when all are: join generation 1 as ranks 0..3
//   recovery.ended(worker, end, now); recovery.decide(now);   // abort, spawn; when the others left: join generation 2
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::elastic {

struct RecoveryLimits {
  int ranks_per_node = 1;
  std::vector<int> node_counts = {1};  // that the run can have, largest first; the first is what it wants
  std::map<int, std::string> too_few;  // numbers of nodes on which its layout would not fit, and why
  int standby = 0;                     // processes that each node keeps ready beside its ranks
  int restarts = 0;                    // failures that are recovered from before the run is given up
  int restarts_at_one_step = 3;        // of them, without a step done in between
  double gather_seconds = 120.0;       // for the nodes of the first generation to come
  double wait_seconds = 2.0;           // for a lost node to be replaced, before the run goes on with fewer
  double start_seconds = 120.0;        // for a process to get ready
  double leave_seconds = 10.0;         // for a survivor to leave a broken generation
  double silence_seconds = 30.0;       // without a word of a process: it hangs
  double stall_seconds = 600.0;        // without a step anywhere
  double first_step_seconds = 0.0;     // the same before the first one of a generation, which waits for disks
  bool whole = false;                  // a broken generation is ended as a whole
  // A generation that lived for so long got somewhere, whether or not it told of a step.
  double proven_seconds = std::numeric_limits<double>::infinity();
};

struct Action {
  enum class Kind {
    kSpawn,   // start process `worker` on `node`
    kJoin,    // tell it: be `rank` of `generation`, which has `world` ranks
    kAbort,   // tell it: leave `generation`
    kStacks,  // write down where its threads are: nobody makes a step
    kKill,    // it hangs: the same, and end it
    kTell,    // the user: `reason`
    kGiveUp,  // end everything; `reason` is why no more is tried ("" where a failure was not one to recover from)
  };
  Kind kind = Kind::kSpawn;
  int worker = -1;
  int node = -1;
  int rank = -1;
  int generation = 0;
  int world = 0;
  std::string reason;
  bool hangs = false;  // kKill: it was a rank that others wait for

  bool operator==(const Action&) const = default;
};

class Recovery {
 public:
  Recovery(const RecoveryLimits& limits, double now);

  // What another one decided until it was lost. Workers follow by adopt(); what they were in is broken.
  struct Past {
    int generation = 0;
    std::vector<int> nodes;
    std::int64_t furthest_step = -1;
    int restarts = 0;
    std::vector<double> recovery_seconds;
  };
  Recovery(const RecoveryLimits& limits, const Past& past, const std::string& why, double now);
  enum class Doing { kStarting, kWaiting, kMember };
  void adopt(int worker, int node, int rank, int generation, Doing doing, double now);
  Past past() const { return {generation_, nodes_, furthest_step_, restarts_, recovery_seconds_}; }

  void node_joined(int node, double now);
  void node_lost(int node, const std::string& why, double now);  // with every worker on it

  // Whether the run would go on without this node, with those that are there now.
  bool can_go_on_without(int node) const;

  // Events of workers, which are numbered as kSpawn numbers them; those of a worker that is gone are ignored.
  void heard(int worker, double now);  // any sign of life
  void ready(int worker, double now);  // it waits to join
  void stepped(int worker, std::int64_t step, double now);
  void progressed(int worker, double now);  // it does what is not a step and ends: evaluates, waits for a save
  // It met a fault, left the generation and waits to join the next one.
  void left(int worker, int generation, const std::string& why, double now);
  // The process ended. `finished`: it did all its work. `recoverable`: another process may do better.
  void ended(int worker, bool finished, bool recoverable, const std::string& why, double now);
  // No rank is replaced from now on (the run was asked to stop).
  void stop_replacing() { replacing_ = false; }

  // What is to be done now; call it after events, and now and then for the limits.
  std::vector<Action> decide(double now);

  int generation() const { return generation_; }
  int rank_of(int worker) const;                            // -1: it has none
  int node_of(int worker) const;                            // where it was started
  const std::vector<int>& nodes() const { return nodes_; }  // of the generation, by the ranks they hold
  int world() const { return static_cast<int>(nodes_.size()) * limits_.ranks_per_node; }
  int restarts() const { return restarts_; }
  // From the moment a failure was known to the first step after it, of every restart that got that far.
  const std::vector<double>& recovery_seconds() const { return recovery_seconds_; }
  std::int64_t furthest_step() const { return furthest_step_; }

 private:
  enum class State { kStarting, kWaiting, kMember, kLeaving, kKilled, kGone };
  struct Worker {
    State state = State::kStarting;
    int node = 0;
    int slot = -1;       // its place among the ranks of its node; -1: standby
    int rank = -1;       // in the generation it joined last
    double since = 0.0;  // in this state
    double heard = 0.0;
    bool is_there() const { return state != State::kGone && state != State::kKilled; }
  };

  Worker* find(int worker);
  void set(Worker& worker, State state, double now);
  void break_generation(const std::string& why, double now, bool failure = true);
  void spawn(int node, std::vector<Action>& actions, double now);
  void end_the_silent(std::vector<Action>& actions, double now);
  void clear_broken(std::vector<Action>& actions, double now);
  std::optional<Action> give_up(double now);
  int possible_nodes() const;
  bool choose_nodes(std::vector<Action>& actions, double now);
  std::string why_not_fewer() const;
  void resize(int count);
  bool fill(int node, std::vector<Action>& actions, double now);
  void form(std::vector<Action>& actions, double now);
  void keep_standby(std::vector<Action>& actions, double now);
  void grow(double now);
  int spares_on(int node, State state) const;
  int count(State state) const;

  RecoveryLimits limits_;
  std::map<int, Worker> workers_;
  std::map<int, int> started_on_;  // workers by node
  std::set<int> live_;             // nodes
  std::vector<int> nodes_;         // that hold ranks, in their order; -1: lost
  int generation_ = 0;
  bool forming_ = true;     // ranks are missing
  bool broken_ = false;     // survivors have not all left
  bool failure_ = false;    // what broke it
  bool finishing_ = false;  // a rank has done all its work
  bool replacing_ = true;
  bool over_ = false;
  std::string why_;                    // the generation broke
  std::optional<double> failed_;       // when; until the first step after it
  std::optional<double> short_since_;  // there are fewer nodes than before
  double not_before_ = 0.0;            // failures in a row wait longer and longer
  double progress_ = 0.0;              // last step, or the last forming
  double formed_ = 0.0;                // the last forming
  std::int64_t step_ = -1, furthest_step_ = -1, step_at_failure_ = -1;
  int at_one_step_ = 0;
  int restarts_ = 0;
  int failed_starts_ = 0;  // processes in a row that ended before they were ready
  std::vector<double> recovery_seconds_;
};

}  // namespace lockstep::elastic
