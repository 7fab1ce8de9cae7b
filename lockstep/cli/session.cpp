#include "lockstep/cli/session.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/alert_desk.h"
#include "lockstep/cli/checkpoint_folder.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/health.h"
#include "lockstep/cli/show.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/trains_on_gpus.h"
#include "lockstep/cli/usage_metrics.h"
#include "lockstep/elastic/agent.h"
#include "lockstep/elastic/chaos.h"
#include "lockstep/elastic/control.h"
#include "lockstep/elastic/host_address.h"
#include "lockstep/elastic/node_records.h"
#include "lockstep/elastic/preemption.h"
#include "lockstep/elastic/run_record.h"
#include "lockstep/elastic/store.h"
#include "lockstep/elastic/token_file.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {

namespace fs = std::filesystem;

fs::path run_home(bool record) {
  fs::path home = telemetry::home_directory();
  if (record) return home;
  try {
    make_folders(home);
    if (::access(home.c_str(), W_OK) == 0) return home;
  } catch (const UserError&) {
    // Said below, by where things go.
  }
  return fs::temp_directory_path() / "lockstep";
}

std::map<std::string, std::string> interface_environment(const std::string& name) {
  if (name.empty()) return {};
  return {{"LOCKSTEP_INTERFACE", name},
          {"NCCL_SOCKET_IFNAME", "=" + name},  // exactly this one, not all that begin so
          {"GLOO_SOCKET_IFNAME", name},
          {"OMPI_MCA_btl_tcp_if_include", name}};
}

namespace {

elastic::RankRequest make_request(const spec::Job& job, const Placement& placement, const SessionOptions& options) {
  elastic::RankRequest request;
  request.verb = options.verb;
  request.job = job;
  request.plan = options.plan;
  request.resized = options.smaller.plans;
  request.ranks = placement.launched.value_or(elastic::RankEnvironment{});
  request.ranks.world = placement.world;
  if (!placement.launched) {
    request.ranks.local_world =
        static_cast<int>(placement.nodes ? job.cluster.groups.front().devices_per_node : placement.world);
    request.ranks.source = "lockstep";
  }
  request.backend = placement.backend;
  request.threads = placement.threads;
  request.options = options.verb_options;
  request.options.report_steps = options.on_step != nullptr;
  const fs::path home = run_home(options.record);
  request.run_id = run_id_for(job.name);
  const fs::path folder = telemetry::run_folder(home, request.run_id);
  request.run_directory = folder.string();
  if (options.record) request.home = home.string();
  if (options.verb == "train" && request.ranks.rank == 0) {
    request.options.resume = options.resume;
    request.options.accept_changes = options.accept_changes;
    const CheckpointFolder chosen =
        choose_checkpoint_folder(job, {options.resume, options.resume_from, options.accept_changes}, home, folder);
    request.checkpoint_directory = chosen.folder.string();
    request.resume_from = chosen.named.string();
  }
  return request;
}

telemetry::ProgressSample sample_of(const nlohmann::json& message) {
  const auto optional = [&](const char* key) -> std::optional<double> {
    if (!message.contains(key) || !message.at(key).is_number()) return std::nullopt;
    return message.at(key).get<double>();
  };
  telemetry::ProgressSample sample;
  sample.step = message.value("step", std::int64_t{0});
  sample.steps_total = message.value("steps", std::int64_t{0});
  sample.unit = message.value("unit", "tokens");
  sample.loss = optional("loss");
  sample.per_second = optional("rate");
  sample.efficiency = optional("efficiency");
  sample.gradient_norm = optional("gradient_norm");
  sample.memory_bytes = optional("memory_bytes");
  sample.eta_seconds = optional("eta_seconds");
  sample.learning_rate = optional("learning_rate");
  return sample;
}

// ", f1 0.8123" of every metric that the job's evaluation names, the accuracy apart, which is told in any case.
std::string metrics_text(const nlohmann::json& evaluation) {
  std::string text;
  const nlohmann::json metrics = evaluation.value("metrics", nlohmann::json::object());
  for (const auto& [name, value] : metrics.items()) {
    if (name == "accuracy") continue;
    text += value.is_number() ? fmt::format(", {} {:.4f}", printable(name, 40), value.get<double>())
                              : fmt::format(", {} -", printable(name, 40));
  }
  return text;
}

// Shows what ranks say and remembers the answer and the errors.
class Listener {
 public:
  Listener(const SessionOptions& session, bool shows, bool launched) : session_(session), launched_(launched) {
    if (shows) speak();
  }

