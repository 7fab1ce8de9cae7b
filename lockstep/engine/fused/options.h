// What the one-GPU step of a dense, Llama-shaped transformer is built from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/plan/fused_limits.h"
#include "lockstep/spec/model.h"

namespace lockstep::engine::cuda {

enum class LinearPrecision { kBf16, kFp8 };
enum class StatePrecision { kFloat, kBf16 };                 // of AdamW's m and v; bf16 is rounded stochastically
enum class Fp8Scaling { kDelayed, kCurrent };                // see kernels/cuda/fp8.h
enum class GradientPrecision { kAutomatic, kFloat, kBf16 };  // automatic: bf16 where one micro-batch is the whole batch

// What backward finds kept: everything; everything but the outputs of norms and SwiGLU; the inputs of layers only.
enum class Recompute { kNone, kSelective, kFull };

struct FusedOptions {
  std::int64_t micro_batch = 1;
  std::int64_t sequence_length = 0;
  std::int64_t accumulation = 1;  // micro-batches per optimizer step
  LinearPrecision precision = LinearPrecision::kBf16;
  Fp8Scaling fp8_scaling = Fp8Scaling::kDelayed;
  StatePrecision states = StatePrecision::kFloat;
  GradientPrecision gradients = GradientPrecision::kAutomatic;
  Recompute recompute = Recompute::kNone;
  // Products of bf16 with SwiGLU or rotary positions inside: used where the device has them and they are faster.
  bool fused_mlp = true, fused_rope = true;
  bool graph = true;  // replay captured CUDA graphs
  // Of logits held at a time; few chunks: each reads the head's gradient.
  std::int64_t loss_chunk_bytes = plan::fused::kLossChunkBytes;
  int gemm_candidates = 8;  // algorithms timed per shape; 1: the library's first
  std::string gemm_table;   // file of algorithms chosen before (FusedStep::save_gemm_table); empty: time them now
  bool own_attention_graphs = true;  // cuDNN's, where the build has its frontend; false: libtorch's binding
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  bool norms_decay = true;     // the weights of norms too
  double clip = 0;             // limit of the gradient's norm; 0: none
  bool gradient_norm = false;  // computed also without a limit; a gradient that is not finite then changes nothing
};

struct FusedShape {
  std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, batch, seq;
  double norm_epsilon, rope_theta;
  spec::RopeScaling rope_scaling;
  bool tied;  // the head's weight is the embedding's

  std::int64_t rows() const { return batch * seq; }
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t attention_width() const { return heads * head_dim; }
};
// Throws UserError where the model is not one this step can run (plan::why_model_is_not_fused), or rows are not a
// multiple of the limits' unit.
FusedShape fused_shape(const spec::Model& model, const FusedOptions& options);
// Of rotary positions, stretched as the model says; head_dim / 2 of them.
std::vector<float> rope_frequencies(const FusedShape& shape);

}  // namespace lockstep::engine::cuda
