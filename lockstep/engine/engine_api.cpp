#include "lockstep/elastic/engine_api.h"

#include <string>
#include <utility>

#include "lockstep/engine/checkpoint_tools.h"
#include "lockstep/engine/evaluate_tool.h"
#include "lockstep/engine/generate.h"
#include "lockstep/engine/probe.h"
#include "lockstep/engine/run_context.h"
#include "lockstep/engine/tokenize_tool.h"

extern "C" {

__attribute__((visibility("default"))) int lockstep_engine_abi() { return LOCKSTEP_ENGINE_ABI; }

__attribute__((visibility("default"))) const char* lockstep_engine_versions() {
  static const std::string text = lockstep::engine::engine_versions().dump();
  return text.c_str();
}

__attribute__((visibility("default"))) int lockstep_engine_call(const char* verb, const char* request_json,
                                                                const LockstepEngineHost* host) {
  const lockstep::engine::Host out(host);
  try {
    using Tool = int (*)(const nlohmann::json&, const lockstep::engine::Host&);
    constexpr std::pair<std::string_view, Tool> kTools[] = {{"checkpoint", lockstep::engine::run_checkpoint_tool},
                                                            {"evaluate", lockstep::engine::run_evaluate_tool},
                                                            {"generate", lockstep::engine::run_generate_tool}};
    for (const auto& [name, tool] : kTools) {
      if (verb == name) return tool(nlohmann::json::parse(request_json), out);
    }
    if (std::string_view(verb) == "tokenize") {
      return lockstep::engine::run_tokenize_tool(nlohmann::json::parse(request_json), out);
    }
    if (std::string_view(verb) == "probe") {
      return lockstep::engine::run_probe(nlohmann::json::parse(request_json), out);
    }
    auto request = lockstep::elastic::rank_request_from_json(nlohmann::json::parse(request_json));
    request.verb = verb;
    return lockstep::engine::run_rank(request, out);
  } catch (const std::exception& error) {
    out.send({{"type", "error"}, {"rank", -1}, {"kind", "internal"}, {"exit_code", 1}, {"message", error.what()}});
    return 1;
  }
}
}