  // From now on: this process speaks for the run.
  void speak() {
    on_step_ = session_.on_step;
    if (session_.display == nullptr || renderer_) return;
    telemetry::ProgressRenderer::Options options;
    options.title = session_.title;
    if (launched_) options.style = telemetry::TerminalStyle{};  // launchers give ranks a terminal and write to a file
    renderer_.emplace(session_.display, options);
  }

  void hear(const nlohmann::json& message) {
    const std::string type = message.value("type", "");
    if (type == "result") result = message;
    if (type == "error" && error.empty()) {
      error = message.value("message", "failed");
      error_rank = message.value("rank", -1);
    }
    if (type == "step" && on_step_) on_step_(message);
    if (type == "checkpoint") saved = true;
    const std::string finding = type == kFinding ? finding_line(message) : "";
    if (!renderer_) {
      if (type == "note" && launched_) fmt::print(stderr, "lockstep: {}\n", message.value("text", ""));
      if (!finding.empty() && launched_) fmt::print(stderr, "lockstep: {}\n", finding);
      return;
    }
    if (!finding.empty()) renderer_->message(finding);
    if (type == "progress") renderer_->update(sample_of(message));
    if (type == elastic::command::kChaos) {
      renderer_->message(fmt::format("chaos at step {}: {}", message.value("step", 0), message.value("text", "")));
    }
    if (type == "note") renderer_->message(message.value("text", ""));
    if (type == elastic::command::kHang) {
      for (const std::string& line : split(message.value("text", ""), '\n')) renderer_->message(line);
    }
    if (type == "evaluation") {
      renderer_->message(fmt::format("step {}: held-out loss {:.4f}{}", message.value("step", 0),
                                     number_or_nan(message, "loss"), accuracy_text(message)) +
                         metrics_text(message));
    }
    if (type == "checkpoint") {
      renderer_->message(fmt::format("step {}: saved {} in {}", message.value("step", 0), message.value("path", ""),
                                     format_seconds(number_or_nan(message, "seconds"))));
    }
  }

  void finish() {
    if (renderer_) renderer_->finish();
  }

  nlohmann::json result;
  std::string error;
  int error_rank = -1;
  bool saved = false;

