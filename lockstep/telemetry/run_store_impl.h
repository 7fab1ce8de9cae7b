// The inside of RunStore, shared by its writing and its reading half.
#pragma once

#include <map>
#include <string>

#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/sqlite.h"

namespace lockstep::telemetry {

struct RunStore::Impl {
  explicit Impl(Database opened);

  // Numbers of names and runs, made when they are new. Cached; forget() after a rollback, which may have undone them.
  std::int64_t name_number(const std::string& name);
  std::int64_t run_number(const std::string& id);
  void forget();

  // One record of run `id`, inside a transaction.
  void insert(const std::string& id, const Record& record);
  void insert(std::int64_t run, const RunInfo& info);
  void insert(std::int64_t run, const PlanRecord& record);
  void insert(std::int64_t run, const MetricBatch& batch);
  void insert(std::int64_t run, const Span& span);
  void insert(std::int64_t run, const Event& event);
  void insert(std::int64_t run, const RunEnd& end);

  Database database;
  // The two that run per record are kept prepared; the others run a few times per run.
  Statement insert_metric;
  Statement insert_event;
  std::map<std::string, std::int64_t> names;
  std::map<std::string, std::int64_t> runs;
};

}  // namespace lockstep::telemetry
