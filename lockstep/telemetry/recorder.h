// Recording a run without ever holding up a step.
//
// A Recorder takes records on any thread and returns at once: they go into a bounded queue that one background thread
// writes in batches (a transaction each in SQLite). When the store cannot keep up, metrics are dropped and counted;
// events, plans and the run's begin and end are never dropped, and once the store takes records again an event
// `records_lost` says which steps are missing. Several processes (ranks) may record into the same
// SQLite file; a process that is killed leaves a sound file that lacks at most its queued records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/telemetry/schema.h"

namespace lockstep::telemetry {

struct RecorderStats {
  std::uint64_t written = 0;  // records the store has
  std::uint64_t dropped = 0;  // batches of metrics or spans refused because the queue was full
  std::uint64_t queued = 0;
  std::uint64_t retries = 0;  // batches that had to be tried again (a busy database, a full disk)
  std::string last_error;     // of the last failed try; "" when none failed
};

// Thread-safe. None of the recording calls blocks, fails or throws because of the store.
class Recorder {
 public:
  virtual ~Recorder() = default;

  // By the process that owns the run (the launcher, or rank 0 where there is none), once and first. Ranks that only add
  // to a run need not call it: their records may even arrive before it.
  virtual void begin_run(const RunInfo& info) = 0;
  virtual void plan(nlohmann::json plan) = 0;
  virtual void metrics(int rank, std::int64_t step, std::vector<Metric> metrics) = 0;
  // Of one rank in one step. Dropped like metrics when the store cannot keep up.
  virtual void spans(SpanBatch batch) = 0;
  virtual void event(Event event) = 0;  // time == 0: now
  // By the owner, once. Does not wait: call flush().
  virtual void end_run(RunStatus status, std::string exit_reason, nlohmann::json summary) = 0;

  // Waits until everything recorded so far is in the store; false when the time ran out.
  virtual bool flush(double timeout_seconds) = 0;
  virtual RecorderStats stats() const = 0;
};

struct QueueOptions {
  std::size_t capacity = 16384;        // records; beyond it metrics are dropped
  double batch_seconds = 0.2;          // how long the background thread gathers before it writes
  double close_timeout_seconds = 5.0;  // what the destructor gives the last batch
  // By the destructor, when records are lost for good: how many, and the last error. May be empty.
  std::function<void(std::uint64_t lost, const std::string& why)> on_lost = {};
};

// Where batches go; called from one thread. Takes all of the batch or throws, and is then called again with the same
// batch until the recorder closes. It must return within about a second, whatever the store is doing.
using BatchWriter = std::function<void(std::span<const Record> batch)>;

// The queue and thread in front of any store.
std::unique_ptr<Recorder> make_queued_recorder(BatchWriter write, QueueOptions options = {});

// What is not written when it closes is one warning on stderr, unless `options` say otherwise.
// kStore: tables in home/runs.db, and JSON lines (with a warning on stderr) once the tables could not be written for a
// few seconds, or at once where they never can or SQLite is not compiled in.
// kLines: JSON lines from the start, for a rank on another node: SQLite's WAL is for one host.
enum class RecordAs { kStore, kLines };

// The recorder of `rank` for `home` (home_directory()); -1: the process that owns the run but is none of its ranks.
std::unique_ptr<Recorder> open_recorder(const std::filesystem::path& home, const std::string& run_id, int rank,
                                        RecordAs record_as = RecordAs::kStore, QueueOptions options = {});

// $LOCKSTEP_HOME, else $XDG_DATA_HOME/lockstep, else ~/.local/share/lockstep. Not created.
std::filesystem::path home_directory();
std::filesystem::path store_file(const std::filesystem::path& home);                          // home/runs.db
std::filesystem::path run_folder(const std::filesystem::path& home, const std::string& run);  // home/runs/<id>

}  // namespace lockstep::telemetry