 private:
  const SessionOptions& session_;
  const bool launched_;
  std::optional<telemetry::ProgressRenderer> renderer_;
  std::function<void(const nlohmann::json&)> on_step_;
};

// The agent's process owns the run.
std::shared_ptr<telemetry::Recorder> owners_recorder(const elastic::RankRequest& request) {
  if (request.home.empty()) return nullptr;
  return telemetry::open_recorder(request.home, request.run_id, -1);
}

bool asks_for_requeue(const nlohmann::json& result) {
  return result.is_object() && result.value("exit_code", 0) == static_cast<int>(ExitCode::kRetry);
}

// Alerts of a run that this process speaks for.
std::unique_ptr<AlertDesk> open_desk(const elastic::RankRequest& request, Listener& listener) {
  if (request.verb != "train") return nullptr;
  return std::make_unique<AlertDesk>(request, [&listener](const std::string& line) {
    listener.hear({{"type", "note"}, {"text", line}});
  });
}

// Who wants to be told should know what nobody looks at where there is no agent.
void tell_unwatched(const elastic::RankRequest& request, Listener& listener) {
  using spec::AlertRule;
  const spec::Alerts& alerts = request.job.alerts;
  if (alerts.webhook.empty() && alerts.command.empty()) return;
  std::vector<std::string> rules;
  for (const AlertRule rule :
       {AlertRule::kStraggler, AlertRule::kHeartbeat, AlertRule::kDiskFilling, AlertRule::kNodeHealth})
    if (alerts.is_on(rule)) rules.emplace_back(lockstep::to_string(rule));
  if (rules.empty()) return;
  listener.hear(
      {{"type", "note"},
       {"text", fmt::format("warning: under {} nobody watches for {}, which agents see: `lockstep launch` has "
                            "them; or add alerts.off=[{}]",
                            request.ranks.source, join(rules, ", "), join(rules, ","))}});
}

SessionResult run_launched(const elastic::RankRequest& request, Listener& listener) {
  elastic::RankRequest mine = request;
  mine.owns_run = true;
  for (const auto& [name, value] : interface_environment(request.ranks.interface))
    ::setenv(name.c_str(), value.c_str(), 1);
  SessionResult outcome;
  outcome.is_rank_zero = request.ranks.rank == 0;
  const auto desk = outcome.is_rank_zero ? open_desk(request, listener) : nullptr;
  if (desk) tell_unwatched(request, listener);
  outcome.exit_code = run_rank_here(mine, [&](const nlohmann::json& message) {
    listener.hear(message);
    if (desk) desk->hear(request.ranks.rank, message);
  });
  if (!listener.error.empty()) {
    const auto host = [&](int) { return request.ranks.one_node ? "" : telemetry::host_name(); };
    outcome.error = elastic::rank_name(request.ranks.rank, host) + ": " + listener.error;
  }
  return outcome;
}

nlohmann::json message_of(const elastic::Finding& finding) {
  nlohmann::json message = elastic::to_json(finding);
  message["type"] = kFinding;
  return message;
}

SessionResult run_in_process(const elastic::RankRequest& request, const Placement& placement, Listener& listener) {
  std::vector<elastic::Finding> found;
  start_health_checks(request, placement, found);
  const auto recorder = owners_recorder(request);
  elastic::RunRecord record(recorder, request, {{"lockstep", LOCKSTEP_VERSION}});
  for (const elastic::Finding& finding : found) {
    const nlohmann::json message = message_of(finding);
    if (recorder) record_finding(*recorder, message);
    listener.hear(message);
  }
  SessionResult outcome;
  const auto desk = open_desk(request, listener);
  outcome.exit_code = run_rank_here(request, [&](const nlohmann::json& message) {
    listener.hear(message);
    if (desk) desk->hear(0, message);
  });
  outcome.result = listener.result;
  std::optional<int> failed_rank;
  if (!listener.error.empty()) {
    outcome.error = fmt::format("rank {}: {}", listener.error_rank, listener.error);
    failed_rank = listener.error_rank;
  }
  const bool requeued = asks_for_requeue(outcome.result);
  record.end(requeued ? static_cast<int>(ExitCode::kInterrupted) : outcome.exit_code,
             requeued ? kRequeueReason : outcome.error, outcome.result, failed_rank);
  return outcome;
}

void record_chaos(telemetry::Recorder& recorder, const nlohmann::json& message) {
  recorder.event({.level = telemetry::Level::kWarning,
                  .kind = std::string(telemetry::event_kind::kChaos),
                  .rank = message.value("rank", -1),
                  .step = message.value("step", std::int64_t{-1}),
                  .message = message.value("text", ""),
                  .data = message});
}

void record_hang(telemetry::Recorder& recorder, const nlohmann::json& message) {
  recorder.event({.level = telemetry::Level::kError,
                  .kind = std::string(telemetry::event_kind::kHang),
                  .rank = -1,
                  .step = message.value("step", std::int64_t{-1}),
                  .message = message.value("line", ""),
                  .data = message.value("data", nlohmann::json::object())});
}

void tell_chaos_left(const elastic::AgentResult& agent, std::size_t asked, Listener& listener) {
  if (asked == 0) return;
  nlohmann::json left = nlohmann::json::array();
  for (const elastic::ChaosEvent& event : agent.chaos_left) {
    left.push_back(event.text);
    listener.hear({{"type", "note"}, {"text", "chaos: `" + event.text + "` did not come to pass"}});
  }
  if (!listener.result.is_null()) listener.result["chaos"] = {{"asked", asked}, {"left", left}};
}

// What the processes of all nodes share, from the node that led first.
nlohmann::json facts_of(const elastic::RankRequest& request) {
  return {{"run_id", request.run_id},
          {"home", request.home},
          {"run_directory", request.run_directory},
          {"checkpoint_directory", request.checkpoint_directory},
          {"resume_from", request.resume_from},
          {"threads", request.threads}};
}

void take_facts(const nlohmann::json& facts, elastic::RankRequest& request) {
  facts.at("run_id").get_to(request.run_id);
  facts.at("home").get_to(request.home);
  facts.at("run_directory").get_to(request.run_directory);
  facts.at("checkpoint_directory").get_to(request.checkpoint_directory);
  facts.at("resume_from").get_to(request.resume_from);
}

elastic::Prepared prepare_node(const nlohmann::json& facts, const std::optional<elastic::NodeList>& nodes,
                               elastic::RankRequest& request) {
  take_facts(facts, request);
  fs::path folder = request.run_directory;
  if (nodes) folder /= fmt::format("node-{}", nodes->self);
  make_folders(folder.string());
  const fs::path file = folder / "request.json";
  replace_file(file, elastic::to_json(request).dump(1));
  return {{executable_path().string(), "rank", file.string()}, folder};
}

elastic::AgentOptions agent_options(const elastic::RankRequest& request, const Placement& placement,
                                    const SessionOptions& session) {
  const std::string& chaos = session.chaos;
  elastic::AgentOptions options;
  options.processes = request.verb == "train" ? elastic::Processes::kCommanded : elastic::Processes::kFixed;
  elastic::RecoveryLimits& recovery = options.recovery;
  recovery.ranks_per_node = request.ranks.local_world;
  recovery.node_counts = {request.ranks.world / request.ranks.local_world};
  for (const plan::Plan& plan : request.resized) {
    recovery.node_counts.push_back(static_cast<int>(plan.best.layout.world()) / recovery.ranks_per_node);
  }
  recovery.too_few = session.smaller.refused;
  const spec::RecoveryPolicy& policy = request.job.recovery;
  if (!chaos.empty()) options.chaos = elastic::parse_chaos(chaos, request.ranks.world);
  // With chaos every fault may cost a restart, several of them without a step in between.
  const auto faults = static_cast<int>(options.chaos.size());
  recovery.restarts = static_cast<int>(policy.restarts) + faults;
  recovery.restarts_at_one_step += faults;
  recovery.standby = static_cast<int>(policy.standby);
  recovery.wait_seconds = policy.wait_seconds;
  recovery.silence_seconds = policy.silence_seconds;
  recovery.stall_seconds = 2 * request.job.communication.timeout_seconds;
  recovery.first_step_seconds = recovery.stall_seconds + request.job.checkpoint.timeout_seconds;
  options.stop_seconds = request.job.checkpoint.stop_seconds;
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
    options.environment[name] = std::to_string(request.threads);
  }
  for (const auto& [name, value] : interface_environment(placement.interface)) options.environment[name] = value;
  if (!placement.interface.empty()) options.address = elastic::address_of_interface(placement.interface);
  options.nodes = placement.nodes;
  if (placement.nodes) options.token = elastic::shared_token(telemetry::home_directory());
  options.job = job_digest(request.job);
  options.joining = session.joining;
  options.facts = facts_of(request);
  return options;
}

