#include "lockstep/comm/plugins/nccl/nccl_backend.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "lockstep/comm/plugins/fault_board.h"
#include "lockstep/comm/plugins/nccl/scoped_environment.h"

namespace lockstep::comm {
namespace {

constexpr auto kFinalizeTime = std::chrono::seconds(10);

// Polling with growing pauses: at once for small messages, without taking a core from those that compute.
void pause(int& looks) { std::this_thread::sleep_for(std::chrono::microseconds(++looks < 1000 ? 10 : 200)); }

// One operation on device memory between its call and its end.
struct Pending {
  enum class State { kCalled, kQueued, kFailed };
  void* begin = nullptr;  // events
  void* end = nullptr;
  State state = State::kCalled;
};

GroupSettings settings_of(const std::vector<GroupSettings>& groups, const std::string& name) {
  GroupSettings result;
  for (const GroupSettings& entry : groups) {
    if (entry.group == name) return entry;
    if (entry.group == "*") result = entry;
  }
  return result;
}

class NcclBackend final : public Backend {
 public:
  NcclBackend(const NcclWorld& world, std::string place, const std::string& name, int rank, int size,
              Clock::time_point deadline)
      : world_(world),
        calls_(*world_.calls),
        place_(std::move(place)),
        rank_(rank),
        size_(size),
        board_(world_.store, place_, rank, size) {
    check_cuda(calls_.set_device(world_.device), "cudaSetDevice");
    check_cuda(calls_.stream_create(&stream_), "cudaStreamCreate");
    try {
      connect(settings_of(world_.groups, name), deadline);
    } catch (...) {
      if (comm_ != nullptr) calls_.abort(comm_);
      calls_.stream_destroy(stream_);
      throw;
    }
  }

  ~NcclBackend() override {
    calls_.set_device(world_.device);
    disconnect();
    for (auto& [ticket, pending] : pending_) release(*pending);
    if (scratch_ != nullptr) calls_.release(scratch_);
    calls_.stream_destroy(stream_);
  }

  const char* name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool concurrent_point_to_point() const override { return false; }

  void* prepare(const Operation& operation) override {
    if (!operation.on_device()) return nullptr;
    if (operation.device != world_.device) {
      throw BackendError(FaultKind::kAborted, -1,
                         fmt::format("a buffer of GPU {} in a group of GPU {}", operation.device, world_.device));
    }
    check_cuda(calls_.set_device(world_.device), "cudaSetDevice");
    auto pending = std::make_shared<Pending>();
    check_cuda(calls_.event_create(&pending->begin), "cudaEventCreate");
    check_cuda(calls_.event_create(&pending->end), "cudaEventCreate");
    check_cuda(calls_.event_record(pending->begin, operation.stream), "cudaEventRecord");
    const std::lock_guard lock(mutex_);
    void* const ticket = pending.get();
    pending_[ticket] = std::move(pending);
    return ticket;
  }

  void run(const Operation& operation, Clock::time_point deadline) override {
    const std::shared_ptr<Pending> pending = find(operation.ticket);
    try {
      check_cuda(calls_.set_device(world_.device), "cudaSetDevice");
      if (comm_ == nullptr) throw BackendError(FaultKind::kAborted, -1, "aborted here");
      pending ? run_on_device(operation, *pending, deadline) : run_on_host(operation, deadline);
    } catch (const BackendError& error) {
      // The kernel may still run and use the buffers; after this it does not.
      stop_ = true;
      if (comm_ != nullptr) calls_.abort(comm_);
      comm_ = nullptr;
      forget(operation.ticket, Pending::State::kFailed);
      throw board_.root_cause(error);
    }
    forget(operation.ticket, Pending::State::kQueued);
  }

  bool join(const Operation& operation) override {
    std::unique_lock lock(mutex_);
    const auto found = pending_.find(operation.ticket);
    if (found == pending_.end()) return false;  // over, or failed: the group knows
    const std::shared_ptr<Pending> pending = found->second;
    queued_.wait(lock, [&] { return pending->state != Pending::State::kCalled || stop_; });
    if (pending->state != Pending::State::kQueued || pending->end == nullptr) return false;  // failed, or over already
    return calls_.stream_wait(operation.stream, pending->end) == 0;
  }

  std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                    Clock::time_point deadline) override {
    std::string key = name;
    for (const int member : ranks) key += fmt::format(":{}", member);
    key += fmt::format("#{}", ++made_[key]);
    const auto self = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return open_nccl_group(world_, (place_ + "/" + key).substr(0, 256), name, static_cast<int>(self),
                           static_cast<int>(ranks.size()), deadline);
  }

