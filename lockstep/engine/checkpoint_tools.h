// What `lockstep checkpoint` does: looks at checkpoints, checks them and writes them anew. One process, no training.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

// `request`: {"action": "inspect" | "verify" | "reshard" | "export", "path", "output", "layout", "whole"}. `path` is a
// checkpoint, or a folder with checkpoints, of which the newest is taken. Sends the answer as a "result" message, or an
// "error", and returns the exit code: 3 when verify finds damage.
int run_checkpoint_tool(const nlohmann::json& request, const Host& host);

}  // namespace lockstep::engine
