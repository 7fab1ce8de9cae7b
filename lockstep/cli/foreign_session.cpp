#include "lockstep/cli/foreign_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/health.h"
#include "lockstep/cli/session.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/usage_metrics.h"
#include "lockstep/elastic/agent.h"
#include "lockstep/elastic/host_address.h"
#include "lockstep/elastic/run_record.h"
#include "lockstep/elastic/usage.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using elastic::RootCause;
using nlohmann::json;

constexpr const char* kSchema = "lockstep.launch/1";
constexpr double kProvenSeconds = 5.0;  // a generation that lived for so long had begun its work

std::map<std::string, std::string> environment_of(const ForeignRequest& request) {
  std::map<std::string, std::string> variables = interface_environment(request.interface);
  const auto unless_set = [&](const char* name, const std::string& value) {
    if (std::getenv(name) == nullptr) variables[name] = value;
  };
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  unless_set("OMP_NUM_THREADS", std::to_string(std::max(1, cores / request.processes)));
  unless_set("PYTHONUNBUFFERED", "1");
  unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  variables["ROLE_NAME"] = request.role;
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(request.restarts);
  variables["LOCKSTEP_RECORD"] = request.record ? "1" : "0";
  return variables;
}

elastic::AgentOptions agent_options(const ForeignRequest& request) {
  elastic::AgentOptions options;
  options.argv = request.argv;
  options.processes = elastic::Processes::kForeign;
  options.recovery.ranks_per_node = request.processes;
  options.recovery.node_counts = request.node_counts;
  options.recovery.restarts = request.restarts;
  options.recovery.leave_seconds = request.leave_seconds;
  options.recovery.proven_seconds = kProvenSeconds;
  options.stop_seconds = request.stop_seconds;
  options.environment = environment_of(request);
  // Of a launcher around this one; and with torchrun's own store the first rank would not open one.
  options.unset = {"TORCHELASTIC_USE_AGENT_STORE", "LOCKSTEP_RANK",        "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK",
                   "LOCKSTEP_LOCAL_WORLD_SIZE",    "LOCKSTEP_MASTER_ADDR", "LOCKSTEP_MASTER_PORT"};
  if (!request.interface.empty()) options.address = elastic::address_of_interface(request.interface);
  options.nodes = request.nodes;
  options.token = request.token;
  options.job = digest_of(request);
  return options;
}

class ForeignSession {
 public:
  ForeignSession(const ForeignRequest& request, const Shown& shown)
      : request_(request), shown_(shown), home_(run_home(request.record)), options_(agent_options(request)) {
    run_id_ = run_id_for(request.name);
    options_.facts = {{"run_id", run_id_}, {"home", home_.string()}};
  }

  int run() {
    std::vector<elastic::Finding> found;
    auto monitor = start_health_checks(health_options(), request_.checks, found);
    elastic::UsageSampler usage(usage_options([folder = home_.string()] { return folder; }, true));
    elastic::AgentCallbacks callbacks = callbacks_of();
    callbacks.usage = [&](const std::map<int, int>& pids) { return usage.sample(pids); };
    callbacks.findings = findings_of(std::move(monitor), std::move(found), request_.checks == spec::NodeChecks::kAct);
    const elastic::AgentResult result = elastic::run_agent(options_, callbacks);
    if (record_ && result.handed_over) record_->hand_over();
    if (record_) end_record(result);
    show_end(result);
    return result.exit_code;
  }

 private:
  elastic::HealthOptions health_options() const {
    elastic::HealthOptions options = elastic::health_options_from_environment();
    options.gpus = fs::exists("/dev/nvidiactl") || std::getenv("LOCKSTEP_NVML") != nullptr;
    if (request_.record) options.folders.push_back({"the run store", home_});
    Placement placement;
    placement.nodes = request_.nodes;
    placement.interface = request_.interface;
    watch_node(placement, options);
    return options;
  }

