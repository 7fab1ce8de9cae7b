#include "lockstep/planner/suggest/suggest.h"
#include "lockstep/planner/capabilities.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/explain/fix.h"
#include "lockstep/planner/explain/reasons.h"
#include "lockstep/planner/observations.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/planner/resize.h"
#include "lockstep/planner/suggest/host.h"
#include "lockstep/planner/suggest/model.h"
#include "lockstep/planner/suggest/recipe.h"
#include "lockstep/planner/suggest/search.h"
#include "lockstep/planner/suggest/studies.h"
#include "lockstep/spec/usual_precision.h"

namespace lockstep::planner {
namespace {

constexpr std::int64_t kMostGpus = 1 << 20;
constexpr double kMostTokens = 1e18;
constexpr std::array<const char*, 4> kTasks{"auto", "pretrain", "finetune", "lora"};
constexpr std::array<const char*, 4> kStacks{"lockstep", "torchrun", "deepspeed", "accelerate"};

template <std::size_t N>
std::size_t place_in(const std::array<const char*, N>& names, std::string_view text, const char* what) {
  const auto found = std::find(names.begin(), names.end(), to_lower(trim(text)));
  if (found == names.end()) {
    throw bad_input(fmt::format("there is no {} `{}`", what, printable(text)),
                    did_you_mean(text, {names.begin(), names.end()}));
  }
  return static_cast<std::size_t>(found - names.begin());
}

// "H100" for "h100".
std::string known_gpu(const std::string& name) {
  std::vector<std::string> kinds = spec::device_kind_names();
  std::erase(kinds, "cpu");
  for (const std::string& kind : kinds) {
    if (to_lower(kind) == to_lower(trim(name))) return kind;
  }
  if (to_lower(trim(name)) == "cpu") {
    throw bad_input("suggest answers for GPUs",
                    "for ranks of this machine: lockstep plan --cluster 1x4xcpu --model ...");
  }
  throw bad_input(fmt::format("there is no GPU kind `{}`", printable(name)), did_you_mean(name, kinds));
}

// Nodes as even as `gpus` allows, of at most `per_node`.
spec::Cluster cluster_of(std::int64_t gpus, const std::string& kind, std::int64_t per_node) {
  std::int64_t size = std::min(gpus, per_node);
  while (gpus % size != 0) --size;
  return spec::load_cluster(fmt::format("{}x{}x{}", gpus / size, size, kind));
}

std::int64_t node_size(const SuggestRequest& request, const std::string& kind) {
  if (request.gpus_per_node > 0) return request.gpus_per_node;
  return spec::load_cluster(kind).groups.front().devices_per_node;
}

spec::Cluster choose_cluster(const SuggestRequest& request, Suggestion& suggestion) {
  if (!request.cluster.empty()) {
    spec::Cluster cluster = spec::load_cluster(request.cluster);
    if (cluster.is_cpu()) known_gpu("cpu");
    if (request.gpus > 0 && request.gpus != cluster.devices()) {
      throw bad_input(fmt::format("{} GPUs are asked for and {} has {}", request.gpus, cluster.name, cluster.devices()),
                      "give --gpus with --gpu, or --cluster");
    }
    return cluster;
  }
  if (request.gpus < 1 || request.gpus > kMostGpus || request.gpus_per_node < 0) {
    throw bad_input(
        fmt::format("{} GPUs{}", request.gpus, request.gpus_per_node < 0 ? " in nodes of less than one" : ""),
        fmt::format("give 1 to {}", kMostGpus));
  }
  const std::string kind = known_gpu(request.gpu);
  const std::int64_t per_node = node_size(request, kind);
  spec::Cluster cluster = cluster_of(request.gpus, kind, per_node);
  const spec::NodeGroup& group = cluster.groups.front();
  if (group.devices_per_node < std::min(per_node, request.gpus)) {
    suggestion.warnings.push_back(fmt::format("{} GPUs do not fill nodes of {}: taken as {} nodes of {}", request.gpus,
                                              per_node, group.nodes, group.devices_per_node));
  }
  return cluster;
}

void require_sense(const SuggestRequest& request) {
  const bool by_name = !request.model.empty();
  if (by_name == (request.parameters != 0)) {
    throw bad_input(by_name ? "a model by name and by size" : "no model size is given",
                    "give one of --params 7e9 and --model llama2-7b");
  }
  if (!(request.dataset_tokens > 0 && request.dataset_tokens <= kMostTokens)) {
    throw bad_input(fmt::format("a dataset of {:.4g} tokens", request.dataset_tokens),
                    "give its tokens, for instance 1B");
  }
  if (!(request.epochs >= 0 && request.epochs <= 1e6)) {
    throw bad_input(fmt::format("{:.4g} epochs", request.epochs), "give a number above 0");
  }
  if (request.sequence_length < 0 || request.sequence_length > (1 << 24)) {
    throw bad_input(fmt::format("sequences of {} tokens", request.sequence_length), "give for instance 4096");
  }
  if (request.global_sequences < 0 || request.global_sequences > (std::int64_t{1} << 32)) {
    throw bad_input(fmt::format("a global batch of {} sequences", request.global_sequences), "give for instance 128");
  }
  if (request.host_cores < 0 || request.host_cores > 65536) {
    throw bad_input(fmt::format("nodes of {} cores", request.host_cores), "give the cores of a node, for instance 96");
  }
}

spec::Model choose_model(const SuggestRequest& request, Suggestion& suggestion) {
  if (request.model.empty()) {
    SizedModel sized = model_of_size(request.parameters);
    suggestion.interpolated = sized.interpolated;
    suggestion.reasons.push_back(std::move(sized.reason));
    return std::move(sized.model);
  }
  spec::Model model = spec::load_model(request.model);
  if (!model.is_language_model()) {
    throw bad_input(fmt::format("{} is not a language model", model.name),
                    fmt::format("lockstep plan --model {} plans it", shell_quoted(model.name)));
  }
  return model;
}

// The engine's own profile is about the engine alone.
cost::Profile profile_of(const Suggestion& suggestion) {
  const spec::Cluster& cluster = suggestion.cluster;
  const Ranks ranks = ranks_here(cluster, 0, "", cluster.devices());
  const bool ours = suggestion.request.stack == Stack::kLockstep;
  if (!ours && named_profile(suggestion.request.profile).empty()) {
    // Runs of the same framework where there are some.
    const bool deepspeed = suggestion.request.stack == Stack::kDeepspeed;
    const cost::Profile generic = cost::profile_for(cluster);
    const std::string evidence =
        evidence_for(*find_capabilities(deepspeed ? "deepspeed" : "fsdp"), generic.fitted->hardware);
    return conditioned(evidence.empty() ? generic : cost::find_profile(evidence)).profile;
  }
  return require_profile(cluster, spec::usual_precision(cluster), ranks, suggestion.request.profile);
}

SearchRequest question_of(const Suggestion& suggestion, const Goal& goal) {
  SearchRequest question;
  question.model = suggestion.model;
  question.cluster = suggestion.cluster;
  question.profile = profile_of(suggestion);
  question.lora = suggestion.lora;
  question.global_sequences = goal.global_sequences;
  question.sequence_length = goal.sequence_length;
  question.tokens = goal.tokens;
  // The file is one to train; longer sequences than the model's are its owner's to make possible.
  question.is_job =
      suggestion.request.stack == Stack::kLockstep && goal.sequence_length <= suggestion.model.max_sequence;
  return complete(std::move(question));
}

[[noreturn]] void refuse(const SearchRequest& question, const SearchResult& result, const Suggestion& suggestion) {
  const std::string kind = suggestion.cluster.groups.front().device.kind;
  const auto grow = [&](std::int64_t devices) {
    if (suggestion.request.cluster.empty()) {
      return cluster_of(devices, kind, node_size(suggestion.request, kind));
    }
    spec::Cluster larger = suggestion.cluster;
    add_devices(larger, devices - larger.devices());
    return larger;
  };
  const auto enough = devices_that_fit(question, suggestion.request.stack, grow);
  std::string fix = enough ? fmt::format("{} {} hold it", *enough, kind) : "use a smaller model";
  if (suggestion.task != Task::kLora && suggestion.task != Task::kPretrain) fix += ", or train adapters (--task lora)";
  if (suggestion.request.stack != Stack::kLockstep) {
    fix += fmt::format(", or a stack that splits the model (--stack lockstep); {} only shards its state",
                       to_string(suggestion.request.stack));
  }
  throw does_not_fit(describe_misfit(question, result), fix);
}

// What a stack does not do by itself although the prediction counts on it.
void warn_about_stack(Suggestion& suggestion) {
  const plan::Layout& layout = suggestion.candidate.layout;
  const Stack stack = suggestion.request.stack;
  if (stack == Stack::kDeepspeed && layout.recompute != plan::Recompute::kNone) {
    suggestion.warnings.push_back(
        "DeepSpeed's `activation_checkpointing` only sets options: the model must recompute by itself "
        "(model.gradient_checkpointing_enable()), or memory does not suffice");
  }
  const bool is_fsdp = (stack == Stack::kTorchrun || stack == Stack::kAccelerate) && layout.zero > 0;
  if (is_fsdp && suggestion.candidate.batch.accumulation > 1 && suggestion.lora.rank == 0) {
    suggestion.warnings.push_back(fmt::format(
        "memory counts gradients as sharded in every micro-step; Accelerate's and the Trainer's no_sync() keeps them "
        "whole ({} per GPU in bf16): set sync_each_batch",
        format_bytes(2 * static_cast<double>(spec::parameter_count(suggestion.model)))));
  }
}

void warn_about_memory(Suggestion& suggestion, const SearchRequest& question) {
  const plan::Layout& layout = suggestion.candidate.layout;
  if (layout.offload != plan::Offload::kNone) {
    const std::string kind = suggestion.cluster.groups.front().device.kind;
    const auto grow = [&](std::int64_t devices) {
      spec::Cluster larger = suggestion.cluster;
      add_devices(larger, devices - larger.devices());
      return larger;
    };
    const auto enough = devices_that_fit(question, suggestion.request.stack, grow);
    suggestion.warnings.push_back(fmt::format(
        "nothing fits the GPUs' memory, so {} live in host memory ({} in all), which is slow{}",
        layout.offload == plan::Offload::kOptimizer ? "optimizer states" : "parameters and optimizer states",
        format_bytes(suggestion.candidate.memory.host * static_cast<double>(layout.world())),
        enough ? fmt::format("; {} {} do without", *enough, kind) : ""));
  }
  const double risk = suggestion.candidate.out_of_memory_probability.value_or(0);
  if (risk > 0.05) {
    const char* advice = suggestion.candidate.batch.micro > 1         ? "halve the micro-batch if it happens"
                         : layout.recompute != plan::Recompute::kFull ? "recompute everything if it happens"
                                                                      : "take another GPU if it happens";
    suggestion.warnings.push_back(fmt::format("out of memory with a probability of {:.0f}%: {}", 100 * risk, advice));
  }
}

bool is_small_count(const std::string& text) {
  return !text.empty() && text.size() < 7 && text.find_first_not_of("0123456789") == std::string::npos;
}

void apply_knob(StudiedKnob& knob, Suggestion& suggestion) {
  for (EnvironmentVariable& variable : suggestion.environment) {
    if (variable.name != knob.knob) continue;
    variable.value = knob.value;
    variable.reason = fmt::format("study {}: reverting it costs {:.1f}% (95% interval {:.1f} to {:.1f})", knob.study,
                                  knob.percent, knob.low, knob.high);
    knob.applied_to = "environment";
    return;
  }
  const bool is_name = knob.knob.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
  if (knob.knob.starts_with("NCCL_") && is_name) {
    suggestion.environment.push_back({knob.knob, knob.value, ""});
    apply_knob(knob, suggestion);
  } else if (knob.knob == "num_workers" && is_small_count(knob.value)) {
    suggestion.loader.num_workers = std::stoll(knob.value);
    knob.applied_to = "loader";
  } else if (knob.knob == "prefetch_factor" && is_small_count(knob.value)) {
    suggestion.loader.prefetch_factor = std::stoll(knob.value);
    knob.applied_to = "loader";
  }
}

// The study and the planner came to the same value.
bool plan_has(const StudiedKnob& knob, const plan::Candidate& plan) {
  const plan::Layout& layout = plan.layout;
  const auto is = [&](const char* name, const auto& value) {
    return knob.knob == name && knob.value == fmt::format("{}", value);
  };
  return is("recompute", plan::to_string(layout.recompute)) || is("schedule", plan::to_string(layout.schedule)) ||
         is("precision", spec::to_string(layout.precision)) || is("zero", layout.zero) || is("tp", layout.tp) ||
         is("pp", layout.pp) || is("micro_batch", plan.batch.micro) || is("accumulation", plan.batch.accumulation);
}

void apply_studies(Suggestion& suggestion) {
  for (StudiedKnob& knob : suggestion.studied) {
    if (knob.applied_to.empty()) apply_knob(knob, suggestion);
    suggestion.reasons.push_back(
        fmt::format("{}={}: study {} of a similar job; reverting it costs {:.1f}% (95% interval {:.1f} to {:.1f}){}",
                    knob.knob, knob.value, knob.study, knob.percent, knob.low, knob.high,
                    !knob.applied_to.empty()               ? ""
                    : plan_has(knob, suggestion.candidate) ? "; the plan has the same"
                                                           : "; not applied, the plan's own choice stands"));
  }
}

// A micro-batch that a study found to matter is kept where it divides the batch, fits, and is not predicted to be
// clearly slower here.
constexpr double kAsFast = 0.95;

StackSearch search_with_studies(SearchRequest& question, Suggestion& suggestion) {
  StackSearch own = search_for(question, suggestion.request.stack);
  if (own.result.best.empty()) return own;
  for (StudiedKnob& knob : suggestion.studied) {
    const bool is_micro = knob.knob == "micro_batch" || knob.knob == "micro" || knob.knob == "batch.micro";
    if (!is_micro || !is_small_count(knob.value)) continue;
    const std::int64_t micro = std::stoll(knob.value);
    if (micro < 1 || question.global_sequences % micro != 0) continue;
    SearchRequest fixed = question;
    fixed.constraints.fixed["micro"] = micro;
    StackSearch found = search_for(fixed, suggestion.request.stack);
    if (found.result.best.empty() || found.result.best[0].score < kAsFast * own.result.best[0].score) continue;
    knob.applied_to = "batch";
    question = std::move(fixed);
    return found;
  }
  return own;
}

void explain_choice(Suggestion& suggestion, const SearchRequest& question, const StackSearch& found) {
  const cost::Pricer pricer(question.model, question.cluster, question.profile, pricer_options(question));
  suggestion.candidate = to_candidate(question, pricer, found.result.best.front());
  suggestion.candidate.reasons = reasons_for(question, pricer, found.result);
  suggestion.complete_search = found.complete;
  suggestion.search = found.result.summary;
  suggestion.profile = question.profile.identity();
  for (const std::string& reason : suggestion.candidate.reasons) suggestion.reasons.push_back(reason);
  suggestion.reasons.push_back(fmt::format("precision {}: what {} is trained in",
                                           spec::to_string(question.precisions[0]),
                                           suggestion.cluster.groups.front().device.kind));
  if (suggestion.lora.rank > 0) {
    suggestion.reasons.push_back(fmt::format(
        "adapters of rank {} on {}: {} trained parameters; memory counts gradients and optimizer state of those alone, "
        "the time is that of full training and so the slowest it can be",
        suggestion.lora.rank, join(suggestion.lora.targets, ", "),
        format_count(static_cast<double>(adapter_parameters(suggestion.lora, suggestion.model)))));
  }
  if (!found.complete) {
    suggestion.reasons.push_back(
        fmt::format("the space is too large for an answer at once: {} candidates in stages; `{}` searches all of it",
                    format_count(static_cast<double>(found.result.summary.candidates)),
                    suggestion.interpolated ? "lockstep plan JOB.yaml" : plan_command(suggestion)));
  }
}

void settle_rest(Suggestion& suggestion, const Goal& goal) {
  const plan::BatchPlan& batch = suggestion.candidate.batch;
  const auto per_step = static_cast<double>(batch.global_sequences * batch.sequence_length);
  suggestion.steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(goal.tokens / per_step)));
  suggestion.optimizer = choose_optimizer(suggestion.task, suggestion.model, suggestion.steps);
  suggestion.reasons.push_back(
      fmt::format("learning rate {:.2g}: a hint from published recipes of this size and task, "
                  "nothing here predicts it",
                  suggestion.optimizer.learning_rate));
  suggestion.loader = choose_loader(suggestion);
  suggestion.environment = choose_environment(suggestion);
  apply_studies(suggestion);
  if (const auto& checkpoint = suggestion.candidate.checkpoint) {
    suggestion.reasons.push_back(
        fmt::format("checkpoints every {}: a failure loses at most {}, training keeps {:.1f}% of the time",
                    format_seconds(checkpoint->interval_seconds), format_seconds(checkpoint->worst_lost_seconds),
                    100 * checkpoint->goodput));
  }
}

}  // namespace

