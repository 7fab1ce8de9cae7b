// SpanLog: what one rank does in a step, pushed by any of its threads and taken once a step. The rank's own thread is
// always in one phase; the seconds of the phases of a step add up to the step (schema.h).
//
//   const CurrentSpanLog guard(log);                        // this thread does the rank's work
//   { const SpanScope span({.kind = SpanKind::kForward}); ...compute...; }
//   SpanLog::Step step = log->end_step(12, true);           // and the next one begins
//
// A span costs two looks at the clock, and a lock while spans are kept; nothing is allocated and no text is copied.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/telemetry/span.h"

namespace lockstep::telemetry {

// What the rank's own thread spends time on. The innermost one counts: a wait inside a forward is communication.
enum class Phase : std::uint8_t {
  kHost = 0,  // whatever has no name
  kData,
  kForward,
  kBackward,
  kCompute,  // of a step whose forward and backward cannot be told apart
  kComm,     // blocked on communication
  kOptimizer,
  kCheckpoint,
  kOutside,  // evaluation: no part of the step
};
inline constexpr std::size_t kPhases = 9;
constexpr auto names_of(Phase) {
  return enum_names<Phase::kOutside>("host", "data", "forward", "backward", "compute", "comm", "optimizer",
                                     "checkpoint", "evaluation");
}

// A span before it has an end. Texts are kept by reference: literals, or what SpanLog::keep() returned.
struct SpanMark {
  SpanKind kind = SpanKind::kHost;
  SpanLane lane = SpanLane::kMain;
  std::int16_t micro = -1;
  std::int16_t stage = -1;
  std::int32_t peer = -1;
  const char* name = nullptr;  // null: none
  const char* site = nullptr;  // the name becomes "name (site)"
  const char* group = nullptr;
  std::int64_t bytes = 0;
  std::int64_t sequence = -1;
};

class SpanLog {
 public:
  // At most `capacity` spans of a step are kept; those beyond are counted.
  explicit SpanLog(int rank, std::size_t capacity = 65536);
  ~SpanLog();
  SpanLog(const SpanLog&) = delete;
  SpanLog& operator=(const SpanLog&) = delete;

  // Of the calling thread; null where it works for no rank or nobody records.
  static SpanLog* current();

  int rank() const { return rank_; }

  // -- By the rank's own thread.
  // A step begins now. `keeps_spans`: those that end before end_step() are kept.
  void begin_step(bool keeps_spans);
  struct Step {
    double seconds = 0.0;                     // without kOutside
    std::array<double, kPhases> phases = {};  // seconds, by Phase; without kOutside they add up to `seconds`
    double wait_seconds = 0.0;                // of kComm: a peer was not there yet
    std::uint64_t lost_spans = 0;
    SpanBatch spans;  // empty where none were kept

    double operator[](Phase phase) const { return phases[static_cast<std::size_t>(phase)]; }
  };
  // Ends the step and begins the next one.
  Step end_step(std::int64_t step, bool keeps_next);
  // The phase that counts from `now` (monotonic_seconds()); returns the one before.
  Phase enter(Phase phase, double now);
  void add_wait(double seconds) { wait_seconds_ += seconds; }
  // Of what was counted in this step, at most all of it.
  void move(Phase from, Phase to, double seconds);

  // -- From any thread.
  bool keeps_spans() const { return keeps_.load(std::memory_order_relaxed); }
  void add(const SpanMark& mark, double begin, double end);
  // What the rank's own thread is in, and since when.
  struct Doing {
    Phase phase = Phase::kHost;
    double since = 0.0;  // monotonic_seconds()
  };
  Doing doing() const { return {phase_.load(std::memory_order_relaxed), phase_since_.load(std::memory_order_relaxed)}; }
  // The text for as long as the log lives.
  const char* keep(std::string_view text);

  // For tools that slow a run down on purpose: called inside every span, when its work of `seconds` is done; of a
  // collective before it begins. On the span's thread. Set before the first step.
  using Disturbance = std::function<void(const SpanMark& mark, double seconds)>;
  void disturb(Disturbance disturbance) { disturbance_ = std::move(disturbance); }
  void disturbed(const SpanMark& mark, double seconds) const {
    if (disturbance_) disturbance_(mark, seconds);
  }

 private:
  struct Record {
    SpanMark mark;
    double begin, end;
  };
  // A name and its site, by address.
  using TextKey = std::pair<const char*, const char*>;

  std::int32_t number_of(const char* name, const char* site);
  SpanBatch take_batch(std::int64_t step, double now);

  const int rank_;
  const std::size_t capacity_;
  Disturbance disturbance_;

  // Of the rank's own thread.
  std::atomic<Phase> phase_{Phase::kHost};
  std::atomic<double> phase_since_{0.0};
  double step_began_ = 0.0;
  std::array<double, kPhases> phases_ = {};
  double wait_seconds_ = 0.0;
  std::vector<Record> taken_;
  std::map<TextKey, std::int32_t> numbers_;
  std::map<std::string, std::int32_t> texts_;
  std::shared_ptr<const std::vector<std::string>> names_;

  std::atomic<bool> keeps_{false};
  std::mutex mutex_;  // guards what follows
  std::vector<Record> records_;
  std::uint64_t lost_ = 0;
  std::deque<std::string> kept_;
};

// The calling thread works for the rank of `log` (null: for nobody) until this object goes.
class CurrentSpanLog {
 public:
  explicit CurrentSpanLog(SpanLog* log);
  ~CurrentSpanLog();
  CurrentSpanLog(const CurrentSpanLog&) = delete;
  CurrentSpanLog& operator=(const CurrentSpanLog&) = delete;

 private:
  SpanLog* former_;
};

Phase phase_of(SpanKind kind);

// A span of the calling thread, from construction to destruction. On the rank's own thread (lane kMain) also a phase.
// Does nothing where there is no log.
class SpanScope {
 public:
  explicit SpanScope(const SpanMark& mark) : SpanScope(mark, phase_of(mark.kind)) {}
  SpanScope(const SpanMark& mark, Phase phase) : SpanScope(SpanLog::current(), mark, phase) {}
  // Of another lane: no phase.
  SpanScope(SpanLog* log, const SpanMark& mark) : SpanScope(log, mark, Phase::kOutside) {}
  ~SpanScope();
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;

  double begin() const { return begin_; }

 private:
  SpanScope(SpanLog* log, const SpanMark& mark, Phase phase);

  SpanLog* log_;
  SpanMark mark_;
  Phase former_ = Phase::kHost;
  double begin_ = 0.0;
};

}  // namespace lockstep::telemetry
