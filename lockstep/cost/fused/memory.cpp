#include "lockstep/cost/fused/memory.h"

#include <algorithm>
#include <cmath>

namespace lockstep::cost {
namespace {

using namespace plan::fused;  // its limits

constexpr double kWide = 4, kNarrow = 2;  // bytes of fp32 and bf16

double gradient_bytes(const FusedRun& run) {
  const double body = run.narrow_gradients() ? kNarrow : kWide;
  return body * run.body_parameters() + kWide * (run.head_parameters() + run.norm_parameters());
}

double state_bytes(const FusedRun& run) { return 2 * (run.bf16_states ? kNarrow : kWide) * run.parameters(); }

// Of all layers, for one row.
double activation_bytes_per_row(const FusedRun& run) {
  const double stream = kNarrow * run.hidden;
  const double kept = kNarrow * (run.qkv_width() + run.hidden + 2 * run.ffn) + 2 * kWide;
  const double cheap = kNarrow * (2 * run.hidden + run.ffn);                     // outputs of norms and SwiGLU
  const double attention = kNarrow * run.attention_width() + kWide * run.heads;  // output, logsumexp
  const bool full = run.recompute == plan::Recompute::kFull, none = run.recompute == plan::Recompute::kNone;
  const double last = 2 * stream + kWide;
  return run.layers * stream + (full ? 1 : run.layers) * (kept + attention) + (none ? run.layers : 1) * cheap + last;
}

// Gradients of activations, for one row, and cuDNN's fp32 sum of q's. In 8 bits libtorch holds those of q, k, v once
// more (in bf16 too where the build has no cudnn-frontend).
double gradient_bytes_per_row(const FusedRun& run) {
  const double streams = run.hidden + std::max(run.hidden, run.attention_width());
  return kNarrow * (streams + run.ffn + (run.fp8 ? 2 : 1) * run.qkv_width()) + kWide * run.attention_width();
}

double fp8_bytes(const FusedRun& run) {
  if (!run.fp8) return 0;
  return 2 * run.matrix_parameters() +
         run.rows() * (std::max(run.hidden, run.attention_width()) + std::max(2 * run.ffn, run.qkv_width()));
}

double norm_workspace_bytes(const FusedRun& run) {
  const double threads = std::ceil(run.hidden / kNormVector / kWarpThreads) * kWarpThreads;
  return kWide * kMultiprocessors * std::max(1.0, std::floor(kNormBackwardThreads / threads)) * run.hidden;
}

}  // namespace

double fused_chunk_rows(const FusedRun& run) {
  const double rows = run.rows(), unit = static_cast<double>(kLossChunkUnit);
  double chunks = std::max(1.0, std::ceil(rows * run.vocab * kNarrow / static_cast<double>(kLossChunkBytes)));
  while (chunks < rows && std::fmod(rows, chunks * unit) != 0) ++chunks;
  return std::max(unit, std::floor(rows / chunks));
}

plan::MemoryBreakdown fused_memory(const FusedRun& run) {
  plan::MemoryBreakdown memory;
  const double rows = run.rows();
  memory.parameters = 2 * kNarrow * run.parameters();
  memory.gradients = gradient_bytes(run);
  memory.optimizer = state_bytes(run);
  memory.activations = rows * activation_bytes_per_row(run);
  // Integers: tokens and targets of two steps in flight and of the micro-batch at work, losses, the sort by tokens.
  const double integers = kWide * rows * (4 * run.accumulation + 2 + 1 + 5);
  memory.buffers = kNarrow * fused_chunk_rows(run) * run.vocab + rows * gradient_bytes_per_row(run) + integers +
                   fp8_bytes(run) + norm_workspace_bytes(run) + static_cast<double>(kGemmWorkspaceBytes) +
                   kWide * run.sequence * run.head_dim;
  return memory;
}

double fused_memory_floor(const FusedRun& run) {
  FusedRun least = run;
  least.accumulation = 1;
  return 2 * kNarrow * run.parameters() + gradient_bytes(least) + state_bytes(run);
}

}  // namespace lockstep::cost
