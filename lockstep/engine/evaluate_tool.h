// What `lockstep evaluate` does: figures of trained weights on held-out data. One process and no layout, so the figures
// do not depend on how the weights were trained.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

// `request`: that of open_trained_model() and {"samples": 0 for all, "micro": samples at a time}. The answer is
// lockstep.evaluation/1 (docs/reference/evaluate.md). Sends {"type": "progress", "samples", "of"} on the way.
int run_evaluate_tool(const nlohmann::json& request, const Host& host);

}  // namespace lockstep::engine
