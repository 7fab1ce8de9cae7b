// What the verbs that look at trained weights share: one call of the engine in this process.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::cli {

struct TrainedFlags {
  std::string path, job_file;
  std::vector<std::string> overrides;
  int threads = 0;  // 0: all cores
};

// The path of weights that were trained: `name` itself where it is one, or the folder where the run of that id (its
// beginning, "last") saved. Throws UserError (exit 4).
std::string weights_at(const std::string& name);

// The part of the request that says which weights and which job (engine/trained_model.h).
nlohmann::json request_for(const TrainedFlags& flags);

struct ToolAnswer {
  int exit_code = 0;
  nlohmann::json result;
};

// Runs an engine verb that answers with one "result"; other messages go to `on_message`. Throws what it reports.
ToolAnswer call_tool(const std::string& verb, const nlohmann::json& request, int threads,
                     const std::function<void(const nlohmann::json&)>& on_message = {});

}  // namespace lockstep::cli
