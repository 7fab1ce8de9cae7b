// What forward keeps for backward, and scratch, as pointers into the arena. Attention's outputs are kept by Attention.
#pragma once

#include <vector>

#include "lockstep/engine/fused/device_arena.h"
#include "lockstep/engine/fused/options.h"
#include "lockstep/kernels/cuda/types.h"

namespace lockstep::engine::cuda {

using kernels::cuda::Bf16;

// Of one layer; what is recomputed points to buffers that all layers share.
struct LayerActivations {
  Bf16* x = nullptr;              // [rows, hidden], the residual stream that enters
  Bf16* normed = nullptr;         // [rows, hidden], after the attention norm
  float* rstd = nullptr;          // [rows]
  Bf16* qkv = nullptr;            // [rows, qkv width], after RoPE
  Bf16* middle = nullptr;         // [rows, hidden], the residual stream after attention
  Bf16* middle_normed = nullptr;  // [rows, hidden], after the MLP norm
  float* middle_rstd = nullptr;   // [rows]
  Bf16* gate_up = nullptr;        // [rows, 2 * ffn]; backward leaves its gradient there
  Bf16* h = nullptr;              // [rows, ffn], after SwiGLU
};

struct FusedActivations {
  FusedActivations(const FusedShape& shape, std::int64_t loss_chunk_bytes);
  void want(DeviceArena& arena, const FusedShape& shape, Recompute recompute);
  // After allocate(): what is shared gets its pointers.
  void share(Recompute recompute);

  std::vector<LayerActivations> layers;
  LayerActivations shared;
  Bf16* last = nullptr;         // [rows, hidden], the residual stream that leaves the last layer
  Bf16* last_normed = nullptr;  // [rows, hidden]
  float* last_rstd = nullptr;
  std::int64_t chunk_rows = 0;
  Bf16* logits = nullptr;   // [chunk_rows, vocab]
  float* losses = nullptr;  // [rows]
  float* loss_scale = nullptr;
  float* loss = nullptr;
  // Gradients: of the residual stream, of a norm's output (also attention's), of h, of qkv.
  Bf16* dx = nullptr;
  Bf16* dnormed = nullptr;
  Bf16* dh = nullptr;
  Bf16* dqkv = nullptr;
  float* cos = nullptr;
  float* sin = nullptr;
  float* norm_workspace = nullptr;
  char* embedding_workspace = nullptr;
  std::size_t embedding_workspace_bytes = 0;
};

}  // namespace lockstep::engine::cuda
