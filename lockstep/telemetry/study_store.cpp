#include "lockstep/telemetry/study_store.h"

#include <fmt/format.h>

#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/find_row.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/study_rules.h"

namespace lockstep::telemetry {
namespace {

constexpr const char* kStates[] = {"running", "ended", "interrupted"};

// Tables and lines of one home: a study goes on where it began, new ones begin in the tables.
class HomeStudies : public StudyStore {
 public:
  HomeStudies(std::unique_ptr<StudyStore> tables, std::unique_ptr<StudyStore> lines)
      : tables_(std::move(tables)), lines_(std::move(lines)) {}

  std::vector<StudyRow> studies(std::size_t limit, const std::string& beginning) const override {
    std::vector<StudyRow> rows = tables_->studies(limit, beginning);
    for (StudyRow& row : lines_->studies(limit, beginning)) rows.push_back(std::move(row));
    keep_newest(rows, &StudyInfo::created_at, limit);
    return rows;
  }
  std::vector<AttemptRow> attempts(const std::string& study) const override { return of(study).attempts(study); }
  std::string create(StudyInfo info) override { return tables_->create(std::move(info)); }
  void acquire(const std::string& study, bool take_over) override { of(study).acquire(study, take_over); }
  void release(const std::string& study, RunStatus status, const nlohmann::json& conclusion) override {
    of(study).release(study, status, conclusion);
  }
  std::int64_t begin_trial(const std::string& study, const AttemptRow& attempt) override {
    return of(study).begin_trial(study, attempt);
  }
  void alive(const std::string& study, std::int64_t number, double seconds, double gpu_seconds) override {
    of(study).alive(study, number, seconds, gpu_seconds);
  }
  void end_trial(const std::string& study, const AttemptRow& attempt) override { of(study).end_trial(study, attempt); }
  void set_options(const std::string& study, const nlohmann::json& options) override {
    of(study).set_options(study, options);
  }

 private:
  StudyStore& of(const std::string& study) const {
    const auto [place, is_new] = in_lines_.try_emplace(study, false);
    if (is_new)
      for (const StudyRow& row : lines_->studies(1000, study)) place->second |= row.info.id == study;
    return place->second ? *lines_ : *tables_;
  }

  std::unique_ptr<StudyStore> tables_, lines_;
  mutable std::map<std::string, bool> in_lines_;  // where the studies asked for are
};

}  // namespace

const char* to_string(AttemptState state) { return kStates[static_cast<int>(state)]; }

AttemptState parse_attempt_state(std::string_view text) {
  for (int i = 0; i < 3; ++i)
    if (text == kStates[i]) return static_cast<AttemptState>(i);
  throw bad_input(fmt::format("unknown state of an attempt '{}'", printable(text)),
                  did_you_mean(text, {std::begin(kStates), std::end(kStates)}));
}

RunStatus status_now(RunStatus written, const StudyInfo& info) {
  return status_now(written, RunInfo{.host = info.host, .pid = info.pid, .pid_started = info.pid_started});
}

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

UserError no_such_study(const std::string& study) {
  return bad_input(fmt::format("there is no study '{}'", printable(study, 100)), "see `lockstep tune --list`");
}

UserError no_running_attempt(const std::string& study, std::int64_t number) {
  return bad_input(fmt::format("trial {} of study {} is not under way", number, printable(study, 100)));
}

std::optional<StudyRow> StudyStore::find(const std::string& id) const {
  return find_row(id, "studies",
                  [this](std::size_t limit, const std::string& beginning) { return studies(limit, beginning); });
}

std::unique_ptr<StudyStore> open_study_store(const std::filesystem::path& home, bool create) {
  const auto file = store_file(home), folder = home / "studies";
  auto lines = make_json_lines_study_store(folder);
  std::error_code ignored;
  const bool has_tables = std::filesystem::exists(file, ignored);
  if (!create && !has_tables && lines->studies(1).empty()) {
    throw environment_error("there are no studies yet", "run `lockstep tune` first, or check LOCKSTEP_HOME",
                            {file.string()});
  }
  auto tables = create || has_tables ? make_sqlite_study_store(file, create) : nullptr;
  if (!tables && has_tables)
    warn(file.string() + ": this build has no SQLite; only studies kept as JSON lines are shown");
  if (!tables) return lines;
  return std::make_unique<HomeStudies>(std::move(tables), std::move(lines));
}

}  // namespace lockstep::telemetry
