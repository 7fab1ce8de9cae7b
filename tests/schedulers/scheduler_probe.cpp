// Drives a scheduler from a test in another language: scheduler_probe script|submit|state|log|cancel < request.json
//   request: {"on": name, "launch": YAML text of the section, "submission": {...}, "submitted": what submit printed}
// Prints one JSON value. A UserError is printed as {"error": text} with its exit code.
#include <chrono>
#include <fstream>
#include <iostream>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/schedulers/scheduler.h"

namespace {

using nlohmann::json;
using namespace lockstep::schedulers;

Submission read_submission(const json& value, const LaunchSettings& settings) {
  Submission submission;
  submission.settings = settings;
  submission.run = value.value("run", "20261116-120000-abcdef-demo");
  submission.name = value.value("name", "demo");
  if (value.contains("job")) submission.job = value.at("job").get<std::string>();
  submission.flags = value.value("flags", std::vector<std::string>{});
  submission.command = value.value("command", std::vector<std::string>{});
  submission.nodes = value.value("nodes", 2);
  submission.ranks_per_node = value.value("ranks_per_node", 8);
  submission.device = value.value("device", "H100");
  submission.token = value.value("token", "s3cret");
  submission.folder = value.value("folder", "/tmp/submission");
  submission.directory = "/home/me";
  submission.lockstep = "/usr/bin/lockstep";
  return submission;
}

json to_json(const Script& script) {
  json files = json::array();
  for (const File& file : script.files) {
    files.push_back({{"name", file.name}, {"text", file.text}, {"secret", file.secret}});
  }
  return {{"files", files}, {"commands", script.commands}, {"notes", script.notes}};
}

json to_json(const State& state) {
  static constexpr const char* kNames[] = {"queued", "running", "done", "failed", "cancelled"};
  return {{"phase", kNames[static_cast<int>(state.phase)]},
          {"detail", state.detail},
          {"exit_code", state.exit_code ? json(*state.exit_code) : json()},
          {"starts", state.starts}};
}

// Follows as the command line does, until the run is over and says no more.
json follow(Scheduler& scheduler, const Submitted& submitted) {
  const auto log = scheduler.open_log(submitted);
  std::string text;
  State state;
  double over_at = 0.0;
  while (over_at == 0.0 || lockstep::monotonic_seconds() < over_at + 3.0) {
    if (over_at == 0.0) state = scheduler.state(submitted);
    if (over_at == 0.0 && state.is_over()) over_at = lockstep::monotonic_seconds();
    text += log->read();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  json result = to_json(state);
  result["log"] = text;
  return result;
}

json run(const std::string& verb, const json& request) {
  const lockstep::YamlNode launch = lockstep::parse_yaml(request.value("launch", "{}"), "launch.yaml");
  const LaunchSettings settings = read_settings(&launch);
  const auto scheduler = make_scheduler(request.at("on"), settings);
  if (verb == "script" || verb == "submit") {
    const Submission submission = read_submission(request.at("submission"), settings);
    const Script script = scheduler->script(submission);
    if (verb == "script") return to_json(script);
    std::filesystem::create_directories(submission.folder);
    for (const File& file : script.files) std::ofstream(submission.folder / file.name) << file.text;
    if (submission.job) std::ofstream(submission.job_file()) << *submission.job;
    const Submitted submitted = scheduler->submit(submission);
    return {{"id", submitted.id}, {"run", submitted.run}, {"place", submitted.place}};
  }
  const json& from = request.at("submitted");
  const Submitted submitted{from.at("id"), from.at("run"), "", from.at("place")};
  if (verb == "state") return to_json(scheduler->state(submitted));
  if (verb == "log") return follow(*scheduler, submitted);
  scheduler->cancel(submitted);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const json request = json::parse(std::cin);
    std::cout << run(argc > 1 ? argv[1] : "script", request).dump() << "\n";
    return 0;
  } catch (const lockstep::UserError& error) {
    std::cout << json{{"error", error.what()}}.dump() << "\n";
    return static_cast<int>(error.code());
  }
}
