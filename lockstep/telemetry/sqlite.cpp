#include "lockstep/telemetry/sqlite.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::telemetry {
namespace {

// WAL lets readers and the writer work at the same time, and a killed process leaves nothing to repair: what it had not
// committed is simply not there. Changing to WAL needs the file for itself for a moment, which the busy timeout does
// not cover, so it is tried until the time is up.
void use_wal(Database& database, double timeout_seconds) {
  const Deadline deadline = Deadline::after(timeout_seconds);
  while (true) {
    try {
      if (database.query_text("PRAGMA journal_mode") != "wal") database.query_text("PRAGMA journal_mode = WAL");
      break;
    } catch (const UserError& error) {
      if (error.code() == ExitCode::kUsage || deadline.expired()) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  // In WAL mode NORMAL survives any crash of a process; a power cut may cost the last transactions, never the file.
  database.execute("PRAGMA synchronous = NORMAL");
}

}  // namespace

Database::Database(std::filesystem::path path, bool create, double busy_timeout_seconds) : path_(std::move(path)) {
  const int flags = SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0);
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(path_.c_str(), &handle, flags, nullptr);
  handle_.reset(handle);
  check(code, "open");
  check(sqlite3_extended_result_codes(handle, 1), "extended_result_codes");
  check(sqlite3_busy_timeout(handle, static_cast<int>(busy_timeout_seconds * 1000)), "busy_timeout");
}

void Database::check(int code, const char* call) const {
  if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
  const SourcePlace place{path_.string()};
  const std::string reason = handle_ ? sqlite3_errmsg(handle_.get()) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_NOTADB:
      throw bad_input("this is not a run store (not a SQLite file)",
                      "set LOCKSTEP_HOME to another folder or move it away", place);
    case SQLITE_CORRUPT:
      throw bad_input("the run store is damaged: " + printable(reason, 200),
                      "move it away; a new one is made by the next run", place);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw environment_error("the run store is locked by another process", "try again when it is done", place);
    case SQLITE_FULL:
      throw environment_error("no space left for the run store", "free space or set LOCKSTEP_HOME to another disk",
                              place);
    case SQLITE_CANTOPEN:
      throw environment_error("the run store cannot be opened: " + printable(reason, 200),
                              "run something first, or check LOCKSTEP_HOME", place);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      throw environment_error("the run store cannot be written: " + printable(reason, 200),
                              "check its permissions or set LOCKSTEP_HOME", place);
    default:
      throw environment_error(std::string("SQLite's ") + call + " failed: " + printable(reason, 200),
                              "check the disk and the kernel log", place);
  }
}

void Database::execute(const char* sql) { check(sqlite3_exec(get(), sql, nullptr, nullptr, nullptr), "exec"); }

std::int64_t Database::query_integer(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::query_text(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.text(0) : std::string();
}

Statement::Statement(const Database& database, const std::string& sql) : database_(database) {
  sqlite3_stmt* handle = nullptr;
  const int code = sqlite3_prepare_v2(database.get(), sql.c_str(), -1, &handle, nullptr);
  handle_.reset(handle);
  database.check(code, "prepare");
}

Statement& Statement::bind(int index, std::int64_t value) {
  database_.check(sqlite3_bind_int64(handle_.get(), index + 1, value), "bind");
  return *this;
}

Statement& Statement::bind(int index, double value) {
  database_.check(sqlite3_bind_double(handle_.get(), index + 1, value), "bind");
  return *this;
}

Statement& Statement::bind(int index, std::string_view value) {
  const char* data = value.data() ? value.data() : "";
  database_.check(sqlite3_bind_text64(handle_.get(), index + 1, data, value.size(), SQLITE_TRANSIENT, SQLITE_UTF8),
                  "bind");
  return *this;
}

Statement& Statement::bind_bytes(int index, std::string_view value) {
  const char* data = value.data() ? value.data() : "";
  database_.check(sqlite3_bind_blob64(handle_.get(), index + 1, data, value.size(), SQLITE_TRANSIENT), "bind");
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(handle_.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) {
    sqlite3_reset(handle_.get());
    database_.check(code, "step");
  }
  return code == SQLITE_ROW;
}

void Statement::run() {
  step();
  reset();
}

void Statement::reset() { sqlite3_reset(handle_.get()); }

double Statement::real(int column) const {
  if (sqlite3_column_type(handle_.get(), column) == SQLITE_NULL) return std::numeric_limits<double>::quiet_NaN();
  return sqlite3_column_double(handle_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* data = sqlite3_column_text(handle_.get(), column);
  if (!data) return {};
  return {reinterpret_cast<const char*>(data), static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

std::string_view Statement::view(int column) const {
  const void* data = sqlite3_column_blob(handle_.get(), column);
  if (!data) return {};
  return {static_cast<const char*>(data), static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

Transaction::Transaction(Database& database, Kind kind) : database_(database) {
  database.execute(kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN");
}

Transaction::~Transaction() {
  if (open_) sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

Database open_store(const std::filesystem::path& path, bool create, double busy_timeout_seconds) {
  if (create) {
    if (path.has_parent_path()) make_folders(path.parent_path());
  } else if (!std::filesystem::exists(path)) {
    throw environment_error("there is no run store yet", "run something first, or check LOCKSTEP_HOME",
                            {path.string()});
  }
  Database database(path, create, busy_timeout_seconds);
  // Looked at before anything is changed: WAL mode is written into the file.
  migrate(database);
  use_wal(database, busy_timeout_seconds);
  return database;
}

nlohmann::json parse_or_null(const std::string& text) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json() : value;
}

}  // namespace lockstep::telemetry
