// Of a build without CUDA.
#include "lockstep/base/error.h"
#include "lockstep/nn/cuda/operators.h"

namespace lockstep::nn::cuda {
namespace {

using torch::Tensor;

[[noreturn]] void absent() { throw InternalError("this build has no CUDA kernels"); }

}  // namespace

bool takes(const Tensor&) { return false; }
bool takes_dropout(const Tensor&) { return false; }
bool takes_attention(const Tensor&) { return false; }
bool fill_normal(Tensor&, double, double, const PhiloxKey&, std::int64_t) { return false; }

Tensor dropout(const Tensor&, const Tensor&, const Tensor&, const Drop&) { absent(); }
AddNorm add_norm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, const Drop&) {
  absent();
}
AddNormGradients add_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, const Drop&) {
  absent();
}
Tensor gelu(const Tensor&, const Tensor&, Gelu) { absent(); }
Tensor gelu_backward(const Tensor&, const Tensor&, Tensor&, Gelu) { absent(); }
Tensor swiglu(const Tensor&) { absent(); }
Tensor swiglu_backward(const Tensor&, Tensor&) { absent(); }
bool takes_rope(const Tensor&, const Tensor&) { return false; }
Tensor rope(const Tensor&, const Tensor&, const Tensor&, bool) { absent(); }
Tensor column_sums(const Tensor&) { absent(); }
Joined join_columns(const Tensor&, const Tensor&, const Tensor&) { absent(); }
bool takes_logits(const Tensor&) { return false; }
Tensor cross_entropy(Tensor&, const Tensor&) { absent(); }
AttentionResult attention(const AttentionInputs&) { absent(); }
AttentionGradients attention_backward(const AttentionInputs&, const AttentionResult&, const Tensor&) { absent(); }

}  // namespace lockstep::nn::cuda
