#include "lockstep/telemetry/span_log.h"

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/telemetry/ranges.h"

namespace lockstep::telemetry {
namespace {

thread_local SpanLog* current_log = nullptr;

std::atomic<int (*)(const char*)> push_range{nullptr};
std::atomic<int (*)()> pop_range{nullptr};

// A wait for others inside a checkpoint or an evaluation is what that costs, not what the step communicates.
bool keeps_waits(Phase phase) { return phase == Phase::kCheckpoint || phase == Phase::kOutside; }

}  // namespace

void show_ranges(RangeFunctions functions) {
  push_range = functions.push;
  pop_range = functions.pop;
}

Phase phase_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::kLoad:
      return Phase::kData;
    case SpanKind::kForward:
      return Phase::kForward;
    case SpanKind::kBackward:
    case SpanKind::kRecompute:
    case SpanKind::kWeightGradient:
      return Phase::kBackward;
    case SpanKind::kCollective:
    case SpanKind::kWait:
      return Phase::kComm;
    case SpanKind::kOptimizer:
    case SpanKind::kPublish:
      return Phase::kOptimizer;
    case SpanKind::kCheckpoint:
    case SpanKind::kSnapshot:
      return Phase::kCheckpoint;
    case SpanKind::kEvaluation:
      return Phase::kOutside;
    case SpanKind::kStep:
    case SpanKind::kHost:
      return Phase::kHost;
  }
  return Phase::kHost;
}

SpanLog::SpanLog(int rank, std::size_t capacity) : rank_(rank), capacity_(capacity) {
  phase_since_ = step_began_ = monotonic_seconds();
  records_.reserve(std::min<std::size_t>(capacity, 1024));
}

SpanLog::~SpanLog() = default;

SpanLog* SpanLog::current() { return current_log; }

CurrentSpanLog::CurrentSpanLog(SpanLog* log) : former_(std::exchange(current_log, log)) {}
CurrentSpanLog::~CurrentSpanLog() { current_log = former_; }

void SpanLog::begin_step(bool keeps_spans) {
  phase_since_ = step_began_ = monotonic_seconds();
  phases_ = {};
  wait_seconds_ = 0.0;
  {
    const std::lock_guard lock(mutex_);
    records_.clear();
    lost_ = 0;
  }
  keeps_.store(keeps_spans, std::memory_order_relaxed);
}

Phase SpanLog::enter(Phase phase, double now) {
  constexpr auto kRelaxed = std::memory_order_relaxed;  // other threads only look
  const Phase former = phase_.load(kRelaxed);
  phases_[static_cast<std::size_t>(former)] += now - phase_since_.load(kRelaxed);
  if (phase == Phase::kComm && keeps_waits(former)) phase = former;
  phase_since_.store(now, kRelaxed);
  phase_.store(phase, kRelaxed);
  return former;
}

void SpanLog::move(Phase from, Phase to, double seconds) {
  double& source = phases_[static_cast<std::size_t>(from)];
  seconds = std::clamp(seconds, 0.0, source);
  source -= seconds;
  phases_[static_cast<std::size_t>(to)] += seconds;
}

SpanLog::Step SpanLog::end_step(std::int64_t step, bool keeps_next) {
  const double now = monotonic_seconds();
  enter(phase_, now);
  Step result;
  result.phases = std::exchange(phases_, {});
  result.seconds = now - step_began_ - result[Phase::kOutside];
  result.wait_seconds = std::min(std::exchange(wait_seconds_, 0.0), result[Phase::kComm]);
  if (keeps_spans()) {
    result.spans = take_batch(step, now);
    const std::lock_guard lock(mutex_);
    result.lost_spans = std::exchange(lost_, 0);
  }
  step_began_ = now;
  keeps_.store(keeps_next, std::memory_order_relaxed);
  return result;
}

void SpanLog::add(const SpanMark& mark, double begin, double end) {
  if (!keeps_spans()) return;
  const std::lock_guard lock(mutex_);
  if (records_.size() < capacity_) {
    records_.push_back({mark, begin, end});
  } else {
    ++lost_;
  }
}

const char* SpanLog::keep(std::string_view text) {
  const std::lock_guard lock(mutex_);
  for (const std::string& known : kept_) {
    if (known == text) return known.c_str();
  }
  return kept_.emplace_back(text).c_str();
}

// Looked up by address: texts are compared when an address is new.
std::int32_t SpanLog::number_of(const char* name, const char* site) {
  if (name == nullptr) return -1;
  if (site != nullptr && *site == '\0') site = nullptr;
  const auto found = numbers_.find({name, site});
  if (found != numbers_.end()) return found->second;
  const std::string text = site == nullptr ? std::string(name) : std::string(name) + " (" + site + ")";
  const auto [entry, added] = texts_.emplace(text, static_cast<std::int32_t>(texts_.size()));
  if (added) {
    auto longer = std::make_shared<std::vector<std::string>>();
    if (names_) *longer = *names_;
    longer->push_back(text);
    names_ = std::move(longer);
  }
  return numbers_.emplace(TextKey{name, site}, entry->second).first->second;
}

SpanBatch SpanLog::take_batch(std::int64_t step, double now) {
  taken_.clear();
  {
    const std::lock_guard lock(mutex_);
    taken_.swap(records_);
  }
  SpanBatch batch;
  batch.rank = rank_;
  batch.step = step;
  batch.time = unix_seconds() - (now - step_began_);
  batch.spans.reserve(taken_.size() + 1);
  batch.spans.push_back({.kind = SpanKind::kStep, .seconds = static_cast<float>(now - step_began_)});
  for (const Record& record : taken_) {
    const SpanMark& mark = record.mark;
    batch.spans.push_back({.kind = mark.kind,
                           .lane = mark.lane,
                           .micro = mark.micro,
                           .stage = mark.stage,
                           .name = number_of(mark.name, mark.site),
                           .group = number_of(mark.group, nullptr),
                           .peer = mark.peer,
                           .begin = static_cast<float>(record.begin - step_began_),
                           .seconds = static_cast<float>(record.end - record.begin),
                           .bytes = mark.bytes,
                           .sequence = mark.sequence});
  }
  // They come in the order of their ends. Of two that begin together the outer one is first.
  std::stable_sort(batch.spans.begin(), batch.spans.end(), [](const Span& a, const Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.seconds > b.seconds;
  });
  batch.names = names_;
  return batch;
}

SpanScope::SpanScope(SpanLog* log, const SpanMark& mark, Phase phase) : log_(log), mark_(mark) {
  if (log_ == nullptr) return;
  begin_ = monotonic_seconds();
  if (mark_.lane != SpanLane::kMain) return;
  former_ = log_->enter(phase, begin_);
  if (const auto push = push_range.load(std::memory_order_relaxed)) {
    push(mark_.name != nullptr ? mark_.name : to_string(mark_.kind));
  }
}

SpanScope::~SpanScope() {
  if (log_ == nullptr) return;
  double end = monotonic_seconds();
  log_->disturbed(mark_, end - begin_);
  if (mark_.lane == SpanLane::kMain) {
    end = monotonic_seconds();
    log_->enter(former_, end);
    if (const auto pop = pop_range.load(std::memory_order_relaxed)) pop();
  }
  log_->add(mark_, begin_, end);
}

}  // namespace lockstep::telemetry
