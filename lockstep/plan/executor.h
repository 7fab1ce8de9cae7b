// Executor: which of the engine's two programs runs the optimizer steps of a Run.
#pragma once

#include <optional>
#include <string>

#include "lockstep/spec/job.h"

namespace lockstep::plan {

struct Run;

enum class Executor {
  kSharded,  // any layout, through libtorch's autograd (engine/sharded_executor.h)
  kFused,    // a dense Llama on one GPU, by kernels of our own (engine/fused)
};

const char* to_string(Executor executor);

// The first thing about the run that the fused step does not do, as one clause ("the layout has 4 ranks"); nothing
// where it runs. Whether a GPU with the right kernels is there is the engine's to find out. The limits are
// fused_limits.h's.
std::optional<std::string> why_not_fused(const Run& run);

// The part of it that the model alone decides; 8-bit products want rounder sizes.
std::optional<std::string> why_model_is_not_fused(const spec::Model& model, spec::Precision precision);

// kFused where nothing speaks against it.
Executor choose_executor(const Run& run);

}  // namespace lockstep::plan
