#include "lockstep/planner/suggest/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"

namespace lockstep::planner {
namespace {

constexpr double kPretrainTokensPerParameter = 2;  // fewer is not enough to learn a language from
constexpr std::int64_t kUsualLongest = 4096;
constexpr std::int64_t kFinetuneSequences = 128;
constexpr double kUsualPretrainTokens = 524288;
constexpr double kLeastPretrainSteps = 2000;
constexpr double kLeastSteps = 500;
constexpr double kFewSteps = 100;
constexpr double kEnoughTokens = 20;  // per parameter: Hoffmann et al. 2022

Task choose_task(const SuggestRequest& request, const spec::Model& model, Goal& goal) {
  if (request.task != Task::kAuto) return request.task;
  const double per_parameter = request.dataset_tokens / static_cast<double>(spec::parameter_count(model));
  const bool pretrain = per_parameter >= kPretrainTokensPerParameter;
  goal.reasons.push_back(fmt::format(
      "task {}: {:.3g} tokens per parameter {}; --task says otherwise", pretrain ? "pretrain" : "finetune",
      per_parameter, pretrain ? "are enough to train from nothing" : "only suffice to go on from pretrained weights"));
  return pretrain ? Task::kPretrain : Task::kFinetune;
}

// Small sets are seen several times: 3 epochs as in Alpaca, 2 as in Llama 2's fine-tuning.
double choose_epochs(const SuggestRequest& request, Task task) {
  if (request.epochs > 0) return request.epochs;
  if (task == Task::kPretrain) return 1;
  return request.dataset_tokens < 5e7 ? 3 : request.dataset_tokens < 2e8 ? 2 : 1;
}

// The largest k x 2^n of the devices, k 1 or 3, that is at most `wanted`: such shares have many divisors. Below one
// sequence per device the largest power of two.
std::int64_t round_batch(double wanted, std::int64_t devices) {
  const auto largest = [](double limit) {
    std::int64_t best = 1;
    for (std::int64_t power = 1; static_cast<double>(power) <= limit; power *= 2) {
      best = std::max(best, power);
      if (static_cast<double>(3 * power) <= limit) best = std::max(best, 3 * power);
    }
    return best;
  };
  const double share = wanted / static_cast<double>(devices);
  if (share >= 1) return devices * largest(share * 1.001);
  return static_cast<std::int64_t>(std::exp2(std::floor(std::log2(std::max(1.0, wanted)))));
}

double usual_tokens(Task task, const spec::Model& model, std::int64_t sequence_length) {
  if (task != Task::kPretrain) return static_cast<double>(kFinetuneSequences * sequence_length);
  return model.global_batch_tokens > 0 ? static_cast<double>(model.global_batch_tokens) : kUsualPretrainTokens;
}

void choose_batch(const SuggestRequest& request, const spec::Model& model, std::int64_t devices, Goal& goal) {
  const auto length = static_cast<double>(goal.sequence_length);
  if (request.global_sequences > 0) {
    goal.global_sequences = request.global_sequences;
    goal.reasons.push_back(fmt::format("global batch {} sequences: given", request.global_sequences));
    return;
  }
  const double usual = usual_tokens(goal.task, model, goal.sequence_length);
  const double least_steps = goal.task == Task::kPretrain ? kLeastPretrainSteps : kLeastSteps;
  const double bound = goal.tokens / least_steps;
  goal.global_sequences = round_batch(std::max(1.0, std::min(usual, bound) / length), devices);
  // Data parallelism is all that these stacks have: every rank needs a sequence.
  const bool data_parallel_only = request.stack != Stack::kLockstep;
  if (data_parallel_only) goal.global_sequences = std::max(goal.global_sequences, devices);
  goal.reasons.push_back(
      bound < usual
          ? fmt::format("global batch {} sequences ({} tokens): the usual {} would leave {:.0f} steps, at "
                        "least {:.0f} are wanted",
                        goal.global_sequences, format_count(static_cast<double>(goal.global_sequences) * length),
                        format_count(usual), std::max(1.0, goal.tokens / usual), least_steps)
          : fmt::format("global batch {} sequences ({} tokens): {}", goal.global_sequences,
                        format_count(static_cast<double>(goal.global_sequences) * length),
                        goal.task == Task::kPretrain ? "the usual one of models of this size"
                                                     : "128 sequences, as published fine-tuning recipes"));
}

void warn(const spec::Model& model, const SuggestRequest& request, std::int64_t devices, Goal& goal) {
  const double steps = goal.tokens / static_cast<double>(goal.global_sequences * goal.sequence_length);
  if (steps < kFewSteps) {
    goal.warnings.push_back(
        fmt::format("{} tokens are {:.0f} steps only: fewer GPUs, a smaller --global-batch or more "
                    "--epochs would train better",
                    format_count(goal.tokens), std::max(1.0, std::ceil(steps))));
  }
  if (goal.global_sequences < devices) {
    goal.warnings.push_back(
        fmt::format("the batch has {} sequences for {} GPUs: the model is split only to keep them "
                    "busy, fewer GPUs cost less",
                    goal.global_sequences, devices));
  }
  const double per_parameter = goal.tokens / static_cast<double>(spec::parameter_count(model));
  if (goal.task == Task::kPretrain && per_parameter < kEnoughTokens) {
    goal.warnings.push_back(
        fmt::format("{:.3g} tokens per parameter: about 20 are the best use of compute (Hoffmann "
                    "et al. 2022), a smaller model would learn more from this set",
                    per_parameter));
  }
  if (request.sequence_length > model.max_sequence) {
    goal.warnings.push_back(fmt::format("sequences of {} are longer than the {} that {} was made for",
                                        request.sequence_length, model.max_sequence, model.name));
  }
}

struct RatePoint {
  double parameters;
  double rate;
};
// GPT-3 125M and 1.3B (Brown et al. 2020, table 2.1), Llama 2 7B and 70B (Touvron et al. 2023), Llama 3 405B.
constexpr std::array<RatePoint, 5> kPretrainRates{
    {{125e6, 6e-4}, {1.3e9, 3e-4}, {7e9, 3e-4}, {70e9, 1.5e-4}, {405e9, 8e-5}}};

double pretrain_rate(double parameters) {
  if (parameters <= kPretrainRates.front().parameters) return kPretrainRates.front().rate;
  for (std::size_t i = 1; i < kPretrainRates.size(); ++i) {
    const RatePoint &low = kPretrainRates[i - 1], &high = kPretrainRates[i];
    if (parameters > high.parameters) continue;
    const double share = std::log(parameters / low.parameters) / std::log(high.parameters / low.parameters);
    return low.rate * std::pow(high.rate / low.rate, share);
  }
  return kPretrainRates.back().rate;
}

double two_digits(double value) {
  const double scale = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::round(value / scale) * scale;
}

}  // namespace

Goal choose_goal(const SuggestRequest& request, const spec::Model& model, std::int64_t devices) {
  Goal goal;
  goal.task = choose_task(request, model, goal);
  goal.sequence_length =
      request.sequence_length > 0 ? request.sequence_length : std::min(model.max_sequence, kUsualLongest);
  if (request.dataset_tokens < static_cast<double>(goal.sequence_length)) {
    throw bad_input(fmt::format("a dataset of {:.0f} tokens is shorter than one sequence of {}", request.dataset_tokens,
                                goal.sequence_length),
                    "give the tokens of the whole set, for instance 1B, or a shorter --seq");
  }
  goal.epochs = choose_epochs(request, goal.task);
  goal.tokens = request.dataset_tokens * goal.epochs;
  if (goal.epochs != 1 && request.epochs <= 0) {
    goal.reasons.push_back(fmt::format("{:g} epochs: {} tokens are a small set to fine-tune on", goal.epochs,
                                       format_count(request.dataset_tokens)));
  }
  choose_batch(request, model, devices, goal);
  warn(model, request, devices, goal);
  return goal;
}

OptimizerAdvice choose_optimizer(Task task, const spec::Model& model, std::int64_t steps) {
  const auto parameters = static_cast<double>(spec::parameter_count(model));
  OptimizerAdvice advice;
  switch (task) {
    case Task::kFinetune:
      advice.learning_rate = parameters < 10e9 ? 2e-5 : 1e-5;
      break;
    case Task::kLora:
      advice.learning_rate = parameters < 30e9 ? 2e-4 : 1e-4;
      break;
    default:
      advice.learning_rate = two_digits(pretrain_rate(parameters));
      advice.weight_decay = 0.1;
  }
  const double warmup =
      task == Task::kPretrain ? std::min(2000.0, 0.02 * static_cast<double>(steps)) : 0.03 * static_cast<double>(steps);
  advice.warmup_steps = std::clamp<std::int64_t>(std::llround(warmup), 1, std::max<std::int64_t>(1, steps / 2));
  return advice;
}

spec::Lora choose_adapters(Task task, const spec::Model& model) {
  if (task != Task::kLora) return {};
  spec::Lora lora{.rank = 16, .alpha = 32, .targets = {"q_proj", "k_proj", "v_proj", "o_proj"}};
  if (model.arch == spec::Arch::kGpt) lora.targets = {"c_attn", "c_proj"};
  if (model.arch == spec::Arch::kBert) lora.targets = {"query", "value"};
  if (model.arch == spec::Arch::kMamba) lora.targets = {"in_proj", "out_proj"};
  return lora;
}

}  // namespace lockstep::planner
