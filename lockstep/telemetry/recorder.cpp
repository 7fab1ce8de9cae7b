#include "lockstep/telemetry/recorder.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::telemetry {
namespace {

// Large enough to make transactions cheap, small enough that one never takes long.
constexpr std::size_t kBatchRecords = 4096;
constexpr double kFirstBackoffSeconds = 0.02;
constexpr double kLongestBackoffSeconds = 1.0;

bool may_be_dropped(const Record& record) {
  return std::holds_alternative<MetricBatch>(record) || std::holds_alternative<Span>(record);
}

class QueuedRecorder : public Recorder {
 public:
  QueuedRecorder(std::function<std::unique_ptr<Sink>()> open, QueueOptions options)
      : open_(std::move(open)), options_(options) {
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
  }

  void begin_run(const RunInfo& info) override { push(info); }
  void plan(nlohmann::json plan) override { push(PlanRecord{std::move(plan)}); }
  void metrics(int rank, std::int64_t step, std::vector<Metric> metrics) override {
    push(MetricBatch{rank, step, unix_seconds(), std::move(metrics)});
  }
  void span(Span span) override { push(std::move(span)); }
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
    }
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

  struct Outcome {
    std::string problem;    // "": written
    bool hopeless = false;  // waiting will not mend it (not a store, or a newer one)
  };

  Outcome try_write(const std::vector<Record>& batch) {
    try {
      if (!sink_) sink_ = open_();
      sink_->write(batch);
      return {};
    } catch (const UserError& error) {
      return {error.what(), error.code() == ExitCode::kUsage};
    } catch (const std::exception& error) {
      return {*error.what() ? error.what() : "unknown error"};
    }
  }

  const std::function<std::unique_ptr<Sink>()> open_;
  const QueueOptions options_;
  std::unique_ptr<Sink> sink_;  // the worker's

  mutable std::mutex mutex_;
  std::condition_variable wake_;     // the worker
  std::condition_variable written_;  // flush()
  std::deque<Record> queue_;
  std::uint64_t accepted_ = 0;
  RecorderStats stats_;
  int flushes_ = 0;
  bool closing_ = false;
  Deadline close_deadline_ = Deadline::never();
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Recorder> make_queued_recorder(std::function<std::unique_ptr<Sink>()> open, QueueOptions options) {
  return std::make_unique<QueuedRecorder>(std::move(open), options);
}

}  // namespace lockstep::telemetry
