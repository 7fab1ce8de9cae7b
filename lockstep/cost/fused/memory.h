// Peak device memory of the fused step of one GPU. Its memory is static: every buffer is cut from one arena before the
// first step (engine/fused/parameters.cpp, activations.cpp, fp8.cpp, step.cpp), and libtorch's
// allocator holds what cuDNN's attention returns. So this is a count, with nothing fitted. Pure.
#pragma once

#include "lockstep/cost/fused/run.h"
#include "lockstep/plan/plan.h"

namespace lockstep::cost {

// parameters: bf16 weights with the 16-bit remainders that make them fp32. activations: what backward finds,
// attention's outputs included. buffers: logits of a chunk, gradients of activations, workspaces, 8-bit copies, inputs.
// overhead (the CUDA context) and capacity are 0. What rounding to 256 bytes adds is left out: some kilobytes.
plan::MemoryBreakdown fused_memory(const FusedRun& run);

// A lower bound of fused_memory().total() over every batch and recompute: parameters and their state.
double fused_memory_floor(const FusedRun& run);

// Rows whose logits exist at a time: equal chunks, as few as fit into the step's limit.
double fused_chunk_rows(const FusedRun& run);

}  // namespace lockstep::cost
