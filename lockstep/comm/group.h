// The machinery that all backends share: queues, threads, deadlines, failure, counters, flight record.
//
// A Group runs its operations on lanes: one for the collectives, and one for each (peer, direction) of send and recv. A
// lane is a queue and a thread that sleeps until there is work; it is started by its first operation.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::comm {

// One operation in flight, shared by its Work handles and its lane.
struct WorkState {
  std::weak_ptr<Group> group;
  Operation operation;
  milliseconds timeout{0};
  std::string subject;  // "all_reduce #12 of 25.0 MiB"; made only when a message needs it, except for sub-groups
  std::function<void(Clock::time_point)> body;
  std::shared_ptr<telemetry::SpanLog> log;  // null: nobody records
  telemetry::SpanMark mark;                 // kind kCollective where it is an operation

  mutable std::mutex mutex;
  std::condition_variable finished_signal;
  bool finished = false;
  std::optional<Fault> fault;
  std::optional<Clock::time_point> deadline;  // set when it starts to execute
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(std::unique_ptr<Backend> backend, std::string name, std::vector<int> global_ranks, milliseconds timeout);
  ~Group();

  // What Communicator holds: when the last copy goes, close() is called. Threads of the group keep the Group itself.
  static std::shared_ptr<Group> make_handle(std::shared_ptr<Group> group);

  Work submit(Operation operation, const OpOptions& options);
  std::pair<std::unique_ptr<Backend>, std::vector<int>> make_subgroup(const std::vector<int>& ranks,
                                                                      const std::string& name);
  // Records the first failure and makes everything else fail with it.
  void poison(const Fault& fault);
  // Also what was made of this group by add_child().
  void abort(const std::string& reason);
  void add_child(std::weak_ptr<Group> child);
  // Aborts what is in flight and ends the threads. A backend that does not come back in time is left to its thread.
  void close();

  Backend& backend() { return *backend_; }
  const std::string& name() const { return name_; }
  const std::string& backend_name() const { return backend_name_; }
  const std::vector<int>& global_ranks() const { return global_ranks_; }
  milliseconds timeout() const { return timeout_; }
  Traffic traffic() const;
  void reset_traffic();
  std::vector<FlightEntry> flight_record() const;
  // Operations that are called from now on become spans of this log.
  void record_to(std::shared_ptr<telemetry::SpanLog> log);
  std::shared_ptr<telemetry::SpanLog> span_log() const;
  void add_running(std::vector<RunningOperation>& all) const;
  // Of the seconds (monotonic clock) from `begin` to `end`, in which somebody waited for an operation of its lane:
  // those in which a peer was not there yet.
  double waited_for_peers(const Operation& operation, double begin, double end) const;

  // The Fault for an operation that overran its deadline without the backend noticing.
  Fault overdue(const WorkState& state) const;

 private:
  // When an operation was executed, and until when its peers were missing.
  struct Executed {
    double begin = 0.0, all_there = 0.0;
  };
  static constexpr std::size_t kExecuted = 16;  // that a lane remembers
  struct Lane {
    std::deque<std::shared_ptr<WorkState>> queue;
    std::condition_variable wake;
    std::thread thread;
    bool ended = false;
    std::int64_t called = 0;  // operations: counts alike on all members, and at both ends of a pair
    std::array<Executed, kExecuted> executed = {};
    std::size_t next_executed = 0;
    std::shared_ptr<WorkState> current;  // that is being executed, since `began`
    double began = 0.0;
  };
  using LaneKey = std::pair<OpKind, int>;

  LaneKey lane_of(const Operation& operation) const;
  std::shared_ptr<WorkState> enqueue(std::shared_ptr<WorkState> state, std::unique_lock<std::mutex>& lock);
  void run_lane(Lane& lane);
  void execute(WorkState& state);
  void begin_mark(WorkState& state);
  void end_mark(WorkState& state, double begin, double end);
  void finish(WorkState& state, const std::optional<Fault>& fault);
  void mark(std::int64_t sequence, FlightEntry::State state);
  Fault describe(const WorkState& state, const BackendError& error) const;
  std::string subject_of(const WorkState& state) const;
  void count(const Operation& operation);

  const std::unique_ptr<Backend> backend_;
  const std::string name_;
  const std::string backend_name_;
  const std::vector<int> global_ranks_;
  const milliseconds timeout_;

  mutable std::mutex mutex_;
  std::condition_variable lane_ended_;
  std::map<LaneKey, Lane> lanes_;
  std::optional<Fault> fault_;
  bool closing_ = false;
  int running_ = 0;
  std::int64_t sequence_ = 0;
  Traffic traffic_;
  std::vector<FlightEntry> flight_;
  std::vector<std::weak_ptr<Group>> children_;
  std::shared_ptr<telemetry::SpanLog> log_;
  const char* label_ = nullptr;  // the log's
  // The quickest that an operation ever was, by its kind and the power of two of its bytes; 0: none yet. What takes
  // longer than that is taken for waiting for a peer.
  std::array<std::array<double, 64>, kOpKinds> quickest_ = {};
};

// "25.0 MiB", for messages.
std::string readable_bytes(std::int64_t bytes);

// Bytes of an operation by the definition in Traffic.
std::int64_t payload_bytes(const Operation& operation);

}  // namespace lockstep::comm
