// The seam over NCCL and CUDA: every call that the backend makes, in plain types, so that a test can replace both
// libraries where there is no second GPU, or no GPU at all.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "lockstep/comm/dtype.h"

namespace lockstep::comm {

using NcclId = std::array<char, 128>;  // ncclUniqueId

struct NcclConfig {
  bool blocking = false;
  int min_channels = 0;  // 0: NCCL's choice
  int max_channels = 0;
};

// Results are NCCL's (ncclResult_t) and CUDA's (cudaError_t) own numbers; 0 is success in both. Handles are theirs as
// void*. Any thread; `set_device` holds for the calling one.
class NcclCalls {
 public:
  static constexpr int kNcclSystemError = 2, kNcclRemoteError = 6, kNcclInProgress = 7;
  static constexpr int kCudaNotReady = 600;

  virtual ~NcclCalls() = default;

  virtual int get_unique_id(NcclId* id) = 0;
  virtual int init_rank(void** comm, int size, const NcclId& id, int rank, const NcclConfig& config) = 0;
  virtual int async_error(void* comm, int* state) = 0;
  virtual int abort(void* comm) = 0;
  virtual int finalize(void* comm) = 0;
  virtual int destroy(void* comm) = 0;
  virtual int all_reduce(const void* in, void* out, std::size_t count, DType type, ReduceOp op, void* comm,
                         void* stream) = 0;
  virtual int reduce_scatter(const void* in, void* out, std::size_t out_count, DType type, ReduceOp op, void* comm,
                             void* stream) = 0;
  virtual int all_gather(const void* in, void* out, std::size_t in_count, DType type, void* comm, void* stream) = 0;
  virtual int broadcast(const void* in, void* out, std::size_t count, DType type, int root, void* comm,
                        void* stream) = 0;
  virtual int send(const void* in, std::size_t count, DType type, int peer, void* comm, void* stream) = 0;
  virtual int recv(void* out, std::size_t count, DType type, int peer, void* comm, void* stream) = 0;
  virtual int group_start() = 0;
  virtual int group_end() = 0;
  virtual std::string nccl_error(int result) = 0;

  virtual int set_device(int device) = 0;
  virtual int stream_create(void** stream) = 0;
  virtual int stream_destroy(void* stream) = 0;
  virtual int stream_wait(void* stream, void* event) = 0;
  virtual int event_create(void** event) = 0;
  virtual int event_destroy(void* event) = 0;
  virtual int event_record(void* event, void* stream) = 0;
  virtual int event_query(void* event) = 0;  // 0: reached; kCudaNotReady
  virtual int allocate(void** memory, std::size_t bytes) = 0;
  virtual int release(void* memory) = 0;
  virtual int copy_in(void* device_memory, const void* host, std::size_t bytes, void* stream) = 0;
  virtual int copy_out(void* host, const void* device_memory, std::size_t bytes, void* stream) = 0;
  virtual std::string cuda_error(int result) = 0;
};

}  // namespace lockstep::comm
