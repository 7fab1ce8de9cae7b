#include "lockstep/engine/fused/parameters.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/kernels/cuda/check.h"
#include "lockstep/kernels/cuda/random.h"

namespace lockstep::engine::cuda {

using kernels::cuda::AdamW;
using kernels::cuda::AdamWStep;
using kernels::cuda::kNormParts;

Placed FusedParameters::place(std::int64_t out, std::int64_t in) {
  const Placed p{count_, out, in};
  count_ += (p.count() + 127) / 128 * 128;  // every matrix begins at 256 bytes
  return p;
}

FusedParameters::FusedParameters(const FusedShape& s, bool bf16_gradients, StatePrecision states)
    : bf16_gradients_(bf16_gradients), states_(states) {
  const auto name = [this](const std::string& n, Placed p, std::int64_t row, std::int64_t rows) {
    named_.push_back({n, {p.offset + row * p.in, rows, p.in}, false});
  };
  constexpr const char* kEmbedding = "model.embed_tokens.weight";
  if (!s.tied) {
    embedding_ = place(s.vocab, s.hidden);
    name(kEmbedding, embedding_, 0, s.vocab);
  }
  for (std::int64_t l = 0; l < s.layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    const std::int64_t q = s.attention_width(), kv = s.kv_heads * s.head_dim;
    matrices_.push_back(place(s.qkv_width(), s.hidden));
    name(layer + "self_attn.q_proj.weight", matrices_.back(), 0, q);
    name(layer + "self_attn.k_proj.weight", matrices_.back(), q, kv);
    name(layer + "self_attn.v_proj.weight", matrices_.back(), q + kv, kv);
    matrices_.push_back(place(s.hidden, q));
    name(layer + "self_attn.o_proj.weight", matrices_.back(), 0, s.hidden);
    matrices_.push_back(place(2 * s.ffn, s.hidden));
    name(layer + "mlp.gate_proj.weight", matrices_.back(), 0, s.ffn);
    name(layer + "mlp.up_proj.weight", matrices_.back(), s.ffn, s.ffn);
    matrices_.push_back(place(s.hidden, s.ffn));
    name(layer + "mlp.down_proj.weight", matrices_.back(), 0, s.hidden);
  }
  head_begin_ = count_;
  head_ = place(s.vocab, s.hidden);
  name(s.tied ? kEmbedding : "lm_head.weight", head_, 0, s.vocab);
  if (s.tied) embedding_ = head_;
  norms_begin_ = count_;
  for (std::int64_t l = 0; l < s.layers; ++l)
    for (const char* which : {"input_layernorm", "post_attention_layernorm"}) {
      norms_.push_back(place(1, s.hidden));
      named_.push_back({fmt::format("model.layers.{}.{}.weight", l, which), norms_.back(), true});
    }
  final_norm_ = place(1, s.hidden);
  named_.push_back({"model.norm.weight", final_norm_, true});
}

void FusedParameters::want(DeviceArena& arena) {
  const std::int64_t state_bytes = states_ == StatePrecision::kFloat ? 4 : 2;
  arena.want(&weight_, count_);
  arena.want(&remainder_, count_);
  arena.want(&m_, count_ * state_bytes);
  arena.want(&v_, count_ * state_bytes);
  arena.want(&body_gradient_, head_begin_ * (bf16_gradients_ ? 2 : 4));
  arena.want(&head_gradient_, norms_begin_ - head_begin_);
  arena.want(&norm_gradient_, count_ - norms_begin_);
  arena.want(&norm_parts_, 3 * kNormParts);
  arena.want(&norm_and_factor_, 2);
}

const NamedParameter& FusedParameters::find(const std::string& name) const {
  for (const auto& p : named_)
    if (p.name == name) return p;
  throw UserError(ExitCode::kUsage, "the model has no parameter " + name);
}

void* FusedParameters::gradient(const Placed& p) const { return body_gradient_ + p.offset * (bf16_gradients_ ? 2 : 4); }

void* FusedParameters::memory(const NamedParameter& p, Part part) const {
  if (part == Part::kWeight) return weight_ + p.place.offset;
  const std::int64_t bytes = p.place.offset * (states_ == StatePrecision::kFloat ? 4 : 2);
  return (part == Part::kFirstMoment ? m_ : v_) + bytes;
}

void FusedParameters::zero_states(cudaStream_t stream) {
  const std::int64_t state_bytes = states_ == StatePrecision::kFloat ? 4 : 2;
  LOCKSTEP_CUDA(cudaMemsetAsync(m_, 0, count_ * state_bytes, stream));
  LOCKSTEP_CUDA(cudaMemsetAsync(v_, 0, count_ * state_bytes, stream));
  LOCKSTEP_CUDA(cudaMemsetAsync(norm_gradient_, 0, (count_ - norms_begin_) * sizeof(float), stream));
}

void FusedParameters::initialize(double deviation, std::uint32_t seed, cudaStream_t stream) {
  kernels::cuda::fill_normal(weight_, remainder_, norms_begin_, static_cast<float>(deviation), seed, stream);
  kernels::cuda::fill_value(weight_ + norms_begin_, remainder_ + norms_begin_, count_ - norms_begin_, 1.0f, stream);
  zero_states(stream);
}
void FusedParameters::initialize_as_torch(std::uint32_t seed, cudaStream_t stream) {
  initialize(1.0, seed, stream);
  for (const NamedParameter& p : named_)
    if (!p.is_norm && p.place.offset != embedding_.offset)
      kernels::cuda::fill_uniform(weight_ + p.place.offset, remainder_ + p.place.offset, p.place.count(),
                                  static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.place.in))),
                                  seed + static_cast<std::uint32_t>(p.place.offset), stream);
}

