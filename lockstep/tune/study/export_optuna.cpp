#include "lockstep/tune/study/export_optuna.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/sqlite.h"

namespace lockstep::tune {
namespace {

using nlohmann::json;
using telemetry::Database;
using telemetry::Statement;

// Optuna's tables at revision v3.2.0.a.
constexpr const char* kTables = R"sql(
  CREATE TABLE studies (study_id INTEGER NOT NULL PRIMARY KEY, study_name VARCHAR(512) NOT NULL);
  CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
  CREATE TABLE version_info (
    version_info_id INTEGER NOT NULL PRIMARY KEY CHECK (version_info_id = 1), schema_version INTEGER,
    library_version VARCHAR(256));
  CREATE TABLE study_directions (
    study_direction_id INTEGER NOT NULL PRIMARY KEY, direction VARCHAR(8) NOT NULL,
    study_id INTEGER NOT NULL REFERENCES studies (study_id), objective INTEGER NOT NULL, UNIQUE (study_id, objective));
  CREATE TABLE trials (
    trial_id INTEGER NOT NULL PRIMARY KEY, number INTEGER, study_id INTEGER REFERENCES studies (study_id),
    state VARCHAR(8) NOT NULL, datetime_start DATETIME, datetime_complete DATETIME);
  CREATE INDEX ix_trials_study_id ON trials (study_id);
  CREATE TABLE trial_params (
    param_id INTEGER NOT NULL PRIMARY KEY, trial_id INTEGER REFERENCES trials (trial_id), param_name VARCHAR(512),
    param_value FLOAT, distribution_json TEXT, UNIQUE (trial_id, param_name));
  CREATE TABLE trial_values (
    trial_value_id INTEGER NOT NULL PRIMARY KEY, trial_id INTEGER NOT NULL REFERENCES trials (trial_id),
    objective INTEGER NOT NULL, value FLOAT, value_type VARCHAR(7) NOT NULL, UNIQUE (trial_id, objective));
  CREATE TABLE trial_intermediate_values (
    trial_intermediate_value_id INTEGER NOT NULL PRIMARY KEY,
    trial_id INTEGER NOT NULL REFERENCES trials (trial_id), step INTEGER NOT NULL, intermediate_value FLOAT,
    intermediate_value_type VARCHAR(7) NOT NULL, UNIQUE (trial_id, step));
  CREATE TABLE trial_heartbeats (
    trial_heartbeat_id INTEGER NOT NULL PRIMARY KEY, trial_id INTEGER NOT NULL UNIQUE REFERENCES trials (trial_id),
    heartbeat DATETIME NOT NULL);
  CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY);
  INSERT INTO alembic_version VALUES ('v3.2.0.a');
  INSERT INTO version_info VALUES (1, 12, '5.0.0');
)sql";

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// Optuna writes datetime.now(): local time without a zone.
std::string local_time(double unix_time) {
  const auto whole = static_cast<std::time_t>(std::floor(unix_time));
  std::tm local{};
  ::localtime_r(&whole, &local);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday,
                     local.tm_hour, local.tm_min, local.tm_sec,
                     static_cast<int>((unix_time - static_cast<double>(whole)) * 1e6));
}

json distribution(const Knob& knob) {
  switch (knob.kind) {
    case KnobKind::kChoice: {
      json choices = json::array();
      for (const Value& choice : knob.choices) choices.push_back(to_json(choice));
      return {{"name", "CategoricalDistribution"}, {"attributes", {{"choices", choices}}}};
    }
    case KnobKind::kInteger:
      return {{"name", "IntDistribution"},
              {"attributes",
               {{"log", knob.log},
                {"step", 1},
                {"low", static_cast<std::int64_t>(knob.low)},
                {"high", static_cast<std::int64_t>(knob.high)}}}};
    case KnobKind::kReal:
      break;
  }
  return {{"name", "FloatDistribution"},
          {"attributes", {{"log", knob.log}, {"step", nullptr}, {"low", knob.low}, {"high", knob.high}}}};
}

