// Studies in the SQLite store, beside the runs.
#include <fmt/format.h>

#include <map>
#include <random>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/sqlite.h"
#include "lockstep/telemetry/study_rules.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

constexpr double kBusySeconds = 10.0;

constexpr const char* kStudyColumns =
    "SELECT id, name, created_at, ended_at, status, host, pid, pid_started, space_yaml, options, versions, conclusion, "
    "(SELECT count(*) FROM trials WHERE study = number_of AND state = 'ended'), "
    "(SELECT count(*) FROM trials WHERE study = number_of AND state = 'ended' AND outcome <> 'measured'), "
    "(SELECT coalesce(sum(gpu_seconds), 0) FROM trials WHERE study = number_of) "
    "FROM (SELECT number AS number_of, * FROM studies) ";

StudyRow study_from(const Statement& row) {
  StudyRow study;
  study.info.id = row.text(0);
  study.info.name = row.text(1);
  study.info.created_at = row.real(2);
  study.ended_at = row.real(3);
  study.info.host = row.text(5);
  study.info.pid = row.integer(6);
  study.info.pid_started = row.integer(7);
  study.info.space_yaml = row.text(8);
  study.info.options = parse_or_null(row.text(9));
  study.info.versions = parse_or_null(row.text(10));
  study.conclusion = parse_or_null(row.text(11));
  study.trials = row.integer(12);
  study.failed = row.integer(13);
  study.gpu_seconds = row.real(14);
  study.status = status_now(parse_status(row.text(4)), study.info);
  return study;
}

AttemptRow attempt_from(const Statement& row) {
  return {.number = row.integer(0),
          .attempt = row.integer(1),
          .state = parse_attempt_state(row.text(2)),
          .started_at = row.real(3),
          .seconds = row.real(4),
          .gpu_seconds = row.real(5),
          .purpose = row.text(6),
          .outcome = row.text(7),
          .throughput = row.real(8),
          .document = parse_or_null(row.text(9))};
}

// Tells this ownership from any other, of this process or another.
std::string new_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
}

class StudyTables : public StudyStore {
 public:
  StudyTables(const std::filesystem::path& file, bool create) : database_(open_store(file, create, kBusySeconds)) {
    // Every trial is on disk before the next begins, also when the power fails.
    database_.execute("PRAGMA synchronous = FULL");
  }

  std::vector<StudyRow> studies(std::size_t limit, const std::string& beginning) const override {
    Statement rows(database_, kStudyColumns + std::string("WHERE substr(id, 1, length(?1)) = ?1 "
                                                          "ORDER BY created_at DESC, number_of DESC LIMIT ?2"));
    rows.bind(0, beginning).bind(1, static_cast<std::int64_t>(limit));
    std::vector<StudyRow> result;
    while (rows.step()) result.push_back(study_from(rows));
    return result;
  }

  std::vector<AttemptRow> attempts(const std::string& study) const override {
    Statement rows(database_,
                   "SELECT number, attempt, state, started_at, seconds, gpu_seconds, purpose, outcome, throughput, "
                   "document FROM trials WHERE study = (SELECT number FROM studies WHERE id = ?) "
                   "ORDER BY number, attempt");
    rows.bind(0, study);
    std::vector<AttemptRow> result;
    while (rows.step()) result.push_back(attempt_from(rows));
    return result;
  }

  std::string create(StudyInfo info) override {
    info = owned_by_this_process(std::move(info));
    const std::string token = new_token();
    Transaction transaction(database_);
    if (number_of(info.id) != 0) throw study_exists(info.id);
    insert({.info = info}, token);
    transaction.commit();
    tokens_[info.id] = token;
    return info.id;
  }

  void acquire(const std::string& study, bool take_over) override {
    const std::string token = new_token();
    Transaction transaction(database_);
    const std::int64_t number = number_of(study);
    if (number == 0) throw no_such_study(study);
    check_may_acquire(*find(study), take_over);
    const StudyInfo me = owned_by_this_process({.id = study});
    Statement(database_,
              "UPDATE studies SET status = 'running', ended_at = 0, host = ?, pid = ?, pid_started = ?, owner = ? "
              "WHERE number = ?")
        .bind(0, me.host)
        .bind(1, me.pid)
        .bind(2, me.pid_started)
        .bind(3, token)
        .bind(4, number)
        .run();
    interrupt_running(number);
    transaction.commit();
    tokens_[study] = token;
  }

  void release(const std::string& study, RunStatus status, const json& conclusion) override {
    Transaction transaction(database_);
    const std::int64_t number = owned_number(study);
    Statement(database_,
              "UPDATE studies SET status = ?, ended_at = ?, owner = '', "
              "conclusion = CASE WHEN ?3 = 'null' THEN conclusion ELSE ?3 END WHERE number = ?4")
        .bind(0, to_string(status))
        .bind(1, unix_seconds())
        .bind(2, one_line(conclusion))
        .bind(3, number)
        .run();
    interrupt_running(number);
    transaction.commit();
    tokens_.erase(study);
  }

