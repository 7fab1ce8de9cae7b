// A thin, checked face on SQLite's C interface: connections and statements that free themselves, errors that throw.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep::telemetry {

// Not thread-safe; owned by one store.
class Database {
 public:
  // Throws UserError: environment, or bad input when the file is not SQLite (found out at the first statement).
  Database(std::filesystem::path path, bool create, double busy_timeout_seconds);

  void execute(const char* sql);
  std::int64_t query_integer(const char* sql);
  std::string query_text(const char* sql);
  std::int64_t last_insert_id() const { return sqlite3_last_insert_rowid(handle_.get()); }

  sqlite3* get() const { return handle_.get(); }
  const std::filesystem::path& path() const { return path_; }
  // Throws what a result code means for the user, unless it is SQLITE_OK, SQLITE_ROW or SQLITE_DONE.
  void check(int code, const char* call) const;

 private:
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };
  std::filesystem::path path_;
  std::unique_ptr<sqlite3, Close> handle_;
};

// A prepared statement. Parameters and columns count from 0.
class Statement {
 public:
  Statement(const Database& database, const std::string& sql);

  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, int value) { return bind(index, static_cast<std::int64_t>(value)); }
  Statement& bind(int index, double value);  // NaN becomes NULL: SQLite has none
  Statement& bind(int index, std::string_view value);
  Statement& bind_bytes(int index, std::string_view value);

  // True while there is a row.
  bool step();
  // For statements without rows: runs and resets.
  void run();
  void reset();
  // At the end of a scope: a statement that is kept must not keep a snapshot open.
  class Reset {
   public:
    explicit Reset(Statement& statement) : statement_(statement) {}
    ~Reset() { statement_.reset(); }
    Reset(const Reset&) = delete;
    Reset& operator=(const Reset&) = delete;

   private:
    Statement& statement_;
  };

  std::int64_t integer(int column) const { return sqlite3_column_int64(handle_.get(), column); }
  double real(int column) const;  // NULL reads as NaN
  std::string text(int column) const;
  std::string_view view(int column) const;  // bytes; valid until the next step() or reset()

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const { sqlite3_finalize(handle); }
  };
  const Database& database_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
};

// BEGIN ... commit(), or rolled back. Writers take the write lock at once: two readers that both want to write would
// wait for each other, which no busy timeout can resolve.
class Transaction {
 public:
  enum class Kind { kRead, kWrite };
  explicit Transaction(Database& database, Kind kind = Kind::kWrite);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

// Makes or brings forward the tables (migrations.cpp). Throws UserError (bad input) when the file is another program's
// or a newer version's.
void migrate(Database& database);

// The run store's file, migrated and in WAL mode (run_store.h: make_sqlite_run_store has the contract).
Database open_store(const std::filesystem::path& path, bool create, double busy_timeout_seconds);

// Text that we wrote, but a file can be edited: an unreadable value does not hide the row.
nlohmann::json parse_or_null(const std::string& text);

}  // namespace lockstep::telemetry
