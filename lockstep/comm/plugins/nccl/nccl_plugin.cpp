// The plugin: NcclCalls over the libraries it is linked with.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>

#include <fmt/format.h>

#include "lockstep/comm/plugins/nccl/nccl_backend.h"

namespace lockstep::comm {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(NcclCalls::kNcclInProgress == ncclInProgress && NcclCalls::kNcclRemoteError == ncclRemoteError &&
              NcclCalls::kNcclSystemError == ncclSystemError && NcclCalls::kCudaNotReady == cudaErrorNotReady);

ncclDataType_t type_of(DType dtype) {
  constexpr ncclDataType_t kTypes[] = {ncclFloat64, ncclFloat32, ncclFloat16, ncclBfloat16,
                                       ncclInt64,   ncclInt32,   ncclUint8};  // in DType's order
  return kTypes[static_cast<std::size_t>(dtype)];
}

ncclRedOp_t op_of(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : op == ReduceOp::kMax ? ncclMax : ncclMin; }
ncclComm_t comm_of(void* comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

class LinkedCalls final : public NcclCalls {
 public:
  int get_unique_id(NcclId* id) override {
    ncclUniqueId made{};
    const int result = ncclGetUniqueId(&made);
    std::memcpy(id->data(), made.internal, id->size());
    return result;
  }
  int init_rank(void** comm, int size, const NcclId& id, int rank, const NcclConfig& wanted) override {
    ncclUniqueId given{};
    std::memcpy(given.internal, id.data(), id.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = wanted.blocking ? 1 : 0;
    if (wanted.min_channels > 0) config.minCTAs = wanted.min_channels;
    if (wanted.max_channels > 0) config.maxCTAs = wanted.max_channels;
    ncclComm_t made = nullptr;
    const int result = ncclCommInitRankConfig(&made, size, given, rank, &config);
    *comm = made;
    return result;
  }
  int async_error(void* comm, int* state) override {
    ncclResult_t found = ncclSuccess;
    const int result = ncclCommGetAsyncError(comm_of(comm), &found);
    *state = found;
    return result;
  }
  int abort(void* comm) override { return ncclCommAbort(comm_of(comm)); }
  int finalize(void* comm) override { return ncclCommFinalize(comm_of(comm)); }
  int destroy(void* comm) override { return ncclCommDestroy(comm_of(comm)); }
  int all_reduce(const void* in, void* out, std::size_t count, DType type, ReduceOp op, void* comm,
                 void* stream) override {
    return ncclAllReduce(in, out, count, type_of(type), op_of(op), comm_of(comm), stream_of(stream));
  }
  int reduce_scatter(const void* in, void* out, std::size_t count, DType type, ReduceOp op, void* comm,
                     void* stream) override {
    return ncclReduceScatter(in, out, count, type_of(type), op_of(op), comm_of(comm), stream_of(stream));
  }
  int all_gather(const void* in, void* out, std::size_t count, DType type, void* comm, void* stream) override {
    return ncclAllGather(in, out, count, type_of(type), comm_of(comm), stream_of(stream));
  }
  int broadcast(const void* in, void* out, std::size_t count, DType type, int root, void* comm, void* stream) override {
    return ncclBroadcast(in, out, count, type_of(type), root, comm_of(comm), stream_of(stream));
  }
  int send(const void* in, std::size_t count, DType type, int peer, void* comm, void* stream) override {
    return ncclSend(in, count, type_of(type), peer, comm_of(comm), stream_of(stream));
  }
  int recv(void* out, std::size_t count, DType type, int peer, void* comm, void* stream) override {
    return ncclRecv(out, count, type_of(type), peer, comm_of(comm), stream_of(stream));
  }
  int group_start() override { return ncclGroupStart(); }
  int group_end() override { return ncclGroupEnd(); }
  std::string nccl_error(int result) override { return ncclGetErrorString(static_cast<ncclResult_t>(result)); }

  int set_device(int device) override { return cudaSetDevice(device); }
  int stream_create(void** stream) override {
    cudaStream_t made = nullptr;
    const int result = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    *stream = made;
    return result;
  }
  int stream_destroy(void* stream) override { return cudaStreamDestroy(stream_of(stream)); }
  int stream_wait(void* stream, void* event) override {
    return cudaStreamWaitEvent(stream_of(stream), event_of(event), 0);
  }
  int event_create(void** event) override {
    cudaEvent_t made = nullptr;
    const int result = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    *event = made;
    return result;
  }
  int event_destroy(void* event) override { return cudaEventDestroy(event_of(event)); }
  int event_record(void* event, void* stream) override { return cudaEventRecord(event_of(event), stream_of(stream)); }
  int event_query(void* event) override { return cudaEventQuery(event_of(event)); }
  int allocate(void** memory, std::size_t bytes) override { return cudaMalloc(memory, bytes); }
  int release(void* memory) override { return cudaFree(memory); }
  int copy_in(void* device_memory, const void* host, std::size_t bytes, void* stream) override {
    return cudaMemcpyAsync(device_memory, host, bytes, cudaMemcpyHostToDevice, stream_of(stream));
  }
  int copy_out(void* host, const void* device_memory, std::size_t bytes, void* stream) override {
    return cudaMemcpyAsync(host, device_memory, bytes, cudaMemcpyDeviceToHost, stream_of(stream));
  }
  std::string cuda_error(int result) override { return cudaGetErrorString(static_cast<cudaError_t>(result)); }
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
  const NcclWorld world{std::make_shared<LinkedCalls>(), options.store, options.device, options.groups};
  return open_nccl_group(world, "nccl", options.name, options.rank, options.size, options.connect_deadline);
}

}  // namespace
}  // namespace lockstep::comm

LOCKSTEP_EXPORT_COMM_BACKEND("nccl", lockstep::comm::open_nccl)
