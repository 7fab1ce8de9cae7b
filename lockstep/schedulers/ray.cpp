// `--on ray`: a job through the Jobs API of a Ray cluster. Ray runs a driver (ray_driver.py, which travels with the
// job) that reserves one place per node and starts an agent in each. What the user wrote travels as base64 of JSON in
// variables: the command that Ray gives to a shell is always the same, and Ray finds no `${...}` to expand.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "lockstep/base/base64.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/http_request.h"
#include "lockstep/base/text.h"
#include "lockstep/schedulers/all.h"
#include "lockstep/schedulers/embedded.h"
#include "lockstep/schedulers/yaml_writer.h"

namespace lockstep::schedulers {
namespace {

using nlohmann::json;

constexpr const char* kEntrypoint =
    "exec \"$LOCKSTEP_RAY_PROGRAM\" -c "
    "\"import base64, os; exec(base64.b64decode(os.environ['LOCKSTEP_RAY_DRIVER']))\"";
constexpr const char* kUsualAddress = "http://127.0.0.1:8265";
constexpr std::size_t kMostStartBytes = 90'000;  // a variable holds 128 KiB, and base64 makes 4 bytes of 3
constexpr int kStopSeconds = 330;                // for the run to save; Ray's own patience is 3 s
constexpr double kAskSeconds = 30.0;
constexpr std::size_t kMostLogBytes = std::size_t{64} << 20;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The cluster's token, where Ray's own programs look for it.
std::string auth_token() {
  if (variable("RAY_AUTH_MODE") == "disabled") return "";
  if (std::string token = variable("RAY_AUTH_TOKEN"); !token.empty()) return token;
  std::filesystem::path file = variable("RAY_AUTH_TOKEN_PATH");
  if (file.empty()) file = std::filesystem::path(variable("HOME")) / ".ray" / "auth_token";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return "";
  return std::string(trim(read_file(file, 64 << 10)));
}

// RAY_JOB_HEADERS is a JSON object, as for Ray's own command line.
std::map<std::string, std::string> headers() {
  std::map<std::string, std::string> headers = {{"Content-Type", "application/json"}};
  if (const std::string token = auth_token(); !token.empty()) headers["Authorization"] = "Bearer " + token;
  if (const std::string text = variable("RAY_JOB_HEADERS"); !text.empty()) {
    const json given = json::parse(text, nullptr, false);
    const bool is_good = given.is_object() &&
                         std::all_of(given.begin(), given.end(), [](const json& value) { return value.is_string(); });
    if (!is_good) throw bad_input("RAY_JOB_HEADERS is not a JSON object of texts", "write {\"name\": \"value\"}");
    for (const auto& [name, value] : given.items()) headers[name] = value.get<std::string>();
  }
  for (const auto& [name, value] : headers) {
    if (!is_printable(name) || !is_printable(value) || name.find_first_of(": ") != std::string::npos) {
      throw bad_input("Ray's token or RAY_JOB_HEADERS holds what a header cannot", "write one line each");
    }
  }
  return headers;
}

HttpRequest request(const std::string& method, const std::string& url, const std::string& body = "") {
  HttpRequest request;
  request.method = method;
  request.url = url;
  request.headers = headers();
  request.body = body;
  request.timeout_seconds = kAskSeconds;
  request.most_bytes = kMostLogBytes;
  return request;
}

std::string jobs_url(const std::string& address) { return address + "/api/jobs/"; }
std::string url_of(const Submitted& submitted, const std::string& what = "") {
  return jobs_url(submitted.place.at("address").get<std::string>()) + submitted.id + what;
}

// The last line of a traceback says what was wrong.
std::string last_line(const std::string& text) { return printable(trim(split(trim(text), '\n').back()), 300); }

// The API gives the whole log each time: the longer it is, the less often it is asked for.
class RayLog : public LogSource {
 public:
  explicit RayLog(std::string url) : url_(std::move(url)) {}

