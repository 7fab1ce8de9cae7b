// `lockstep evaluate PATH`: figures of trained weights on held-out data.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/trained.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

struct EvaluateOptions {
  TrainedFlags trained;
  std::int64_t samples = 0, micro = 0;
  bool json = false;
};

double number(const nlohmann::json& result, const char* key) { return result.value(key, 0.0); }

void show_evaluation(const nlohmann::json& result) {
  fmt::print("{}{}\n", result.value("path", ""),
             result.contains("step") ? fmt::format(" (step {})", result["step"].get<std::int64_t>()) : "");
  fmt::print("  data        {}\n", result.value("data", ""));
  fmt::print("  samples     {} ({} targets) in {}\n", result.value("samples", std::int64_t{0}),
             result.value("targets", std::int64_t{0}), format_seconds(number(result, "seconds")));
  fmt::print("  loss        {:.6f}\n", number(result, "loss"));
  if (result.contains("accuracy") && result["accuracy"].is_number())
    fmt::print("  accuracy    {:.2f}%\n", 100 * number(result, "accuracy"));
  if (result.contains("perplexity")) fmt::print("  perplexity  {:.4g}\n", number(result, "perplexity"));
  for (const nlohmann::json& name : result.value("plugin_metrics", nlohmann::json::array())) {
    const auto value = result.at(name.get<std::string>());
    fmt::print("  {:<10}  {}\n", printable(name.get<std::string>(), 40),
               value.is_number() ? fmt::format("{:.4f}", value.get<double>()) : "-");
  }
  if (result.contains("f1") && result["f1"].is_number()) {
    fmt::print("  F1          {:.4f}, mean of {} classes (`--json` has each); of all together {:.4f}\n",
               number(result, "f1"), result.at("classes").size(), number(result, "f1_micro"));
  }
}

int evaluate(const EvaluateOptions& options) {
  nlohmann::json request = request_for(options.trained);
  request["samples"] = options.samples;
  if (options.micro > 0) request["micro"] = options.micro;
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const ToolAnswer answer = call_tool("evaluate", request, options.trained.threads, [&](const nlohmann::json& message) {
    if (!terminal || message.value("type", "") != "progress") return;
    fmt::print(stderr, "\r{} of {} samples", message.value("samples", std::int64_t{0}),
               message.value("of", std::int64_t{0}));
    if (message.value("samples", std::int64_t{0}) == message.value("of", std::int64_t{0})) fmt::print(stderr, "\n");
  });
  if (options.json) {
    fmt::print("{}\n", answer.result.dump());
  } else {
    show_evaluation(answer.result);
  }
  return answer.exit_code;
}

}  // namespace

void add_evaluate(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<EvaluateOptions>();
  CLI::App* verb =
      app.add_subcommand("evaluate", "Loss, accuracy, perplexity or F1 of trained weights on held-out data");
  verb->add_option("path", options->trained.path,
                   "A run (`last`, an id), a checkpoint, a folder of them (the newest is taken), or a folder of "
                   "exported weights")
      ->required();
  verb->add_option("overrides", options->trained.overrides,
                   "key=value for any field of the job: data.evaluation_path=test.txt");
  verb->add_option("--job", options->trained.job_file,
                   "Job file whose model and data are used (default: the checkpoint's job)");
  verb->add_option("--samples", options->samples, "The first N samples of the evaluation data (default: all)")
      ->check(CLI::PositiveNumber);
  verb->add_option("--micro", options->micro, "Samples at a time (default: the job's batch.micro)")
      ->check(CLI::PositiveNumber);
  verb->add_option("--threads", options->trained.threads, "Compute threads (default: all cores)")
      ->check(CLI::PositiveNumber);
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.evaluation/1)");
  set_examples(*verb,
               "  lockstep evaluate checkpoints\n"
               "  lockstep evaluate checkpoints/step-00000120 data.evaluation_path=test.txt --json\n"
               "  lockstep evaluate exported-model --job job.yaml --samples 1000");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = evaluate(*options);
  });
}

}  // namespace lockstep::cli
