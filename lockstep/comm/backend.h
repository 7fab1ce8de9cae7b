// What a backend implements. Queues, threads, deadlines, error texts, counters and argument checks are the group's work
// (comm/group.h); a backend only moves bytes. docs/how-to/add-a-backend.md shows how to add one.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

using Clock = std::chrono::steady_clock;

// One operation, its arguments already checked. Fields that a kind does not use are empty.
struct Operation {
  OpKind kind = OpKind::kBarrier;
  std::int64_t sequence = 0;  // counts this rank's operations in the group; for messages, not for matching
  ConstBuffer input;          // equals `output` for the kinds that work in place (all_reduce, broadcast)
  Buffer output;
  ReduceOp reduce = ReduceOp::kSum;
  int peer = -1;                             // root, destination or source
  std::vector<std::int64_t> send_counts;     // all_to_all: always filled, one per rank
  std::vector<std::int64_t> receive_counts;  // all_to_all: always filled, one per rank
  int device = kHostMemory;                  // of the buffers; both are on the same
  void* stream = nullptr;                    // the caller's, of that device
  void* ticket = nullptr;                    // what prepare() returned
  const char* site = "";                     // OpOptions::site

  bool on_device() const { return device != kHostMemory; }
};

// How a backend reports that an operation failed. `rank` is the rank in the group that caused it, or -1. `detail`
// completes the sentence "rank N ..." ("closed the connection"); when rank is -1 it is a sentence of its own.
class BackendError : public std::exception {
 public:
  BackendError(FaultKind kind, int rank, std::string detail) : kind_(kind), rank_(rank), detail_(std::move(detail)) {}

  FaultKind kind() const { return kind_; }
  int rank() const { return rank_; }
  const std::string& detail() const { return detail_; }
  const char* what() const noexcept override { return detail_.c_str(); }

 private:
  FaultKind kind_;
  int rank_;
  std::string detail_;
};

// One group as seen by one rank.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Whether send and recv may run on other threads while a collective runs. If not, the group runs everything in order.
  virtual bool concurrent_point_to_point() const { return true; }

  // Called on the caller's thread when an operation is queued. A device backend marks the caller's stream here. The
  // result arrives in Operation::ticket. This default is for backends that move host memory.
  virtual void* prepare(const Operation& operation) {
    if (!operation.on_device()) return nullptr;
    throw BackendError(FaultKind::kAborted, -1,
                       std::string(name()) + " moves host memory only, and this buffer is on a device");
  }

  // Executes one operation and returns when it is complete and the buffers are free; on device memory that means: for
  // whatever the caller queues on its stream from now on. Called on threads of the group:
  // one at a time for collectives, and one at a time for each (peer, direction). Must return or throw BackendError by
  // the deadline (a little later is tolerated) and must sleep, not spin, while it waits. After a throw no buffer is
  // used any more.
  virtual void run(const Operation& operation, Clock::time_point deadline) = 0;

  // On the caller's thread, when it waits for an operation on device memory. A backend that works on streams of its own
  // makes the caller's stream wait for the operation here and returns true as soon as that is queued; failures then
  // show in later operations. False: wait for run() to return.
  virtual bool join(const Operation&) { return false; }

  // Collective over `ranks`. Called in order with run(), on the same thread.
  virtual std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                            Clock::time_point deadline) = 0;

  // Makes every run() in progress and every later one throw soon, and lets the peers notice. Any thread, more than
  // once.
  virtual void abort() noexcept = 0;
};

}  // namespace lockstep::comm
