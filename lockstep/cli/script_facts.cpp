#include "lockstep/cli/script_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kShownBytes = 400;  // of what the child said
constexpr double kProbeSeconds = 900.0;

bool takes_from_plugins(const spec::Job& job) {
  spec::Job copy = job;
  return !spec::plugins_of(copy).empty();
}

std::int64_t written_at(const fs::path& path) {
  std::error_code ignored;
  return fs::last_write_time(path, ignored).time_since_epoch().count();
}

// Everything that the answer depends on: also which engine would open the plugins.
std::string key_of(const spec::Job& job) {
  const spec::Script& script = job.model.script;
  const spec::Data& data = job.data;
  std::string key = fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", script.digest, spec::to_string(script.loss),
                                spec::to_string(data.kind), data.path.empty() ? "" : fs::absolute(data.path).string(),
                                written_at(data.path), join(data.inputs, ","), data.target, data.tokenizer,
                                job.batch.sequence_length, job.batch.micro, planner::ranks_here(job).threads);
  spec::Job copy = job;
  for (const auto& [section, use] : spec::plugins_of(copy)) {
    key += fmt::format("|{}|{}|{}|{}", section, use->digest, use->name, spec::plugin_lines(*use, 0));
  }
  if (!takes_from_plugins(job)) return key;
  const fs::path engine = find_engine_library();
  return key + fmt::format("|{}|{}|{}", job.model.is_scripted() ? "" : spec::to_yaml(job.model), engine.string(),
                           written_at(engine));
}

json places_of(const spec::Job& job) {
  json places = json::object();
  spec::Job copy = job;
  for (const auto& [section, use] : spec::plugins_of(copy)) {
    for (const auto& [key, place] : spec::places_of(*use)) {
      places[section][key] = {place.file, place.line, place.column};
    }
  }
  return places;
}

std::string file_names(const spec::Job& job) {
  std::vector<std::string> names;
  spec::Job copy = job;
  for (const auto& [section, use] : spec::plugins_of(copy)) {
    if (std::find(names.begin(), names.end(), use->file) == names.end()) names.push_back(use->file);
  }
  if (names.empty()) names.push_back(job.model.script.path);
  return printable(join(names, ", "));
}

// In a process of its own: what crashes there does not take this one along.
spec::ScriptFacts ask_engine(const spec::Job& job) {
  if (find_engine_library().empty()) EngineLibrary();  // says so
  const TemporaryFolder folder("lockstep-probe");
  const fs::path request = folder.path() / "request.json", answer = folder.path() / "answer.jsonl";
  write_file_atomically(
      request,
      json{{"job", spec::to_yaml(job)}, {"threads", planner::ranks_here(job).threads}, {"places", places_of(job)}}
          .dump());
  SpawnOptions child;
  child.argv = {executable_path().string(), "probe", request.string(), answer.string()};
  const CommandResult done = run_command(std::move(child), kProbeSeconds);
  std::string error;
  for (const std::string& line : split(fs::exists(answer) ? read_file(answer) : "", '\n')) {
    const json message = json::parse(line, nullptr, false);
    if (!message.is_object()) continue;
    if (message.value("type", "") == "result") {
      return spec::script_facts(message.value("facts", ""), job.model.name);
    }
    if (message.value("type", "") == "error" && error.empty()) error = message.value("message", "");
  }
  if (!error.empty()) throw UserError(static_cast<ExitCode>(done.status.code), error);
  const std::string said = printable(trim(done.error).substr(0, kShownBytes));
  const std::string how = done.timed_out ? "did not end" : "ended with " + done.status.to_string();
  throw UserError(ExitCode::kRunFailed,
                  fmt::format("the process that tried {} {}{}{}", file_names(job), how, said.empty() ? "" : ": ", said),
                  "mend its code; `lockstep probe` under a debugger shows where it crashed");
}

}  // namespace

fs::path script_facts_path(const spec::Job& job) {
  const std::string key = key_of(job);
  const std::uint32_t first = crc32c(key.data(), key.size()), second = crc32c(key.data(), key.size(), ~first);
  return telemetry::home_directory() / "modules" / fmt::format("{:08x}{:08x}.json", first, second);
}

void complete_model(spec::Job& job) {
  spec::Script& script = job.model.script;
  const bool has_facts = job.model.is_scripted() && script.facts.known();
  if (has_facts || !(job.model.is_scripted() || takes_from_plugins(job))) return;
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
    fmt::print(stderr, "lockstep: note: what was found in {} is not kept: {}\n", file_names(job), error.what());
  }
}

int run_probe_here(const std::string& request, const std::string& answer) {
  const json asked = parse_json(read_file(request), request);
  prepare_compute(asked.at("threads").get<int>());
  const EngineLibrary engine;
  EngineCallbacks callbacks;
  std::string said;
  callbacks.on_message = [&](const json& message) { said += message.dump() + "\n"; };
  const int code = engine.call("probe", asked, callbacks);
  write_file_atomically(answer, said);
  return code;
}

}  // namespace lockstep::cli
