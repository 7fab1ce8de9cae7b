#include "lockstep/nn/plugin_loss.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::nn {

using torch::Tensor;

LossResult checked_loss(const plugin::Loss& loss, plugin::Counted counted, const Tensor& target,
                        const std::string& title, const std::string& doing) {
  const auto wrong = [&](const std::string& problem, const std::string& fix) {
    return UserError(ExitCode::kRunFailed, fmt::format("{}: {} {}", title, doing, problem), fix);
  };
  if (!loss.sum.defined() || loss.sum.numel() != 1 || !loss.sum.is_floating_point()) {
    throw wrong("does not return one real number", "Loss::sum is the sum over what is counted");
  }
  const bool by_target = counted == plugin::Counted::kTargets;
  if (by_target && target.scalar_type() != torch::kInt64) {
    throw wrong("counts targets, which are not int64 here", "override counted(), or use classes as targets");
  }
  const std::int64_t expected = by_target ? (target != kIgnoredTarget).sum().item<std::int64_t>() : target.size(0);
  if (loss.count != expected) {
    throw wrong(fmt::format("counts {}, and there are {} {}", loss.count, expected,
                            by_target ? "targets that are not -100" : "samples"),
                "make Loss::count and counted() agree");
  }
  const auto wide = loss.sum.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return {.loss_sum = loss.sum.reshape({}).to(wide), .count = loss.count, .correct = loss.correct};
}

PluginLoss::PluginLoss(const spec::PluginUse& use)
    : title_(plugin::title_of(use, spec::PluginKind::kLoss)),
      function_(plugin::make_loss(use, "model.loss_options")),
      counted_(function_->counted()) {}

LossResult PluginLoss::compute(const Tensor& output, const Tensor& target, bool training) const {
  const auto wide = output.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const plugin::Loss loss =
      plugin::calling(title_, "compute", [&] { return function_->compute(output.to(wide), target, training); });
  return checked_loss(loss, counted_, target, title_, "compute");
}

}  // namespace lockstep::nn
