// `lockstep generate PATH --prompt TEXT`: what a trained language model goes on with.
#include <fmt/format.h>

#include <cstdio>

#include "lockstep/cli/trained.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

struct GenerateFlags {
  TrainedFlags trained;
  std::string prompt, tokenizer;
  std::int64_t tokens = 100, top_k = 0;
  std::uint64_t seed = 1;
  double temperature = 0.0;
  bool json = false;
};

int generate(const GenerateFlags& flags) {
  nlohmann::json request = request_for(flags.trained);
  request.update({{"prompt", flags.prompt},
                  {"tokenizer", flags.tokenizer},
                  {"tokens", flags.tokens},
                  {"temperature", flags.temperature},
                  {"top_k", flags.top_k},
                  {"seed", flags.seed}});
  if (!flags.json) fmt::print("{}", flags.prompt);
  const ToolAnswer answer = call_tool("generate", request, flags.trained.threads, [&](const nlohmann::json& message) {
    if (flags.json || message.value("type", "") != "text") return;
    fmt::print("{}", message.value("text", ""));
    std::fflush(stdout);
  });
  fmt::print("{}\n", flags.json ? answer.result.dump() : "");
  return answer.exit_code;
}

}  // namespace

void add_generate(CLI::App& app, Outcome& outcome) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* verb = app.add_subcommand("generate", "Text that a trained language model goes on with");
  verb->add_option(
          "path", flags->trained.path,
          "A run (`last`, an id), a checkpoint, a folder of them (the newest is taken), or a Hugging Face folder")
      ->required();
  verb->add_option("--prompt", flags->prompt, "The beginning (default: of a document)");
  verb->add_option("--tokens", flags->tokens, "At most so many tokens")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--temperature", flags->temperature, "0: the likeliest token each time; 1: as the model says")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  verb->add_option("--top-k", flags->top_k, "Draw from the k likeliest tokens only (default: from all)")
      ->check(CLI::PositiveNumber)
      ->needs(verb->get_option("--temperature"));
  verb->add_option("--seed", flags->seed, "The same seed gives the same text")->capture_default_str();
  verb->add_option("--tokenizer", flags->tokenizer,
                   "bytes, or a folder with tokenizer files (default: the job's, or those beside the weights)");
  verb->add_option("--threads", flags->trained.threads, "Compute threads (default: all cores)")
      ->check(CLI::PositiveNumber);
  verb->add_flag("--json", flags->json, "JSON on stdout (lockstep.generate/1)");
  set_examples(*verb,
               "  lockstep generate checkpoints --prompt \"The quick\"\n"
               "  lockstep generate exported-model --prompt \"Once upon\" --temperature 0.8 --top-k 40 --seed 7");
  verb->callback([flags, &outcome] {
    outcome.json = flags->json;
    outcome.exit_code = generate(*flags);
  });
}

}  // namespace lockstep::cli