// The notice that this machine will be taken away, told once.
class Notices {
 public:
  explicit Notices(const spec::CheckpointPolicy& policy) {
    if (policy.preempt_url.empty()) return;
    watch_.emplace(elastic::notice_source(policy.preempt_url, policy.preempt_text));
  }

  // Whether there is one; `tell` hears of it the first time.
  bool came(const std::function<void(const std::string& text)>& tell) {
    const auto notice = watch_ ? watch_->notice() : std::nullopt;
    if (notice && !told_.exchange(true)) tell(*notice + ": the run saves and ends");
    return notice.has_value();
  }

 private:
  std::optional<elastic::PreemptionWatch> watch_;
  std::atomic<bool> told_{false};
};

// The run of an agent: what it is told and tells, and its record where it leads.
class AgentSession {
 public:
  AgentSession(elastic::RankRequest request, const Placement& placement, const SessionOptions& session,
               Listener& listener)
      : request_(std::move(request)),
        placement_(placement),
        options_(agent_options(request_, placement, session)),
        listener_(listener),
        notices_(request_.job.checkpoint),
        watched_(request_.checkpoint_directory.empty() ? request_.run_directory : request_.checkpoint_directory) {
    if (!placement.nodes) desk_ = open_desk(request_, listener);  // what is missing is said before anything starts
  }

