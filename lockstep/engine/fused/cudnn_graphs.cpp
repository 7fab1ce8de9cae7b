#include "lockstep/engine/fused/cudnn_graphs.h"

#if LOCKSTEP_HAS_CUDNN_FRONTEND

#include <dlfcn.h>

// The library is libtorch's own, found in the process: nothing is linked.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <unordered_map>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the headers' own seam
}

namespace lockstep::engine::cuda {
namespace {

namespace frontend = cudnn_frontend;
using frontend::graph::Graph;
using Tensor = std::shared_ptr<frontend::graph::Tensor_attributes>;
using Memory = std::unordered_map<std::int64_t, void*>;

enum Place : std::int64_t { kQ = 1, kK, kV, kOut, kStatistics, kDOut, kDQ, kDK, kDV };

void check(frontend::error_t error, const char* what) {
  if (error.is_bad()) throw std::runtime_error(std::string("[attention] cuDNN, ") + what + ": " + error.get_message());
}

struct Handle {
  cudnnHandle_t handle = nullptr;
  explicit Handle(cudaStream_t stream) {
    if (frontend::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
      throw std::runtime_error("[attention] cuDNN gives no handle");
    if (frontend::detail::set_stream(handle, stream) == CUDNN_STATUS_SUCCESS) return;
    frontend::detail::destroy_handle(handle);
    throw std::runtime_error("[attention] cuDNN does not take the stream");
  }
  ~Handle() { frontend::detail::destroy_handle(handle); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

class Graphs : public CudnnGraphs {
 public:
  Graphs(const AttentionShape& shape, cudaStream_t stream) : shape_(shape), handle_(stream) {
    build_forward();
    build_backward();
    std::int64_t forward = 0, backward = 0;
    check(forward_.get_workspace_size(forward), "workspace");
    check(backward_.get_workspace_size(backward), "workspace");
    workspace_ = static_cast<std::size_t>(std::max(forward, backward));
  }

  std::size_t workspace_bytes() const override { return workspace_; }

  void forward(const Bf16* qkv, Bf16* out, float* statistics, void* workspace) override {
    Memory memory = inputs(qkv);
    memory[kOut] = out;
    memory[kStatistics] = statistics;
    check(forward_.execute(handle_.handle, memory, workspace), "forward");
  }
  void backward(const Bf16* qkv, const Bf16* out, const float* statistics, const Bf16* dout, Bf16* dqkv,
                void* workspace) override {
    Memory memory = inputs(qkv);
    memory[kOut] = const_cast<Bf16*>(out);
    memory[kStatistics] = const_cast<float*>(statistics);
    memory[kDOut] = const_cast<Bf16*>(dout);
    memory[kDQ] = dqkv;
    memory[kDK] = dqkv + shape_.heads * shape_.dim;
    memory[kDV] = dqkv + (shape_.heads + shape_.kv_heads) * shape_.dim;
    check(backward_.execute(handle_.handle, memory, workspace), "backward");
  }

 private:
  using Sizes = std::vector<std::int64_t>;
  std::int64_t width() const { return shape_.heads + 2 * shape_.kv_heads; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.dim)); }
  Sizes sizes(std::int64_t heads) const { return {shape_.batch, heads, shape_.seq, shape_.dim}; }
  // Of heads that lie in tokens of `width` heads.
  Sizes strides(std::int64_t width) const {
    return {shape_.seq * width * shape_.dim, shape_.dim, width * shape_.dim, 1};
  }
  Sizes statistics_sizes() const { return {shape_.batch, shape_.heads, shape_.seq, 1}; }
  Sizes statistics_strides() const { return {shape_.heads * shape_.seq, shape_.seq, 1, 1}; }

  Memory inputs(const Bf16* qkv) const {
    auto* const base = const_cast<Bf16*>(qkv);
    return {
        {kQ, base}, {kK, base + shape_.heads * shape_.dim}, {kV, base + (shape_.heads + shape_.kv_heads) * shape_.dim}};
  }
  Tensor input(Graph& graph, Place place, const char* name, std::int64_t heads, std::int64_t width) const {
    frontend::graph::Tensor_attributes tensor;
    tensor.set_name(name).set_uid(place).set_dim(sizes(heads)).set_stride(strides(width));
    return graph.tensor(tensor);
  }
  void output(const Tensor& tensor, Place place, std::int64_t heads, std::int64_t width) const {
    tensor->set_output(true).set_uid(place).set_dim(sizes(heads)).set_stride(strides(width));
  }
  static void set_types(Graph& graph) {
    graph.set_io_data_type(frontend::DataType_t::BFLOAT16)
        .set_intermediate_data_type(frontend::DataType_t::FLOAT)
        .set_compute_data_type(frontend::DataType_t::FLOAT);
  }

  void build_forward() {
    set_types(forward_);
    const Tensor q = input(forward_, kQ, "q", shape_.heads, width());
    const Tensor k = input(forward_, kK, "k", shape_.kv_heads, width());
    const Tensor v = input(forward_, kV, "v", shape_.kv_heads, width());
    frontend::graph::SDPA_attributes attention;
    attention.set_name("forward").set_generate_stats(true).set_causal_mask(true).set_attn_scale(scale());
    const auto [out, statistics] = forward_.sdpa(q, k, v, attention);
    output(out, kOut, shape_.heads, shape_.heads);
    statistics->set_output(true)
        .set_uid(kStatistics)
        .set_data_type(frontend::DataType_t::FLOAT)
        .set_dim(statistics_sizes())
        .set_stride(statistics_strides());
    check(forward_.build(handle_.handle, {frontend::HeurMode_t::A}), "plan of forward");
  }

  void build_backward() {
    set_types(backward_);
    const Tensor q = input(backward_, kQ, "q", shape_.heads, width());
    const Tensor k = input(backward_, kK, "k", shape_.kv_heads, width());
    const Tensor v = input(backward_, kV, "v", shape_.kv_heads, width());
    const Tensor out = input(backward_, kOut, "out", shape_.heads, shape_.heads);
    const Tensor dout = input(backward_, kDOut, "dout", shape_.heads, shape_.heads);
    frontend::graph::Tensor_attributes kept;
    kept.set_name("statistics").set_uid(kStatistics).set_data_type(frontend::DataType_t::FLOAT);
    kept.set_dim(statistics_sizes()).set_stride(statistics_strides());
    const Tensor statistics = backward_.tensor(kept);
    frontend::graph::SDPA_backward_attributes attention;
    attention.set_name("backward").set_causal_mask(true).set_attn_scale(scale());
    const auto [dq, dk, dv] = backward_.sdpa_backward(q, k, v, out, dout, statistics, attention);
    output(dq, kDQ, shape_.heads, width());
    output(dk, kDK, shape_.kv_heads, width());
    output(dv, kDV, shape_.kv_heads, width());
    check(backward_.build(handle_.handle, {frontend::HeurMode_t::A}), "plan of backward");
  }

  AttentionShape shape_;
  Handle handle_;
  Graph forward_, backward_;
  std::size_t workspace_ = 0;
};

}  // namespace

std::unique_ptr<CudnnGraphs> CudnnGraphs::make(const AttentionShape& shape, cudaStream_t stream) {
  if (frontend::cudnn_dlhandle == nullptr) frontend::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_LAZY);
  if (frontend::cudnn_dlhandle == nullptr) return nullptr;
  try {
    return std::make_unique<Graphs>(shape, stream);
  } catch (const std::exception&) {  // no plan for this shape: libtorch may know a way
    return nullptr;
  }
}

}  // namespace lockstep::engine::cuda

#else

namespace lockstep::engine::cuda {
std::unique_ptr<CudnnGraphs> CudnnGraphs::make(const AttentionShape&, cudaStream_t) { return nullptr; }
}  // namespace lockstep::engine::cuda

#endif
