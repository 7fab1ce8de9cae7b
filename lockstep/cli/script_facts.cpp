#include "lockstep/cli/script_facts.h"

#include <fmt/format.h>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

std::string key_of(const spec::Job& job) {
  const spec::Script& script = job.model.script;
  const spec::Data& data = job.data;
  std::error_code ignored;
  const auto written = fs::last_write_time(data.path, ignored).time_since_epoch().count();
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", script.digest, spec::to_string(script.loss),
                     spec::to_string(data.kind), fs::absolute(data.path).string(), written, join(data.inputs, ","),
                     data.target, data.tokenizer, job.batch.sequence_length, job.batch.micro,
                     planner::ranks_here(job).threads);
}

spec::ScriptFacts ask_engine(const spec::Job& job) {
  const int threads = static_cast<int>(planner::ranks_here(job).threads);
  prepare_compute(threads);
  const EngineLibrary engine;
  std::string facts, error;
  EngineCallbacks callbacks;
  callbacks.on_message = [&](const nlohmann::json& message) {
    if (message.value("type", "") == "result") facts = message.value("facts", "");
    if (message.value("type", "") == "error" && error.empty()) error = message.value("message", "");
  };
  const int code = engine.call("probe", {{"job", spec::to_yaml(job)}, {"threads", threads}}, callbacks);
  if (facts.empty()) throw UserError(static_cast<ExitCode>(code == 0 ? 1 : code), error, "");
  return spec::script_facts(facts, job.model.script.path);
}

}  // namespace

fs::path script_facts_path(const spec::Job& job) {
  const std::string key = key_of(job);
  const std::uint32_t first = crc32c(key.data(), key.size()), second = crc32c(key.data(), key.size(), ~first);
  return telemetry::home_directory() / "modules" / fmt::format("{:08x}{:08x}.json", first, second);
}

void complete_model(spec::Job& job) {
  spec::Script& script = job.model.script;
  if (!job.model.is_scripted() || script.facts.known()) return;
  const fs::path kept = script_facts_path(job);
  std::error_code ignored;
  if (fs::exists(kept, ignored)) {
    try {
      script.facts = spec::script_facts(read_file(kept), kept.string());
      return;
    } catch (const UserError&) {
      // Of another version, or cut short: looked at anew.
      fs::remove(kept, ignored);
    }
  }
  script.facts = ask_engine(job);
  try {
    make_folders(kept.parent_path());
    write_file_atomically(kept, spec::to_text(script.facts));
  } catch (const UserError& error) {
    fmt::print(stderr, "lockstep: note: what was found in {} is not kept: {}\n", script.path, error.what());
  }
}

}  // namespace lockstep::cli
