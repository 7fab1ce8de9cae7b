// Text that a language model goes on with. Every token is a forward pass over what is there: right, and slow for long
// texts (there is no cache of keys and values).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/engine/run_context.h"
#include "lockstep/nn/language_model.h"

namespace lockstep::engine {

struct GenerateOptions {
  std::int64_t tokens = 100;  // at most
  double temperature = 0.0;   // 0: the likeliest token each time
  std::int64_t top_k = 0;     // only the k likeliest; 0: all
  std::uint64_t seed = 1;     // the same seed gives the same text
  std::int64_t end = -1;      // the id that ends the text; -1: none
};

// The next id after logits [vocab], by `options`; `draw` is uniform in [0, 1) and only used with a temperature.
std::int64_t choose_token(const torch::Tensor& logits, const GenerateOptions& options, double draw);

// Appends to `ids` (not empty), which `on_token` hears of; it returns false to stop. The model sees the last
// max_sequence of them. The end id is not appended.
void generate(nn::LanguageModel& model, std::vector<std::int64_t>& ids, const GenerateOptions& options,
              const std::function<bool(std::int64_t id)>& on_token);

// What `lockstep generate` does. `request`: that of open_trained_model() and {"prompt", "tokens", "temperature",
// "top_k", "seed", "tokenizer"}. Sends {"type": "text", "text"} as it comes; the answer is lockstep.generate/1.
int run_generate_tool(const nlohmann::json& request, const Host& host);

}  // namespace lockstep::engine
