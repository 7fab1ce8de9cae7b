#include "lockstep/nn/script_loss.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/nn/functional/loss.h>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using spec::ScriptLoss;
using torch::Tensor;

std::string shape_text(const Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

UserError does_not_fit(const Tensor& output, const Tensor& target, ScriptLoss loss, const std::string& name,
                       const std::string& fix) {
  return bad_input(fmt::format("{} gives {}, which loss {} does not compare with targets {}", name, shape_text(output),
                               spec::to_string(loss), shape_text(target)),
                   fix);
}

// Logits with their classes in dim 1.
Tensor classes_second(const Tensor& output, const Tensor& target, ScriptLoss loss, const std::string& name) {
  const auto sizes = output.sizes(), wanted = target.sizes();
  if (sizes.size() != wanted.size() + 1 || sizes[0] != wanted[0]) {
    throw does_not_fit(output, target, loss, name, "classes are dim 1 or the last, the other dims the target's");
  }
  const bool second = sizes.slice(2) == wanted.slice(1), last = sizes.slice(0, wanted.size()) == wanted;
  if (second && last && wanted.size() > 1) {
    throw does_not_fit(output, target, loss, name, "its classes may be dim 1 or the last: change a size");
  }
  if (second) return output;
  if (!last)
    throw does_not_fit(output, target, loss, name, "classes are dim 1 or the last, the other dims the target's");
  return output.movedim(-1, 1);
}

LossResult class_loss(ScriptLoss loss, const Tensor& output, const Tensor& target, bool hits, const std::string& name) {
  if (target.is_floating_point()) {
    throw bad_input(
        fmt::format("loss {} compares with classes, and the targets are real numbers", spec::to_string(loss)),
        "use int64 targets, or another loss");
  }
  const Tensor logits = classes_second(output, target, loss, name), wanted = target.to(torch::kInt64);
  LossResult result;
  const Tensor counted = wanted != kIgnoredTarget;
  const Tensor outside = counted.logical_and((wanted < 0).logical_or(wanted >= logits.size(1)));
  if (outside.any().item<bool>()) {
    throw bad_input(fmt::format("{} gives {} classes, and a target is {}", name, logits.size(1),
                                wanted.masked_select(outside)[0].item<std::int64_t>()),
                    "number classes from 0 and give the module as many outputs; -100 is not counted");
  }
  const Tensor logs = loss == ScriptLoss::kCrossEntropy ? torch::log_softmax(logits, 1) : logits;
  result.loss_sum = torch::nn::functional::detail::nll_loss(logs, wanted, {}, kIgnoredTarget, torch::kSum);
  result.count = counted.sum().item<std::int64_t>();
  if (hits) result.correct = (logits.argmax(1) == wanted).logical_and(counted).sum().item<std::int64_t>();
  return result;
}

Tensor by_element(ScriptLoss loss, const Tensor& output, const Tensor& target) {
  switch (loss) {
    case ScriptLoss::kMse:
      return torch::mse_loss(output, target, torch::Reduction::None);
    case ScriptLoss::kL1:
      return torch::l1_loss(output, target, torch::Reduction::None);
    case ScriptLoss::kHuber:
      return torch::huber_loss(output, target, torch::Reduction::None);
    case ScriptLoss::kBce:
      return torch::binary_cross_entropy(output, target, {}, torch::Reduction::None);
    default:
      return torch::binary_cross_entropy_with_logits(output, target, {}, {}, torch::Reduction::None);
  }
}

}  // namespace

LossResult script_loss(ScriptLoss loss, const Tensor& output, const Tensor& target, bool hits,
                       const std::string& name) {
  const auto wide = output.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  LossResult result;
  if (loss == ScriptLoss::kReturned) {
    if (output.numel() != 1) {
      throw bad_input(fmt::format("{} is to return its loss, and returns {}", name, shape_text(output)),
                      "return a mean, or name a loss");
    }
    result.loss_sum = output.reshape({}).to(wide) * target.size(0);
    result.count = target.size(0);
    return result;
  }
  if (spec::counts_classes(loss)) return class_loss(loss, output.to(wide), target, hits, name);
  Tensor wanted = target.to(wide), given = output.to(wide);
  if (given.dim() == wanted.dim() + 1 && given.size(-1) == 1) given = given.squeeze(-1);
  if (given.sizes() != wanted.sizes()) {
    throw does_not_fit(output, target, loss, name, "the two have the same sizes");
  }
  result.loss_sum = by_element(loss, given, wanted).reshape({given.size(0), -1}).mean(1).sum();
  result.count = given.size(0);
  return result;
}

}  // namespace lockstep::nn
