#include "lockstep/engine/fused/passes.h"
#include "lockstep/kernels/cuda/arg_max.h"
#include "lockstep/kernels/cuda/check.h"
#include "lockstep/kernels/cuda/cross_entropy.h"
#include "lockstep/kernels/cuda/embedding.h"

namespace lockstep::engine::cuda {

void FusedPasses::evaluate(const std::int32_t* tokens, const std::int32_t* targets, const FusedEvaluation& to) {
  const FusedShape& s = p_.shape;
  const FusedActivations& a = p_.activations;
  const float one = 1.0f;
  LOCKSTEP_CUDA(cudaMemcpyAsync(to.one, &one, sizeof one, cudaMemcpyHostToDevice, p_.stream));
  kernels::cuda::embedding_forward(tokens, p_.parameters.weight(p_.parameters.embedding()), a.layers[0].x, s.rows(),
                                   s.hidden, p_.stream);
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    forward_layer(layer, layer + 1 < s.layers ? a.layers[layer + 1].x : a.last);
    p_.attention.release(static_cast<int>(layer));
  }
  norm(a.last, p_.parameters.final_norm(), a.last_normed, a.last_rstd, -1, Linear::kQkv);
  const Bf16* const head = p_.parameters.weight(p_.parameters.head());
  for (std::int64_t begin = 0; begin < s.rows(); begin += a.chunk_rows) {
    p_.gemm.forward({a.last_normed + begin * s.hidden}, {head}, a.logits, nullptr, a.chunk_rows, s.hidden, s.vocab,
                    p_.stream);
    kernels::cuda::arg_max_hits({a.logits, targets + begin, to.hits + begin, a.chunk_rows, s.vocab}, p_.stream);
    kernels::cuda::cross_entropy({a.logits, targets + begin, to.one, a.losses + begin, a.chunk_rows, s.vocab},
                                 p_.stream);
  }
  kernels::cuda::reduce_losses(a.losses, s.rows(), to.one, to.sums, false, p_.stream);
  kernels::cuda::reduce_losses(to.hits, s.rows(), to.one, to.sums + 1, false, p_.stream);
}

}  // namespace lockstep::engine::cuda