  std::string read() override {
    if (!exchange_ && monotonic_seconds() < next_) return "";
    if (!exchange_) exchange_.emplace(request("GET", url_));
    if (!exchange_->advance()) return "";
    const auto answer = exchange_->answer();
    exchange_.reset();
    const json said = answer && answer->status == 200 ? json::parse(answer->body, nullptr, false) : json();
    const std::string whole = said.is_object() && said.contains("logs") && said["logs"].is_string()
                                  ? said["logs"].get<std::string>()
                                  : std::string();
    next_ = monotonic_seconds() + 0.5 + static_cast<double>(whole.size()) / 1e6;
    if (whole.size() <= seen_) return "";
    std::string text = whole.substr(seen_);
    seen_ = whole.size();
    return text;
  }

 private:
  const std::string url_;
  std::optional<HttpExchange> exchange_;
  std::size_t seen_ = 0;
  double next_ = 0.0;
};

class Ray : public Scheduler {
 public:
  explicit Ray(const LaunchSettings& settings) {
    MapReader reader = settings.section("ray");
    reader.name("address", address_);
    static constexpr const char* kPlacements[] = {"strict_spread", "spread", "pack"};
    reader.word("placement", placement_, kPlacements);
    reader.name("python", python_);
    if (const YamlNode* node = reader.find("resources")) resources_ = numbers(reader, *node);
    if (const YamlNode* node = reader.find("runtime_env")) runtime_env_ = passed_on(reader, *node);
    reader.finish();
    if (python_.find_first_of("$\"'`\\") != std::string::npos) {
      throw reader.error_at("python", "is not a program's name or path", "write python3 or /opt/venv/bin/python");
    }
    if (address_.empty()) address_ = variable("RAY_API_SERVER_ADDRESS");
    if (address_.empty()) address_ = variable("RAY_ADDRESS");
    if (address_.empty()) address_ = kUsualAddress;
    while (address_.ends_with('/')) address_.pop_back();
    if (!address_.starts_with("http://")) {
      throw bad_input(fmt::format("\"{}\" is not the address of a Ray dashboard", printable(address_)),
                      "set launch.ray.address to http://HOST:8265 (for https or another network, forward the port)");
    }
    require_http_url(address_);
  }

  Script script(const Submission& submission) const override {
    Script script;
    // What travels as base64 is shown as it is.
    json body = body_of(submission);
    body["runtime_env"]["env_vars"]["LOCKSTEP_RAY_DRIVER"] = "(lockstep/schedulers/ray_driver.py)";
    body["runtime_env"]["env_vars"]["LOCKSTEP_RAY_START"] = start_of(submission);
    script.files = {{"ray_job.json", body.dump(1) + "\n", false}};
    script.notes.push_back(fmt::format("submitted as {} by POST {}", id_of(submission), jobs_url(address_)));
    if (!submission.settings.image.empty()) {
      script.notes.emplace_back("launch.image is not used: Ray's nodes are there already, with `" +
                                submission.words("").front() + "` on them");
    }
    if (submission.settings.time_seconds > 0) {
      script.notes.emplace_back("launch.time is not used: Ray has no time limits");
    }
    return script;
  }

  Submitted submit(const Submission& submission) override {
    const auto answer = ask_http(request("POST", jobs_url(address_), body_of(submission).dump()));
    if (!answer) {
      throw environment_error("nobody answers at " + address_,
                              "is the dashboard of the Ray cluster there (ray start --head, port 8265)? Set "
                              "launch.ray.address or RAY_API_SERVER_ADDRESS");
    }
    if (answer->status != 200) {
      throw environment_error(
          fmt::format("Ray at {} refused the job ({}): {}", address_, answer->status, last_line(answer->body)),
          "see what it says");
    }
    return {id_of(submission), submission.run, submission.folder, json{{"address", address_}}};
  }

  State state(const Submitted& submitted) override {
    const auto answer = ask_http(request("GET", url_of(submitted)));
    if (answer && answer->status == 404) {
      last_ = {Phase::kFailed, "the cluster does not know the job any more", std::nullopt, 0};
    }
    const json job = answer && answer->status == 200 ? json::parse(answer->body, nullptr, false) : json();
    if (job.is_object() && job.contains("status")) last_ = state_of(job);
    return last_;
  }

  std::unique_ptr<LogSource> open_log(const Submitted& submitted) override {
    return std::make_unique<RayLog>(url_of(submitted, "/logs"));
  }

  void cancel(const Submitted& submitted) override {
    const auto answer = ask_http(request("POST", url_of(submitted, "/stop")));
    if (!answer || answer->status != 200) {
      throw environment_error("Ray did not take the order to stop " + submitted.id, "ray job stop " + submitted.id);
    }
  }

