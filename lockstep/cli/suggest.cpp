// `lockstep suggest`: a complete starting configuration from model size, GPUs and tokens of data.
#include <fmt/format.h>

#include <memory>

#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/planner/suggest/files.h"
#include "lockstep/planner/suggest/suggest.h"
#include "lockstep/report/terminal/draw.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

struct SuggestOptions {
  std::string parameters, model, gpu = "H100", cluster, profile, dataset, task = "auto", stack;
  std::string gpus, gpus_per_node, sequence_length, global_batch, host_cores, epochs, format;
  std::vector<std::string> write;
  bool studies = true, json = false;
};

// 0 where the flag is absent; zero itself is refused.
std::int64_t count_of(const std::string& text, const char* flag) {
  return text.empty() ? 0 : static_cast<std::int64_t>(planner::parse_size(text, flag));
}

planner::SuggestionFile kind_of(const SuggestOptions& options, const std::string& path) {
  return options.format.empty() ? planner::file_kind_of(path) : planner::parse_suggestion_file(options.format);
}

planner::SuggestRequest request_of(const SuggestOptions& options) {
  planner::SuggestRequest request;
  if (!options.parameters.empty()) request.parameters = planner::parse_size(options.parameters, "--params");
  request.model = options.model;
  request.gpu = options.gpu;
  request.cluster = options.cluster;
  request.profile = options.profile;
  request.gpus = count_of(options.gpus, "--gpus");
  if (request.gpus == 0 && request.cluster.empty()) {
    throw bad_input("the number of GPUs is not given", "write --gpus 8, or --cluster 4x8xH100");
  }
  request.gpus_per_node = count_of(options.gpus_per_node, "--gpus-per-node");
  if (options.dataset.empty()) throw bad_input("the size of the dataset is not given", "write --dataset-tokens 1e9");
  request.dataset_tokens = planner::parse_size(options.dataset, "--dataset-tokens");
  request.sequence_length = count_of(options.sequence_length, "--seq");
  request.global_sequences = count_of(options.global_batch, "--global-batch");
  request.host_cores = count_of(options.host_cores, "--host-cores");
  if (!options.epochs.empty()) {
    request.epochs = parse_real(options.epochs, {.file = "--epochs"});
    if (request.epochs <= 0) throw bad_input("no epochs at all", "give a number above 0", {.file = "--epochs"});
  }
  request.task = planner::parse_task(options.task);
  if (!options.stack.empty()) {
    request.stack = planner::parse_stack(options.stack);
  } else if (!options.write.empty()) {
    request.stack = planner::stack_of(kind_of(options, options.write.front()));
  }
  if (options.studies) request.home = telemetry::home_directory();
  return request;
}

class Page {
 public:
  explicit Page(int width) : width_(width) {}
  void row(const std::string& name, const std::string& text) {
    text_ += report::wrapped(fmt::format("  {:<12}", name), text, width_);
  }
  void line(const std::string& text) { text_ += text + "\n"; }
  void bullet(const std::string& text) { text_ += report::wrapped("  - ", text, width_); }
  std::string take() { return std::move(text_); }

 private:
  int width_;
  std::string text_;
};

std::string speed_text(const planner::Suggestion& suggestion) {
  const plan::Prediction& prediction = *suggestion.candidate.prediction;
  const auto gpus = static_cast<double>(suggestion.cluster.devices());
  const plan::Interval& speed = prediction.tokens_per_second;
  return fmt::format("{} per GPU (90%: {} to {}), {} in all, MFU {:.0f}%, step {}",
                     format_rate(speed.expected / gpus, "tokens"), format_count(speed.low / gpus),
                     format_count(speed.high / gpus), format_rate(speed.expected, "tokens"),
                     100 * prediction.mfu.expected, format_seconds(prediction.step_seconds.expected));
}

void add_settings(Page& page, const planner::Suggestion& suggestion) {
  const plan::Candidate& plan = suggestion.candidate;
  page.row("layout", join(split(plan::to_string(plan.layout), ','), ", "));
  page.row("batch", fmt::format("micro {} x accumulation {} x {} data ranks = {} sequences of {}", plan.batch.micro,
                                plan.batch.accumulation, plan.layout.data_ranks(), plan.batch.global_sequences,
                                plan.batch.sequence_length));
  page.row("length", fmt::format("{}, {:g} epochs of {} tokens", counted(suggestion.steps, "step"), suggestion.epochs,
                                 format_count(suggestion.request.dataset_tokens)));
  page.row("optimizer", fmt::format("AdamW, learning rate {:.2g} (a hint), {} steps of warm-up, cosine",
                                    suggestion.optimizer.learning_rate, suggestion.optimizer.warmup_steps));
  page.row("loader", fmt::format("num_workers {}, prefetch_factor {}", suggestion.loader.num_workers,
                                 suggestion.loader.prefetch_factor));
  if (plan.checkpoint) page.row("checkpoints", "every " + format_seconds(plan.checkpoint->interval_seconds));
}

