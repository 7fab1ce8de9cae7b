#include "lockstep/comm/group.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/telemetry/group_label.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kFlightEntries = 64;
// How late a backend may be before wait() gives up on it.
constexpr milliseconds kOverdueGrace{10'000};
constexpr milliseconds kCloseGrace{10'000};

std::size_t power_of(std::int64_t bytes) {
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(bytes) | 1U)) - 1;
}

}  // namespace

std::string readable_bytes(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::int64_t payload_bytes(const Operation& operation) {
  switch (operation.kind) {
    case OpKind::kAllReduce:
    case OpKind::kAllGather:
    case OpKind::kBroadcast:
    case OpKind::kRecv:
      return operation.output.bytes();
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
    case OpKind::kSend:
      return operation.input.bytes();
    case OpKind::kBarrier:
      return 0;
  }
  return 0;
}

Group::Group(std::unique_ptr<Backend> backend, std::string name, std::vector<int> global_ranks, milliseconds timeout)
    : backend_(std::move(backend)),
      name_(std::move(name)),
      backend_name_(backend_->name()),
      global_ranks_(std::move(global_ranks)),
      timeout_(timeout),
      flight_(kFlightEntries) {}

Group::~Group() = default;

std::shared_ptr<Group> Group::make_handle(std::shared_ptr<Group> group) {
  Group* const raw = group.get();
  return std::shared_ptr<Group>(raw, [group = std::move(group)](Group*) { group->close(); });
}

Group::LaneKey Group::lane_of(const Operation& operation) const {
  const bool point_to_point = operation.kind == OpKind::kSend || operation.kind == OpKind::kRecv;
  if (point_to_point && backend_->concurrent_point_to_point()) return {operation.kind, operation.peer};
  return {OpKind::kAllReduce, -1};
}

void Group::count(const Operation& operation) {
  Traffic::Entry& entry = traffic_.entries[static_cast<int>(operation.kind)];
  ++entry.operations;
  entry.bytes += payload_bytes(operation);
  FlightEntry& flight = flight_[static_cast<std::size_t>(operation.sequence) % kFlightEntries];
  flight = {operation.sequence, operation.kind, payload_bytes(operation), operation.peer, FlightEntry::State::kQueued};
}

std::shared_ptr<WorkState> Group::enqueue(std::shared_ptr<WorkState> state, std::unique_lock<std::mutex>& lock) {
  if (fault_) {
    mark(state->operation.sequence, FlightEntry::State::kFailed);
    const Fault fault = *fault_;
    lock.unlock();
    finish(*state, fault);
    return state;
  }
  Lane& lane = lanes_[lane_of(state->operation)];
  lane.queue.push_back(state);
  if (!lane.thread.joinable()) {
    lane.thread = std::thread([self = shared_from_this(), &lane] { self->run_lane(lane); });
  } else {
    lane.wake.notify_one();
  }
  return state;
}

Work Group::submit(Operation operation, const OpOptions& options) {
  auto state = std::make_shared<WorkState>();
  state->group = weak_from_this();
  state->timeout = options.timeout.count() > 0 ? options.timeout : timeout_;
  const bool moves_output = operation.kind != OpKind::kSend;
  operation.device = moves_output ? operation.output.device : operation.input.device;
  operation.stream = moves_output ? operation.output.stream : operation.input.stream;
  operation.site = options.site;
  // The ticket marks the caller's stream at this moment; on a group that already failed there is nothing to mark.
  std::unique_lock lock(mutex_);
  operation.sequence = ++sequence_;
  if (!fault_) {
    try {
      operation.ticket = backend_->prepare(operation);
    } catch (const BackendError& error) {
      throw Fault(error.kind(), -1,
                  fmt::format("{} in group \"{}\": {}", to_string(operation.kind), name_, error.detail()));
    }
  }
  state->operation = std::move(operation);
  WorkState* const raw = state.get();  // the body lives inside the state: a shared pointer would be a cycle
  state->body = [this, raw](Clock::time_point deadline) { backend_->run(raw->operation, deadline); };
  count(state->operation);
  begin_mark(*state);
  return Work(enqueue(std::move(state), lock));
}

void Group::record_to(std::shared_ptr<telemetry::SpanLog> log) {
  const std::lock_guard lock(mutex_);
  log_ = std::move(log);
  label_ = log_ ? log_->keep(telemetry::to_text({name_, global_ranks_})) : nullptr;
}

std::shared_ptr<telemetry::SpanLog> Group::span_log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

// Under the lock.
void Group::begin_mark(WorkState& state) {
  const Operation& operation = state.operation;
  state.log = log_;
  state.mark = {.kind = telemetry::SpanKind::kCollective,
                .lane = telemetry::SpanLane::kComm,
                .peer = operation.peer < 0 ? -1 : global_ranks_[static_cast<std::size_t>(operation.peer)],
                .name = to_string(operation.kind),
                .site = operation.site,
                .group = label_,
                .bytes = payload_bytes(operation),
                .sequence = ++lanes_[lane_of(operation)].called};
}

void Group::add_running(std::vector<RunningOperation>& all) const {
  std::vector<std::shared_ptr<Group>> children;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, lane] : lanes_) {
      if (!lane.current || lane.current->mark.kind != telemetry::SpanKind::kCollective) continue;
      const WorkState& state = *lane.current;
      all.push_back({.group = name_,
                     .members = global_ranks_,
                     .sequence = state.mark.sequence,
                     .kind = state.operation.kind,
                     .bytes = state.mark.bytes,
                     .peer = state.mark.peer,
                     .site = state.operation.site,
                     .seconds = monotonic_seconds() - lane.began,
                     .timeout_seconds = 1e-3 * static_cast<double>(state.timeout.count())});
    }
    children.reserve(children_.size());
    for (const auto& child : children_) {
      if (auto alive = child.lock()) children.push_back(std::move(alive));
    }
  }
  for (const auto& child : children) child->add_running(all);
}

