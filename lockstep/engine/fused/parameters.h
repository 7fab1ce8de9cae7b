// Parameters, gradients and optimizer states of the dense step as flat arrays.
//
// Order of the flat array: embedding, the matrices of the layers | head | norms. The part before the first bar has its
// gradient in bf16 or fp32 (a choice), head and norms always in fp32: the head's is summed over chunks of rows. Tied,
// the embedding is the head: one weight, one gradient, one state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/engine/fused/device_arena.h"
#include "lockstep/engine/fused/options.h"
#include "lockstep/kernels/cuda/adamw.h"

namespace lockstep::engine::cuda {

using kernels::cuda::Bf16;

enum class Linear { kQkv, kAttentionOut, kGateUp, kDown };
constexpr int kLinears = 4;

// A matrix [out, in] (a vector: out = 1) at `offset` elements of the flat array.
struct Placed {
  std::int64_t offset = 0, out = 0, in = 0;
  std::int64_t count() const { return out * in; }
};
struct NamedParameter {
  std::string name;  // as the engine and Hugging Face name it; q, k, v, gate and up apart
  Placed place;
  bool is_norm = false;
};

// AdamW's, of the matrices (the embedding among them) and of the weights of norms.
struct WeightDecay {
  double matrices = 0, norms = 0;
};

class FusedParameters {
 public:
  FusedParameters(const FusedShape& shape, bool bf16_gradients, StatePrecision states);
  void want(DeviceArena& arena);

  std::int64_t count() const { return count_; }
  const std::vector<NamedParameter>& named() const { return named_; }
  const NamedParameter& find(const std::string& name) const;  // throws UserError

  const Placed& embedding() const { return embedding_; }
  const Placed& head() const { return head_; }
  bool tied() const { return embedding_.offset == head_.offset; }
  const Placed& final_norm() const { return final_norm_; }
  const Placed& matrix(std::int64_t layer, Linear which) const {
    return matrices_[layer * kLinears + static_cast<int>(which)];
  }
  const Placed& attention_norm(std::int64_t layer) const { return norms_[2 * layer]; }
  const Placed& mlp_norm(std::int64_t layer) const { return norms_[2 * layer + 1]; }

  Bf16* weight(const Placed& p) const { return weight_ + p.offset; }
  bool bf16_gradients() const { return bf16_gradients_; }
  // Of the layers' matrices and an embedding that is not tied: bf16 or float.
  void* gradient(const Placed& p) const;
  float* head_gradient() const { return head_gradient_; }
  float* norm_gradient(const Placed& p) const { return norm_gradient_ + (p.offset - norms_begin_); }

  // Normal values of `deviation`, norms 1, states 0.
  void initialize(double deviation, std::uint32_t seed, cudaStream_t stream);
  // The distributions of torch.nn's modules: the embedding normal of deviation 1, matrices [out, in] uniform within
  // 1 / sqrt(in), norms 1; states 0.
  void initialize_as_torch(std::uint32_t seed, cudaStream_t stream);
  void zero_states(cudaStream_t stream);
  // Values of host or device memory, ready when the call is made; it waits.
  void load(const NamedParameter& p, const float* values, cudaStream_t stream);
  void load(const NamedParameter& p, const Bf16* values, cudaStream_t stream);  // for values that bf16 holds
  void save(const NamedParameter& p, float* host, cudaStream_t stream) const;   // waits
  void save_on_device(const NamedParameter& p, float* values, cudaStream_t stream) const;
  void save_all_on_device(float* values, cudaStream_t stream) const;  // count() of them
  std::vector<float> save_gradient(const NamedParameter& p, cudaStream_t stream) const;

  // Live device memory of a parameter: the bf16 weight, or AdamW's m and v in the states' precision.
  enum class Part { kWeight, kFirstMoment, kSecondMoment };
  void* memory(const NamedParameter& p, Part part) const;
  StatePrecision states() const { return states_; }

  // With `norm`: the gradient's norm and clip factor (`clip` 0: no limit), and nothing more where it is not finite.
  // Then AdamW over everything.
  void update(const kernels::cuda::AdamWStep* step, const WeightDecay& decay, double clip, bool norm,
              cudaStream_t stream);
  const float* gradient_norm() const { return norm_and_factor_; }  // device; set by an update with `norm`

 private:
  template <class Gradient, class State>
  void update_part(const Gradient* gradient, std::int64_t begin, std::int64_t end, const kernels::cuda::AdamWStep* step,
                   double weight_decay, bool clipped, cudaStream_t stream);
  template <class State>
  void update_all(const kernels::cuda::AdamWStep* step, const WeightDecay& decay, bool clipped, cudaStream_t stream);
  Placed place(std::int64_t out, std::int64_t in);

  bool bf16_gradients_;
  StatePrecision states_;
  std::int64_t count_ = 0, head_begin_ = 0, norms_begin_ = 0;
  Placed embedding_, head_, final_norm_;
  std::vector<Placed> matrices_, norms_;
  std::vector<NamedParameter> named_;
  Bf16* weight_ = nullptr;
  std::int16_t* remainder_ = nullptr;
  char* m_ = nullptr;
  char* v_ = nullptr;
  char* body_gradient_ = nullptr;
  float* head_gradient_ = nullptr;
  float* norm_gradient_ = nullptr;
  float* norm_parts_ = nullptr;
  float* norm_and_factor_ = nullptr;
};

}  // namespace lockstep::engine::cuda
