#include "lockstep/engine/fused/passes.h"

#include "lockstep/kernels/cuda/cross_entropy.h"
#include "lockstep/kernels/cuda/embedding.h"
#include "lockstep/kernels/cuda/fused_rope_gemm.h"
#include "lockstep/kernels/cuda/fused_swiglu_gemm.h"
#include "lockstep/kernels/cuda/rms_norm.h"
#include "lockstep/kernels/cuda/rope.h"
#include "lockstep/kernels/cuda/swiglu.h"

namespace lockstep::engine::cuda {

using kernels::cuda::Fp8Output;
using Role = FusedFp8::Role;
using Scope = StepTimeline::Scope;

Fp8Output FusedPasses::output8(std::int64_t layer, Linear which, Role role) const {
  return p_.fp8 != nullptr && layer >= 0 ? p_.fp8->output(layer, which, role) : Fp8Output{};
}
void FusedPasses::settle(std::int64_t layer, Linear which, Role role, const Bf16* x, std::int64_t count) {
  if (p_.fp8 == nullptr || layer < 0 || !p_.fp8->current()) return;
  const Scope scope(p_.timeline, Family::kQuantize, "quantize");
  p_.fp8->settle(layer, which, role, x, count, p_.stream);
}

void FusedPasses::linear(std::int64_t layer, Linear which, const Bf16* x, Bf16* y, const Bf16* residual,
                         const char* name) {
  const Scope scope(p_.timeline, Family::kGemm, name);
  const Placed& w = p_.parameters.matrix(layer, which);
  const bool fp8 = p_.fp8 != nullptr;
  p_.gemm.forward(fp8 ? p_.fp8->activation(layer, which, Role::kInput) : Operand{x},
                  fp8 ? p_.fp8->weight(layer, which) : Operand{p_.parameters.weight(w)}, y, residual, p_.shape.rows(),
                  w.in, w.out, p_.stream);
}

void FusedPasses::data_gradient(std::int64_t layer, Linear which, const Bf16* dy, Bf16* dx, const char* name) {
  const Scope scope(p_.timeline, Family::kGemm, name);
  const Placed& w = p_.parameters.matrix(layer, which);
  if (p_.fp8 != nullptr)
    p_.gemm.data_gradient_fp8(p_.fp8->activation(layer, which, Role::kGradient),
                              p_.fp8->weight_transposed(layer, which), dx, p_.shape.rows(), w.in, w.out, p_.stream);
  else
    p_.gemm.data_gradient(dy, p_.parameters.weight(w), dx, p_.shape.rows(), w.in, w.out, p_.stream);
}

void FusedPasses::weight_gradient(std::int64_t layer, Linear which, const Bf16* dy, const Bf16* x, bool accumulate,
                                  const char* name) {
  const Scope scope(p_.timeline, Family::kGemm, name);
  const Placed& w = p_.parameters.matrix(layer, which);
  p_.gemm.weight_gradient(dy, x, p_.parameters.gradient(w),
                          p_.parameters.bf16_gradients() ? ElementType::kBf16 : ElementType::kFloat, accumulate,
                          p_.shape.rows(), w.in, w.out, p_.stream);
}

void FusedPasses::norm(const Bf16* x, const Placed& weight, Bf16* y, float* rstd, std::int64_t layer, Linear reader) {
  {
    const Scope scope(p_.timeline, Family::kNorm, "rms_norm");
    kernels::cuda::RmsNormForward a;
    a.x = x;
    a.weight = p_.parameters.weight(weight);
    a.y8 = output8(layer, reader, Role::kInput);
    a.y = a.y8.data != nullptr && only_fp8() ? nullptr : y;
    a.rstd = rstd;
    a.epsilon = static_cast<float>(p_.shape.norm_epsilon);
    a.rows = p_.shape.rows();
    a.cols = p_.shape.hidden;
    kernels::cuda::rms_norm_forward(a, p_.stream);
  }
  settle(layer, reader, Role::kInput, y, p_.shape.rows() * p_.shape.hidden);
}

void FusedPasses::turn(Bf16* qkv, bool back) {
  const FusedShape& s = p_.shape;
  const Scope scope(p_.timeline, Family::kRope, back ? "rope backward" : "rope");
  kernels::cuda::Rope r;
  r.x = qkv;
  r.inverse = back;
  r.cos = p_.activations.cos;
  r.sin = p_.activations.sin;
  r.tokens = s.rows();
  r.seq = s.seq;
  r.heads = s.heads + 2 * s.kv_heads;
  r.rotated = s.heads + s.kv_heads;
  r.dim = s.head_dim;
  kernels::cuda::rope(r, p_.stream);
}

void FusedPasses::qkv_and_rope(std::int64_t layer) {
  const LayerActivations& a = p_.activations.layers[layer];
  const auto plain = [&] {
    linear(layer, Linear::kQkv, a.normed, a.qkv, nullptr, "qkv");
    turn(a.qkv, false);
  };
  const auto fused = [&] {
    const Scope scope(p_.timeline, Family::kGemm, "qkv rope");
    const FusedShape& s = p_.shape;
    kernels::cuda::FusedRope f;
    f.x = a.normed;
    f.w = p_.parameters.weight(p_.parameters.matrix(layer, Linear::kQkv));
    f.qkv = a.qkv;
    f.cos = p_.activations.cos;
    f.sin = p_.activations.sin;
    f.rows = s.rows();
    f.hidden = s.hidden;
    f.seq = s.seq;
    f.heads = s.heads + 2 * s.kv_heads;
    f.rotated = s.heads + s.kv_heads;
    f.dim = s.head_dim;
    kernels::cuda::fused_rope(f, p_.stream);
  };
  if (p_.fp8 != nullptr) return plain();
  p_.fused.qkv.run(p_.gemm, p_.stream, fused, plain);
}

void FusedPasses::swiglu(std::int64_t layer) {
  const LayerActivations& a = p_.activations.layers[layer];
  const Scope scope(p_.timeline, Family::kSwiglu, "swiglu");
  kernels::cuda::SwigluForward w;
  w.gate_up = a.gate_up;
  w.h8 = output8(layer, Linear::kDown, Role::kInput);
  w.h = w.h8.data != nullptr && only_fp8() ? nullptr : a.h;
  w.rows = p_.shape.rows();
  w.cols = p_.shape.ffn;
  kernels::cuda::swiglu_forward(w, p_.stream);
}

void FusedPasses::gate_up_and_swiglu(std::int64_t layer, bool with_h) {
  const LayerActivations& a = p_.activations.layers[layer];
  const auto plain = [&] {
    linear(layer, Linear::kGateUp, a.middle_normed, a.gate_up, nullptr, "gate up");
    if (with_h) swiglu(layer);
  };
  const auto fused = [&] {
    const Scope scope(p_.timeline, Family::kGemm, "gate up swiglu");
    const Bf16* const w = p_.parameters.weight(p_.parameters.matrix(layer, Linear::kGateUp));
    kernels::cuda::fused_swiglu_forward(
        {a.middle_normed, w, a.gate_up, with_h ? a.h : nullptr, p_.shape.rows(), p_.shape.hidden, p_.shape.ffn},
        p_.stream);
  };
  if (p_.fp8 != nullptr) return plain();
  p_.fused.gate_up.run(p_.gemm, p_.stream, fused, plain);
}

void FusedPasses::forward_attention(std::int64_t layer) {
  const FusedShape& s = p_.shape;
  const LayerActivations& a = p_.activations.layers[layer];
  norm(a.x, p_.parameters.attention_norm(layer), a.normed, a.rstd, layer, Linear::kQkv);
  qkv_and_rope(layer);
  const Bf16* attended = nullptr;
  {
    const Scope scope(p_.timeline, Family::kAttention, "attention");
    attended = p_.attention.forward(static_cast<int>(layer), a.qkv);
  }
  if (p_.fp8 != nullptr) {
    const Scope scope(p_.timeline, Family::kQuantize, "quantize attention");
    p_.fp8->quantize(layer, Linear::kAttentionOut, Role::kInput, attended, s.rows() * s.attention_width(), p_.stream);
  }
  linear(layer, Linear::kAttentionOut, attended, a.middle, a.x, "attention out");
}

void FusedPasses::forward_mlp(std::int64_t layer, Bf16* out) {
  const FusedShape& s = p_.shape;
  const LayerActivations& a = p_.activations.layers[layer];
  norm(a.middle, p_.parameters.mlp_norm(layer), a.middle_normed, a.middle_rstd, layer, Linear::kGateUp);
  gate_up_and_swiglu(layer, out != nullptr);
  if (out == nullptr) return;  // backward makes h itself
  settle(layer, Linear::kDown, Role::kInput, a.h, s.rows() * s.ffn);
  linear(layer, Linear::kDown, a.h, out, a.middle, "down");
}

void FusedPasses::forward_layer(std::int64_t layer, Bf16* out) {
  forward_attention(layer);
  forward_mlp(layer, out);
  if (p_.options.recompute == Recompute::kFull) p_.attention.release(static_cast<int>(layer));
}

void FusedPasses::norm_backward(const Bf16* x, const Placed& weight, const float* rstd, bool with_residual, Bf16* y,
                                bool accumulate, const Fp8Output& dx8) {
  const Scope scope(p_.timeline, Family::kNorm, "rms_norm backward");
  const FusedActivations& a = p_.activations;
  kernels::cuda::RmsNormBackward b;
  b.x = x;
  b.weight = p_.parameters.weight(weight);
  b.rstd = rstd;
  b.dy = a.dnormed;
  b.dresidual = with_residual ? a.dx : nullptr;
  b.dx = a.dx;
  b.dx8 = dx8;
  b.y = y;
  b.dweight = p_.parameters.norm_gradient(weight);
  b.accumulate = accumulate;
  b.workspace = a.norm_workspace;
  b.rows = p_.shape.rows();
  b.cols = p_.shape.hidden;
  kernels::cuda::rms_norm_backward(b, p_.stream);
}

void FusedPasses::loss_and_head(const std::int32_t* targets, bool accumulate, std::int64_t layers) {
  const FusedShape& s = p_.shape;
  const FusedActivations& a = p_.activations;
  const Placed& head = p_.parameters.head();
  const Bf16* const w = p_.parameters.weight(head);
  norm(a.last, p_.parameters.final_norm(), a.last_normed, a.last_rstd, -1, Linear::kQkv);
  for (std::int64_t begin = 0; begin < s.rows(); begin += a.chunk_rows) {
    const Bf16* const x = a.last_normed + begin * s.hidden;
    {
      const Scope scope(p_.timeline, Family::kGemm, "head");
      p_.gemm.forward({x}, {w}, a.logits, nullptr, a.chunk_rows, s.hidden, s.vocab, p_.stream);
    }
    {
      const Scope scope(p_.timeline, Family::kLoss, "cross entropy");
      kernels::cuda::cross_entropy({a.logits, targets + begin, a.loss_scale, a.losses + begin, a.chunk_rows, s.vocab},
                                   p_.stream);
    }
    const Scope scope(p_.timeline, Family::kGemm, "head backward");
    p_.gemm.data_gradient(a.logits, w, a.dnormed + begin * s.hidden, a.chunk_rows, s.hidden, s.vocab, p_.stream);
    p_.gemm.weight_gradient(a.logits, x, p_.parameters.head_gradient(), ElementType::kFloat, accumulate || begin > 0,
                            a.chunk_rows, s.hidden, s.vocab, p_.stream);
  }
  {
    const Scope scope(p_.timeline, Family::kLoss, "sum of losses");
    kernels::cuda::reduce_losses(a.losses, s.rows(), a.loss_scale, a.loss, accumulate, p_.stream);
  }
  norm_backward(a.last, p_.parameters.final_norm(), a.last_rstd, false, nullptr, accumulate,
                output8(layers - 1, Linear::kDown, Role::kGradient));
  settle(layers - 1, Linear::kDown, Role::kGradient, a.dx, s.rows() * s.hidden);
}

void FusedPasses::swiglu_backward(std::int64_t layer) {
  const LayerActivations& a = p_.activations.layers[layer];
  const Scope scope(p_.timeline, Family::kSwiglu, "swiglu backward");
  kernels::cuda::SwigluBackward w;
  w.gate_up = a.gate_up;
  w.dh = p_.activations.dh;
  w.dgate_up = a.gate_up;
  w.dgate_up8 = output8(layer, Linear::kGateUp, Role::kGradient);
  w.h = p_.options.recompute == Recompute::kNone ? nullptr : p_.activations.dh;
  w.rows = p_.shape.rows();
  w.cols = p_.shape.ffn;
  kernels::cuda::swiglu_backward(w, p_.stream);
}

void FusedPasses::down_and_swiglu_backward(std::int64_t layer) {
  const FusedActivations& all = p_.activations;
  const auto plain = [&] {
    data_gradient(layer, Linear::kDown, all.dx, all.dh, "down dgrad");
    swiglu_backward(layer);
  };
  const auto fused = [&] {
    const Scope scope(p_.timeline, Family::kGemm, "down dgrad swiglu");
    const Bf16* const w = p_.parameters.weight(p_.parameters.matrix(layer, Linear::kDown));
    kernels::cuda::fused_swiglu_backward(
        {all.dx, w, all.layers[layer].gate_up, p_.options.recompute == Recompute::kNone ? nullptr : all.dh,
         p_.shape.rows(), p_.shape.hidden, p_.shape.ffn},
        p_.stream);
  };
  if (p_.fp8 != nullptr) return plain();
  p_.fused.down.run(p_.gemm, p_.stream, fused, plain, [&] { gate_up_and_swiglu(layer, false); });
}

void FusedPasses::backward_mlp(std::int64_t layer, bool accumulate) {
  const FusedShape& s = p_.shape;
  const FusedActivations& all = p_.activations;
  const LayerActivations& a = all.layers[layer];
  const bool kept = p_.options.recompute == Recompute::kNone;
  down_and_swiglu_backward(layer);
  settle(layer, Linear::kGateUp, Role::kGradient, a.gate_up, s.rows() * 2 * s.ffn);
  weight_gradient(layer, Linear::kDown, all.dx, kept ? a.h : all.dh, accumulate, "down wgrad");
  data_gradient(layer, Linear::kGateUp, a.gate_up, all.dnormed, "gate up dgrad");
  norm_backward(a.middle, p_.parameters.mlp_norm(layer), a.middle_rstd, true, kept ? nullptr : a.middle_normed,
                accumulate, output8(layer, Linear::kAttentionOut, Role::kGradient));
  settle(layer, Linear::kAttentionOut, Role::kGradient, all.dx, s.rows() * s.hidden);
  weight_gradient(layer, Linear::kGateUp, a.gate_up, a.middle_normed, accumulate, "gate up wgrad");
}

void FusedPasses::pack_turned_back(std::int64_t layer, const Attention::Gradients& gradients) {
  const Scope scope(p_.timeline, Family::kRope, "rope backward");
  const FusedShape& s = p_.shape;
  kernels::cuda::RopeBackward r;
  r.dq = gradients.dq;
  r.dk = gradients.dk;
  r.dv = gradients.dv;
  r.packed = p_.activations.dqkv;
  r.packed8 = output8(layer, Linear::kQkv, Role::kGradient);
  r.cos = p_.activations.cos;
  r.sin = p_.activations.sin;
  r.tokens = s.rows();
  r.seq = s.seq;
  r.heads = s.heads;
  r.kv_heads = s.kv_heads;
  r.dim = s.head_dim;
  kernels::cuda::rope_backward(r, p_.stream);
}

void FusedPasses::backward_attention(std::int64_t layer, bool accumulate) {
  const FusedShape& s = p_.shape;
  const FusedActivations& all = p_.activations;
  const LayerActivations& a = all.layers[layer];
  const int slot = static_cast<int>(layer);
  const bool kept = p_.options.recompute == Recompute::kNone;
  data_gradient(layer, Linear::kAttentionOut, all.dx, all.dnormed, "attention out dgrad");
  weight_gradient(layer, Linear::kAttentionOut, all.dx, p_.attention.output(slot), accumulate, "attention out wgrad");
  std::optional<Attention::Gradients> gradients;
  {
    const Scope scope(p_.timeline, Family::kAttention, "attention backward");
    gradients = p_.attention.backward(slot, a.qkv, all.dnormed, all.dqkv);
    p_.attention.release(slot);
  }
  if (gradients)
    pack_turned_back(layer, *gradients);
  else
    turn(all.dqkv, true);
  settle(layer, Linear::kQkv, Role::kGradient, all.dqkv, s.rows() * s.qkv_width());
  data_gradient(layer, Linear::kQkv, all.dqkv, all.dnormed, "qkv dgrad");
  norm_backward(a.x, p_.parameters.attention_norm(layer), a.rstd, true, kept ? nullptr : a.normed, accumulate,
                output8(layer - 1, Linear::kDown, Role::kGradient));
  settle(layer - 1, Linear::kDown, Role::kGradient, all.dx, s.rows() * s.hidden);
  weight_gradient(layer, Linear::kQkv, all.dqkv, a.normed, accumulate, "qkv wgrad");
}

void FusedPasses::micro_step(const std::int32_t* tokens, const std::int32_t* targets, bool accumulate,
                             std::int64_t layers) {
  const FusedShape& s = p_.shape;
  const FusedActivations& a = p_.activations;
  {
    const Scope scope(p_.timeline, Family::kEmbedding, "embedding");
    kernels::cuda::embedding_forward(tokens, p_.parameters.weight(p_.parameters.embedding()), a.layers[0].x, s.rows(),
                                     s.hidden, p_.stream);
  }
  for (std::int64_t layer = 0; layer < layers; ++layer)
    forward_layer(layer, layer + 1 < layers ? a.layers[layer + 1].x : a.last);
  loss_and_head(targets, accumulate, layers);
  for (std::int64_t layer = layers - 1; layer >= 0; --layer) {
    if (p_.options.recompute == Recompute::kFull) {
      forward_attention(layer);
      forward_mlp(layer, nullptr);
      // Recomputing used the scratch that held the 8-bit gradient.
      if (p_.fp8 != nullptr)
        p_.fp8->quantize(layer, Linear::kDown, Role::kGradient, a.dx, s.rows() * s.hidden, p_.stream);
    }
    backward_mlp(layer, accumulate);
    backward_attention(layer, accumulate);
  }
  const Scope scope(p_.timeline, Family::kEmbedding, "embedding backward");
  const auto backward = [&]<class Gradient>(Gradient* gradient) {
    kernels::cuda::EmbeddingBackward<Gradient> b;
    b.tokens = tokens;
    b.dout = a.dx;
    b.gradient = gradient;
    b.accumulate = accumulate;
    b.workspace = a.embedding_workspace;
    b.workspace_bytes = a.embedding_workspace_bytes;
    b.count = s.rows();
    b.vocab = s.vocab;
    b.cols = s.hidden;
    kernels::cuda::embedding_backward(b, p_.stream);
  };
  if (p_.parameters.tied()) {  // the head's gradient is there already
    accumulate = true;
    return backward(p_.parameters.head_gradient());
  }
  void* const gradient = p_.parameters.gradient(p_.parameters.embedding());
  if (p_.parameters.bf16_gradients())
    backward(static_cast<Bf16*>(gradient));
  else
    backward(static_cast<float*>(gradient));
}

}  // namespace lockstep::engine::cuda