void Group::end_mark(WorkState& state, double begin, double end) {
  if (state.mark.kind != telemetry::SpanKind::kCollective) return;
  {
    const std::lock_guard lock(mutex_);
    double& quickest = quickest_[static_cast<std::size_t>(state.operation.kind)][power_of(state.mark.bytes)];
    if (quickest == 0.0 || end - begin < quickest) quickest = end - begin;
    Lane& lane = lanes_[lane_of(state.operation)];
    lane.executed[lane.next_executed++ % kExecuted] = {begin, end - quickest};
  }
  state.log->add(state.mark, begin, end);
}

double Group::waited_for_peers(const Operation& operation, double begin, double end) const {
  const std::lock_guard lock(mutex_);
  const auto lane = lanes_.find(lane_of(operation));
  if (lane == lanes_.end()) return 0.0;
  double seconds = 0.0;
  for (const Executed& executed : lane->second.executed) {
    seconds += std::max(0.0, std::min(end, executed.all_there) - std::max(begin, executed.begin));
  }
  return seconds;
}

std::pair<std::unique_ptr<Backend>, std::vector<int>> Group::make_subgroup(const std::vector<int>& ranks,
                                                                           const std::string& name) {
  auto state = std::make_shared<WorkState>();
  state->group = weak_from_this();
  state->timeout = timeout_;
  state->subject = fmt::format("making of sub-group \"{}\"", name);
  auto made = std::make_shared<std::unique_ptr<Backend>>();
  state->body = [this, made, ranks, name](Clock::time_point deadline) {
    *made = backend_->subgroup(ranks, name, deadline);
  };
  std::unique_lock lock(mutex_);
  Work work(enqueue(state, lock));
  if (lock.owns_lock()) lock.unlock();
  work.wait();
  std::vector<int> global;
  global.reserve(ranks.size());
  for (const int rank : ranks) global.push_back(global_ranks_[static_cast<std::size_t>(rank)]);
  return {std::move(*made), std::move(global)};
}

