// NCCL on a stream of its own. The caller's stream is marked when an operation is called (prepare), our stream waits
// for that mark, and run() sleeps until an event behind the operation is reached. The communicator is non-blocking, so
// that neither connecting nor a lost peer can hold a thread beyond its deadline.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "lockstep/comm/plugin_export.h"
#include "lockstep/comm/plugins/fault_board.h"
#include "lockstep/comm/plugins/nccl/nccl_api.h"

namespace lockstep::comm {
namespace {

void check_cuda(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  throw BackendError(FaultKind::kAborted, -1, fmt::format("{}: {}", call, cudaGetErrorString(result)));
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kU8:
      return ncclUint8;
  }
  throw InternalError("unknown dtype");
}

ncclRedOp_t op_of(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : op == ReduceOp::kMax ? ncclMax : ncclMin; }

// Polling with growing pauses: at once for small messages, without taking a core from those that compute.
void pause(int& looks) { std::this_thread::sleep_for(std::chrono::microseconds(++looks < 1000 ? 10 : 200)); }

constexpr auto kFinalizeTime = std::chrono::seconds(10);

class Event {
 public:
  Event() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclBackend final : public Backend {
 public:
  NcclBackend(const NcclApi& api, int device, HostStore store, std::string place, int rank, int size,
              Clock::time_point deadline)
      : api_(api),
        device_(device),
        store_(std::move(store)),
        place_(std::move(place)),
        rank_(rank),
        size_(size),
        board_(store_, place_, rank, size) {
    check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check_cuda(cudaMalloc(&token_, sizeof(float)), "cudaMalloc");
    check_cuda(cudaMemset(token_, 0, sizeof(float)), "cudaMemset");
    connect(deadline);
  }

  ~NcclBackend() override {
    cudaSetDevice(device_);
    disconnect();
    cudaFree(token_);
    cudaStreamDestroy(stream_);
  }

  const char* name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool concurrent_point_to_point() const override { return false; }

  void* prepare(const Operation& operation) override {
    check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    auto mark = std::make_unique<Event>();
    check_cuda(cudaEventRecord(mark->get(), static_cast<cudaStream_t>(operation.stream)), "cudaEventRecord");
    const std::lock_guard lock(mutex_);
    void* const ticket = mark.get();
    marks_[ticket] = std::move(mark);
    return ticket;
  }

  void run(const Operation& operation, Clock::time_point deadline) override {
    try {
      check_cuda(cudaSetDevice(device_), "cudaSetDevice");
      wait_for_mark(operation.ticket);
      settle(enqueue(operation), deadline);
      Event end;
      check_cuda(cudaEventRecord(end.get(), stream_), "cudaEventRecord");
      wait_for_end(end, deadline);
    } catch (const BackendError& error) {
      // The kernel may still run and use the buffers; after this it does not.
      stop_ = true;
      if (comm_ != nullptr) api_.abort(comm_);
      comm_ = nullptr;
      throw board_.root_cause(error);
    }
  }

  std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                    Clock::time_point deadline) override {
    std::string key = name;
    for (const int member : ranks) key += fmt::format(":{}", member);
    key += fmt::format("#{}", ++made_[key]);
    const auto self = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return std::make_unique<NcclBackend>(api_, device_, store_, (place_ + "/" + key).substr(0, 256),
                                         static_cast<int>(self), static_cast<int>(ranks.size()), deadline);
  }

  void abort() noexcept override { stop_ = true; }  // run() looks at it while it waits

 private:
  // finalize is asynchronous as well, and destroy may only follow when it is over; peers that failed would hold it up.
  void disconnect() noexcept {
    if (comm_ == nullptr) return;
    try {
      if (!stop_) {
        settle(api_.finalize(comm_), Clock::now() + kFinalizeTime);
        api_.destroy(comm_);
        return;
      }
    } catch (const std::exception&) {
      // Aborted below.
    }
    api_.abort(comm_);
  }

  void connect(Clock::time_point deadline) {
    ncclUniqueId id{};
    if (rank_ == 0) {
      check(api_.get_unique_id(&id), "ncclGetUniqueId");
      if (size_ > 1) store_.set(place_ + "/id", std::string(id.internal, sizeof(id.internal)));
    } else {
      const std::string text = store_.get(place_ + "/id", deadline);
      if (text.size() != sizeof(id.internal)) throw BackendError(FaultKind::kAborted, 0, "published a malformed id");
      std::copy(text.begin(), text.end(), id.internal);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    settle(api_.init_rank(&comm_, size_, id, rank_, &config), deadline);
  }

  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw BackendError(
        result == ncclRemoteError || result == ncclSystemError ? FaultKind::kPeerLost : FaultKind::kAborted, -1,
        fmt::format("{}: {}", call, api_.error_string(result)));
  }