 private:
  static json numbers(const MapReader& reader, const YamlNode& node) {
    json amounts = json_of(node);
    for (const auto& [name, amount] : amounts.items()) {
      if (!amounts.is_object() || !amount.is_number() || amount <= 0) {
        throw reader.error_at("resources", "is not a map of amounts", "write {name: 1}");
      }
    }
    return amounts;
  }

  static json passed_on(const MapReader& reader, const YamlNode& node) {
    json given = json_of(node);
    if (!given.is_object() || given.contains("env_vars")) {
      throw reader.error_at("runtime_env", "is not a map, or holds env_vars",
                            "variables belong into launch.environment");
    }
    return given;
  }

  static std::string id_of(const Submission& submission) { return "lockstep-" + plain_name(submission.run, 200); }

  // What one node takes of a machine.
  json bundle(const Submission& submission) const {
    json bundle = resources_;
    const std::int64_t cpus = submission.settings.cpus_per_node;
    bundle["CPU"] = cpus > 0 ? cpus : submission.ranks_per_node;
    if (submission.has_gpus()) bundle["GPU"] = submission.ranks_per_node;
    const double memory = submission.settings.memory_per_node;
    if (memory > 0) bundle["memory"] = static_cast<std::int64_t>(memory);
    return bundle;
  }

  // Without the token: the driver makes one. Whoever may look at the cluster's jobs sees this.
  json start_of(const Submission& submission) const {
    json start = to_json(submission);
    start["environment"].erase("LOCKSTEP_TOKEN");
    const std::string& asked = submission.settings.directory;
    std::string placement = placement_;
    for (char& c : placement) c = c == '_' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return {{"submission", start},
            {"executable", submission.words("").front()},
            {"directory", asked.empty() ? submission.directory.string() : asked},
            {"directory_asked", !asked.empty()},
            {"nodes", submission.all_nodes()},
            {"bundle", bundle(submission)},
            {"placement", placement},
            {"requeue", submission.settings.requeue}};
  }

  json body_of(const Submission& submission) const {
    const std::string start = start_of(submission).dump();
    if (start.size() > kMostStartBytes) {
      throw bad_input(fmt::format("the job and its command are {} bytes, and a variable on Ray holds {}", start.size(),
                                  kMostStartBytes),
                      "move what is long into files on the cluster");
    }
    json environment = {{"LOCKSTEP_RAY_PROGRAM", python_},
                        {"LOCKSTEP_RAY_DRIVER", base64_of(ray_driver())},
                        {"LOCKSTEP_RAY_START", base64_of(start)},
                        {"RAY_JOB_STOP_WAIT_TIME_S", std::to_string(kStopSeconds)}};
    json runtime_env = runtime_env_;
    runtime_env["env_vars"] = std::move(environment);
    return {{"entrypoint", kEntrypoint},
            {"submission_id", id_of(submission)},
            {"runtime_env", runtime_env},
            {"metadata", {{"name", submission.name}, {"lockstep_run", submission.run}}}};
  }

  static State state_of(const json& job) {
    const std::string status = job.at("status").is_string() ? job.at("status").get<std::string>() : "";
    State state;
    state.phase = status == "PENDING"     ? Phase::kQueued
                  : status == "SUCCEEDED" ? Phase::kDone
                  : status == "STOPPED"   ? Phase::kCancelled
                  : status == "FAILED"    ? Phase::kFailed
                                          : Phase::kRunning;
    const auto text = [&](const char* key) {
      return job.contains(key) && job.at(key).is_string() ? job.at(key).get<std::string>() : std::string();
    };
    if (state.phase == Phase::kFailed) state.detail = last_line(text("message"));
    if (job.contains("driver_exit_code") && job.at("driver_exit_code").is_number_integer()) {
      state.exit_code = job.at("driver_exit_code").get<int>();
    }
    return state;
  }

  std::string address_, placement_, python_ = "python3";
  json resources_ = json::object(), runtime_env_ = json::object();
  State last_;
};

}  // namespace

std::unique_ptr<Scheduler> make_ray(const LaunchSettings& settings) { return std::make_unique<Ray>(settings); }

}  // namespace lockstep::schedulers
