#include "lockstep/schedulers/kubectl.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <map>
#include <set>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::schedulers {
namespace {

using nlohmann::json;

constexpr std::size_t kMostLogs = 16;  // a kubectl each
constexpr double kRetrySeconds = 2.0;

// json::value() throws where a key holds something else than expected; answers of other versions may.
std::string text_at(const json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}
int number_at(const json& object, const char* key, int otherwise) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int>() : otherwise;
}
const json& child(const json& object, const char* key) {
  static const json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

// The condition of `type` when it is true.
const json* condition(const json& status, std::initializer_list<const char*> types) {
  for (const json& entry : child(status, "conditions")) {
    for (const char* type : types) {
      if (text_at(entry, "type") == type && text_at(entry, "status") == "True") return &entry;
    }
  }
  return nullptr;
}

std::string sentence(const json& entry) {
  const std::string reason = text_at(entry, "reason"), message = text_at(entry, "message");
  return printable(message.empty() ? reason : reason.empty() ? message : reason + ": " + message, 200);
}

int node_of(const json& metadata) {
  const json& labels = child(metadata, "labels");
  std::string index = text_at(child(metadata, "annotations"), "batch.kubernetes.io/job-completion-index");
  if (index.empty()) index = text_at(labels, "batch.kubernetes.io/job-completion-index");
  if (index.empty()) index = text_at(labels, "training.kubeflow.org/replica-index");
  int number = -1;
  if (std::from_chars(index.data(), index.data() + index.size(), number).ec != std::errc()) return -1;
  return text_at(labels, "training.kubeflow.org/replica-type") == "worker" ? number + 1 : number;
}

PodState read_pod(const json& item) {
  PodState pod;
  const json &metadata = child(item, "metadata"), &status = child(item, "status");
  pod.name = text_at(metadata, "name");
  pod.uid = text_at(metadata, "uid");
  pod.node = node_of(metadata);
  const json& containers = child(status, "containerStatuses");
  if (const json container = containers.is_array() && !containers.empty() ? containers.front() : json();
      !container.is_null()) {
    pod.restarts = number_at(container, "restartCount", 0);
    const json& state = child(container, "state");
    pod.running = state.contains("running");
    const json& ended =
        state.contains("terminated") ? child(state, "terminated") : child(child(container, "lastState"), "terminated");
    if (const int code = number_at(ended, "exitCode", -1); code >= 0 && !pod.running) pod.exit_code = code;
    pod.started = pod.running || state.contains("terminated");
    if (state.contains("waiting")) pod.waits_for = sentence(child(state, "waiting"));
  }
  for (const json& entry : child(status, "conditions")) {
    if (pod.started || !pod.waits_for.empty() || text_at(entry, "status") == "True") continue;
    if (text_at(entry, "type") == "PodScheduled") pod.waits_for = sentence(entry);
  }
  return pod;
}

// All agents of a run end with its exit code, but one that was cut off says 75, and one that was killed nothing.
std::optional<int> exit_code_of(const std::vector<PodState>& pods) {
  std::optional<int> code;
  const auto weight = [](int value) { return value == 0 ? 0 : value >= 128 && value != 130 ? 1 : value == 75 ? 2 : 3; };
  for (const PodState& pod : pods) {
    if (pod.exit_code && (!code || weight(*pod.exit_code) > weight(*code))) code = pod.exit_code;
  }
  return code;
}

std::size_t running_pods(const std::vector<PodState>& pods) {
  return static_cast<std::size_t>(
      std::count_if(pods.begin(), pods.end(), [](const PodState& pod) { return pod.running; }));
}

State state_of(const json& job, const std::vector<PodState>& pods) {
  const json& status = child(job, "status");
  State state;
  state.starts = number_at(status, "restarts", 0);
  int most = 0;
  for (const PodState& pod : pods) most = std::max(most, pod.restarts);
  state.starts += most;
  if (condition(status, {"Completed", "Complete", "Succeeded"}) != nullptr) {
    state.phase = Phase::kDone;
    state.exit_code = 0;
    return state;
  }
  if (const json* failed = condition(status, {"Failed"})) {
    state.phase = Phase::kFailed;
    state.detail = sentence(*failed);
    state.exit_code = exit_code_of(pods);
    return state;
  }
  if (const std::size_t running = running_pods(pods); running > 0) {
    state.phase = Phase::kRunning;
    state.detail = fmt::format("{} of {} pods run", running, pods.size());
  } else if (const json* suspended = condition(status, {"Suspended"})) {
    state.detail = sentence(*suspended);
  }
  const auto waiting =
      std::find_if(pods.begin(), pods.end(), [](const PodState& pod) { return !pod.waits_for.empty(); });
  if (waiting != pods.end()) {
    state.detail += fmt::format("{}{}: {}", state.detail.empty() ? "" : "; ", waiting->name, waiting->waits_for);
  }
  return state;
}

// The output of one container of one pod, from where it was lost when the connection breaks.
class PodLog {
 public:
  PodLog(std::vector<std::string> argv, std::string prefix) : argv_(std::move(argv)), prefix_(std::move(prefix)) {}

  // `there`: the pod still is, so that it is worth asking again.
  std::string read(bool there) {
    if (!process_ && !done_ && there && monotonic_seconds() >= next_try_) start();
    if (!process_) return "";
    char buffer[65536];
    std::string text;
    while (process_->stdout_fd() && text.size() < sizeof(buffer)) {
      pollfd polled{process_->stdout_fd().get(), POLLIN, 0};
      if (::poll(&polled, 1, 0) <= 0) break;
      const ssize_t got = ::read(process_->stdout_fd().get(), buffer, sizeof(buffer));
      if (got <= 0) {
        process_->stdout_fd().reset();
        break;
      }
      text.append(buffer, static_cast<std::size_t>(got));
      heard_ = std::time(nullptr);
    }
    std::string lines = whole_lines(text);
    if (!process_->stdout_fd()) look_at_end();
    return lines;
  }

 private:
  void start() {
    SpawnOptions options;
    options.argv = argv_;
    if (heard_ != 0) options.argv.push_back(fmt::format("--since={}s", std::time(nullptr) - heard_ + 1));
    options.standard_output = StreamMode::kPipe;
    options.standard_error = StreamMode::kNull;
    process_.emplace(Process::spawn(options));
  }

  void look_at_end() {
    const auto status = process_->poll();
    if (!status) return;
    done_ = status->ok();
    process_.reset();
    next_try_ = monotonic_seconds() + kRetrySeconds;
  }

  std::string whole_lines(const std::string& text) {
    std::string lines;
    for (const char c : text) {
      partial_ += c;
      if (c != '\n') continue;
      lines += prefix_ + partial_;
      partial_.clear();
    }
    if (!process_->stdout_fd() && !partial_.empty()) lines += prefix_ + std::exchange(partial_, "") + "\n";
    return lines;
  }

  const std::vector<std::string> argv_;
  const std::string prefix_;
  std::optional<Process> process_;
  std::string partial_;
  bool done_ = false;
  double next_try_ = 0.0;
  std::time_t heard_ = 0;
};

std::vector<std::string> words_for(const json& place, const std::vector<std::string>& rest) {
  std::vector<std::string> words = {text_at(place, "kubectl")};
  const std::string context = text_at(place, "context"), name_space = text_at(place, "namespace");
  if (!context.empty()) words.push_back("--context=" + context);
  if (!name_space.empty()) words.push_back("--namespace=" + name_space);
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

std::string selector(const Submitted& submitted) {
  return fmt::format("--selector={}={}", kRunLabel, plain_name(submitted.run, 63));
}

// What belongs to `job` is deleted with it.
void adopt(const json& job, const json& place) {
  const std::string name = text_at(child(job, "metadata"), "name");
  const json owner = {{"apiVersion", text_at(job, "apiVersion")},
                      {"kind", text_at(job, "kind")},
                      {"name", name},
                      {"uid", text_at(child(job, "metadata"), "uid")}};
  const json patch = {{"metadata", {{"ownerReferences", json::array({owner})}}}};
  for (const char* object : {"secret", "configmap"}) {
    try {
      run_tool(words_for(place, {"patch", object, name, "--type=merge", "--patch=" + patch.dump()}));
    } catch (const UserError&) {
      // A foreign program has no ConfigMap, and who may create may not always patch: then they stay.
    }
  }
}

// Those of the first nodes; the agent that leads is the first that lives, and prints what the run has to say.
class PodLogs : public LogSource {
 public:
  PodLogs(std::shared_ptr<const std::vector<PodState>> pods, json place)
      : pods_(std::move(pods)), place_(std::move(place)) {}

  std::string read() override {
    std::set<std::string> there;
    for (const PodState& pod : *pods_) {
      if (!pod.started || there.size() == kMostLogs) continue;
      const std::string key = fmt::format("{}/{}", pod.uid, pod.restarts);
      there.insert(key);
      const std::string prefix = pod.node > 0 ? fmt::format("[node {}] ", pod.node) : "";
      logs_.try_emplace(key, words_for(place_, {"logs", pod.name, "--follow"}), prefix);
    }
    std::string text;
    for (auto& [key, log] : logs_) text += log.read(there.contains(key));
    return text;
  }

 private:
  const std::shared_ptr<const std::vector<PodState>> pods_;
  const json place_;
  std::map<std::string, PodLog> logs_;  // by pod and how often its container was started
};

}  // namespace

ClusterState read_cluster_state(const std::string& answer, const std::string& kind) {
  const json list = json::parse(answer, nullptr, false);
  if (list.is_discarded() || !child(list, "items").is_array()) {
    throw environment_error("kubectl answered something that is not a list", "try the command yourself");
  }
  ClusterState cluster;
  const json* job = nullptr;
  for (const json& item : child(list, "items")) {
    if (text_at(item, "kind") == "Pod") cluster.pods.push_back(read_pod(item));
    if (text_at(item, "kind") == kind) job = &item;
  }
  std::stable_sort(cluster.pods.begin(), cluster.pods.end(),
                   [](const PodState& a, const PodState& b) { return a.node < b.node; });
  if (job != nullptr) {
    cluster.state = state_of(*job, cluster.pods);
  } else if (const std::size_t left = running_pods(cluster.pods); left > 0) {
    cluster.state = {Phase::kRunning, fmt::format("deleted; pods that still save: {}", left), std::nullopt, 0};
  } else {
    cluster.state = {Phase::kCancelled, "the " + kind + " is gone", std::nullopt, 0};
  }
  return cluster;
}

Kubectl::Kubectl(const PodSettings& settings, const std::string& kind, const std::string& resource)
    : place_({{"kubectl", settings.kubectl},
              {"context", settings.context},
              {"namespace", settings.name_space},
              {"kind", kind},
              {"resource", resource}}) {}

std::vector<std::string> Kubectl::create_words(const Submission& submission) const {
  // Not `apply`: it would copy the secret and the job file into annotations.
  return words_for(place_, {"create", "--filename=" + (submission.folder / kSecretFile).string(),
                            "--filename=" + (submission.folder / kManifestFile).string(), "--output=name"});
}

Submitted Kubectl::submit(const Submission& submission, const std::string& name) const {
  Submitted submitted{name, submission.run, submission.folder, place_};
  try {
    run_tool(create_words(submission));
  } catch (const UserError&) {
    // Half of it may be there.
    try {
      cancel(submitted);
    } catch (const UserError&) {
    }
    throw;
  }
  const json made = json::parse(
      run_tool(words_for(place_, {"get", text_at(place_, "resource"), name, "--output=json"})), nullptr, false);
  submitted.place["namespace"] = text_at(child(made, "metadata"), "namespace");
  submitted.id = text_at(submitted.place, "namespace") + "/" + name;
  adopt(made, submitted.place);
  return submitted;
}

State Kubectl::state(const Submitted& submitted) {
  try {
    const std::string answer =
        run_tool(words_for(submitted.place, {"get", text_at(submitted.place, "resource") + ",pods", selector(submitted),
                                             "--output=json"}));
    ClusterState cluster = read_cluster_state(answer, text_at(submitted.place, "kind"));
    *pods_ = std::move(cluster.pods);
    // What has ended is deleted after a while.
    if (cluster.state.phase == Phase::kCancelled && last_.is_over()) return last_;
    last_ = cluster.state;
  } catch (const UserError& error) {
    last_.detail = printable(error.what(), 200);
  }
  return last_;
}

std::unique_ptr<LogSource> Kubectl::open_log(const Submitted& submitted) {
  return std::make_unique<PodLogs>(pods_, submitted.place);
}

void Kubectl::cancel(const Submitted& submitted) const {
  run_tool(words_for(submitted.place, {"delete", text_at(submitted.place, "resource") + ",configmaps,secrets",
                                       selector(submitted), "--wait=false"}));
}

}  // namespace lockstep::schedulers
