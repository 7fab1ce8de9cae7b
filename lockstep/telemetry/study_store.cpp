#include "lockstep/telemetry/study_store.h"

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/study_rules.h"

namespace lockstep::telemetry {
namespace {

constexpr const char* kStates[] = {"running", "ended", "interrupted"};

RunInfo as_run(const StudyInfo& info) {
  return {.id = info.id, .host = info.host, .pid = info.pid, .pid_started = info.pid_started};
}

}  // namespace

const char* to_string(AttemptState state) { return kStates[static_cast<int>(state)]; }

AttemptState parse_attempt_state(std::string_view text) {
  for (int i = 0; i < 3; ++i)
    if (text == kStates[i]) return static_cast<AttemptState>(i);
  throw bad_input(fmt::format("unknown state of an attempt '{}'", printable(text)),
                  did_you_mean(text, {std::begin(kStates), std::end(kStates)}));
}

bool owner_is_alive(const StudyInfo& info) { return process_is_alive(as_run(info)); }

StudyInfo owned_by_this_process(StudyInfo info) {
  const RunInfo process = describe_this_process({.id = "-"});
  if (info.id.empty()) info.id = make_run_id(info.name);
  if (info.created_at <= 0) info.created_at = unix_seconds();
  info.host = process.host;
  info.pid = process.pid;
  info.pid_started = process.pid_started;
  return info;
}

void check_may_acquire(const StudyRow& row, bool take_over) {
  if (row.status != RunStatus::kRunning) return;
  const StudyInfo me = owned_by_this_process({.id = "-"});
  const bool elsewhere = row.info.host != me.host;
  if (elsewhere && take_over) return;
  const std::string fix = elsewhere ? "stop it there, or take it over when that process is known to be gone"
                          : row.info.pid == me.pid
                              ? "end it first"
                              : fmt::format("wait for it, or stop it with `kill {}`", row.info.pid);
  throw UserError(ExitCode::kRetry,
                  fmt::format("study {} is being run by process {} on {}", printable(row.info.id, 100), row.info.pid,
                              printable(row.info.host)),
                  fix);
}

UserError not_the_owner(const std::string& study) {
  return UserError(
      ExitCode::kRetry,
      fmt::format("study {} belongs to another process now; this one may not write to it", printable(study, 100)),
      "let the other go on, or resume the study when it has ended");
}

UserError study_exists(const std::string& study) {
  return bad_input(fmt::format("there is a study {} already", printable(study, 100)), "resume it or choose another id");
}

UserError several_studies(const std::string& beginning, const std::string& first, const std::string& second) {
  return bad_input(fmt::format("several studies begin with '{}': {}, {}, ...", printable(beginning),
                               printable(first, 100), printable(second, 100)),
                   "give more of the id");
}

UserError no_such_study(const std::string& study) {
  return bad_input(fmt::format("there is no study '{}'", printable(study, 100)), "see `lockstep tune --list`");
}

UserError no_running_attempt(const std::string& study, std::int64_t number) {
  return bad_input(fmt::format("trial {} of study {} is not under way", number, printable(study, 100)));
}

std::unique_ptr<StudyStore> open_study_store(const std::filesystem::path& home, bool create) {
  if (has_sqlite()) return make_sqlite_study_store(store_file(home), create);
  const auto folder = home / "studies";
  if (!create && !std::filesystem::exists(folder)) {
    throw environment_error("there are no studies yet", "run `lockstep tune` first, or check LOCKSTEP_HOME",
                            {folder.string()});
  }
  return make_json_lines_study_store(folder);
}

}  // namespace lockstep::telemetry