  elastic::AgentCallbacks callbacks_of() {
    elastic::AgentCallbacks callbacks;
    callbacks.prepare = [this](const json& facts) { return prepare(facts); };
    callbacks.on_lead = [this] { lead(); };
    callbacks.on_message = [this](int, const json& message) { hear(message); };
    callbacks.on_output = [this](const elastic::PrintedLine& line) { print(line); };
    callbacks.on_generation = [this](int generation, int world, int restarts) { begin(generation, world, restarts); };
    callbacks.on_failure = [this](const RootCause& cause) { fail(cause); };
    callbacks.stop_requests = [] { return stop_signals(); };
    callbacks.stop_signal = [] { return stop_signal(); };
    callbacks.requeue_asked = [] { return requeue_was_asked(); };
    return callbacks;
  }

  elastic::Prepared prepare(const json& facts) {
    facts.at("run_id").get_to(run_id_);
    home_ = fs::path(facts.at("home").get<std::string>());
    fs::path folder =
        request_.log_dir.empty() ? telemetry::run_folder(home_, run_id_) : fs::absolute(request_.log_dir) / run_id_;
    if (request_.nodes) folder /= fmt::format("node-{}", request_.nodes->self);
    make_folders(folder);
    logs_ = folder;
    return {request_.argv,
            folder,
            {{"LOCKSTEP_RUN_ID", run_id_},
             {"LOCKSTEP_SUBMITTED_RUN", ""},  // a run that the program begins is another one
             {"LOCKSTEP_HOME", home_.string()},
             {"TORCHELASTIC_RUN_ID", request_.id.empty() ? run_id_ : request_.id}}};
  }

  void lead() {
    speaks_ = true;
    if (!request_.record) return;
    recorder_ = telemetry::open_recorder(home_, run_id_, -1);
    telemetry::RunInfo info;
    info.id = run_id_;
    info.name = request_.name;
    info.world = request_.node_counts.front() * request_.processes;
    info.backend = "command";
    info.job_yaml = json{{"command", request_.argv}, {"processes_per_node", request_.processes}}.dump(
        -1, ' ', false, json::error_handler_t::replace);
    info.versions = {{"lockstep", LOCKSTEP_VERSION}};
    record_.emplace(recorder_, info);
  }

  void say(const std::string& text) const { fmt::print(stderr, "lockstep: {}\n", text); }

  void event(telemetry::Level level, std::string_view kind, int rank, const std::string& text,
             json data = json::object()) {
    if (!recorder_) return;
    recorder_->event(
        {.level = level, .kind = std::string(kind), .rank = rank, .message = text, .data = std::move(data)});
  }

  void hear(const json& message) {
    const std::string type = message.value("type", "");
    if (type == "usage") return record_usage(message);
    if (type == "note") {
      const std::string text = message.value("text", "");
      event(telemetry::Level::kInfo, "note", -1, text);
      return say(text);
    }
    if (type != kFinding) return;
    if (recorder_) record_finding(*recorder_, message);
    if (const std::string line = finding_line(message); !line.empty()) say(line);
  }

  // By seconds since the start: what the program calls a step is not known.
  void record_usage(const json& message) {
    if (!recorder_) return;
    for (auto& [rank, metrics] : usage_metrics(message)) {
      for (const telemetry::Metric& metric : metrics) {
        if (metric.name == "resident_bytes") peaks_[rank] = std::max(peaks_[rank], metric.value);
      }
      metrics.push_back({std::string(telemetry::metric::kMemoryBytes), peaks_[rank]});
      recorder_->metrics(rank, static_cast<std::int64_t>(started_.seconds()), std::move(metrics));
    }
  }

  void print(const elastic::PrintedLine& line) {
    if (shown_.is_copied(line.is_error, line.text)) {
      std::ofstream copy(logs_ / (line.is_error ? "filtered-stderr.log" : "filtered-stdout.log"), std::ios::app);
      copy << fmt::format("[rank {}] {}\n", line.rank, line.text);
    }
    if (!shown_.on_terminal(line.local_rank, line.is_error)) return;
    std::FILE* const out = line.is_error || request_.json ? stderr : stdout;
    // Not fmt: a terminal that is gone is not worth ending a run for.
    std::fprintf(out, "[rank %d] %s\n", line.rank, line.text.c_str());
    std::fflush(out);
  }

