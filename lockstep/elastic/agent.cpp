#include "lockstep/elastic/agent.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <memory>
#include <set>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/elastic/control.h"
#include "lockstep/elastic/host_address.h"
#include "lockstep/elastic/leader.h"
#include "lockstep/elastic/link.h"
#include "lockstep/elastic/roster.h"
#include "lockstep/elastic/sockets.h"
#include "lockstep/elastic/store.h"
#include "lockstep/elastic/token_file.h"
#include "lockstep/elastic/workers.h"

namespace lockstep::elastic {
namespace {

using nlohmann::json;

constexpr int kPollMilliseconds = 100;
constexpr int kPollLinksMilliseconds = 50;
constexpr double kBeatSeconds = 0.1;                            // something is sent, for the other machine to answer
constexpr double kStatusSeconds = 0.25;                         // the leader tells the others how far the run is
constexpr std::size_t kMostStackBytes = std::size_t{64} << 10;  // of one process
constexpr double kAgentSilenceSeconds = 20.0;                   // the machine answers, the agent on it does not
constexpr double kHelloSeconds = 5.0;                           // for who connects to say who it is
constexpr double kSeekSeconds = 1.0;                            // for a node that may lead to answer
constexpr double kConnectSeconds = 0.4;                         // for one connection to it
constexpr double kRetrySeconds = 0.1;
constexpr std::size_t kMostStrangers = 256;
constexpr int kCandidatesAtOnce = 3;
constexpr double kUsageSeconds = 5.0;
constexpr double kRecordsSeconds = 20.0;                        // for the records of all nodes to come
constexpr double kFirstWaitSeconds = 5.0, kWaitSeconds = 30.0;  // until it is said that nodes are missing, and again
constexpr double kFindingsSeconds = 0.2;                        // between two looks at what the health checks found

RecoveryLimits limits_of(const AgentOptions& options) {
  RecoveryLimits limits = options.recovery;
  if (options.processes == Processes::kCommanded) return limits;
  if (options.processes == Processes::kForeign) {  // they tell nothing of themselves; how often is the user's to say
    limits.whole = true;
    limits.restarts_at_one_step = std::numeric_limits<int>::max();
  } else {
    limits.restarts = 0;
  }
  limits.standby = 0;
  limits.silence_seconds = limits.stall_seconds = std::numeric_limits<double>::infinity();
  return limits;
}

// What the agent itself knows of its processes, for a leader that did not start them.
struct Local {
  int pid = 0;
  int rank = -1;
  int generation = 0;
  Recovery::Doing doing = Recovery::Doing::kStarting;
};

std::string listening_address(const AgentOptions& options) {
  if (!options.address.empty()) return options.address;
  return !options.nodes || options.nodes->on_loopback() ? "127.0.0.1" : "0.0.0.0";
}

const char* name_of(Recovery::Doing doing) {
  return doing == Recovery::Doing::kMember ? "member" : doing == Recovery::Doing::kWaiting ? "waiting" : "starting";
}

std::string why_closed(const Link& link) {
  return link.was_silent() ? "its machine does not answer" : "its agent is gone";
}

// A node that may lead, seen from one that looks for a leader.
struct Candidate {
  std::unique_ptr<Link> link;
  double answered = 0.0;  // or first tried
  double next_try = 0.0;
  bool refused = false;  // its machine says that no agent runs there
};

class Agent {
 public:
  Agent(const AgentOptions& options, const AgentCallbacks& callbacks);
  AgentResult run();

 private:
  bool alone() const { return !nodes_; }
  int self() const { return alone() ? 0 : nodes_->self; }
  const NodeAddress& address_of(int node) const { return nodes_->nodes[static_cast<std::size_t>(node)]; }
  std::string name_of_node(int node) const;
  void note(const std::string& text) const;
  void tell_waiting(double now);

  // Processes of this node.
  WorkerOptions worker_options() const;
  void on_worker_message(int worker, const json& message);
  void on_worker_end(int worker, const ExitStatus& status);
  void tell_leader(json message);
  void obey(const json& order);
  void spawn(int worker);
  void reserve(int worker);
  void start(int worker, const json& order);
  void told_start(int worker, int pid);
  void signal(const json& order);
  void tell_stacks(const std::vector<int>& workers);
  bool is_foreign() const { return options_.processes == Processes::kForeign; }
  void leave_generation(const std::string& why);
  void prepare();

  // The health of this node.
  void take_findings(double now);
  void take_usage(double now);
  void tell(const Finding& finding);
  void end_the_wrong(double now);
  AgentResult left_because(const std::string& why) const;

  // Leading.
  void lead(double now);
  void order(int node, const json& order);
  void admit(int node, std::unique_ptr<Link> link, const json& hello, double now);
  void lose_silent_followers(double now);
  void leave_out_unhealthy(double now);
  void require_quorum(double now);
  bool has_quorum(const std::set<int>& with, const std::set<int>& dead, bool led_before) const;
  void finish(const AgentResult& result);
  void gather_records();

  // Following.
  void follow(int node, std::unique_ptr<Link> link, const json& welcome);
  void take_from_leader(double now);
  void lose_leader(const std::string& why, double now);
  void send_records();

  // Neither.
  void seek(double now);
  void try_candidates(double now);
  void connect_to(int node, double now);
  bool is_out(const Candidate& candidate, double now) const;
  bool may_lead(double now) const;
  std::set<int> dead_nodes() const;
  void give_up_seeking(double now);
  json hello() const;
  void fence(const std::string& why, double now);

  void accept_strangers();
  void greet(std::unique_ptr<Link>& stranger, double now);
  void enlist(std::unique_ptr<Link> link, const json& join);
  void take_nodes(const json& list);
  void beat(double now);
  void take_stop_requests(double now);
  void watch_links(Poller& poller);
  std::vector<Link*> links() const;