  SessionResult run() {
    const elastic::AgentResult agent = elastic::run_agent(options_, callbacks());
    SessionResult outcome = outcome_of(agent);
    tell_missing_records(agent);
    if (record_ && agent.handed_over) record_->hand_over();
    if (record_) end_record(agent, outcome);
    return outcome;
  }

 private:
  elastic::AgentCallbacks callbacks() {
    std::vector<elastic::Finding> found;
    auto monitor = start_health_checks(request_, placement_, found);
    elastic::AgentCallbacks callbacks;
    if (request_.verb == "train" && !request_.home.empty()) {
      const bool gpus = std::ranges::any_of(request_.job.cluster.groups,
                                            [](const spec::NodeGroup& group) { return !group.device.is_cpu(); });
      const auto usage =
          std::make_shared<elastic::UsageSampler>(usage_options([this] { return watched_folder(); }, gpus));
      callbacks.usage = [usage](const std::map<int, int>& pids) { return usage->sample(pids); };
    }
    callbacks.prepare = [this](const nlohmann::json& facts) { return prepare_node(facts, placement_.nodes, request_); };
    callbacks.on_lead = [this] {
      recorder_ = owners_recorder(request_);
      record_.emplace(recorder_, request_, nlohmann::json{{"lockstep", LOCKSTEP_VERSION}});
      listener_.speak();
      watch_nodes();
    };
    callbacks.on_beat = [this](int rank, const nlohmann::json& beat) {
      if (desk_) desk_->hear(rank, beat);
    };
    callbacks.on_message = [this](int rank, const nlohmann::json& message) {
      if (desk_) desk_->hear(rank, message);
      if (recorder_ && message.value("type", "") == elastic::command::kChaos) record_chaos(*recorder_, message);
      if (message.value("type", "") == "usage") return record_usage(message);
      if (recorder_ && message.value("type", "") == elastic::command::kHang) record_hang(*recorder_, message);
      if (recorder_ && message.value("type", "") == kFinding) record_finding(*recorder_, message);
      listener_.hear(message);
    };
    if (placement_.nodes && !placement_.nodes->on_loopback()) gather_records_by(callbacks);
    callbacks.stop_requests = [this] { return std::max(stop_signals(), is_noticed() ? 1 : 0); };
    callbacks.requeue_asked = [this] { return requeue_was_asked() || is_noticed(); };
    callbacks.findings =
        findings_of(std::move(monitor), std::move(found), request_.job.health.node_checks == spec::NodeChecks::kAct);
    return callbacks;
  }

  // Of several nodes the one that leads may lack the webhook's address: the run goes on.
  void watch_nodes() {
    try {
      if (!desk_) desk_ = open_desk(request_, listener_);
    } catch (const UserError& error) {
      listener_.hear({{"type", "note"}, {"text", std::string("warning: no notifications: ") + error.what()}});
      request_.job.alerts.webhook.clear();
      desk_ = open_desk(request_, listener_);
    }
    if (desk_) desk_->watch_nodes(recorder_);
  }

