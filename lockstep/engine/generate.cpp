#include "lockstep/engine/generate.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/data/tokenizer_config.h"
#include "lockstep/engine/trained_model.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;
using torch::Tensor;

// Logits [vocab] after the last of `tokens` [1, rows]: only the last row goes through the head.
Tensor last_logits(nn::LanguageModel& model, const Tensor& tokens) {
  nn::ForwardContext context;
  context.training = false;
  Tensor x = model.embed(tokens, context);
  for (std::int64_t layer = 0; layer < model.spec().layers; ++layer) {
    for (int part = 0; part < model.parts_per_layer(); ++part) x = model.run_layer(layer, part, x, context).hidden;
  }
  const Tensor last = x.narrow(1, x.size(1) - 1, 1);
  return model.head_logits(last, tokens, context).reshape({-1});
}

void require_generative(const spec::Model& model) {
  const bool predicts = model.is_language_model() && model.arch != spec::Arch::kBert && model.classes == 0;
  if (predicts) return;
  throw bad_input("model " + model.name + " does not predict the next token", "use a GPT, Llama, Mixtral or Mamba");
}

struct Prompt {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::vector<std::int64_t> ids;
  std::int64_t end = -1;
};

Prompt read_prompt(const TrainedModel& trained, const json& request) {
  const std::string given = request.value("tokenizer", "");
  const std::string name = given.empty() ? trained.tokenizer : given;
  Prompt prompt;
  prompt.tokenizer = data::open_tokenizer(name);
  const data::TokenizerConfig config = data::read_tokenizer_config(name);
  if (!config.begin_of_text.empty()) {
    if (const auto id = prompt.tokenizer->token_id(config.begin_of_text)) prompt.ids.push_back(*id);
  }
  for (const data::TokenId id : prompt.tokenizer->encode(request.value("prompt", ""))) prompt.ids.push_back(id);
  std::optional<data::TokenId> end;
  if (!config.end_of_text.empty()) end = prompt.tokenizer->token_id(config.end_of_text);
  if (!end) end = data::end_of_text_id(*prompt.tokenizer);
  if (end) prompt.end = *end;
  if (prompt.ids.empty() && prompt.end >= 0) prompt.ids.push_back(prompt.end);  // as GPT-2 begins a document
  if (prompt.ids.empty()) throw bad_input("the prompt is empty", "give a word to begin with: --prompt \"The\"");
  if (prompt.tokenizer->vocab_size() > trained.job.model.vocab) {
    throw bad_input("the tokenizer has " + std::to_string(prompt.tokenizer->vocab_size()) + " ids, the model " +
                        std::to_string(trained.job.model.vocab),
                    "name the model's own with --tokenizer");
  }
  return prompt;
}

// Text of the ids so far, without the beginning of a character whose other bytes are still to come.
std::string whole_text(const data::Tokenizer& tokenizer, const std::vector<std::int64_t>& ids, std::size_t first) {
  std::vector<data::TokenId> own(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end());
  std::string text = tokenizer.decode(own, /*skip_special=*/true);
  for (std::size_t cut = 0; cut < 4 && cut < text.size(); ++cut) {
    if (is_utf8(std::string_view(text).substr(0, text.size() - cut))) return text.substr(0, text.size() - cut);
  }
  return text;
}

json generate_text(const json& request, const Host& host) {
  const TrainedModel trained = open_trained_model(request);
  require_generative(trained.job.model);
  Prompt prompt = read_prompt(trained, request);
  GenerateOptions options;
  options.tokens = request.value("tokens", options.tokens);
  options.temperature = request.value("temperature", options.temperature);
  options.top_k = request.value("top_k", options.top_k);
  options.seed = request.value("seed", options.seed);
  options.end = prompt.end;
  const std::size_t first = prompt.ids.size();
  std::string said;
  generate(dynamic_cast<nn::LanguageModel&>(*trained.model), prompt.ids, options, [&](std::int64_t) {
    const std::string text = whole_text(*prompt.tokenizer, prompt.ids, first);
    if (text.size() > said.size() && text.starts_with(said)) {
      host.send({{"type", "text"}, {"text", text.substr(said.size())}});
      said = text;
    }
    return !host.stop_requested();
  });
  const std::vector<std::int64_t> made(prompt.ids.begin() + static_cast<std::ptrdiff_t>(first), prompt.ids.end());
  return {{"schema", "lockstep.generate/1"},
          {"path", trained.path},
          {"prompt", request.value("prompt", "")},
          {"text", whole_text(*prompt.tokenizer, prompt.ids, first)},
          {"tokens", made},
          {"prompt_tokens", first}};
}

}  // namespace

std::int64_t choose_token(const Tensor& logits, const GenerateOptions& options, double draw) {
  if (options.temperature <= 0.0) return logits.argmax(-1).item<std::int64_t>();
  const std::int64_t all = logits.numel();
  const std::int64_t kept = options.top_k > 0 ? std::min(options.top_k, all) : all;
  const auto [values, ids] = logits.to(torch::kDouble).topk(kept);
  const Tensor chances = torch::softmax(values / options.temperature, -1).contiguous();
  const double* chance = chances.data_ptr<double>();
  double sum = 0.0;
  for (std::int64_t i = 0; i < kept; ++i) {
    sum += chance[i];
    if (draw < sum) return ids[i].item<std::int64_t>();
  }
  return ids[kept - 1].item<std::int64_t>();
}

void generate(nn::LanguageModel& model, std::vector<std::int64_t>& ids, const GenerateOptions& options,
              const std::function<bool(std::int64_t)>& on_token) {
  const torch::NoGradGuard no_grad;
  std::mt19937_64 random(options.seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (std::int64_t made = 0; made < options.tokens; ++made) {
    const auto seen = std::min(static_cast<std::int64_t>(ids.size()), model.spec().max_sequence);
    const Tensor tokens =
        torch::tensor(std::vector<std::int64_t>(ids.end() - seen, ids.end()), torch::kLong).unsqueeze(0);
    model.check_tokens(tokens);
    const std::int64_t next = choose_token(last_logits(model, tokens), options, uniform(random));
    if (next == options.end) return;
    ids.push_back(next);
    if (!on_token(next)) return;
  }
}

int run_generate_tool(const json& request, const Host& host) {
  return run_tool(host, [&] { return generate_text(request, host); });
}

}  // namespace lockstep::engine