// The index of a choice, the number itself otherwise.
double internal_value(const Knob& knob, const Value& value) {
  if (knob.kind == KnobKind::kChoice) {
    for (std::size_t i = 0; i < knob.choices.size(); ++i)
      if (knob.choices[i] == value) return static_cast<double>(i);
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  throw bad_input(fmt::format("`{}` has a value that is not one of its choices", knob.name),
                  "the study's file was edited");
}

class Writer {
 public:
  Writer() : database_(":memory:", true, 1.0) {
    database_.execute(kTables);
    for (const char* kind : {"user", "system"}) {
      make_attributes("study", "studies", kind);
      make_attributes("trial", "trials", kind);
    }
  }

  void study(const StoredStudy& study, const std::string& name) {
    Statement(database_, "INSERT INTO studies VALUES (1, ?)").bind(0, name).run();
    objectives_ = study.setup.strategy.objectives;
    if (objectives_.empty()) objectives_.emplace_back();
    usd_per_device_hour_ = study.setup.strategy.usd_per_device_hour;
    for (std::size_t i = 0; i < objectives_.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      Statement(database_, "INSERT INTO study_directions VALUES (?, ?, 1, ?)")
          .bind(0, number + 1)
          .bind(1, objectives_[i].largest ? "MAXIMIZE" : "MINIMIZE")
          .bind(2, number)
          .run();
    }
    attribute("study", 1, "lockstep:study", study.id());
    attribute("study", 1, "lockstep:space", study.space.to_yaml());
    attribute("study", 1, "lockstep:unit", study.setup.unit);
    attribute("study", 1, "lockstep:versions", study.setup.versions);
    attribute("study", 1, "lockstep:options", to_json(study.setup));
    if (!study.row.conclusion.is_null()) attribute("study", 1, "lockstep:conclusion", study.row.conclusion);
    for (const Trial& trial : study.trials) this->trial(trial, study.space);
  }

  std::string bytes() const {
    sqlite3_int64 size = 0;
    const std::unique_ptr<unsigned char, void (*)(void*)> data(sqlite3_serialize(database_.get(), "main", &size, 0),
                                                               sqlite3_free);
    if (!data) throw environment_error("there is not enough memory for the export", "close other programs");
    return {reinterpret_cast<const char*>(data.get()), static_cast<std::size_t>(size)};
  }

 private:
  void make_attributes(const char* owner, const char* owners, const char* kind) {
    database_.execute(fmt::format("CREATE TABLE {0}_{2}_attributes ({0}_{2}_attribute_id INTEGER NOT NULL PRIMARY KEY, "
                                  "{0}_id INTEGER REFERENCES {1} ({0}_id), \"key\" VARCHAR(512), value_json TEXT, "
                                  "UNIQUE ({0}_id, \"key\"))",
                                  owner, owners, kind)
                          .c_str());
  }

  void attribute(const char* of, std::int64_t id, const std::string& key, const json& value) {
    Statement(database_,
              fmt::format("INSERT INTO {0}_user_attributes ({0}_id, \"key\", value_json) VALUES (?,?,?)", of))
        .bind(0, id)
        .bind(1, key)
        .bind(2, dump(value))
        .run();
  }

  void trial(const Trial& trial, const Space& space) {
    Statement(database_,
              "INSERT INTO trials (number, study_id, state, datetime_start, datetime_complete) VALUES (?,1,?,?,?)")
        .bind(0, next_number_++)  // Optuna wants them without gaps
        .bind(1, state_of(trial))
        .bind(2, local_time(trial.started_at))
        .bind(3, local_time(trial.started_at + trial.seconds))
        .run();
    const std::int64_t id = database_.last_insert_id();
    parameters(id, trial.config, space);
    if (std::string_view(state_of(trial)) == "COMPLETE") values(id, trial);
    if (objectives_.size() == 1) samples(id, trial.samples);  // Optuna has none where there are several objectives
    attributes(id, trial);
  }

  // One that was stopped early is what Optuna calls pruned: samples, and no final value.
  const char* state_of(const Trial& trial) const {
    for (const Objective& objective : objectives_)
      if (!value_of(objective, trial, usd_per_device_hour_)) return "FAIL";
    return trial.stopped_early && objectives_.size() == 1 ? "PRUNED" : "COMPLETE";
  }

  void values(std::int64_t id, const Trial& trial) {
    Statement insert(database_,
                     "INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (?,?,?,'FINITE')");
    for (std::size_t i = 0; i < objectives_.size(); ++i)
      insert.bind(0, id)
          .bind(1, static_cast<std::int64_t>(i))
          .bind(2, *value_of(objectives_[i], trial, usd_per_device_hour_))
          .run();
  }

  void parameters(std::int64_t id, const Config& config, const Space& space) {
    Statement insert(
        database_, "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) VALUES (?,?,?,?)");
    for (std::size_t i = 0; i < space.size(); ++i) {
      const Knob& knob = space.knobs()[i];
      if (!is_active(config.values[i])) continue;
      insert.bind(0, id)
          .bind(1, knob.name)
          .bind(2, internal_value(knob, config.values[i]))
          .bind(3, dump(distribution(knob)))
          .run();
    }
  }

  void samples(std::int64_t id, const std::vector<double>& samples) {
    Statement insert(database_,
                     "INSERT INTO trial_intermediate_values (trial_id, step, intermediate_value, "
                     "intermediate_value_type) VALUES (?,?,?,'FINITE')");
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!std::isfinite(samples[i])) continue;
      insert.bind(0, id).bind(1, static_cast<std::int64_t>(i)).bind(2, samples[i]).run();
    }
  }

  void attributes(std::int64_t id, const Trial& trial) {
    attribute("trial", id, "trial", trial.number);
    attribute("trial", id, "purpose", to_string(trial.purpose));
    attribute("trial", id, "outcome", to_string(trial.outcome));
    attribute("trial", id, "seconds", trial.seconds);
    attribute("trial", id, "gpu_seconds", trial.gpu_seconds);
    attribute("trial", id, "relative_error", trial.relative_error);
    attribute("trial", id, "stopped_early", trial.stopped_early);
    if (!trial.set_back_knob.empty()) attribute("trial", id, "set_back", trial.set_back_knob);
    if (!trial.message.empty()) attribute("trial", id, "message", trial.message);
  }

  Database database_;
  std::vector<Objective> objectives_;
  double usd_per_device_hour_ = 0;
  std::int64_t next_number_ = 0;
};

}  // namespace

void export_optuna(const StoredStudy& study, const std::filesystem::path& file, const std::string& study_name) {
  if (std::filesystem::exists(file))
    throw bad_input("the file exists already", "give another name or remove it", {printable_path(file)});
  // Made in memory and written at once, so that a partial file cannot be mistaken for a complete one.
  Writer writer;
  writer.study(study, study_name.empty() ? study.id() : study_name);
  write_file_atomically(file, writer.bytes());
}

}  // namespace lockstep::tune