  // Ranks that end well bring their records together themselves.
  void gather_records_by(elastic::AgentCallbacks& callbacks) {
    callbacks.wants_records = [this] { return recorder_ && listener_.result.is_null(); };
    callbacks.on_records = [this](int node, const nlohmann::json& piece) {
      try {
        elastic::keep_records(request_.home, request_.run_id, node, piece);
      } catch (const UserError& error) {
        if (!std::exchange(told_records_, true)) telemetry::warn(error.what());
      }
    };
    callbacks.next_records = [this]() -> std::optional<nlohmann::json> {
      if (request_.home.empty() || sees_other_nodes()) return std::nullopt;
      if (!node_records_)
        node_records_.emplace(telemetry::run_folder(request_.home, request_.run_id), request_.ranks.world);
      return node_records_->next();
    };
  }

  // Every node makes a folder of its own (prepare_node): where that of another one is too, the disk is shared.
  bool sees_other_nodes() const {
    const std::string own = fmt::format("node-{}", placement_.nodes->self);
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(request_.run_directory, missing)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("node-") && name != own) return true;
    }
    return false;
  }

  void tell_missing_records(const elastic::AgentResult& agent) {
    if (agent.without_records.empty() || !recorder_) return;
    recorder_->event({.level = telemetry::Level::kWarning,
                      .kind = "records",
                      .rank = -1,
                      .message = fmt::format("records of {} did not come; they are in runs/{} there",
                                             join(agent.without_records, ", "), request_.run_id)});
  }

  // Where checkpoints go; before the first one its disk is that of a folder above.
  std::string watched_folder() const {
    fs::path folder = watched_;
    std::error_code error;
    while (!folder.empty() && !fs::exists(folder, error) && folder != folder.parent_path())
      folder = folder.parent_path();
    return folder.string();
  }

  void record_usage(const nlohmann::json& message) {
    if (!recorder_) return;
    for (auto& [rank, metrics] : usage_metrics(message)) {
      recorder_->metrics(rank, static_cast<std::int64_t>(started_.seconds()), std::move(metrics));
    }
  }

  bool is_noticed() {
    return notices_.came([this](const std::string& text) {
      listener_.hear({{"type", "note"}, {"text", text}});
      if (!recorder_) return;
      recorder_->event({.level = telemetry::Level::kWarning,
                        .kind = std::string(telemetry::event_kind::kInterrupted),
                        .rank = -1,
                        .message = text});
    });
  }

  SessionResult outcome_of(const elastic::AgentResult& agent) {
    SessionResult outcome;
    outcome.exit_code = agent.exit_code;
    outcome.is_rank_zero = agent.leads;
    if (agent.leads && !listener_.result.is_null()) {
      listener_.result["restarts"] = agent.restarts;
      listener_.result["lost_steps"] = agent.lost_steps;
      listener_.result["recovery_seconds"] = agent.recovery_seconds;
    }
    tell_chaos_left(agent, options_.chaos.size(), listener_);
    outcome.result = listener_.result;
    if (agent.cause) outcome.error = fmt::format("{}; logs: {}", agent.cause->message, request_.run_directory);
    if (agent.leads && agent.began && is_stopped(agent) && listener_.result.is_null() && request_.verb == "train") {
      outcome.error = fmt::format(
          "stopped before the ranks had saved, for which they get checkpoint.stop_timeout ({}); the "
          "work since the last checkpoint is lost",
          format_seconds(request_.job.checkpoint.stop_seconds));
    }
    return outcome;
  }

  static bool is_requeued(const elastic::AgentResult& agent) {
    return agent.exit_code == static_cast<int>(ExitCode::kRetry);
  }
  static bool is_stopped(const elastic::AgentResult& agent) {
    return is_requeued(agent) || agent.exit_code == static_cast<int>(ExitCode::kInterrupted);
  }

  void end_record(const elastic::AgentResult& agent, const SessionResult& outcome) {
    record_->end(is_stopped(agent) ? static_cast<int>(ExitCode::kInterrupted) : outcome.exit_code,
                 is_requeued(agent) ? kRequeueReason : outcome.error, outcome.result,
                 agent.cause ? std::optional(agent.cause->rank) : std::nullopt);
  }

  elastic::RankRequest request_;
  const Placement& placement_;
  const elastic::AgentOptions options_;
  Listener& listener_;
  Notices notices_;
  std::shared_ptr<telemetry::Recorder> recorder_;
  std::optional<elastic::RunRecord> record_;  // where this agent leads
  std::unique_ptr<AlertDesk> desk_;           // null: nothing is trained
  const Stopwatch started_;
  const fs::path watched_;  // where checkpoints go
  std::optional<elastic::NodeRecords> node_records_;
  bool told_records_ = false;
};

}  // namespace

