#include "lockstep/engine/fused/attention.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward_cuda_dispatch.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_cuda_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <stdexcept>
#include <vector>

#include "lockstep/kernels/cuda/check.h"

namespace lockstep::engine::cuda {

struct Attention::Impl {
  struct Slot {
    at::Tensor out, logsumexp, seed, offset;
  };
  AttentionShape shape;
  c10::cuda::CUDAStream stream;
  std::vector<Slot> slots;
  std::unique_ptr<CudnnGraphs> graphs;  // null: libtorch's binding
  at::Tensor dq, dk, dv;

  at::Tensor memory(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::empty(sizes, at::TensorOptions().dtype(type).device(stream.device()));
  }
  at::Tensor workspace() const { return memory({static_cast<std::int64_t>(graphs->workspace_bytes())}, at::kByte); }

  // A [batch, heads, seq, dim] view of `count` heads that begin at `first` of a token of `width` heads.
  at::Tensor view(const Bf16* base, std::int64_t first, std::int64_t count, std::int64_t width) const {
    const auto& s = shape;
    auto* const data = const_cast<Bf16*>(base) + first * s.dim;
    return at::from_blob(data, {s.batch, count, s.seq, s.dim}, {s.seq * width * s.dim, s.dim, width * s.dim, 1},
                         at::TensorOptions().dtype(at::kBFloat16).device(stream.device()));
  }
  std::int64_t width() const { return shape.heads + 2 * shape.kv_heads; }
  at::Tensor q(const Bf16* qkv) const { return view(qkv, 0, shape.heads, width()); }
  at::Tensor k(const Bf16* qkv) const { return view(qkv, shape.heads, shape.kv_heads, width()); }
  at::Tensor v(const Bf16* qkv) const { return view(qkv, shape.heads + shape.kv_heads, shape.kv_heads, width()); }

  // The data pointer of a [batch, heads, seq, dim] tensor that must lie as [batch, seq, heads, dim].
  static const Bf16* packed(const at::Tensor& t) {
    if (!t.transpose(1, 2).is_contiguous())
      throw std::runtime_error("[attention] cuDNN's result does not lie as [batch, seq, heads, dim]");
    return static_cast<const Bf16*>(t.const_data_ptr());
  }
};

namespace {
c10::cuda::CUDAStream external(cudaStream_t stream) {
  int device = 0;
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return c10::cuda::getStreamFromExternal(stream, static_cast<c10::DeviceIndex>(device));
}
}  // namespace

Attention::Attention(const AttentionShape& shape, int slots, bool own_graphs, cudaStream_t stream)
    : impl_(new Impl{shape, external(stream), std::vector<Impl::Slot>(slots), {}, {}, {}, {}}) {
  if (own_graphs) impl_->graphs = CudnnGraphs::make(shape, stream);
}
Attention::~Attention() = default;

const Bf16* Attention::forward(int slot, const Bf16* qkv) {
  const c10::InferenceMode no_autograd;
  const c10::cuda::CUDAStreamGuard guard(impl_->stream);
  auto& s = impl_->slots.at(slot);
  const auto& shape = impl_->shape;
  if (impl_->graphs != nullptr) {
    s = {};  // its block serves again
    s.out = impl_->memory({shape.batch, shape.seq, shape.heads, shape.dim}, at::kBFloat16).transpose(1, 2);
    s.logsumexp = impl_->memory({shape.batch, shape.heads, shape.seq}, at::kFloat);
    impl_->graphs->forward(qkv, static_cast<Bf16*>(s.out.data_ptr()), s.logsumexp.data_ptr<float>(),
                           impl_->workspace().data_ptr());
    return Impl::packed(s.out);
  }
  auto result = at::cuda::_scaled_dot_product_cudnn_attention(impl_->q(qkv), impl_->k(qkv), impl_->v(qkv), std::nullopt,
                                                              /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true);
  s = {std::get<0>(result), std::get<1>(result), std::get<6>(result), std::get<7>(result)};
  return Impl::packed(s.out);
}

const Bf16* Attention::output(int slot) const { return Impl::packed(impl_->slots.at(slot).out); }

std::optional<Attention::Gradients> Attention::backward(int slot, const Bf16* qkv, const Bf16* dout, Bf16* dqkv) {
  const c10::InferenceMode no_autograd;
  const c10::cuda::CUDAStreamGuard guard(impl_->stream);
  auto& s = impl_->slots.at(slot);
  const auto& shape = impl_->shape;
  if (impl_->graphs != nullptr) {
    impl_->graphs->backward(qkv, Impl::packed(s.out), s.logsumexp.data_ptr<float>(), dout, dqkv,
                            impl_->workspace().data_ptr());
    return std::nullopt;
  }
  impl_->dq = impl_->dk = impl_->dv = at::Tensor();  // their blocks serve again
  std::tie(impl_->dq, impl_->dk, impl_->dv) = at::cuda::_scaled_dot_product_cudnn_attention_backward(
      impl_->view(dout, 0, shape.heads, shape.heads), impl_->q(qkv), impl_->k(qkv), impl_->v(qkv), s.out, s.logsumexp,
      s.seed, s.offset, at::Tensor(), at::Tensor(), at::Tensor(), shape.seq, shape.seq, 0.0, /*is_causal=*/true);
  return Gradients{Impl::packed(impl_->dq), Impl::packed(impl_->dk), Impl::packed(impl_->dv)};
}

void Attention::release(int slot) { impl_->slots.at(slot) = {}; }

std::size_t Attention::peak_bytes() const {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(impl_->stream.device_index());
  return static_cast<std::size_t>(stats.allocated_bytes[0].peak);  // [0]: all pools together
}

}  // namespace lockstep::engine::cuda