  // The watchdog looks at it, and join(), whose operation may never run.
  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queued_.notify_all();
  }

 private:
  void connect(const GroupSettings& settings, Clock::time_point deadline) {
    NcclId id{};
    if (rank_ == 0) {
      check(calls_.get_unique_id(&id), "ncclGetUniqueId");
      if (size_ > 1) world_.store.set(place_ + "/id", std::string(id.data(), id.size()));
    } else {
      const std::string text = world_.store.get(place_ + "/id", deadline);
      if (text.size() != id.size()) throw BackendError(FaultKind::kAborted, 0, "published a malformed id");
      std::copy(text.begin(), text.end(), id.begin());
    }
    // NCCL reads these when it makes a communicator, which it does in the background until it has settled.
    const ScopedEnvironment environment({{"NCCL_ALGO", settings.algorithm}, {"NCCL_PROTO", settings.protocol}});
    settle(calls_.init_rank(&comm_, size_, id, rank_, {false, settings.min_channels, settings.max_channels}), deadline);
  }

  // finalize is asynchronous as well, and destroy may only follow when it is over; peers that failed would hold it up.
  void disconnect() noexcept {
    if (comm_ == nullptr) return;
    try {
      if (!stop_) {
        settle(calls_.finalize(comm_), Clock::now() + kFinalizeTime);
        calls_.destroy(comm_);
        return;
      }
    } catch (const std::exception&) {
      // Aborted below.
    }
    calls_.abort(comm_);
  }

  void check_cuda(int result, const char* call) const {
    if (result == 0) return;
    throw BackendError(FaultKind::kAborted, -1, fmt::format("{}: {}", call, calls_.cuda_error(result)));
  }

  void check(int result, const char* call) const {
    if (result == 0 || result == NcclCalls::kNcclInProgress) return;
    const bool peer = result == NcclCalls::kNcclRemoteError || result == NcclCalls::kNcclSystemError;
    throw BackendError(peer ? FaultKind::kPeerLost : FaultKind::kAborted, -1,
                       fmt::format("{}: {}", call, calls_.nccl_error(result)));
  }

  // A non-blocking communicator answers "in progress"; its state says when the call is over.
  void settle(int result, Clock::time_point deadline) const {
    check(result, "nccl call");
    for (int looks = 0; in_progress();) {
      give_up_when_due(deadline);
      pause(looks);
    }
  }

  bool in_progress() const {
    int state = 0;
    check(calls_.async_error(comm_, &state), "ncclCommGetAsyncError");
    check(state, "nccl");
    return state == NcclCalls::kNcclInProgress;
  }