  const AgentOptions& options_;
  const AgentCallbacks& callbacks_;
  std::optional<NodeList> nodes_;  // grows where nodes may come later
  const std::string token_;
  std::unique_ptr<StoreServer> store_;  // on the leader
  Workers workers_;
  std::map<int, Local> local_;

  UniqueFd listener_;
  std::vector<std::unique_ptr<Link>> strangers_;    // who have not said who they are
  std::map<int, std::unique_ptr<Link>> followers_;  // by node, on the leader
  std::map<int, std::unique_ptr<Link>> waiting_;    // by node: hope that this agent will lead
  std::map<int, json> hellos_;                      // of those
  std::map<int, Candidate> candidates_;             // by node: who may lead
  int probed_ = 0;                                  // any other node, one after the other
  std::unique_ptr<Link> leader_link_;
  std::vector<json> unsaid_;  // to the next leader: what processes did while there was none
  std::unique_ptr<Leader> leader_;
  int leader_node_ = -1;
  int term_ = 0;                // leaders so far
  int adopted_at_ = 0;          // the generation that was broken when this agent began to lead
  bool established_ = false;    // a generation has formed under this leader
  std::set<int> other_tokens_;  // nodes that came with one, and were told so
  std::set<int> electorate_;    // nodes that were there last
  Recovery::Past past_;         // as the leader told it
  std::int64_t past_lost_steps_ = 0;
  json facts_;
  bool prepared_ = false;
  bool fenced_ = false;
  const double started_ = monotonic_seconds();
  double seeking_since_ = 0.0;
  double tell_waiting_at_ = 0.0;
  double beaten_ = 0.0, told_ = 0.0;  // the last beat, the last status
  int stops_told_ = 0;
  double looked_ = 0.0;                         // at what the health checks found
  std::optional<double> measured_;              // when it was last looked what the ranks use
  std::string unhealthy_;                       // why this node should not be used; "": it may
  bool told_unhealthy_ = false;                 // to the leader
  std::map<int, std::string> unhealthy_nodes_;  // on the leader: why
  std::set<int> kept_nodes_;                    // of those: the run needs them
  std::vector<json> untold_;                    // findings that no leader has heard of
  std::map<int, double> wrong_;                 // workers that should end, and until when they may by themselves
  std::optional<AgentResult> result_;
};

Agent::Agent(const AgentOptions& options, const AgentCallbacks& callbacks)
    : options_(options),
      callbacks_(callbacks),
      nodes_(options.nodes),
      token_(options.nodes && !options.token.empty() ? options.token : make_token()),
      store_(options.nodes || options.processes == Processes::kForeign
                 ? nullptr
                 : std::make_unique<StoreServer>(
                       StoreServerOptions{.address = listening_address(options), .token = token_})),
      workers_(
          worker_options(), [this](int worker, const json& message) { on_worker_message(worker, message); },
          [this](int worker, const ExitStatus& status) { on_worker_end(worker, status); }, callbacks.on_output),
      facts_(options.facts),
      seeking_since_(monotonic_seconds()) {
  if (alone()) {
    lead(seeking_since_);
    // What cannot be started at all is the caller's to hear of. Processes that take no commands are ranks at once.
    while (leader_->decide(monotonic_seconds()) && options_.processes != Processes::kCommanded) {
    }
    return;
  }
  for (int node = 0; node < static_cast<int>(nodes_->nodes.size()); ++node) electorate_.insert(node);
  if (options.token.empty()) {
    throw bad_input("several nodes need a shared secret", "set LOCKSTEP_TOKEN to the same value on every node");
  }
  listener_ = listen_on({"the agent", listening_address(options), address_of(self()).port, token_});
}

WorkerOptions Agent::worker_options() const {
  WorkerOptions workers{options_.argv, options_.environment, options_.log_folder, options_.processes, options_.unset};
  if (is_foreign()) return workers;
  const int ranks = options_.recovery.ranks_per_node;
  workers.environment["LOCKSTEP_WORLD_SIZE"] = workers.environment["LOCKSTEP_LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  workers.environment["LOCKSTEP_MASTER_ADDR"] = options_.address.empty() ? "127.0.0.1" : options_.address;
  workers.environment["LOCKSTEP_MASTER_PORT"] = std::to_string(store_ ? store_->port() : 1);
  workers.environment["LOCKSTEP_TOKEN"] = token_;
  return workers;
}

std::string Agent::name_of_node(int node) const {
  if (alone()) return "this node";
  const auto& nodes = nodes_->nodes;
  const bool alike = std::count_if(nodes.begin(), nodes.end(),
                                   [&](const NodeAddress& other) { return other.host == address_of(node).host; }) > 1;
  return "node " + address_of(node).host + (alike ? fmt::format(":{}", address_of(node).port) : "");
}

void Agent::note(const std::string& text) const {
  if (callbacks_.on_message) callbacks_.on_message(-1, {{"type", "note"}, {"text", text}});
}

AgentResult Agent::run() {
  while (!result_) {
    Poller poller;
    workers_.watch(poller);
    watch_links(poller);
    poller.run(alone() ? kPollMilliseconds : kPollLinksMilliseconds);
    const double now = monotonic_seconds();
    for (Link* link : links()) link->require_answers(now);
    accept_strangers();
    for (auto& stranger : strangers_) greet(stranger, now);
    std::erase(strangers_, nullptr);
    workers_.reap();
    take_stop_requests(now);
    take_findings(now);
    tell_waiting(now);
    take_usage(now);
    beat(now);
    if (leader_) {
      lose_silent_followers(now);
      if (leader_) leave_out_unhealthy(now);
      if (leader_ && !result_) leader_->decide(now);
      if (leader_ && !result_ && leader_->is_over()) finish(leader_->result());
    } else if (leader_link_) {
      take_from_leader(now);
    } else {
      seek(now);
    }
  }
  workers_.end_all(0.0);  // those that only waited
  return *result_;
}

// The first generation needs other nodes; who looks at the terminal should know.
void Agent::tell_waiting(double now) {
  const bool waits = leader_ ? leader_->generation() == 0 : !leader_link_ && term_ == 0;
  if (alone() || !waits || now < tell_waiting_at_) return;
  const bool first = tell_waiting_at_ == 0.0;
  tell_waiting_at_ = now + (first ? kFirstWaitSeconds : kWaitSeconds);
  if (first) return;
  note(leader_ ? fmt::format("waiting for other nodes: {} of {} have come", followers_.size() + 1, nodes_->nodes.size())
               : "waiting for the other nodes");
}

// --- processes of this node ------------------------------------------------------------------------------------------

// Of what a foreign program may write there, only how far it is counts, and only where it is well formed.
std::optional<json> heartbeat_in(const json& message) {
  const auto type = message.find("type"), step = message.find("step"), generation = message.find("generation");
  if (type == message.end() || *type != command::kHeartbeat) return std::nullopt;
  if (step == message.end() || generation == message.end()) return std::nullopt;
  if (!step->is_number_integer() || !generation->is_number_integer()) return std::nullopt;
  return json{{"type", command::kHeartbeat}, {"step", *step}, {"generation", *generation}};
}

void Agent::on_worker_message(int worker, const json& said) {
  const std::optional<json> heartbeat = is_foreign() ? heartbeat_in(said) : std::nullopt;
  if (is_foreign() && !heartbeat) return;
  const json& message = heartbeat ? *heartbeat : said;
  const std::string type = message.value("type", "");
  Local& local = local_[worker];
  if (type == command::kReady && local.doing == Recovery::Doing::kStarting) local.doing = Recovery::Doing::kWaiting;
  if (type == command::kLost && message.value("generation", 0) == local.generation) {
    local.doing = Recovery::Doing::kWaiting;
  }
  if (leader_) return leader_->heard(worker, message, monotonic_seconds());
  // Steps of a generation that nobody leads do not count.
  if (!leader_link_ && type == command::kHeartbeat) return;
  tell_leader({{"type", "message"}, {"worker", worker}, {"message", message}});
}

void Agent::tell_leader(json message) {
  if (leader_link_) return leader_link_->send(message);
  unsaid_.push_back(std::move(message));
}

void Agent::on_worker_end(int worker, const ExitStatus& status) {
  local_.erase(worker);
  const json words = is_foreign() ? workers_.last_words(worker) : json::object();
  if (leader_) return leader_->ended(worker, status, words, monotonic_seconds());
  tell_leader(
      {{"type", "ended"}, {"worker", worker}, {"code", status.code}, {"signal", status.signal}, {"words", words}});
}

void Agent::spawn(int worker) {
  local_[worker] = {};
  const int pid = workers_.start(worker);
  local_[worker].pid = pid;
  told_start(worker, pid);
}

void Agent::told_start(int worker, int pid) {
  if (leader_) return leader_->started(worker, pid);
  leader_link_->send({{"type", "started"}, {"worker", worker}, {"pid", pid}});
}

// A foreign process starts when it is known which rank it is; here is room for it, and a port for its store.
void Agent::reserve(int worker) {
  const json ready = {{"type", command::kReady}, {"port", find_free_port()}};
  if (leader_) return leader_->heard(worker, ready, monotonic_seconds());
  tell_leader({{"type", "message"}, {"worker", worker}, {"message", ready}});
}

void Agent::start(int worker, const json& order) {
  const Workers::Place place{order.value("rank", 0), order.value("local_rank", 0), order.value("generation", 0),
                             order.value("environment", std::map<std::string, std::string>())};
  const int pid = workers_.start(worker, place);
  local_[worker] = {pid, place.rank, place.generation, Recovery::Doing::kMember};
  told_start(worker, pid);
}

void Agent::signal(const json& order) {
  const int worker = order.value("worker", -1), number = order.value("number", SIGINT);
  if (worker < 0) return workers_.signal_all(number);
  if (!is_foreign()) return workers_.signal(worker, number);
  workers_.signal_group(worker, number);
  workers_.signal_group(worker, SIGCONT);  // a stopped process cannot end by itself
}

void Agent::tell_stacks(const std::vector<int>& workers) {
  for (const auto& [worker, text] : workers_.write_stacks(workers)) {
    const json message = {{"type", command::kStacks}, {"text", text.substr(0, kMostStackBytes)}};
    if (leader_) {
      leader_->heard_of(worker, message);
    } else {
      tell_leader({{"type", "message"}, {"worker", worker}, {"message", message}});
    }
  }
}

void Agent::obey(const json& order) {
  const std::string what = order.value("do", "");
  const int worker = order.value("worker", -1);
  if (what == "spawn") return is_foreign() ? reserve(worker) : spawn(worker);
  if (what == "start") return start(worker, order);
  if (what == "stacks") return tell_stacks(order.value("workers", std::vector<int>()));
  if (what == "kill") {
    if (!is_foreign()) workers_.write_stacks({worker});
    return workers_.kill(worker);
  }
  if (what == "signal") return signal(order);
  if (what == "end_all") return workers_.end_all(order.value("grace_seconds", 0.0));
  if (what != "tell") return;
  const json line = order.value("line", json::object());
  if (line.value("type", "") == command::kJoin) {
    local_[worker].rank = line.value("rank", -1);
    local_[worker].generation = line.value("generation", 0);
    local_[worker].doing = Recovery::Doing::kMember;
    workers_.name(worker, local_[worker].rank);
  }
  workers_.tell(worker, line);
}

// Nobody decides for the ranks any more; their state stays in memory.
void Agent::leave_generation(const std::string& why) {
  for (const auto& [worker, local] : local_) {
    if (local.doing != Recovery::Doing::kMember) continue;
    if (is_foreign()) {
      workers_.signal_group(worker, SIGTERM);
      continue;
    }
    workers_.tell(worker, {{"type", command::kAbort}, {"generation", local.generation}, {"reason", why}});
  }
}

// --- the health of this node -----------------------------------------------------------------------------------------

void Agent::take_findings(double now) {
  if (!callbacks_.findings || now - looked_ < kFindingsSeconds) return;
  looked_ = now;
  std::vector<int> pids;
  for (const auto& [worker, local] : local_) pids.push_back(local.pid);
  for (const Finding& finding : callbacks_.findings(pids)) {
    tell(finding);
    if (finding.severity == Severity::kFatal && unhealthy_.empty()) unhealthy_ = describe(finding);
    if (finding.severity != Severity::kApplication || options_.processes == Processes::kFixed) continue;
    for (const auto& [worker, local] : local_) {
      if (local.pid == finding.pid && finding.pid > 0) wrong_.emplace(worker, now + options_.own_end_seconds);
    }
  }
  end_the_wrong(now);
  if (leader_link_) {
    for (json& message : std::exchange(untold_, {})) leader_link_->send(message);
    if (!unhealthy_.empty() && !std::exchange(told_unhealthy_, true)) {
      leader_link_->send({{"type", "unhealthy"}, {"why", unhealthy_}});
    }
  }
  if (leader_ && !unhealthy_.empty()) unhealthy_nodes_.emplace(self(), unhealthy_);
}

void Agent::take_usage(double now) {
  if (!callbacks_.usage || (measured_ && now - *measured_ < kUsageSeconds)) return;
  std::map<int, int> pids;
  for (const auto& [worker, local] : local_) {
    if (local.rank >= 0) pids[local.rank] = local.pid;
  }
  // First as soon as all are ranks: a short run is over before the next look.
  if (pids.size() < (measured_ ? 1U : static_cast<std::size_t>(options_.recovery.ranks_per_node))) return;
  measured_ = now;
  json message = callbacks_.usage(pids);
  message["type"] = "usage";
  message["node"] = alone() ? "" : name_of_node(self());
  if (leader_ && callbacks_.on_message) callbacks_.on_message(-1, message);
  if (leader_link_) leader_link_->send(message);
}

void Agent::tell(const Finding& finding) {
  json message = to_json(finding);
  message["type"] = "finding";
  message["node"] = alone() ? "" : name_of_node(self());
  if (callbacks_.on_message) callbacks_.on_message(-1, message);
  if (!leader_) untold_.push_back(std::move(message));
}

// After an error on a GPU that is its own a process cannot go on; most end by themselves and say why.
void Agent::end_the_wrong(double now) {
  std::erase_if(wrong_, [&](const auto& entry) {
    const auto& [worker, until] = entry;
    if (!workers_.is_left(worker)) return true;
    if (now < until) return false;
    note(fmt::format("rank {} did not end after its error on the GPU; it is ended", local_[worker].rank));
    workers_.kill(worker);
    return true;
  });
}

AgentResult Agent::left_because(const std::string& why) const {
  AgentResult result;
  result.exit_code = static_cast<int>(ExitCode::kEnvironment);
  result.leads = false;
  result.cause = RootCause{-1, result.exit_code, name_of_node(self()) + " is unhealthy and left the run: " + why};
  return result;
}

// --- leading ---------------------------------------------------------------------------------------------------------

void Agent::lead(double now) {
  const bool first = term_ == 0;
  const int lost = leader_node_;
  term_ += 1;
  leader_node_ = self();
  prepare();
  Leader::Meeting meeting;
  meeting.log_folder = workers_.options().log_folder;
  meeting.started = started_;
  if (!options_.address.empty()) meeting.host = options_.address;
  if (!alone()) {
    if (!is_foreign()) {
      store_ =
          std::make_unique<StoreServer>(StoreServerOptions{.address = listening_address(options_), .token = token_});
    }
    meeting.address = [this](int node) { return address_of(node).host; };
    if (options_.address.empty()) meeting.host = address_of(self()).host;
    meeting.one_node = nodes_->on_loopback();
    meeting.name = [this](int node) { return name_of_node(node).substr(std::string("node ").size()); };
    // Each node finds the way to another one by itself; the leader's own ranks, to the first that is not it.
    meeting.towards = [this](int node) {
      const int other = node == self() ? (node == 0 ? 1 : 0) : self();
      return nodes_->nodes.size() > 1 ? address_of(other).host : std::string();
    };
  }
  meeting.port = store_ ? store_->port() : 0;
  const std::string why = lost >= 0 ? name_of_node(lost) + ", which led the run, is lost" : "";
  Recovery recovery = first ? Recovery(limits_of(options_), now) : Recovery(limits_of(options_), past_, why, now);
  adopted_at_ = recovery.generation();
  established_ = false;
  leader_ = std::make_unique<Leader>(options_, callbacks_, std::move(recovery), std::move(meeting),
                                     [this](int node, const json& what) { order(node, what); });
  leader_->add_lost_steps(past_lost_steps_);
  leader_->node_joined(self(), now);
  if (callbacks_.on_lead) callbacks_.on_lead();
  if (!first) note(why + "; " + name_of_node(self()) + " leads");
  unsaid_.clear();
  const json mine = hello();
  for (const json& worker : mine.at("workers")) leader_->adopt(self(), worker, now);
  candidates_.clear();
  for (auto& [node, link] : std::exchange(waiting_, {})) admit(node, std::move(link), hellos_[node], now);
  hellos_.clear();
  unhealthy_nodes_.clear();
  kept_nodes_.clear();
  for (json& message : std::exchange(untold_, {})) {
    message["told"] = true;
    if (callbacks_.on_message) callbacks_.on_message(-1, message);
  }
}

void Agent::order(int node, const json& what) {
  if (node < 0) {
    for (const auto& [follower, link] : followers_) link->send({{"type", "order"}, {"order", what}});
    return obey(what);
  }
  if (node == self()) return obey(what);
  if (const auto found = followers_.find(node); found != followers_.end()) {
    found->second->send({{"type", "order"}, {"order", what}});
  }
}

void Agent::admit(int node, std::unique_ptr<Link> link, const json& hello, double now) {
  if (followers_.contains(node)) leader_->node_lost(node, name_of_node(node) + " started again", now);
  // Processes that were in the generation that broke keep their state; those of older ones have nothing of use.
  const bool kept = term_ > 1 && hello.value("term", -1) == term_ - 1 && !established_;
  link->send(
      {{"type", "welcome"}, {"term", term_}, {"fresh", !kept}, {"facts", facts_}, {"nodes", to_json(nodes_->nodes)}});
  followers_[node] = std::move(link);
  unhealthy_nodes_.erase(node);
  kept_nodes_.erase(node);
  if (hello.value("term", 0) > 0 && !kept) note(name_of_node(node) + " is back");
  leader_->node_joined(node, now);
  if (kept) {
    for (const json& worker : hello.at("workers")) leader_->adopt(node, worker, now);
  }
}

void Agent::lose_silent_followers(double now) {
  std::vector<std::pair<int, std::string>> lost;
  for (auto& [node, link] : followers_) {
    for (const json& message : link->take()) {
      const std::string type = message.value("type", "");
      const int worker = message.value("worker", -1);
      if (type == "message") leader_->heard(worker, message.value("message", json::object()), now);
      if (type == "ended") {
        leader_->ended(worker, {message.value("code", 1), message.value("signal", 0)},
                       message.value("words", json::object()), now);
      }
      if (type == "started") leader_->started(worker, message.value("pid", 0));
      if (type == "stop") {
        leader_->stop(message.value("asked", 1), message.value("requeue", false), message.value("signal", SIGINT), now);
      }
      if ((type == "finding" || type == "usage") && callbacks_.on_message) callbacks_.on_message(-1, message);
      if (type == "unhealthy") unhealthy_nodes_[node] = message.value("why", "");
    }
    if (!link->is_open()) lost.emplace_back(node, name_of_node(node) + " is lost: " + why_closed(*link));
    if (link->is_open() && now - link->heard() > kAgentSilenceSeconds) {
      lost.emplace_back(
          node, name_of_node(node) + fmt::format(": its agent said nothing for {:.0f} s", kAgentSilenceSeconds));
    }
  }
  for (const auto& [node, why] : lost) {
    followers_.erase(node);
    note(why);
    leader_->node_lost(node, why, now);
  }
  if (!alone()) require_quorum(now);
}

// A node that is not to be used is lost as one that does not answer, while the others can go on without it.
void Agent::leave_out_unhealthy(double now) {
  for (auto entry = unhealthy_nodes_.begin(); entry != unhealthy_nodes_.end();) {
    const auto [node, why] = *entry;
    if (!leader_->can_go_on_without(node)) {
      if (kept_nodes_.insert(node).second) {
        note(fmt::format("{} is unhealthy, and no other node can take over: {}", name_of_node(node), why));
      }
      ++entry;
      continue;
    }
    const std::string text = fmt::format("{} is unhealthy: {}", name_of_node(node), why);
    note(text);
    if (node == self()) {  // the others notice that it is gone, and the next one leads
      workers_.end_all(0.0);
      result_ = left_because(why);
      result_->handed_over = true;
      return;
    }
    entry = unhealthy_nodes_.erase(entry);
    if (const auto found = followers_.find(node); found != followers_.end()) {
      found->second->send({{"type", "dismissed"}, {"why", why}});
      found->second->flush(0.5);
      followers_.erase(found);
    }
    leader_->node_lost(node, text, now);
  }
}

bool Agent::has_quorum(const std::set<int>& with, const std::set<int>& dead, bool led_before) const {
  int voters = 0, votes = 0;
  for (const int node : electorate_) {
    voters += dead.contains(node) ? 0 : 1;
    votes += with.contains(node) ? 1 : 0;
  }
  return 2 * votes > voters || (2 * votes == voters && led_before);
}

// Once a generation has formed, those that are there are the ones to count.
void Agent::require_quorum(double now) {
  std::set<int> with = {self()};
  for (const auto& [node, link] : followers_) with.insert(node);
  if (!has_quorum(with, {}, established_ || (term_ == 1 && self() == 0))) {
    return fence(fmt::format("{} of {} nodes are out of reach, so they may go on without this one",
                             electorate_.size() - with.size(), electorate_.size()),
                 now);
  }
  if (leader_->generation() > adopted_at_) {
    adopted_at_ = leader_->generation();
    established_ = true;
    electorate_ = with;
  }
  if (established_) electorate_.insert(with.begin(), with.end());
}

void Agent::finish(const AgentResult& result) {
  result_ = result;
  if (result_->cause && !unhealthy_.empty()) {
    result_->cause->message += fmt::format("; {} is unhealthy: {}", name_of_node(self()), unhealthy_);
  }
  const bool gathers = callbacks_.wants_records && callbacks_.wants_records();
  for (const auto& [node, link] : followers_) {
    link->send({{"type", "over"},
                {"records", gathers},
                {"exit_code", result.exit_code},
                {"rank", result_->cause ? result_->cause->rank : -1},
                {"error", result_->cause ? result_->cause->message : ""}});
  }
  for (const auto& [node, link] : followers_) link->flush(2.0);
  if (gathers) gather_records();
}

// Nodes that were lost before are not asked; a report says whose records are missing.
void Agent::gather_records() {
  std::set<int> waiting;
  for (const auto& [node, link] : followers_) waiting.insert(node);
  const Deadline deadline = Deadline::after(kRecordsSeconds);
  while (!waiting.empty() && !deadline.expired()) {
    Poller poller;
    for (const int node : waiting) followers_.at(node)->watch(poller);
    poller.run(kPollMilliseconds);
    for (const int node : std::set<int>(waiting)) {
      Link& link = *followers_.at(node);
      for (const json& message : link.take()) {
        const std::string type = message.value("type", "");
        if (type == "records" && callbacks_.on_records)
          callbacks_.on_records(node, message.value("piece", json::object()));
        if (type == "records_end") waiting.erase(node);
      }
      if (waiting.contains(node) && !link.is_open()) {
        result_->without_records.push_back(name_of_node(node));
        waiting.erase(node);
      }
    }
  }
  for (const int node : waiting) result_->without_records.push_back(name_of_node(node));
}

// --- following -------------------------------------------------------------------------------------------------------

void Agent::follow(int node, std::unique_ptr<Link> link, const json& welcome) {
  leader_link_ = std::move(link);
  leader_node_ = node;
  term_ = welcome.value("term", 1);
  fenced_ = told_unhealthy_ = false;
  take_nodes(welcome.value("nodes", json::array()));
  candidates_.clear();
  waiting_.clear();
  hellos_.clear();
  if (welcome.value("fresh", true)) {
    workers_.end_all(0.0);
    local_.clear();
    unsaid_.clear();
  }
  // It knows of the processes as they were when this agent said hello.
  for (const json& message : std::exchange(unsaid_, {})) leader_link_->send(message);
  if (!prepared_) facts_ = welcome.value("facts", json::object());
  prepare();
}

void Agent::prepare() {
  if (std::exchange(prepared_, true) || !callbacks_.prepare) return;
  Prepared prepared = callbacks_.prepare(facts_);
  workers_.options().argv = std::move(prepared.argv);
  workers_.options().log_folder = std::move(prepared.log_folder);
  for (auto& [name, value] : prepared.environment) workers_.options().environment[name] = value;
}

void Agent::take_from_leader(double now) {
  for (const json& message : leader_link_->take()) {
    const std::string type = message.value("type", "");
    if (type == "order") obey(message.value("order", json::object()));
    if (type == "nodes") take_nodes(message.value("nodes", json::array()));
    if (type == "status") {
      electorate_ = message.value("nodes", std::set<int>());
      past_.generation = message.value("generation", 0);
      past_.nodes = message.value("ranks_on", std::vector<int>());
      past_.furthest_step = message.value("step", std::int64_t{-1});
      past_.restarts = message.value("restarts", 0);
      past_.recovery_seconds = message.value("recovery_seconds", std::vector<double>());
      past_lost_steps_ = message.value("lost_steps", std::int64_t{0});
    }
    if (type == "dismissed") {
      workers_.end_all(0.0);
      local_.clear();
      result_ = left_because(message.value("why", ""));
      return;
    }
    if (type == "over") {
      AgentResult result;
      result.exit_code = message.value("exit_code", 1);
      result.leads = false;
      const std::string error = message.value("error", "");
      if (!error.empty()) result.cause = RootCause{message.value("rank", -1), result.exit_code, error};
      if (message.value("records", false)) send_records();
      result_ = result;
      return;
    }
  }
  if (!leader_link_->is_open()) return lose_leader(why_closed(*leader_link_), now);
  if (now - leader_link_->heard() > kAgentSilenceSeconds) {
    lose_leader(fmt::format("its agent said nothing for {:.0f} s", kAgentSilenceSeconds), now);
  }
}

void Agent::send_records() {
  const Deadline deadline = Deadline::after(kRecordsSeconds);
  const auto send = [&](const json& message) {
    leader_link_->send(message);
    leader_link_->flush(1e-3 * deadline.remaining_milliseconds());
    return leader_link_->is_open() && !deadline.expired();
  };
  while (callbacks_.next_records) {
    const auto piece = callbacks_.next_records();
    if (!piece) break;
    if (!send({{"type", "records"}, {"piece", *piece}})) return;
  }
  send({{"type", "records_end"}});
}

void Agent::lose_leader(const std::string& why, double now) {
  const std::string text = name_of_node(leader_node_) + ", which led the run, is lost: " + why;
  note(text);
  // A machine that is silent already has less time left to answer who looks for a leader.
  if (leader_link_->was_silent()) candidates_[leader_node_].answered = now - kAnswerSeconds;
  leader_link_.reset();
  leave_generation(text);
  seeking_since_ = now;
}

// --- neither ---------------------------------------------------------------------------------------------------------

json Agent::hello() const {
  json workers = json::array();
  for (const auto& [worker, local] : local_) {
    if (!workers_.is_left(worker)) continue;
    workers.push_back({{"worker", worker},
                       {"rank", local.rank},
                       {"generation", local.generation},
                       {"pid", local.pid},
                       {"doing", name_of(local.doing)}});
  }
  return {{"type", "hello"},     {"token", token_}, {"node", self()},
          {"job", options_.job}, {"term", term_},   {"workers", std::move(workers)}};
}

void Agent::seek(double now) {
  try_candidates(now);
  std::optional<int> found;
  std::set<int> redirected;
  json welcome;
  for (auto& [node, candidate] : candidates_) {
    if (!candidate.link) continue;
    if (candidate.link->is_connected()) candidate.answered = now;
    if (candidate.link->was_refused()) candidate.refused = true;
    for (const json& message : candidate.link->take("welcome")) {
      const std::string type = message.value("type", "");
      if (type == "refused") throw bad_input(message.value("error", "refused"), message.value("fix", ""));
      if (type == "redirect") redirected.insert(message.value("node", -1));
      if (type == "welcome") found = node, welcome = message;
    }
  }
  if (found) {
    std::unique_ptr<Link> link = std::move(candidates_.at(*found).link);
    return follow(*found, std::move(link), welcome);
  }
  for (const int node : redirected) connect_to(node, now);
  if (!fenced_ && may_lead(now)) {
    for (const int node : dead_nodes()) electorate_.erase(node);
    return lead(now);
  }
  give_up_seeking(now);
}

void Agent::connect_to(int node, double now) {
  if (node < 0 || node >= static_cast<int>(nodes_->nodes.size()) || node == self()) return;
  Candidate& candidate = candidates_[node];
  const auto& link = candidate.link;
  if (link && link->is_open() && (link->is_connected() || now - link->opened() < kConnectSeconds)) return;
  if (now < candidate.next_try) return;
  if (candidate.answered == 0.0) candidate.answered = now;
  candidate.next_try = now + kRetrySeconds;
  candidate.link = std::make_unique<Link>(begin_to_connect(address_of(node).host, address_of(node).port), true);
  candidate.link->send(hello());
}

// Does not answer; one that never did may still be starting.
bool Agent::is_out(const Candidate& candidate, double now) const {
  if (candidate.link && candidate.link->is_connected()) return false;
  const double window = term_ == 0 ? options_.recovery.gather_seconds / 2 : kSeekSeconds;
  return (term_ > 0 && candidate.refused) || now - candidate.answered > window;
}

// The first nodes of the list that may answer, before this one; and, one after the other, all the rest: a node that was
// left behind finds those that went on through any of them.
void Agent::try_candidates(double now) {
  int tried = 0;
  for (const int node : electorate_) {
    if (node >= self() || tried == kCandidatesAtOnce) break;
    const auto known = candidates_.find(node);
    if (known != candidates_.end() && is_out(known->second, now)) continue;
    connect_to(node, now);
    tried += 1;
  }
  if (now - seeking_since_ < kSeekSeconds) return;
  const int nodes = static_cast<int>(nodes_->nodes.size());
  const auto current = candidates_.find(probed_ % nodes);
  if (current != candidates_.end() && current->second.link && current->second.link->is_open() &&
      now - current->second.link->opened() < kConnectSeconds) {
    return;
  }
  probed_ = (probed_ + 1) % nodes;
  connect_to(probed_, now);
}

// Their machines say that no agent runs there any more, so no rank does either.
std::set<int> Agent::dead_nodes() const {
  std::set<int> dead;
  for (const auto& [node, candidate] : candidates_) {
    if (term_ > 0 && candidate.refused) dead.insert(node);
  }
  return dead;
}

bool Agent::may_lead(double now) const {
  std::set<int> with = {self()};
  for (const int node : electorate_) {
    const auto known = candidates_.find(node);
    if (node < self() && (known == candidates_.end() || !is_out(known->second, now))) return false;
  }
  for (const auto& [node, link] : waiting_) {
    if (link->is_open()) with.insert(node);
  }
  return has_quorum(with, dead_nodes(), term_ == 0 && self() == 0);
}

void Agent::give_up_seeking(double now) {
  const double limit = term_ == 0 ? options_.recovery.gather_seconds : options_.rejoin_seconds;
  if (now - seeking_since_ < limit) return;
  if (term_ == 0) {
    throw environment_error(
        fmt::format("{} found too few of the {} nodes in {:.0f} s", name_of_node(self()), nodes_->nodes.size(), limit),
        "start `lockstep launch` with the same job on every node, and check that they reach each "
        "other");
  }
  AgentResult result;
  result.exit_code = static_cast<int>(ExitCode::kRetry);
  result.leads = false;
  result.cause = RootCause{
      -1, result.exit_code,
      fmt::format("{} lost the other nodes and did not find them again in {:.0f} s", name_of_node(self()), limit)};
  result_ = result;
}

// Others may go on with the run: this side may not write, nor come back with what it has in memory.
void Agent::fence(const std::string& why, double now) {
  note(why + "; its ranks are ended");
  workers_.end_all(0.0);
  local_.clear();
  unsaid_.clear();
  leader_.reset();
  store_.reset();
  followers_.clear();
  leader_node_ = -1;
  fenced_ = true;
  candidates_.clear();
  seeking_since_ = now;
}

// --- links -----------------------------------------------------------------------------------------------------------

void Agent::accept_strangers() {
  while (listener_) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (strangers_.size() < kMostStrangers) strangers_.push_back(std::make_unique<Link>(std::move(fd), false));
  }
}

void Agent::greet(std::unique_ptr<Link>& stranger, double now) {
  const std::vector<json> said = stranger->take("hello");
  if (said.empty()) {
    if (!stranger->is_open() || now - stranger->opened() > kHelloSeconds) stranger.reset();
    return;
  }
  const json& hello = said.front();
  std::unique_ptr<Link> link = std::move(stranger);
  if (hello.value("type", "") == "join") return enlist(std::move(link), hello);
  const int node = hello.value("node", -1);
  if (hello.value("type", "") != "hello" || node < 0 || node >= static_cast<int>(nodes_->nodes.size()) ||
      node == self()) {
    return;
  }
  if (!equal_tokens(hello.value("token", ""), token_)) {
    if (other_tokens_.insert(node).second) {
      note(fmt::format("{} has another LOCKSTEP_TOKEN (or token file) and is not let in", name_of_node(node)));
    }
    link->send(
        {{"type", "refused"},
         {"error", fmt::format("{} has another LOCKSTEP_TOKEN (or token file) than this node", name_of_node(self()))},
         {"fix", kOtherTokenFix}});
    return link->flush(1.0);
  }
  if (hello.value("job", "") != options_.job) {
    link->send({{"type", "refused"},
                {"error", fmt::format("{} has another {} than {}", name_of_node(node), is_foreign() ? "command" : "job",
                                      name_of_node(self()))},
                {"fix", is_foreign() ? "start the same command with the same flags on every node"
                                     : "start the same job file on every node"}});
    return link->flush(1.0);
  }
  if (leader_) return admit(node, std::move(link), hello, now);
  if (leader_link_) {
    link->send({{"type", "redirect"}, {"node", leader_node_}});
    return link->flush(0.1);
  }
  hellos_[node] = hello;
  waiting_[node] = std::move(link);
}

// A node that nobody knew of comes to the endpoint where the others met (elastic/roster.h). Who leads gives it a
// number.
void Agent::enlist(std::unique_ptr<Link> link, const json& join) {
  json answer = refusal(join, token_, options_.joining.empty() ? options_.job : options_.joining, name_of_node(self()));
  if (answer.is_null() && nodes_->source != "endpoint") return;
  if (answer.is_null() && leader_link_) {
    answer = {{"type", "elsewhere"}, {"host", address_of(leader_node_).host}, {"port", address_of(leader_node_).port}};
  }
  if (answer.is_null() && !leader_) return;  // it asks again
  if (answer.is_null()) {
    const std::string address = join.value("address", "");
    nodes_->nodes.push_back({address.empty() ? link->peer() : address, join.value("port", 0)});
    const auto number = static_cast<int>(nodes_->nodes.size()) - 1;
    note(name_of_node(number) + " comes to the run");
    const json nodes = to_json(nodes_->nodes);
    for (const auto& [node, follower] : followers_) follower->send({{"type", "nodes"}, {"nodes", nodes}});
    answer = {{"type", "nodes"}, {"nodes", nodes}, {"self", number}};
  }
  link->send(answer);
  link->flush(0.5);
}

void Agent::take_nodes(const json& list) {
  if (list.size() > nodes_->nodes.size()) nodes_->nodes = nodes_from(list);
}

void Agent::beat(double now) {
  if (alone() || now - beaten_ < kBeatSeconds) return;
  beaten_ = now;
  if (leader_link_) return leader_link_->send({{"type", "beat"}});
  for (const auto& [node, link] : waiting_) {
    link->take();
    link->send({{"type", "wait"}});
  }
  for (const auto& [node, candidate] : candidates_) {
    if (candidate.link && candidate.link->is_connected()) candidate.link->send({{"type", "beat"}});
  }
  if (!leader_) return;
  if (now - told_ < kStatusSeconds) {
    for (const auto& [node, link] : followers_) link->send({{"type", "beat"}});
    return;
  }
  told_ = now;
  const Recovery::Past past = leader_->past();
  const json status = {{"type", "status"},
                       {"nodes", electorate_},
                       {"generation", past.generation},
                       {"ranks_on", past.nodes},
                       {"step", past.furthest_step},
                       {"restarts", past.restarts},
                       {"recovery_seconds", past.recovery_seconds},
                       {"lost_steps", leader_->lost_steps()}};
  for (const auto& [node, link] : followers_) link->send(status);
}

void Agent::take_stop_requests(double now) {
  const int asked = callbacks_.stop_requests ? callbacks_.stop_requests() : 0;
  const bool requeue = asked > 0 && callbacks_.requeue_asked && callbacks_.requeue_asked();
  const int number = asked > 0 && callbacks_.stop_signal ? callbacks_.stop_signal() : SIGINT;
  if (leader_) return leader_->stop(asked, requeue, number, now);
  if (asked > stops_told_ && leader_link_) {
    stops_told_ = asked;
    leader_link_->send({{"type", "stop"}, {"asked", asked}, {"requeue", requeue}, {"signal", number}});
  }
  if (asked >= (leader_link_ ? 3 : 1)) {  // nobody answers for the run
    const ExitCode code = requeue ? ExitCode::kRetry : ExitCode::kInterrupted;
    result_ = AgentResult{.exit_code = static_cast<int>(code), .cause = {}, .leads = false};
  }
}

void Agent::watch_links(Poller& poller) {
  if (listener_) poller.watch(listener_.get(), POLLIN, [] {});
  for (Link* link : links()) link->watch(poller);
}

std::vector<Link*> Agent::links() const {
  std::vector<Link*> all;
  for (const auto& link : strangers_) all.push_back(link.get());
  for (const auto* by_node : {&followers_, &waiting_}) {
    for (const auto& [node, link] : *by_node) all.push_back(link.get());
  }
  for (const auto& [node, candidate] : candidates_) {
    if (candidate.link) all.push_back(candidate.link.get());
  }
  if (leader_link_) all.push_back(leader_link_.get());
  return all;
}

}  // namespace

AgentResult run_agent(const AgentOptions& options, const AgentCallbacks& callbacks) {
  if (!options.log_folder.empty()) std::filesystem::create_directories(options.log_folder);
  return Agent(options, callbacks).run();
}

}  // namespace lockstep::elastic
