// What `lockstep tokenize` does: text to token shards. One process, no training.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

// `request`: {"inputs": [...], "tokenizer", "output", "field", "on_bad", "workers", "shard_bytes"}. Sends "tokenize"
// messages {bytes, total_bytes, tokens, shards, total_shards} while it works, then a "result" or an "error"; returns
// the exit code, 130 when it was asked to stop.
int run_tokenize_tool(const nlohmann::json& request, const Host& host);

}  // namespace lockstep::engine
