#include "lockstep/telemetry/study_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/lines_file.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

json get_or(const JsonReader& line, const char* key, const json& fallback) {
  return line.has(key) ? line.value().at(key) : fallback;
}

void read_owner(StudyInfo& info, const JsonReader& line) {
  info.host = line.text("host");
  info.pid = line.integer("pid");
  info.pid_started = line.integer("pid_started");
}

void interrupt_running(std::vector<AttemptRow>& attempts) {
  for (AttemptRow& attempt : attempts)
    if (attempt.state == AttemptState::kRunning) attempt.state = AttemptState::kInterrupted;
}

AttemptRow attempt_from(const JsonReader& line) {
  AttemptRow attempt;
  attempt.number = line.integer("trial", 0);
  attempt.attempt = line.integer("attempt", 0);
  attempt.state = parse_attempt_state(line.text("state"));
  attempt.started_at = line.real("started_at");
  attempt.seconds = line.real("seconds");
  attempt.gpu_seconds = line.real("gpu_seconds");
  attempt.purpose = line.text("purpose");
  attempt.outcome = line.text("outcome");
  attempt.throughput = line.real("throughput");
  attempt.document = line.object("document").value();
  return attempt;
}

void put_attempt(std::vector<AttemptRow>& attempts, AttemptRow attempt) {
  const auto place = std::lower_bound(attempts.begin(), attempts.end(), attempt, [](const auto& a, const auto& b) {
    return std::pair(a.number, a.attempt) < std::pair(b.number, b.attempt);
  });
  if (place != attempts.end() && place->number == attempt.number && place->attempt == attempt.attempt) {
    *place = std::move(attempt);
  } else {
    attempts.insert(place, std::move(attempt));
  }
}

void read_study(StudyFile& study, const JsonReader& line) {
  StudyInfo& info = study.study.info;
  info.id = line.text("study");
  info.name = line.text("name");
  info.created_at = line.real("created_at");
  read_owner(info, line);
  info.space_yaml = line.text("space");
  info.options = get_or(line, "options", json::object());
  info.versions = get_or(line, "versions", json::object());
}

// The attempt at that trial that is under way; nullptr when there is none.
AttemptRow* running_attempt(std::vector<AttemptRow>& attempts, std::int64_t number) {
  for (AttemptRow& attempt : attempts)
    if (attempt.number == number && attempt.state == AttemptState::kRunning) return &attempt;
  return nullptr;
}

void apply(StudyFile& study, const JsonReader& line) {
  const std::string type = line.text("type");
  if (type == "study") return read_study(study, line);
  if (study.study.info.id.empty()) line.fail("type", "the first line is not the study's own", "give the whole file");
  if (type == "owner") {
    read_owner(study.study.info, line);
    interrupt_running(study.attempts);
    study.study.status = RunStatus::kRunning;
    study.study.ended_at = 0;
  } else if (type == "attempt") {
    put_attempt(study.attempts, attempt_from(line));
  } else if (type == "alive") {
    AttemptRow* running = running_attempt(study.attempts, line.integer("trial", 0));
    if (!running) line.fail("trial", "is not under way", "remove the line");
    running->seconds = line.real("seconds");
    running->gpu_seconds = line.real("gpu_seconds");
  } else if (type == "options") {
    study.study.info.options = line.object("options").value();
  } else if (type == "release") {
    interrupt_running(study.attempts);
    study.study.status = parse_status(line.text("status"));
    study.study.ended_at = line.real("time");
    if (line.has("conclusion")) study.study.conclusion = line.value().at("conclusion");
  } else {
    line.fail("type", fmt::format("`{}` is not known", printable(type)),
              did_you_mean(type, {"study", "owner", "attempt", "alive", "options", "release"}));
  }
}

// Adds what a line says.
void apply_line(StudyFile& study, const std::string& text, const SourcePlace& place) {
  const json document = parse_json(text, place.file, place.line);
  try {
    apply(study, JsonReader(document, place.to_string()));
  } catch (const UserError& error) {
    if (std::string_view(error.what()).starts_with(place.file)) throw;
    throw bad_input(error.what(), "remove the line", place);  // a word that is not known
  }
}

// Figures of the row that follow from the attempts, and kLost where the owner is gone.
void add_up(StudyFile& study) {
  StudyRow& row = study.study;
  row.trials = row.failed = 0;
  row.gpu_seconds = 0;
  for (const AttemptRow& attempt : study.attempts) {
    row.gpu_seconds += attempt.gpu_seconds;
    if (attempt.state != AttemptState::kEnded) continue;
    ++row.trials;
    if (attempt.outcome != kMeasuredOutcome) ++row.failed;
  }
  row.status = status_now(row.status, row.info);
}

}  // namespace

std::string study_line(const StudyInfo& info) {
  return one_line({{"type", "study"},
                   {"study", info.id},
                   {"name", info.name},
                   {"created_at", info.created_at},
                   {"host", info.host},
                   {"pid", info.pid},
                   {"pid_started", info.pid_started},
                   {"space", info.space_yaml},
                   {"options", info.options},
                   {"versions", info.versions}});
}

std::string owner_line(const StudyInfo& owner) {
  return one_line({{"type", "owner"}, {"host", owner.host}, {"pid", owner.pid}, {"pid_started", owner.pid_started}});
}

std::string attempt_line(const AttemptRow& attempt) {
  return one_line({{"type", "attempt"},
                   {"trial", attempt.number},
                   {"attempt", attempt.attempt},
                   {"state", to_string(attempt.state)},
                   {"started_at", attempt.started_at},
                   {"seconds", attempt.seconds},
                   {"gpu_seconds", attempt.gpu_seconds},
                   {"purpose", attempt.purpose},
                   {"outcome", attempt.outcome},
                   {"throughput", attempt.throughput},
                   {"document", attempt.document}});
}

std::string alive_line(std::int64_t number, double seconds, double gpu_seconds) {
  return one_line({{"type", "alive"}, {"trial", number}, {"seconds", seconds}, {"gpu_seconds", gpu_seconds}});
}

std::string options_line(const json& options) { return one_line({{"type", "options"}, {"options", options}}); }

std::string release_line(RunStatus status, double time, const json& conclusion) {
  return one_line({{"type", "release"}, {"status", to_string(status)}, {"time", time}, {"conclusion", conclusion}});
}

StudyFile read_study_file(const std::filesystem::path& path) {
  StudyFile study;
  study.torn_end =
      read_lines(path, [&](const std::string& line, const SourcePlace& place) { apply_line(study, line, place); });
  if (study.study.info.id.empty()) throw bad_input("there is no study in it", "give a study's file", {path.string()});
  add_up(study);
  return study;
}

}  // namespace lockstep::telemetry