void Group::run_lane(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    lane.wake.wait(lock, [&] { return closing_ || !lane.queue.empty(); });
    if (lane.queue.empty()) break;
    const std::shared_ptr<WorkState> state = std::move(lane.queue.front());
    lane.queue.pop_front();
    mark(state->operation.sequence, FlightEntry::State::kRunning);
    ++running_;
    lane.current = state;
    lane.began = monotonic_seconds();
    lock.unlock();
    execute(*state);
    lock.lock();
    lane.current = nullptr;
  }
  lane.ended = true;
  lane_ended_.notify_all();
}

void Group::execute(WorkState& state) {
  std::optional<Fault> fault;
  const auto deadline = Clock::now() + state.timeout;
  {
    const std::lock_guard lock(state.mutex);
    state.deadline = deadline;
  }
  const double begin = state.log ? monotonic_seconds() : 0.0;
  if (state.log) state.log->disturbed(state.mark, 0.0);
  try {
    state.body(deadline);
  } catch (const BackendError& error) {
    fault = describe(state, error);
  } catch (const std::exception& error) {
    fault = describe(state, BackendError(FaultKind::kAborted, -1, error.what()));
  }
  if (fault) poison(*fault);
  if (state.log && !fault) end_mark(state, begin, monotonic_seconds());
  {
    const std::lock_guard lock(mutex_);
    --running_;
    mark(state.operation.sequence, fault ? FlightEntry::State::kFailed : FlightEntry::State::kDone);
    if (fault) fault = fault_;  // the root cause, which may have come first on another lane
  }
  finish(state, fault);
}

void Group::finish(WorkState& state, const std::optional<Fault>& fault) {
  const std::lock_guard lock(state.mutex);
  state.fault = fault;
  state.finished = true;
  state.finished_signal.notify_all();
}

void Group::mark(std::int64_t sequence, FlightEntry::State state) {
  FlightEntry& entry = flight_[static_cast<std::size_t>(sequence) % kFlightEntries];
  if (sequence > 0 && entry.sequence == sequence) entry.state = state;
}

std::string Group::subject_of(const WorkState& state) const {
  if (!state.subject.empty()) return state.subject;
  const Operation& operation = state.operation;
  std::string text = fmt::format("{} #{}", to_string(operation.kind), operation.sequence);
  if (operation.kind != OpKind::kBarrier) text += " of " + readable_bytes(payload_bytes(operation));
  if (*operation.site != '\0') text += fmt::format(" ({})", operation.site);
  return text;
}

Fault Group::describe(const WorkState& state, const BackendError& error) const {
  const bool known = error.rank() >= 0 && error.rank() < static_cast<int>(global_ranks_.size());
  const int rank = known ? global_ranks_[static_cast<std::size_t>(error.rank())] : -1;
  return Fault(error.kind(), rank,
               fmt::format("{} in group \"{}\": {}{}", subject_of(state), name_,
                           known ? fmt::format("rank {} ", rank) : "", error.detail()));
}

Fault Group::overdue(const WorkState& state) const {
  return describe(state, BackendError(FaultKind::kTimeout, -1,
                                      fmt::format("not done after {:.1f} s, and the {} backend does not respond",
                                                  static_cast<double>(state.timeout.count()) / 1000, backend_name_)));
}

void Group::poison(const Fault& fault) {
  std::vector<std::shared_ptr<WorkState>> queued;
  {
    const std::lock_guard lock(mutex_);
    if (fault_) return;
    fault_ = fault;
    for (auto& [key, lane] : lanes_) {
      queued.insert(queued.end(), lane.queue.begin(), lane.queue.end());
      lane.queue.clear();
    }
    for (const auto& state : queued) mark(state->operation.sequence, FlightEntry::State::kFailed);
  }
  // Here and not on their lanes, so that they fail at once even while a lane is still inside the backend.
  for (const auto& state : queued) finish(*state, fault);
  backend_->abort();
}

void Group::abort(const std::string& reason) {
  poison(Fault(FaultKind::kAborted, -1, fmt::format("group \"{}\" was aborted: {}", name_, reason)));
  std::vector<std::weak_ptr<Group>> children;
  {
    const std::lock_guard lock(mutex_);
    children = children_;
  }
  for (const auto& child : children) {
    if (const auto alive = child.lock()) alive->abort(reason);
  }
}

