// Traces of the PyTorch profiler (Kineto): Chrome trace JSON, of CUDA, ROCm or the CPU alone.
#pragma once

#include <filesystem>

#include "lockstep/diagnose/foreign/source.h"
#include "lockstep/diagnose/foreign/trace.h"

namespace lockstep::diagnose {

// Reads with a fixed amount of memory beside what the Trace holds. `name` is for messages. Throws UserError (exit 2)
// with the offset where the text is cut off or damaged, or when there is no event in it.
Trace read_kineto(Source& source, const std::string& name);

}  // namespace lockstep::diagnose
