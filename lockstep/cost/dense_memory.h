// Peak device memory of the fused step of one GPU. Its memory is static: every buffer is cut from one arena before the
// first step (engine/cuda/dense_parameters.cpp, dense_activations.cpp, dense_fp8.cpp, dense_step.cpp), and libtorch's
// allocator holds what cuDNN's attention returns. So this is a count, with nothing fitted. Pure.
#pragma once

#include "lockstep/base/units.h"
#include "lockstep/cost/dense_run.h"
#include "lockstep/plan/plan.h"

namespace lockstep::cost {

// parameters: bf16 weights with the 16-bit remainders that make them fp32. activations: what backward finds,
// attention's outputs included. buffers: logits of a chunk, gradients of activations, workspaces, 8-bit copies, inputs.
// overhead (the CUDA context) and capacity are 0. What rounding to 256 bytes adds is left out: some kilobytes.
plan::MemoryBreakdown dense_memory(const DenseRun& run);

// A lower bound of dense_memory().total() over every batch and recompute: parameters and their state.
double dense_memory_floor(const DenseRun& run);

inline constexpr double kDenseChunkBytes = 3200 * kMiB;  // of logits at a time: DenseOptions::loss_chunk_bytes
// Rows whose logits exist at a time: equal chunks, as few as fit into the step's limit.
double dense_chunk_rows(const DenseRun& run);

}  // namespace lockstep::cost