const char* to_string(Task task) { return kTasks[static_cast<std::size_t>(task)]; }
const char* to_string(Stack stack) { return kStacks[static_cast<std::size_t>(stack)]; }
Task parse_task(std::string_view text) { return static_cast<Task>(place_in(kTasks, text, "task")); }
Stack parse_stack(std::string_view text) { return static_cast<Stack>(place_in(kStacks, text, "stack")); }

double parse_size(std::string_view text, const std::string& flag) {
  std::string number(trim(text));
  // "1B tokens": the word after the number says what is counted.
  for (const std::string_view word : {"tokens", "token", "tok", "parameters", "params"}) {
    if (to_lower(number).ends_with(word)) {
      number = trim(std::string_view(number).substr(0, number.size() - word.size()));
      break;
    }
  }
  if (!number.empty()) {
    const char last = number.back();
    if (last == 'b' || last == 'm' || last == 't') number.back() = static_cast<char>(last - 'a' + 'A');
    if (last == 'K') number.back() = 'k';
  }
  const std::int64_t count = parse_count(number, {.file = flag});
  if (count < 1)
    throw bad_input(fmt::format("`{}` is nothing", printable(text)), "give a number above 0", {.file = flag});
  return static_cast<double>(count);
}

Suggestion suggest(const SuggestRequest& request) {
  require_sense(request);
  Suggestion suggestion;
  suggestion.request = request;
  suggestion.cluster = choose_cluster(request, suggestion);
  suggestion.model = choose_model(request, suggestion);
  Goal goal = choose_goal(request, suggestion.model, suggestion.cluster.devices());
  suggestion.task = goal.task;
  suggestion.epochs = goal.epochs;
  suggestion.tokens = goal.tokens;
  suggestion.lora = choose_adapters(goal.task, suggestion.model);
  suggestion.reasons.insert(suggestion.reasons.end(), goal.reasons.begin(), goal.reasons.end());
  suggestion.warnings.insert(suggestion.warnings.end(), goal.warnings.begin(), goal.warnings.end());
  suggestion.studied = studied_knobs(request.home, suggestion, goal.sequence_length);

  SearchRequest question = question_of(suggestion, goal);
  const StackSearch found = search_with_studies(question, suggestion);
  if (found.result.best.empty()) refuse(question, found.result, suggestion);
  explain_choice(suggestion, question, found);
  settle_rest(suggestion, goal);
  warn_about_memory(suggestion, question);
  warn_about_stack(suggestion);
  return suggestion;
}

std::string plan_command(const Suggestion& suggestion) {
  if (suggestion.interpolated) return {};
  const std::string model = suggestion.request.model.empty() ? suggestion.model.name : suggestion.request.model;
  const std::string cluster = suggestion.request.cluster.empty() ? suggestion.cluster.name : suggestion.request.cluster;
  return fmt::format("lockstep plan --model {} --cluster {} --seq {} --global-batch {} --tokens {:.0f}",
                     shell_quoted(model), shell_quoted(cluster), suggestion.candidate.batch.sequence_length,
                     suggestion.candidate.batch.global_sequences, suggestion.tokens);
}

}  // namespace lockstep::planner