std::string to_text(const planner::Suggestion& suggestion, int width) {
  const plan::Candidate& plan = suggestion.candidate;
  Page page(width);
  page.line(fmt::format("{} {} ({} parameters) on {}, for {}", planner::to_string(suggestion.task),
                        suggestion.model.name,
                        format_count(static_cast<double>(spec::parameter_count(suggestion.model))),
                        suggestion.cluster.name, planner::to_string(suggestion.request.stack)));
  add_settings(page, suggestion);
  page.line("\nPredicted");
  page.row("speed", speed_text(suggestion));
  page.row("memory", fmt::format("{} of {} per GPU, out of memory with a probability of {:.2g}%",
                                 format_bytes(plan.memory.total()), format_bytes(plan.memory.capacity),
                                 100 * plan.out_of_memory_probability.value_or(0)));
  if (plan.cost) {
    page.row("cost", fmt::format("{} of training, {} GPU-hours, {} USD", format_seconds(plan.cost->days * 86400),
                                 format_count(plan.cost->gpu_hours), format_count(plan.cost->usd)));
  }
  page.line("\nEnvironment");
  for (const planner::EnvironmentVariable& variable : suggestion.environment) {
    const std::string name = variable.value == "auto" ? variable.name + " unset" : variable.name + "=" + variable.value;
    page.bullet(fmt::format("{}: {}", name, variable.reason));
  }
  page.line("\nWhy");
  for (const std::string& reason : suggestion.reasons) page.bullet(reason);
  if (!suggestion.warnings.empty()) page.line("\nMind");
  for (const std::string& warning : suggestion.warnings) page.bullet(warning);
  return page.take();
}

void write_files(const SuggestOptions& options, const planner::Suggestion& suggestion) {
  for (const std::string& path : options.write) {
    const planner::SuggestionFile kind = kind_of(options, path);
    write_file_atomically(path, planner::file_text(suggestion, kind));
    if (kind == planner::SuggestionFile::kTorchrun) {
      std::error_code ignored;
      std::filesystem::permissions(path, std::filesystem::perms::owner_exec | std::filesystem::perms::group_exec,
                                   std::filesystem::perm_options::add, ignored);
    }
    fmt::print(stderr, "wrote {}\n", printable_path(path));
  }
}

int suggest_verb(const SuggestOptions& options) {
  const planner::Suggestion suggestion = planner::suggest(request_of(options));
  write_files(options, suggestion);
  if (options.json) {
    fmt::print("{}\n", planner::to_json(suggestion).dump(1));
    return 0;
  }
  fmt::print("{}", to_text(suggestion, telemetry::detect_style(stdout).width));
  const std::string command = planner::plan_command(suggestion);
  fmt::print("\nNext: {}\n", options.write.empty() ? "the same with --write job.yaml"
                             : command.empty()     ? "lockstep plan " + shell_quoted(options.write.front())
                                                   : command);
  return 0;
}

void add_question(CLI::App& verb, SuggestOptions& options) {
  verb.add_option("--params,--model-size", options.parameters, "Parameters of the model: 7e9, 7B");
  verb.add_option("--model", options.model, "Instead: preset, YAML file or Hugging Face folder");
  verb.add_option("--gpus", options.gpus, "GPUs in all");
  verb.add_option("--gpu", options.gpu, "Their kind: H100, A100, B200, ...")->capture_default_str();
  verb.add_option("--gpus-per-node", options.gpus_per_node, "GPUs of a node (default: usual for the kind)");
  verb.add_option("--cluster", options.cluster, "Instead of --gpus and --gpu: 4x8xH100 or a YAML file");
  verb.add_option("--dataset-tokens,--dataset-size", options.dataset, "Tokens of the dataset: 1e9, \"1B tokens\"");
  verb.add_option("--task", options.task, "auto, pretrain, finetune or lora (auto: by tokens per parameter)")
      ->capture_default_str();
  verb.add_option("--stack", options.stack,
                  "Who runs it: lockstep, torchrun, deepspeed or accelerate (default: that of the first --write)");
  verb.add_option("--seq", options.sequence_length, "Sequence length (default: the model's, at most 4096)");
  verb.add_option("--global-batch", options.global_batch, "Global batch in sequences (default: from size and dataset)");
  verb.add_option("--epochs", options.epochs, "Times the dataset is seen (default: 1, small fine-tuning sets 2 or 3)");
  verb.add_option("--host-cores", options.host_cores, "CPU cores of a node (default: 12 per GPU, assumed)");
  add_observation_switch(verb);
  verb.add_option("--profile", options.profile,
                  "Profile by name or file (default: the generic one of the GPU; on one GPU our engine's)")
      ->envname("LOCKSTEP_PROFILE");
  verb.add_flag("--studies,!--no-studies", options.studies, "Take over what stored studies found (default: on)");
}

}  // namespace

void add_suggest(CLI::App& app, Outcome& outcome) {
  auto options = std::make_shared<SuggestOptions>();
  CLI::App* verb =
      app.add_subcommand("suggest", "Suggests a starting configuration for a model size, GPUs and dataset");
  add_question(*verb, *options);
  verb->add_option("--write", options->write,
                   "Write a file: job.yaml, torchrun.sh, deepspeed.json, accelerate.yaml; may be repeated");
  verb->add_option("--format", options->format, "What --write writes: job, torchrun, deepspeed, accelerate");
  verb->add_flag("--json", options->json, "JSON on stdout (lockstep.suggest/1)");
  set_examples(
      *verb,
      "  lockstep suggest --params 7e9 --gpus 8 --dataset-tokens 1e9\n"
      "  lockstep suggest --params 70B --gpus 64 --gpu H200 --dataset-tokens 50M --task lora\n"
      "  lockstep suggest --model llama3-8b --gpus 32 --dataset-size \"300B tokens\" --write job.yaml\n"
      "  lockstep suggest --params 13B --gpus 8 --gpu A100 --dataset-tokens 1e9 --write deepspeed.json\n"
      "  lockstep suggest --params 1.3B --gpus 16 --dataset-tokens 26B --stack torchrun --write run.sh --json");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = suggest_verb(*options);
  });
}

}  // namespace lockstep::cli
