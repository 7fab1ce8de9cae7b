// Leader: decides for the ranks of all nodes of a run. Events come in, orders for the nodes' agents go out.
//
// Orders are JSON objects by "do": spawn {worker}, tell {worker, line, rank?} (a command of control.h), stacks
// {workers}, kill {worker}, signal {number, worker?}, end_all {grace_seconds}. Of foreign processes spawn only asks for
// a place, which its agent answers as `ready` {port}; start {worker, rank, local_rank, generation, environment} starts
// it.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/base/process.h"
#include "lockstep/elastic/agent.h"
#include "lockstep/elastic/hang_report.h"

namespace lockstep::elastic {

class Leader {
 public:
  struct Meeting {  // where the ranks find each other
    std::filesystem::path log_folder;
    double started = 0.0;  // the run, by monotonic_seconds() of this node
    std::string host = "127.0.0.1";
    int port = 0;
    bool one_node = true;
    std::function<std::string(int node)> towards;  // a host that the ranks of `node` reach others like
    std::function<std::string(int node)> name;     // of its host, for messages; empty: there is one node
    std::function<std::string(int node)> address;  // of its host; empty: there is one node
  };
  using Order = std::function<void(int node, const nlohmann::json& order)>;

  Leader(const AgentOptions& options, const AgentCallbacks& callbacks, Recovery recovery, Meeting meeting, Order order);

  void node_joined(int node, double now) { recovery_.node_joined(node, now); }
  void node_lost(int node, const std::string& why, double now);
  // Whether the run would go on without it.
  bool can_go_on_without(int node) const;
  void adopt(int node, const nlohmann::json& worker, double now);  // {worker, rank, generation, doing}
  void heard(int worker, const nlohmann::json& message, double now);
  // What its agent says of it, which is no sign of its life.
  void heard_of(int worker, const nlohmann::json& message);
  // `words`: of a foreign process (Workers::last_words).
  void ended(int worker, const ExitStatus& status, const nlohmann::json& words, double now);
  void started(int worker, int pid);

  // Tells every rank to stop, at 2 ends them. `signal`: for foreign processes.
  void stop(int asked, bool requeue, int signal, double now);
  // Whether there was anything to do.
  bool decide(double now);
  // Every rank has done its work, or nobody is left after a failure.
  bool is_over() const;
  AgentResult result() const;

  Recovery::Past past() const { return recovery_.past(); }
  int generation() const { return recovery_.generation(); }
  std::int64_t lost_steps() const { return lost_steps_; }
  void add_lost_steps(std::int64_t steps) { lost_steps_ += steps; }

 private:
  struct Seen {
    RankEnd end;         // of the generation it was in last
    int generation = 0;  // that it was in last
    std::int64_t marks = 0;
    bool over = false;
    int port = 0;         // that is free on its node; of a foreign one
    double beaten = 0.0;  // its last heartbeat
    nlohmann::json beat;  // what that said
    std::string stacks;
  };
  // A hang that was noticed; told once the stacks of all ranks are here, or do not come.
  struct Hang {
    std::string why;
    double since = 0.0;
    std::size_t stacks_missing = 0;
  };

  void carry_out(const Action& action, double now);
  void join(const Action& action);
  bool is_foreign() const { return options_.processes == Processes::kForeign; }
  void begin_generation(const std::vector<Action>& actions);
  void start_foreign(const Action& action);
  void foreign_ended(int worker, const nlohmann::json& words, double now);
  RootCause cause_of(const RankEnd& end, const nlohmann::json& words) const;
  void end_the_foreign(double now);
  void tell(int worker, const nlohmann::json& line, int rank = -1);
  void tell_pids() const;
  void note(const std::string& text) const;
  HostOfRank host_of_ranks() const;
  void take_chaos(int worker, nlohmann::json message, double now);
  void kill_a_standby();
  void wake_the_stopped(double now);
  void take_beat(int worker, const nlohmann::json& message, double now);
  void end_the_rest(double now);
  void watch_operations(double now);
  void ask_for_stacks();
  void notice_hang(const std::string& why, double now);
  void tell_hang(double now);
  std::vector<std::pair<int, RankState>> rank_states(double now) const;
  void end_all(double grace_seconds);

  const AgentOptions& options_;
  const AgentCallbacks& callbacks_;
  Recovery recovery_;
  const Meeting meeting_;
  const Order order_;
  std::map<int, Seen> seen_;                    // by worker
  std::vector<ChaosEvent> chaos_;               // that is left
  std::vector<std::pair<double, int>> waking_;  // workers that chaos stopped, and until when
  std::map<int, int> pids_;
  std::map<int, int> workers_by_rank_;
  int told_generation_ = 0;  // that workers_by_rank_ is of
  std::optional<double> given_up_, stop_asked_;
  std::string give_up_reason_;
  int stops_obeyed_ = 0;
  bool requeue_ = false;
  std::int64_t lost_steps_ = 0;
  std::optional<Hang> hang_;
  std::vector<std::pair<int, RankState>> states_of_hang_;  // by worker
  int hang_generation_ = 0;                                // the last one that a hang was noticed in
  int stacks_generation_ = 0;                              // the last one whose ranks were asked for their stacks
  // Of foreign processes.
  std::string master_host_;  // of this generation's rank 0
  int master_port_ = 0;
  std::optional<RootCause> first_failure_;  // of this generation
  bool terminated_ = false;                 // the rest was told to end
};

}  // namespace lockstep::elastic