namespace {
// Device memory that lives as long as a call.
class Temporary {
 public:
  explicit Temporary(std::int64_t count) { LOCKSTEP_CUDA(cudaMalloc(&memory_, count * sizeof(float))); }
  ~Temporary() { cudaFree(memory_); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  float* get() const { return static_cast<float*>(memory_); }

 private:
  void* memory_ = nullptr;
};
}  // namespace

void FusedParameters::load(const NamedParameter& p, const float* values, cudaStream_t stream) {
  const Temporary temporary(p.place.count());
  LOCKSTEP_CUDA(cudaMemcpyAsync(temporary.get(), values, p.place.count() * sizeof(float), cudaMemcpyDefault, stream));
  kernels::cuda::split_master(temporary.get(), weight_ + p.place.offset, remainder_ + p.place.offset, p.place.count(),
                              stream);
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
}

void FusedParameters::load(const NamedParameter& p, const Bf16* values, cudaStream_t stream) {
  const std::size_t bytes = p.place.count() * sizeof(Bf16);
  LOCKSTEP_CUDA(cudaMemcpyAsync(weight_ + p.place.offset, values, bytes, cudaMemcpyDefault, stream));
  LOCKSTEP_CUDA(cudaMemsetAsync(remainder_ + p.place.offset, 0, bytes, stream));
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
}

void FusedParameters::save(const NamedParameter& p, float* host, cudaStream_t stream) const {
  const Temporary temporary(p.place.count());
  save_on_device(p, temporary.get(), stream);
  LOCKSTEP_CUDA(
      cudaMemcpyAsync(host, temporary.get(), p.place.count() * sizeof(float), cudaMemcpyDeviceToHost, stream));
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
}

void FusedParameters::save_on_device(const NamedParameter& p, float* values, cudaStream_t stream) const {
  kernels::cuda::join_master(weight_ + p.place.offset, remainder_ + p.place.offset, values, p.place.count(), stream);
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
}

void FusedParameters::save_all_on_device(float* values, cudaStream_t stream) const {
  kernels::cuda::join_master(weight_, remainder_, values, count_, stream);
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
}

std::vector<float> FusedParameters::save_gradient(const NamedParameter& p, cudaStream_t stream) const {
  std::vector<float> host(p.place.count());
  const bool body = p.place.offset < head_begin_;
  if (body && bf16_gradients_) {
    std::vector<std::uint16_t> bits(host.size());
    LOCKSTEP_CUDA(cudaMemcpyAsync(bits.data(), gradient(p.place), bits.size() * 2, cudaMemcpyDeviceToHost, stream));
    LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const std::uint32_t word = static_cast<std::uint32_t>(bits[i]) << 16;
      __builtin_memcpy(&host[i], &word, sizeof word);
    }
    return host;
  }
  const void* source = body        ? gradient(p.place)
                       : p.is_norm ? static_cast<const void*>(norm_gradient(p.place))
                                   : static_cast<const void*>(head_gradient_);
  LOCKSTEP_CUDA(cudaMemcpyAsync(host.data(), source, host.size() * sizeof(float), cudaMemcpyDeviceToHost, stream));
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
  return host;
}

template <class Gradient, class State>
void FusedParameters::update_part(const Gradient* gradient, std::int64_t begin, std::int64_t end, const AdamWStep* step,
                                  double weight_decay, bool clipped, cudaStream_t stream) {
  AdamW<Gradient, State> a;
  a.weight = weight_ + begin;
  a.remainder = remainder_ + begin;
  a.m = reinterpret_cast<State*>(m_) + begin;
  a.v = reinterpret_cast<State*>(v_) + begin;
  a.gradient = gradient;
  a.step = step;
  a.gradient_factor = clipped ? norm_and_factor_ + 1 : nullptr;
  a.weight_decay = static_cast<float>(weight_decay);
  a.count = end - begin;
  a.first_index = begin;
  kernels::cuda::adamw(a, stream);
}

template <class State>
void FusedParameters::update_all(const AdamWStep* step, const WeightDecay& decay, bool clipped, cudaStream_t stream) {
  if (bf16_gradients_)
    update_part<Bf16, State>(reinterpret_cast<const Bf16*>(body_gradient_), 0, head_begin_, step, decay.matrices,
                             clipped, stream);
  else
    update_part<float, State>(reinterpret_cast<const float*>(body_gradient_), 0, head_begin_, step, decay.matrices,
                              clipped, stream);
  update_part<float, State>(head_gradient_, head_begin_, norms_begin_, step, decay.matrices, clipped, stream);
  update_part<float, State>(norm_gradient_, norms_begin_, count_, step, decay.norms, clipped, stream);
}

void FusedParameters::update(const AdamWStep* step, const WeightDecay& decay, double clip, bool norm,
                             cudaStream_t stream) {
  if (norm) {
    if (bf16_gradients_)
      kernels::cuda::sum_of_squares(reinterpret_cast<const Bf16*>(body_gradient_), head_begin_, norm_parts_, stream);
    else
      kernels::cuda::sum_of_squares(reinterpret_cast<const float*>(body_gradient_), head_begin_, norm_parts_, stream);
    kernels::cuda::sum_of_squares(head_gradient_, norms_begin_ - head_begin_, norm_parts_ + kNormParts, stream);
    kernels::cuda::sum_of_squares(norm_gradient_, count_ - norms_begin_, norm_parts_ + 2 * kNormParts, stream);
    kernels::cuda::gradient_clip(norm_parts_, 3, static_cast<float>(clip), norm_and_factor_, norm_and_factor_ + 1,
                                 stream);
  }
  if (states_ == StatePrecision::kFloat)
    update_all<float>(step, decay, norm, stream);
  else
    update_all<Bf16>(step, decay, norm, stream);
}

}  // namespace lockstep::engine::cuda
