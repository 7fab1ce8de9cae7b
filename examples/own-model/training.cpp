// How it is trained: a loss, a metric and a learning-rate schedule. Any model and any module from Python can take them.
#include <cmath>
#include <limits>

#include "lockstep/plugin/register.h"

namespace {

using torch::Tensor;
namespace plugin = lockstep::plugin;

// Cross-entropy that looks less at what is already right (Lin et al., "Focal Loss for Dense Object Detection", 2017).
class Focal : public plugin::LossFunction {
 public:
  explicit Focal(plugin::Options& options) : gamma_(options.real("gamma", 2.0)) {}

  plugin::Loss compute(const Tensor& output, const Tensor& target, bool training) const override {
    const Tensor log = torch::log_softmax(output, 1).gather(1, target.unsqueeze(1)).squeeze(1);
    plugin::Loss loss = plugin::sum_of_samples(-(1.0 - log.exp()).pow(gamma_) * log);
    if (!training) loss.correct = (output.argmax(1) == target).sum().item<std::int64_t>();
    return loss;
  }

 private:
  double gamma_;
};

// The share of samples whose class is among the two likeliest.
class TopTwo : public plugin::Metric {
 public:
  void add(const plugin::Judged& batch, std::vector<double>& sums) const override {
    sums.resize(2);
    const Tensor likeliest = std::get<1>(batch.output.topk(2, 1));
    sums[0] += (likeliest == batch.target.unsqueeze(1)).any(1).sum().item<double>();
    sums[1] += static_cast<double>(batch.target.size(0));
  }
  double value(const std::vector<double>& sums) const override {
    return sums.size() == 2 && sums[1] > 0 ? sums[0] / sums[1] : std::numeric_limits<double>::quiet_NaN();
  }
};

// learning_rate x (offset / (offset + steps since the warm-up))^power
class InversePower : public plugin::Schedule {
 public:
  explicit InversePower(plugin::Options& options)
      : power_(options.real("power", 0.5)), offset_(options.real("offset", 10.0, 1.0)) {}

  double rate(const plugin::Progress& progress) const override {
    const auto steps = static_cast<double>(progress.step - progress.warmup_steps);
    const double rate = progress.learning_rate * std::pow(offset_ / (offset_ + steps), power_);
    return std::max(rate, progress.min_learning_rate);
  }

 private:
  double power_, offset_;
};

}  // namespace

LOCKSTEP_REGISTER_LOSS("focal", Focal)
LOCKSTEP_REGISTER_METRIC("top2", TopTwo)
LOCKSTEP_REGISTER_SCHEDULE("inverse_power", InversePower)
