#include "lockstep/telemetry/recorder.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {
namespace {

// Large enough to make transactions cheap, small enough that one never takes long.
constexpr std::size_t kBatchRecords = 4096;
constexpr double kFirstBackoffSeconds = 0.02;
constexpr double kLongestBackoffSeconds = 1.0;
// How long tables may refuse to be written before JSON lines take over. Less than what flush() and the destructor wait.
constexpr double kPatienceSeconds = 3.0;
// Short, because the queue tries again by itself and must be able to close in time.
constexpr double kBusySeconds = 0.5;

bool may_be_dropped(const Record& record) {
  return std::holds_alternative<MetricBatch>(record) || std::holds_alternative<SpanBatch>(record);
}

class QueuedRecorder : public Recorder {
 public:
  QueuedRecorder(BatchWriter write, QueueOptions options) : write_(std::move(write)), options_(std::move(options)) {
    // Signals belong to the threads of the run, not to this one.
    sigset_t all, former;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &former);
    thread_ = std::thread([this] { work(); });
    ::pthread_sigmask(SIG_SETMASK, &former, nullptr);
  }

  ~QueuedRecorder() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      close_deadline_ = Deadline::after(options_.close_timeout_seconds);
    }
    wake_.notify_all();
    thread_.join();
    const std::uint64_t lost = accepted_ - stats_.written + stats_.dropped;
    if (lost > 0 && options_.on_lost) options_.on_lost(lost, stats_.last_error);
  }

  void begin_run(const RunInfo& info) override { push(info); }
  void plan(nlohmann::json plan) override { push(PlanRecord{std::move(plan)}); }
  void metrics(int rank, std::int64_t step, std::vector<Metric> metrics) override {
    push(MetricBatch{rank, step, unix_seconds(), std::move(metrics)});
  }
  void spans(SpanBatch batch) override { push(std::move(batch)); }
  void event(Event event) override {
    if (event.time == 0.0) event.time = unix_seconds();
    push(std::move(event));
  }
  void end_run(RunStatus status, std::string exit_reason, nlohmann::json summary) override {
    push(RunEnd{unix_seconds(), status, std::move(exit_reason), std::move(summary)});
  }

  bool flush(double timeout_seconds) override {
    const Deadline deadline = Deadline::after(timeout_seconds);
    std::unique_lock lock(mutex_);
    const std::uint64_t target = accepted_;
    ++flushes_;
    wake_.notify_all();
    while (stats_.written < target && !deadline.expired()) {
      written_.wait_for(lock, std::chrono::milliseconds(std::max(1, deadline.remaining_milliseconds())));
    }
    --flushes_;
    return stats_.written >= target;
  }

  RecorderStats stats() const override {
    const std::lock_guard lock(mutex_);
    RecorderStats stats = stats_;
    stats.queued = accepted_ - stats_.written;
    return stats;
  }

 private:
  void push(Record record) {
    {
      const std::lock_guard lock(mutex_);
      if (may_be_dropped(record) && accepted_ - stats_.written >= options_.capacity) {
        ++stats_.dropped;
        missing_.add(record);
        return;
      }
      queue_.push_back(std::move(record));
      ++accepted_;
      // The worker gathers records for a while anyway; it is woken only when it sleeps on an empty queue.
      if (queue_.size() > 1) return;
    }
    wake_.notify_one();
  }

  void pause(std::unique_lock<std::mutex>& lock, double seconds, bool even_when_flushing) {
    const Deadline deadline = Deadline::after(seconds);
    while (!deadline.expired() && !closing_ && (even_when_flushing || flushes_ == 0)) {
      wake_.wait_for(lock, std::chrono::milliseconds(std::max(1, deadline.remaining_milliseconds())));
    }
  }

  void work() {
    std::vector<Record> batch;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      if (queue_.size() < kBatchRecords) pause(lock, options_.batch_seconds, false);
      const std::size_t count = std::min(queue_.size(), kBatchRecords);
      batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.begin() + count));
      queue_.erase(queue_.begin(), queue_.begin() + count);
      if (!write_until_done(lock, batch)) return;
      stats_.written += count;
      written_.notify_all();
      tell_missing();
    }
  }

  // The store takes records again: readers must know what is not there. Under the lock.
  void tell_missing() {
    if (missing_.batches == 0) return;
    const Missing told = std::exchange(missing_, {});
    queue_.push_back(Event{.time = unix_seconds(),
                           .level = Level::kWarning,
                           .kind = std::string(event_kind::kRecordsLost),
                           .rank = told.rank,
                           .step = told.last_step,
                           .message = fmt::format("the store was too slow for {} records of steps {} to {}",
                                                  told.batches, told.first_step, told.last_step),
                           .data = {{"first_step", told.first_step}, {"last_step", told.last_step}}});
    ++accepted_;
  }

  // False when the recorder closes and its time is up.
  bool write_until_done(std::unique_lock<std::mutex>& lock, const std::vector<Record>& batch) {
    double backoff = kFirstBackoffSeconds;
    while (true) {
      lock.unlock();
      Outcome outcome = try_write(batch);
      lock.lock();
      if (outcome.problem.empty()) return true;
      ++stats_.retries;
      stats_.last_error = std::move(outcome.problem);
      if (closing_) {
        if (outcome.hopeless || close_deadline_.expired()) return false;
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        lock.lock();
      } else {
        pause(lock, backoff, true);
        backoff = std::min(2 * backoff, kLongestBackoffSeconds);
      }
    }
  }

  // What was dropped and not told yet.
  struct Missing {
    std::int64_t batches = 0, first_step = 0, last_step = 0;
    int rank = -1;

    void add(const Record& record) {
      const auto* metrics = std::get_if<MetricBatch>(&record);
      const auto* spans = std::get_if<SpanBatch>(&record);
      if (metrics == nullptr && spans == nullptr) return;  // others are never dropped
      const std::int64_t step = metrics != nullptr ? metrics->step : spans->step;
      rank = metrics != nullptr ? metrics->rank : spans->rank;
      first_step = batches == 0 ? step : std::min(first_step, step);
      last_step = batches == 0 ? step : std::max(last_step, step);
      ++batches;
    }
  };

  struct Outcome {
    std::string problem;    // "": written
    bool hopeless = false;  // waiting will not fix it (not a store, or a newer one)
  };

  Outcome try_write(const std::vector<Record>& batch) {
    try {
      write_(batch);
      return {};
    } catch (const UserError& error) {
      return {error.what(), error.code() == ExitCode::kUsage};
    } catch (const std::exception& error) {
      return {*error.what() ? error.what() : "unknown error"};
    }
  }

  const BatchWriter write_;  // the worker's
  const QueueOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;     // the worker
  std::condition_variable written_;  // flush()
  std::deque<Record> queue_;
  std::uint64_t accepted_ = 0;
  RecorderStats stats_;
  Missing missing_;
  int flushes_ = 0;
  bool closing_ = false;
  Deadline close_deadline_ = Deadline::never();
  std::thread thread_;
};