  // A non-blocking communicator answers "in progress"; its state tells when the call is over.
  void settle(ncclResult_t result, Clock::time_point deadline) const {
    check(result, "nccl call");
    int looks = 0;
    while (true) {
      ncclResult_t state = ncclSuccess;
      check(api_.async_error(comm_, &state), "ncclCommGetAsyncError");
      check(state, "nccl");
      if (state == ncclSuccess) return;
      give_up_when_due(deadline);
      pause(looks);
    }
  }

  void wait_for_mark(void* ticket) {
    std::unique_ptr<Event> mark;
    {
      const std::lock_guard lock(mutex_);
      const auto found = marks_.find(ticket);
      if (found == marks_.end()) return;
      mark = std::move(found->second);
      marks_.erase(found);
    }
    check_cuda(cudaStreamWaitEvent(stream_, mark->get(), 0), "cudaStreamWaitEvent");
  }

  void wait_for_end(const Event& end, Clock::time_point deadline) {
    int looks = 0;
    while (true) {
      const cudaError_t result = cudaEventQuery(end.get());
      if (result == cudaSuccess) return;
      if (result != cudaErrorNotReady) check_cuda(result, "cudaEventQuery");
      ncclResult_t state = ncclSuccess;
      check(api_.async_error(comm_, &state), "ncclCommGetAsyncError");
      check(state, "nccl");
      give_up_when_due(deadline);
      pause(looks);
    }
  }

  void give_up_when_due(Clock::time_point deadline) const {
    if (stop_) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    if (Clock::now() >= deadline) throw BackendError(FaultKind::kTimeout, -1, "not complete in time");
  }

  ncclResult_t enqueue(const Operation& operation) {
    if (comm_ == nullptr) throw BackendError(FaultKind::kAborted, -1, "aborted here");
    const void* const in = operation.input.data;
    void* const out = operation.output.data;
    const auto in_count = static_cast<std::size_t>(operation.input.count);
    const auto out_count = static_cast<std::size_t>(operation.output.count);
    const ncclDataType_t in_type = type_of(operation.input.dtype);
    const ncclDataType_t type = type_of(operation.output.dtype);
    switch (operation.kind) {
      case OpKind::kAllReduce:
        return api_.all_reduce(in, out, out_count, type, op_of(operation.reduce), comm_, stream_);
      case OpKind::kReduceScatter:
        return api_.reduce_scatter(in, out, out_count, type, op_of(operation.reduce), comm_, stream_);
      case OpKind::kAllGather:
        return api_.all_gather(in, out, in_count, type, comm_, stream_);
      case OpKind::kBroadcast:
        return api_.broadcast(in, out, out_count, type, operation.peer, comm_, stream_);
      case OpKind::kAllToAll:
        return all_to_all(operation);
      case OpKind::kSend:
        return api_.send(in, in_count, in_type, operation.peer, comm_, stream_);
      case OpKind::kRecv:
        return api_.recv(out, out_count, type, operation.peer, comm_, stream_);
      case OpKind::kBarrier:
        return api_.all_reduce(token_, token_, 1, ncclFloat32, ncclSum, comm_, stream_);
    }
    throw InternalError("unknown operation");
  }

  ncclResult_t all_to_all(const Operation& operation) {
    const std::int64_t element = size_of(operation.output.dtype);
    const ncclDataType_t type = type_of(operation.output.dtype);
    const auto* from = static_cast<const std::byte*>(operation.input.data);
    auto* to = static_cast<std::byte*>(operation.output.data);
    check(api_.group_start(), "ncclGroupStart");
    for (int peer = 0; peer < size_; ++peer) {
      const std::int64_t sent = operation.send_counts[static_cast<std::size_t>(peer)];
      const std::int64_t received = operation.receive_counts[static_cast<std::size_t>(peer)];
      if (sent > 0) check(api_.send(from, static_cast<std::size_t>(sent), type, peer, comm_, stream_), "ncclSend");
      if (received > 0)
        check(api_.recv(to, static_cast<std::size_t>(received), type, peer, comm_, stream_), "ncclRecv");
      from += sent * element;
      to += received * element;
    }
    return api_.group_end();
  }

  const NcclApi api_;
  const int device_;
  HostStore store_;
  const std::string place_;
  const int rank_;
  const int size_;
  FaultBoard board_;
  cudaStream_t stream_ = nullptr;
  void* token_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::map<void*, std::unique_ptr<Event>> marks_;
  std::map<std::string, int> made_;
};

std::unique_ptr<Backend> open_nccl(const PluginOptions& options) {
  if (options.size > 1 && !options.store.present()) {
    throw bad_input("nccl needs a rendezvous store", "pass CommOptions::store");
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || options.device < 0 || options.device >= devices) {
    throw environment_error(fmt::format("CUDA device {} was asked for and there are {}", options.device, devices),
                            "run on a machine with that GPU, or use the gloo backend");
  }
  return std::make_unique<NcclBackend>(NcclApi::linked(), options.device, options.store, "nccl", options.rank,
                                       options.size, options.connect_deadline);
}

}  // namespace
}  // namespace lockstep::comm

LOCKSTEP_EXPORT_COMM_BACKEND("nccl", lockstep::comm::open_nccl)
