#include "lockstep/cli/trained.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/checkpoint_folder.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/signals.h"
#include "lockstep/spec/job.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {

std::string weights_at(const std::string& name) {
  if (std::filesystem::exists(name)) return name;
  if (const auto saved = saved_by_run(name, telemetry::home_directory())) return saved->string();
  throw environment_error(printable(name, 200) + " is not there",
                          "name a run (`last`), a checkpoint, a folder of them, or a folder of exported weights");
}

nlohmann::json request_for(const TrainedFlags& flags) {
  nlohmann::json request = {{"path", weights_at(flags.path)}, {"overrides", flags.overrides}};
  if (!flags.job_file.empty()) {
    request["job"] = spec::to_yaml(spec::load_job(flags.job_file, flags.overrides));
    request["overrides"] = nlohmann::json::array();
  }
  return request;
}

ToolAnswer call_tool(const std::string& verb, const nlohmann::json& request, int threads,
                     const std::function<void(const nlohmann::json&)>& on_message) {
  prepare_compute(threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const EngineLibrary engine;
  ToolAnswer answer;
  std::string error;
  EngineCallbacks callbacks;
  callbacks.on_message = [&](const nlohmann::json& message) {
    const std::string type = message.value("type", "");
    if (type == "result") answer.result = message;
    if (type == "error" && error.empty()) error = message.value("message", "");
    if (type != "result" && type != "error" && on_message) on_message(message);
  };
  count_stop_signals(SecondSignal::kExits);
  callbacks.stop_requested = [] { return stop_signals() > 0 ? 1 : 0; };
  answer.exit_code = engine.call(verb, request, callbacks);
  if (answer.result.is_null()) {
    throw UserError(static_cast<ExitCode>(answer.exit_code == 0 ? 1 : answer.exit_code), error, "");
  }
  answer.result.erase("type");
  return answer;
}

}  // namespace lockstep::cli