// Into the tables as long as that works, then into JSON lines for good: readers join the two.
class HomeWriter {
 public:
  HomeWriter(const std::filesystem::path& home, std::string run, int rank, RecordAs record_as)
      : home_(home),
        run_(std::move(run)),
        file_(lines_file(home, run_, rank)),
        uses_lines_(record_as == RecordAs::kLines),
        lines_(make_json_lines_run_store(home, rank)) {}

  void write(std::span<const Record> batch) {
    for (const Record& record : batch) owns_run_ |= std::holds_alternative<RunInfo>(record);
    if (!uses_lines_ && wrote_tables(batch)) return;
    uses_lines_ = true;
    try {
      lines_->write(run_, batch);
    } catch (const UserError& error) {
      if (!std::exchange(warned_of_lines_, true)) warn(fmt::format("run {} is not recorded: {}", run_, error.what()));
      throw;
    }
  }

 private:
  // False once it is time to give up on the tables. Throws while it is worth waiting for them.
  bool wrote_tables(std::span<const Record> batch) {
    try {
      if (!tables_) tables_ = make_sqlite_run_store(store_file(home_), true, kBusySeconds);
      if (!tables_) return false;  // a build without SQLite
      tables_->write(run_, batch);
      give_up_ = Deadline::never();
      failing_ = false;
      return true;
    } catch (const UserError& error) {
      if (!std::exchange(failing_, true)) give_up_ = Deadline::after(kPatienceSeconds);
      if (error.code() != ExitCode::kUsage && !give_up_.expired()) throw;
      // Once per run: its ranks meet the same tables.
      if (owns_run_) warn(fmt::format("{}; run {} goes on in {}", error.what(), run_, file_.string()));
      tables_.reset();
      return false;
    }
  }

  std::filesystem::path home_;
  std::string run_;
  std::filesystem::path file_;
  bool uses_lines_;
  std::unique_ptr<RunStore> tables_;  // null before the first batch and where there are none
  std::unique_ptr<RunStore> lines_;
  bool owns_run_ = false;  // this process began the run
  bool failing_ = false;
  Deadline give_up_ = Deadline::never();
  bool warned_of_lines_ = false;
};

}  // namespace

std::unique_ptr<Recorder> make_queued_recorder(BatchWriter write, QueueOptions options) {
  return std::make_unique<QueuedRecorder>(std::move(write), std::move(options));
}

std::unique_ptr<Recorder> open_recorder(const std::filesystem::path& home, const std::string& run_id, int rank,
                                        RecordAs record_as, QueueOptions options) {
  const auto writer = std::make_shared<HomeWriter>(home, run_id, rank, record_as);
  if (!options.on_lost) {
    options.on_lost = [run_id, rank](std::uint64_t lost, const std::string& why) {
      warn(fmt::format("{} records of {}{} are not in the run store{}", lost, printable(run_id, 100),
                       rank < 0 ? std::string() : fmt::format(", rank {}", rank), why.empty() ? "" : ": " + why));
    };
  }
  return make_queued_recorder([writer](std::span<const Record> batch) { writer->write(batch); }, options);
}

}  // namespace lockstep::telemetry