void Group::add_child(std::weak_ptr<Group> child) {
  const std::lock_guard lock(mutex_);
  std::erase_if(children_, [](const auto& old) { return old.expired(); });
  children_.push_back(std::move(child));
}

void Group::close() {
  bool in_flight = false;
  {
    const std::lock_guard lock(mutex_);
    in_flight = running_ > 0;
    for (const auto& [key, lane] : lanes_) in_flight = in_flight || !lane.queue.empty();
  }
  if (in_flight) {
    poison(Fault(FaultKind::kAborted, -1, fmt::format("group \"{}\" was closed with operations in flight", name_)));
  }
  std::unique_lock lock(mutex_);
  closing_ = true;
  for (auto& [key, lane] : lanes_) lane.wake.notify_all();
  const bool all_ended = lane_ended_.wait_for(lock, kCloseGrace, [&] {
    // A lane whose first operation was refused never had a thread.
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& entry) { return entry.second.ended || !entry.second.thread.joinable(); });
  });
  for (auto& [key, lane] : lanes_) {
    // A thread that has ended gives its reference back after this lock; joining it could wait for our own lock.
    std::thread thread = std::move(lane.thread);
    if (!thread.joinable()) continue;
    if (!all_ended && !lane.ended) {
      thread.detach();
      continue;
    }
    lock.unlock();
    thread.join();
    lock.lock();
  }
}

Traffic Group::traffic() const {
  const std::lock_guard lock(mutex_);
  return traffic_;
}

void Group::reset_traffic() {
  const std::lock_guard lock(mutex_);
  traffic_ = {};
}

std::vector<FlightEntry> Group::flight_record() const {
  const std::lock_guard lock(mutex_);
  std::vector<FlightEntry> entries;
  for (const auto& entry : flight_) {
    if (entry.sequence > 0) entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return entries;
}

namespace {
// Waits until `limit` at most; returns whether the work is over and throws its fault.
bool wait_until(WorkState& state, std::optional<Clock::time_point> limit) {
  std::unique_lock lock(state.mutex);
  while (!state.finished) {
    const auto now = Clock::now();
    if (limit && now >= *limit) return false;
    if (state.deadline && now >= *state.deadline + kOverdueGrace) {
      lock.unlock();
      const auto group = state.group.lock();
      const Fault fault =
          group ? group->overdue(state) : Fault(FaultKind::kTimeout, -1, "an operation of a closed group is not done");
      if (group) group->poison(fault);
      throw fault;
    }
    // Wakes now and then to look at a deadline that is only set once the operation starts.
    auto until = std::min(now + std::chrono::seconds(1), limit.value_or(now + std::chrono::seconds(1)));
    state.finished_signal.wait_until(lock, until);
  }
  if (state.fault) throw Fault(*state.fault);
  return true;
}

// The same, as a wait of the calling thread's rank.
bool recorded_wait(WorkState& state, const Work& work, std::optional<Clock::time_point> limit) {
  telemetry::SpanLog* const log = state.log ? telemetry::SpanLog::current() : nullptr;
  if (log == nullptr || work.done()) return wait_until(state, limit);
  telemetry::SpanMark mark = state.mark;
  mark.kind = telemetry::SpanKind::kWait;
  mark.lane = telemetry::SpanLane::kMain;
  const telemetry::SpanScope span(mark);
  const bool finished = wait_until(state, limit);
  if (const auto group = state.group.lock()) {
    log->add_wait(group->waited_for_peers(state.operation, span.begin(), monotonic_seconds()));
  }
  return finished;
}
}  // namespace

void Work::wait() {
  if (!state_) return;
  if (state_->operation.on_device() && !done()) {
    const auto group = state_->group.lock();
    if (group && group->backend().join(state_->operation)) return;
  }
  recorded_wait(*state_, *this, std::nullopt);
}

bool Work::wait_for(milliseconds limit) { return !state_ || recorded_wait(*state_, *this, Clock::now() + limit); }

void Work::settle() noexcept {
  try {
    wait();
  } catch (const std::exception&) {
    // Whoever needed the result has been notified already.
  }
}

bool Work::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->finished;
}

}  // namespace lockstep::comm
