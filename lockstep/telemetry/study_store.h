// Studies of the tuner and their trials, durable: what a study found so far survives any kill.
//
// Two stores with one interface: tables beside the runs in the SQLite store, and one JSON-lines file per study where
// SQLite is not compiled in. open_study_store() reads and continues both. A trial may take several attempts: one that a
// crash cut off stays in the store with the time it was charged, and the next begins anew.
//
// A study has one owner at a time, the process that created or took it. Every write is one transaction (one line), on
// disk before the call returns, and refused once somebody else owns the study. A StudyStore is used from one thread at
// a time; open several for several threads or processes. Reading never waits for a writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/telemetry/schema.h"

namespace lockstep::telemetry {

struct StudyInfo {
  std::string id;  // make_run_id()
  std::string name;
  double created_at = 0.0;
  std::string host;  // of the owner, as are the next two
  std::int64_t pid = 0;
  std::int64_t pid_started = 0;
  std::string space_yaml;
  nlohmann::json options = nlohmann::json::object();   // what is needed to go on with it
  nlohmann::json versions = nlohmann::json::object();  // lockstep, hardware, nccl, torch: strings, where known
};

// A study as listed. `status` is kLost when it claims to run and its process is gone.
struct StudyRow {
  StudyInfo info;
  RunStatus status = RunStatus::kRunning;
  double ended_at = 0.0;      // 0: has not
  nlohmann::json conclusion;  // null: none yet
  std::int64_t trials = 0;    // ended
  std::int64_t failed = 0;    // of those, not measured
  double gpu_seconds = 0.0;   // attempts that were cut off included
};

enum class AttemptState { kRunning, kEnded, kInterrupted };
const char* to_string(AttemptState state);  // "running", "ended", "interrupted"
AttemptState parse_attempt_state(std::string_view text);

// One attempt at one trial.
struct AttemptRow {
  std::int64_t number = 0;   // of the trial
  std::int64_t attempt = 0;  // from 0; only the last one can have ended
  AttemptState state = AttemptState::kRunning;
  double started_at = 0.0;
  double seconds = 0.0;      // charged; of one that has not ended: up to its last sign of life
  double gpu_seconds = 0.0;  // the same
  std::string purpose;
  std::string outcome;      // "" unless ended
  double throughput = 0.0;  // 0 unless ended and measured
  nlohmann::json document = nlohmann::json::object();
};

class StudyStore {
 public:
  virtual ~StudyStore() = default;

  // Newest first; only studies whose id begins with `beginning`.
  virtual std::vector<StudyRow> studies(std::size_t limit = 100, const std::string& beginning = {}) const = 0;
  // `id` may be "last" or the beginning of an id when only one study matches; UserError (bad input) when several do.
  std::optional<StudyRow> find(const std::string& id) const;
  // By trial, then attempt. An unknown study has none. Takes the full id, as do all below.
  virtual std::vector<AttemptRow> attempts(const std::string& study) const = 0;

  // A new study, owned by this process. Fills in id, created_at and the owner where they are not set; returns the id.
  virtual std::string create(StudyInfo info) = 0;
  // Makes this process the owner of an existing study: it runs again, and attempts that were under way become
  // interrupted ones. UserError (exit 75) while its owner lives, be it this very process; an owner on another host
  // cannot be checked and is passed over only with `take_over`.
  virtual void acquire(const std::string& study, bool take_over = false) = 0;
  // Ends the ownership: kDone with what was found, else kInterrupted or kFailed. Attempts that are under way become
  // interrupted. Null keeps the conclusion there is.
  virtual void release(const std::string& study, RunStatus status, const nlohmann::json& conclusion) = 0;

  // By the owner; UserError (exit 75) for anybody else. The attempt's number is chosen and returned.
  virtual std::int64_t begin_trial(const std::string& study, const AttemptRow& attempt) = 0;
  // The running attempt of that trial is still running.
  virtual void alive(const std::string& study, std::int64_t number, double seconds, double gpu_seconds) = 0;
  // All fields but `attempt` and `state` are taken.
  virtual void end_trial(const std::string& study, const AttemptRow& attempt) = 0;
  // A study that goes on with other options: more trials, a larger budget.
  virtual void set_options(const std::string& study, const nlohmann::json& options) = 0;
};

// Tables and JSON lines under `home` as one store; a new study goes into the tables where this build has SQLite.
// `create` false: UserError (environment) when there is no study yet.
std::unique_ptr<StudyStore> open_study_store(const std::filesystem::path& home, bool create = true);

// Tables in runs.db; nullptr in a build without SQLite.
std::unique_ptr<StudyStore> make_sqlite_study_store(const std::filesystem::path& file, bool create = true);
// FOLDER/<id>.jsonl, made when the first study is.
std::unique_ptr<StudyStore> make_json_lines_study_store(const std::filesystem::path& folder);

}  // namespace lockstep::telemetry