  void begin(int generation, int world, int restarts) {
    if (generation == 1) return;
    const std::string text = fmt::format("generation {} begins with {} {} (restart {} of {})", generation, world,
                                         world == 1 ? "rank" : "ranks", restarts, request_.restarts);
    event(telemetry::Level::kInfo, telemetry::event_kind::kRestart, -1, text,
          {{"generation", generation}, {"world", world}, {"restarts", restarts}});
    say(text);
  }

  void fail(const RootCause& cause) {
    event(telemetry::Level::kWarning, telemetry::event_kind::kRankLost, cause.rank, cause.message,
          {{"exit_code", cause.exit_code}, {"details", cause.details}});
    say(cause.message);
  }

  static std::string status_of(const elastic::AgentResult& result) {
    if (result.exit_code == 0) return "done";
    return is_stopped(result) ? "interrupted" : "failed";
  }
  static bool is_stopped(const elastic::AgentResult& result) { return result.exit_code != 0 && !result.cause; }

  json summary_of(const elastic::AgentResult& result) const {
    json summary = {{"schema", kSchema},
                    {"run", run_id_},
                    {"status", status_of(result)},
                    {"exit_code", result.exit_code},
                    {"restarts", result.restarts},
                    {"recovery_seconds", result.recovery_seconds},
                    {"seconds", started_.seconds()},
                    {"logs", logs_.string()},
                    {"command", request_.argv}};
    if (result.cause) {
      summary["error"] = result.cause->message;
      summary["rank"] = result.cause->rank;
      summary["details"] = result.cause->details;
    }
    return summary;
  }

  void end_record(const elastic::AgentResult& result) {
    const bool requeued = is_stopped(result) && result.exit_code == static_cast<int>(ExitCode::kRetry);
    record_->end(is_stopped(result) ? static_cast<int>(ExitCode::kInterrupted) : result.exit_code,
                 requeued       ? kRequeueReason
                 : result.cause ? result.cause->message
                                : "",
                 summary_of(result), result.cause ? std::optional(result.cause->rank) : std::nullopt);
  }

  void show_end(const elastic::AgentResult& result) const {
    if (result.cause && speaks_ && !result.cause->details.empty()) {
      std::string lines;
      for (const std::string& line : split(std::string(trim(result.cause->details)), '\n'))
        lines += "  | " + line + "\n";
      fmt::print(stderr, "lockstep: last words of rank {}:\n{}", result.cause->rank, lines);
    }
    if (result.cause) say(fmt::format("{}; logs: {}", result.cause->message, logs_.string()));
    if (!speaks_) return;
    if (request_.json) {
      fmt::print("{}\n", summary_of(result).dump(-1, ' ', false, json::error_handler_t::replace));
    } else {
      say(fmt::format("{} after {:.1f} s, {} {}; {}", status_of(result), started_.seconds(), result.restarts,
                      result.restarts == 1 ? "restart" : "restarts",
                      request_.record ? "next: lockstep report last" : "logs: " + logs_.string()));
    }
  }

  const ForeignRequest& request_;
  const Shown& shown_;
  fs::path home_, logs_;
  std::string run_id_;
  elastic::AgentOptions options_;
  std::shared_ptr<telemetry::Recorder> recorder_;
  std::optional<elastic::RunRecord> record_;  // where this agent leads
  std::map<int, double> peaks_;               // of memory, by rank
  bool speaks_ = false;
  const Stopwatch started_;
};

}  // namespace

std::string digest_of(const ForeignRequest& request) {
  return json{{"command", request.argv},
              {"processes", request.processes},
              {"node_counts", request.node_counts},
              {"restarts", request.restarts},
              {"id", request.id}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

int run_foreign(const ForeignRequest& request, const Shown& shown) {
  if (request.record) telemetry::check_home(telemetry::home_directory());
  survive_closed_pipes();
  count_stop_signals(SecondSignal::kCounts);
  return ForeignSession(request, shown).run();
}

}  // namespace lockstep::cli