  std::int64_t begin_trial(const std::string& study, const AttemptRow& attempt) override {
    Transaction transaction(database_);
    const std::int64_t number = owned_number(study);
    interrupt_running(number, attempt.number);
    Statement next(database_, "SELECT coalesce(max(attempt) + 1, 0) FROM trials WHERE study = ? AND number = ?");
    next.bind(0, number).bind(1, attempt.number).step();
    AttemptRow row = attempt;
    row.attempt = next.integer(0);
    row.state = AttemptState::kRunning;
    next.reset();
    insert(number, row);
    transaction.commit();
    return row.attempt;
  }

  void alive(const std::string& study, std::int64_t number, double seconds, double gpu_seconds) override {
    Transaction transaction(database_);
    Statement(database_,
              "UPDATE trials SET seconds = ?, gpu_seconds = ? WHERE study = ? AND number = ? AND attempt = ?")
        .bind(0, seconds)
        .bind(1, gpu_seconds)
        .bind(2, owned_number(study))
        .bind(3, number)
        .bind(4, running_attempt(study, number))
        .run();
    transaction.commit();
  }

  void end_trial(const std::string& study, const AttemptRow& attempt) override {
    Transaction transaction(database_);
    const std::int64_t number = owned_number(study);
    AttemptRow row = attempt;
    row.attempt = running_attempt(study, attempt.number);
    row.state = AttemptState::kEnded;
    insert(number, row);
    transaction.commit();
  }

  void set_options(const std::string& study, const json& options) override {
    Transaction transaction(database_);
    Statement(database_, "UPDATE studies SET options = ? WHERE number = ?")
        .bind(0, one_line(options))
        .bind(1, owned_number(study))
        .run();
    transaction.commit();
  }

 private:
  std::int64_t number_of(const std::string& study) const {
    Statement row(database_, "SELECT number FROM studies WHERE id = ?");
    row.bind(0, study);
    return row.step() ? row.integer(0) : 0;
  }

  // Inside a transaction, so that nobody can take the study between this check and the write.
  std::int64_t owned_number(const std::string& study) const {
    const auto token = tokens_.find(study);
    Statement row(database_, "SELECT number FROM studies WHERE id = ? AND owner = ?");
    if (token == tokens_.end() || !row.bind(0, study).bind(1, token->second).step()) throw not_the_owner(study);
    return row.integer(0);
  }

  std::int64_t running_attempt(const std::string& study, std::int64_t number) const {
    Statement row(database_, "SELECT attempt FROM trials WHERE study = ? AND number = ? AND state = 'running'");
    if (!row.bind(0, owned_number(study)).bind(1, number).step()) throw no_running_attempt(study, number);
    return row.integer(0);
  }

  void interrupt_running(std::int64_t study, std::int64_t trial = -1) {
    Statement(database_,
              "UPDATE trials SET state = 'interrupted' WHERE study = ?1 AND state = 'running' AND ?2 IN (-1, number)")
        .bind(0, study)
        .bind(1, trial)
        .run();
  }

  std::int64_t insert(const StudyRow& study, const std::string& token) {
    const StudyInfo& info = study.info;
    const RunStatus status = study.status == RunStatus::kLost ? RunStatus::kRunning : study.status;  // never written
    Statement(database_,
              "INSERT INTO studies (id, name, created_at, ended_at, status, host, pid, pid_started, owner, space_yaml, "
              "options, versions, conclusion) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)")
        .bind(0, info.id)
        .bind(1, info.name)
        .bind(2, info.created_at)
        .bind(3, study.ended_at)
        .bind(4, to_string(status))
        .bind(5, info.host)
        .bind(6, info.pid)
        .bind(7, info.pid_started)
        .bind(8, token)
        .bind(9, info.space_yaml)
        .bind(10, one_line(info.options))
        .bind(11, one_line(info.versions))
        .bind(12, one_line(study.conclusion))
        .run();
    return database_.last_insert_id();
  }

  void insert(std::int64_t study, const AttemptRow& attempt) {
    Statement(
        database_,
        "INSERT OR REPLACE INTO trials (study, number, attempt, state, started_at, seconds, gpu_seconds, purpose, "
        "outcome, throughput, document) VALUES (?,?,?,?,?,?,?,?,?,?,?)")
        .bind(0, study)
        .bind(1, attempt.number)
        .bind(2, attempt.attempt)
        .bind(3, to_string(attempt.state))
        .bind(4, attempt.started_at)
        .bind(5, attempt.seconds)
        .bind(6, attempt.gpu_seconds)
        .bind(7, attempt.purpose)
        .bind(8, attempt.outcome)
        .bind(9, attempt.throughput)
        .bind(10, one_line(attempt.document))
        .run();
  }

  Database database_;
  std::map<std::string, std::string> tokens_;  // of the studies this process owns
};

}  // namespace

std::unique_ptr<StudyStore> make_sqlite_study_store(const std::filesystem::path& file, bool create) {
  return std::make_unique<StudyTables>(file, create);
}

}  // namespace lockstep::telemetry
