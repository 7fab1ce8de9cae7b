#include "lockstep/engine/fused/activations.h"

#include <algorithm>

#include "lockstep/kernels/cuda/embedding.h"
#include "lockstep/kernels/cuda/rms_norm.h"

namespace lockstep::engine::cuda {
namespace {

// Equal chunks, as few as fit into the bytes; rows stay a multiple of a unit that the GEMMs like.
std::int64_t chunk_rows_for(const FusedShape& s, std::int64_t bytes) {
  constexpr std::int64_t kUnit = plan::fused::kLossChunkUnit;
  const std::int64_t row_bytes = s.vocab * static_cast<std::int64_t>(sizeof(Bf16));
  std::int64_t chunks = std::max<std::int64_t>(1, (s.rows() * row_bytes + bytes - 1) / bytes);
  while (chunks < s.rows() && s.rows() % (chunks * kUnit) != 0) ++chunks;
  return std::max<std::int64_t>(kUnit, s.rows() / chunks);
}

}  // namespace

FusedActivations::FusedActivations(const FusedShape& shape, std::int64_t loss_chunk_bytes)
    : layers(shape.layers),
      chunk_rows(chunk_rows_for(shape, loss_chunk_bytes)),
      embedding_workspace_bytes(kernels::cuda::embedding_workspace_bytes(shape.rows())) {}

void FusedActivations::want(DeviceArena& arena, const FusedShape& s, Recompute recompute) {
  const std::int64_t rows = s.rows();
  const auto want_kept = [&](LayerActivations& a) {
    arena.want(&a.rstd, rows);
    arena.want(&a.qkv, rows * s.qkv_width());
    arena.want(&a.middle, rows * s.hidden);
    arena.want(&a.middle_rstd, rows);
    arena.want(&a.gate_up, rows * 2 * s.ffn);
  };
  const auto want_cheap = [&](LayerActivations& a) {
    arena.want(&a.normed, rows * s.hidden);
    arena.want(&a.middle_normed, rows * s.hidden);
    arena.want(&a.h, rows * s.ffn);
  };
  for (LayerActivations& a : layers) {
    arena.want(&a.x, rows * s.hidden);
    if (recompute != Recompute::kFull) want_kept(a);
    if (recompute == Recompute::kNone) want_cheap(a);
  }
  if (recompute == Recompute::kFull) want_kept(shared);
  if (recompute != Recompute::kNone) want_cheap(shared);
  arena.want(&last, rows * s.hidden);
  arena.want(&last_normed, rows * s.hidden);
  arena.want(&last_rstd, rows);
  arena.want(&logits, chunk_rows * s.vocab);
  arena.want(&losses, rows);
  arena.want(&loss_scale, 1);
  arena.want(&loss, 1);
  arena.want(&dx, rows * s.hidden);
  arena.want(&dnormed, rows * std::max(s.hidden, s.attention_width()));
  arena.want(&dh, rows * s.ffn);
  arena.want(&dqkv, rows * s.qkv_width());
  arena.want(&cos, s.seq * s.head_dim / 2);
  arena.want(&sin, s.seq * s.head_dim / 2);
  arena.want(&norm_workspace, kernels::cuda::rms_norm_workspace_floats(s.hidden));
  arena.want(&embedding_workspace, static_cast<std::int64_t>(embedding_workspace_bytes));
}

void FusedActivations::share(Recompute recompute) {
  for (LayerActivations& a : layers) {
    if (recompute == Recompute::kFull) {
      Bf16* const x = a.x;
      a = shared;
      a.x = x;
    } else if (recompute == Recompute::kSelective) {
      a.normed = shared.normed;
      a.middle_normed = shared.middle_normed;
      a.h = shared.h;
    }
  }
}

}  // namespace lockstep::engine::cuda