constexpr std::int64_t kMostRanksPerCore = 32;
constexpr std::int64_t kFilesPerRank = 8;  // pipes of the agent, and what it has open beside them

// A mistyped cluster must not fill the machine with processes.
void require_room_for(std::int64_t ranks) {
  const auto cores = static_cast<std::int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  if (ranks > kMostRanksPerCore * cores) {
    throw does_not_fit(fmt::format("the job's cluster has {} ranks and all would run on this machine, which has {} {}",
                                   ranks, cores, cores == 1 ? "core" : "cores"),
                       fmt::format("ask for at most {} ranks, or start them with srun, mpirun or torchrun",
                                   kMostRanksPerCore * cores));
  }
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return;
  if (static_cast<std::uint64_t>(ranks * kFilesPerRank) <= files.rlim_cur) return;
  throw environment_error(fmt::format("{} ranks need {} open files, the limit is {}", ranks, ranks * kFilesPerRank,
                                      static_cast<std::uint64_t>(files.rlim_cur)),
                          "raise it with `ulimit -n`");
}

// Nodes are alike and at least as many as the job has: what is more is spare.
void require_nodes_for(const spec::Cluster& cluster, const elastic::NodeList& nodes) {
  if (cluster.groups.size() != 1) {
    throw bad_input("the job's cluster has unlike nodes, which agents cannot tell apart yet",
                    "start a rank per device with srun, mpirun or torchrun");
  }
  const auto given = static_cast<std::int64_t>(nodes.nodes.size());
  if (given >= cluster.groups.front().nodes) return;
  throw bad_input(fmt::format("the job's cluster {} has {} nodes and {} are given", cluster.name,
                              cluster.groups.front().nodes, given),
                  "give more nodes, or change the job's cluster");
}

std::string run_id_for(const std::string& name) {
  const char* const submitted = std::getenv("LOCKSTEP_SUBMITTED_RUN");
  return submitted != nullptr && *submitted != '\0' ? submitted : telemetry::make_run_id(name);
}

std::string job_digest(spec::Job job) {
  for (spec::NodeGroup& group : job.cluster.groups) {
    if (group.device.is_cpu()) group.device.memory_bytes = 0;
  }
  return spec::to_yaml(job);
}

Placement place(const spec::Job& job, const std::string& backend, bool is_agent,
                const std::optional<elastic::NodeList>& nodes) {
  Placement placement;
  if (!is_agent) placement.launched = elastic::detect_rank_environment();
  placement.nodes = nodes;
  if (nodes) require_nodes_for(job.cluster, *nodes);
  placement.world = job.cluster.devices();
  if (placement.launched && placement.launched->world != placement.world) {
    throw bad_input(
        fmt::format("{} started {} but the job's cluster {} has {}", placement.launched->source,
                    counted(placement.launched->world, "rank"), job.cluster.name, placement.world),
        fmt::format("start {}, or add cluster=1x{}xcpu", counted(placement.world, "rank"), placement.launched->world));
  }
  for (const spec::NodeGroup& group : job.cluster.groups) {
    if (!group.device.is_cpu() && !kTrainsOnGpus) {
      throw environment_error(
          fmt::format("the job's cluster {} has {} devices; this build trains on CPUs", job.cluster.name,
                      group.device.kind),
          fmt::format(
              "build with `make cuda` on a machine that has one (docs/reference/gpu.md); `lockstep plan JOB` prices it "
              "here; cluster=1x{}xcpu would train it on this machine's CPU",
              std::min<std::int64_t>(placement.world, 4)));
    }
  }
  const std::int64_t here = placement.launched ? placement.launched->local_world
                            : nodes            ? job.cluster.groups.front().devices_per_node
                                               : placement.world;
  if (!placement.launched) require_room_for(here);
  std::string asked = !backend.empty() ? backend : job.communication.backend;
  if (asked.empty() && placement.launched && placement.launched->source == "openmpi") asked = "mpi";
  static_cast<planner::Ranks&>(placement) = planner::ranks_here(job.cluster, job.threads_per_rank, asked, here);
  if (placement.backend == "mpi" && !placement.launched) {
    throw bad_input("the mpi backend needs ranks started by MPI",
                    fmt::format("use `mpirun -np {} lockstep train ...`, or --backend tcp", placement.world));
  }
  if (placement.backend == "local" && placement.launched) {
    throw bad_input("the local backend runs all ranks in one process", "start `lockstep train` by itself, or use tcp");
  }
  return placement;
}