  void give_up_when_due(Clock::time_point deadline) const {
    if (stop_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    if (Clock::now() >= deadline) throw BackendError(FaultKind::kTimeout, -1, "not complete in time");
  }

  void run_on_device(const Operation& operation, Pending& pending, Clock::time_point deadline) {
    check_cuda(calls_.stream_wait(stream_, pending.begin), "cudaStreamWaitEvent");
    settle(enqueue(operation), deadline);
    check_cuda(calls_.event_record(pending.end, stream_), "cudaEventRecord");
    {
      const std::lock_guard lock(mutex_);
      pending.state = Pending::State::kQueued;
    }
    queued_.notify_all();
    watch(pending.end, deadline);
  }

  // Until the event is reached; the group's thread does nothing else meanwhile.
  void watch(void* event, Clock::time_point deadline) {
    for (int looks = 0;;) {
      const int result = calls_.event_query(event);
      if (result == 0) return;
      if (result != NcclCalls::kCudaNotReady) check_cuda(result, "cudaEventQuery");
      in_progress();
      give_up_when_due(deadline);
      pause(looks);
    }
  }

  void run_on_host(const Operation& operation, Clock::time_point deadline) {
    const auto in_bytes = static_cast<std::size_t>(operation.input.bytes());
    const auto out_bytes = static_cast<std::size_t>(operation.output.bytes());
    const bool in_place = operation.input.data == operation.output.data;
    const std::size_t out_at = in_place ? 0 : (in_bytes + 255) / 256 * 256;
    reserve(std::max<std::size_t>(out_at + std::max(in_bytes, out_bytes), sizeof(float)));
    Operation staged = operation;
    staged.input.data = scratch_;
    staged.output.data = static_cast<std::byte*>(scratch_) + out_at;
    if (in_bytes > 0) {
      check_cuda(calls_.copy_in(scratch_, operation.input.data, in_bytes, stream_), "cudaMemcpyAsync");
    }
    settle(enqueue(staged), deadline);
    void* end = nullptr;
    check_cuda(calls_.event_create(&end), "cudaEventCreate");
    try {
      check_cuda(calls_.event_record(end, stream_), "cudaEventRecord");
      watch(end, deadline);  // before the copy, which would block the thread beyond its deadline
      if (out_bytes > 0) {
        check_cuda(calls_.copy_out(operation.output.data, staged.output.data, out_bytes, stream_), "cudaMemcpyAsync");
        check_cuda(calls_.event_record(end, stream_), "cudaEventRecord");
        watch(end, deadline);
      }
    } catch (...) {
      calls_.event_destroy(end);
      throw;
    }
    calls_.event_destroy(end);
  }

  void reserve(std::size_t bytes) {
    if (bytes <= scratch_bytes_) return;
    if (scratch_ != nullptr) calls_.release(scratch_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    check_cuda(calls_.allocate(&scratch_, bytes), "cudaMalloc");
    scratch_bytes_ = bytes;
  }

  int enqueue(const Operation& operation) {
    const void* const in = operation.input.data;
    void* const out = operation.output.data;
    const auto in_count = static_cast<std::size_t>(operation.input.count);
    const auto out_count = static_cast<std::size_t>(operation.output.count);
    const DType type = operation.kind == OpKind::kSend ? operation.input.dtype : operation.output.dtype;
    switch (operation.kind) {
      case OpKind::kAllReduce:
        return calls_.all_reduce(in, out, out_count, type, operation.reduce, comm_, stream_);
      case OpKind::kReduceScatter:
        return calls_.reduce_scatter(in, out, out_count, type, operation.reduce, comm_, stream_);
      case OpKind::kAllGather:
        return calls_.all_gather(in, out, in_count, type, comm_, stream_);
      case OpKind::kBroadcast:
        return calls_.broadcast(in, out, out_count, type, operation.peer, comm_, stream_);
      case OpKind::kAllToAll:
        return all_to_all(operation);
      case OpKind::kSend:
        return calls_.send(in, in_count, type, operation.peer, comm_, stream_);
      case OpKind::kRecv:
        return calls_.recv(out, out_count, type, operation.peer, comm_, stream_);
      case OpKind::kBarrier:  // a reduction of one number that is not read
        return calls_.all_reduce(scratch_, scratch_, 1, DType::kF32, ReduceOp::kSum, comm_, stream_);
    }
    throw InternalError("unknown operation");
  }

  int all_to_all(const Operation& operation) {
    const std::int64_t element = size_of(operation.output.dtype);
    const DType type = operation.output.dtype;
    const auto* from = static_cast<const std::byte*>(operation.input.data);
    auto* to = static_cast<std::byte*>(operation.output.data);
    check(calls_.group_start(), "ncclGroupStart");
    for (int peer = 0; peer < size_; ++peer) {
      const std::int64_t sent = operation.send_counts[static_cast<std::size_t>(peer)];
      const std::int64_t received = operation.receive_counts[static_cast<std::size_t>(peer)];
      if (sent > 0) check(calls_.send(from, static_cast<std::size_t>(sent), type, peer, comm_, stream_), "ncclSend");
      if (received > 0) {
        check(calls_.recv(to, static_cast<std::size_t>(received), type, peer, comm_, stream_), "ncclRecv");
      }
      from += sent * element;
      to += received * element;
    }
    return calls_.group_end();
  }

  std::shared_ptr<Pending> find(void* ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(ticket);
    return found == pending_.end() ? nullptr : found->second;
  }

  // join() may still hold the entry, and finds its events gone.
  void forget(void* ticket, Pending::State state) {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(ticket);
    if (found == pending_.end()) return;
    found->second->state = state;
    release(*found->second);
    pending_.erase(found);
    queued_.notify_all();
  }

  void release(Pending& pending) {
    if (pending.begin != nullptr) calls_.event_destroy(pending.begin);
    if (pending.end != nullptr) calls_.event_destroy(pending.end);
    pending.begin = pending.end = nullptr;
  }

  const NcclWorld world_;
  NcclCalls& calls_;
  const std::string place_;
  const int rank_;
  const int size_;
  FaultBoard board_;
  void* stream_ = nullptr;
  void* comm_ = nullptr;
  void* scratch_ = nullptr;  // on the device, for host memory
  std::size_t scratch_bytes_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable queued_;
  std::map<void*, std::shared_ptr<Pending>> pending_;
  std::map<std::string, int> made_;
};

}  // namespace

std::unique_ptr<Backend> open_nccl_group(const NcclWorld& world, const std::string& place, const std::string& name,
                                         int rank, int size, Clock::time_point deadline) {
  return std::make_unique<NcclBackend>(world, place, name, rank, size, deadline);
}

}  // namespace lockstep::comm