void choose_interface(const std::string& name, Placement& placement) {
  if (name.empty()) return;
  elastic::address_of_interface(name);
  if (placement.nodes) {
    const std::string& host = placement.nodes->nodes[static_cast<std::size_t>(placement.nodes->self)].host;
    elastic::require_on_interface(host, name, fmt::format("this node, {} in the list,", host));
  }
  placement.interface = name;
  if (placement.launched) placement.launched->interface = name;
}

int run_rank_here(const elastic::RankRequest& request, const std::function<void(const nlohmann::json&)>& on_message,
                  const std::function<std::optional<std::string>(int)>& next_command) {
  count_stop_signals(SecondSignal::kExits);
  prepare_compute(request.threads);
  const EngineLibrary engine;
  // An agent asks for notices itself; without one the first rank of each node does.
  const bool asks = !next_command && request.verb == "train" && request.ranks.local_rank == 0;
  Notices notices(asks ? request.job.checkpoint : spec::CheckpointPolicy{});
  const auto stop = [&] {
    const bool noticed = notices.came([&](const std::string& text) { on_message({{"type", "note"}, {"text", text}}); });
    if (stop_signals() == 0 && !noticed) return 0;
    return noticed || requeue_was_asked() ? 2 : 1;
  };
  return engine.call(request.verb, elastic::to_json(request), {on_message, stop, next_command});
}

namespace {

// Said before a run is recorded. Faults come to processes that this one started and can replace.
void require_chaos_can_come(const SessionOptions& options, const Placement& placement) {
  if (options.chaos.empty()) return;
  if (placement.launched || placement.backend == "local") {
    throw bad_input(placement.launched ? "--chaos: these ranks were started by " + placement.launched->source
                                       : "--chaos: with the local backend all ranks are one process",
                    "start `lockstep train` by itself with --backend gloo");
  }
  elastic::parse_chaos(options.chaos, static_cast<int>(placement.world));
}

}  // namespace

SessionResult run_session(const spec::Job& job, const Placement& placement, const SessionOptions& options) {
  require_chaos_can_come(options, placement);
  // A home that cannot be written should be said before hours of training, not after.
  if (options.record) telemetry::check_home(telemetry::home_directory());
  survive_closed_pipes();
  count_stop_signals(SecondSignal::kCounts);
  const elastic::RankRequest request = make_request(job, placement, options);
  if (options.on_run) options.on_run(request.run_id);
  const bool shows = request.ranks.rank == 0 && !placement.nodes;
  Listener listener(options, shows, placement.launched || placement.nodes);
  SessionResult outcome;
  if (placement.launched) {
    outcome = run_launched(request, listener);
  } else if (placement.backend == "local") {
    outcome = run_in_process(request, placement, listener);
  } else {
    outcome = AgentSession(request, placement, options, listener).run();
  }
  listener.finish();
  outcome.run_id = request.run_id;
  outcome.result = listener.result;
  if (!outcome.result.is_null()) outcome.result["exit_code"] = outcome.exit_code;
  outcome.saved = listener.saved;
  return outcome;
}

}  // namespace lockstep::cli
