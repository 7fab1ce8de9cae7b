
#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/cuda/operators.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/model.h"

namespace lockstep::nn {
namespace {

// 64 MiB of fp32 logits: few enough to stay small compared with a model, enough rows for an efficient product.
constexpr std::int64_t kChunkElements = std::int64_t{1} << 24;
constexpr std::int64_t kRowsPerTask = 32;

// On a device the loss stays there, and targets are counted only together with hits: reading would wait for the device.
struct Sums {
  double loss = 0;
  Tensor device_loss;  // 0-dim, fp64; undefined on the CPU
  std::int64_t count = 0;
  std::int64_t correct = 0;

  void add(const Sums& other) {
    loss += other.loss;
    if (other.device_loss.defined())
      device_loss = device_loss.defined() ? device_loss + other.device_loss : other.device_loss;
    count += other.count;
    correct += other.correct;
  }
};

template <typename T>
Sums kernel_sums(Tensor& logits, const Tensor& target, bool write_gradient) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const std::int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  std::vector<kernels::CrossEntropyRows> parts(static_cast<std::size_t>(tasks));
  kernels::parallel_blocks(tasks, [&](std::int64_t task) {
    const std::int64_t first = task * kRowsPerTask;
    parts[static_cast<std::size_t>(task)] =
        kernels::cross_entropy_rows(logits.data_ptr<T>() + first * classes, target.data_ptr<std::int64_t>() + first,
                                    kIgnoredTarget, write_gradient, std::min(kRowsPerTask, rows - first), classes);
  });
  Sums sums;  // added in order: the same for any number of threads
  for (const auto& part : parts) {
    sums.loss += part.loss_sum;
    sums.count += part.count;
    sums.correct += part.correct;
  }
  return sums;
}

// The same through ATen, for other devices.
Sums aten_sums(Tensor& logits, const Tensor& target, bool write_gradient, bool count_correct) {
  const Tensor counted = target != kIgnoredTarget;
  const Tensor safe = target.masked_fill(~counted, 0).unsqueeze(1);
  Tensor log_prob = at::log_softmax(logits, 1);
  Sums sums;
  sums.device_loss = log_prob.gather(1, safe).squeeze(1).masked_fill(~counted, 0).sum(torch::kDouble).neg();
  if (count_correct) {
    const Tensor hits = logits.argmax(1).eq(target) & counted;
    const Tensor both = at::stack({counted.sum(), hits.sum()}).cpu();
    sums.count = both[0].item<std::int64_t>();
    sums.correct = both[1].item<std::int64_t>();
  }
  if (!write_gradient) return sums;
  logits = log_prob.exp_().scatter_add_(1, safe, -torch::ones_like(safe, logits.options()));
  logits.masked_fill_(~counted.unsqueeze(1), 0);
  return sums;
}

// One kernel over logits in bf16, which become their gradient.
Sums cuda_sums(Tensor& logits, const Tensor& target) {
  Sums sums;
  sums.device_loss = cuda::cross_entropy(logits, target).sum(torch::kDouble);
  return sums;
}

// `logits` [rows, classes] in fp32 or fp64; replaced by its gradient when asked.
Sums sums_of(Tensor& logits, const Tensor& target, bool write_gradient, bool count_correct) {
  if (!logits.is_cpu()) return aten_sums(logits, target, write_gradient, count_correct);
  return logits.scalar_type() == torch::kDouble ? kernel_sums<double>(logits, target, write_gradient)
                                                : kernel_sums<float>(logits, target, write_gradient);
}

struct Inputs {
  Tensor x;       // [rows, hidden]
  Tensor weight;  // [classes, hidden]
  Tensor bias;    // [classes] or undefined
  Tensor target;  // [rows], contiguous
  std::int64_t chunk_rows;
  bool count_correct;
};

// Chunk by chunk: logits, loss and, where wanted, the gradients of a unit loss_sum.
struct Gradients {
  Tensor x, weight, bias;
};

Sums chunked(const Inputs& in, Gradients* gradients) {
  const std::int64_t rows = in.x.size(0);
  const auto dtype = in.x.scalar_type();
  const auto wide = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  if (gradients) gradients->x = torch::empty_like(in.x);
  Sums total;
  for (std::int64_t first = 0; first < rows; first += in.chunk_rows) {
    const std::int64_t count = std::min(in.chunk_rows, rows - first);
    const Tensor x = in.x.narrow(0, first, count);
    Tensor logits = in.bias.defined() ? at::addmm(in.bias, x, in.weight.t()) : x.mm(in.weight.t());
    const Tensor target = in.target.narrow(0, first, count);
    if (gradients != nullptr && !in.count_correct && cuda::takes_logits(logits)) {
      total.add(cuda_sums(logits, target));
    } else {
      logits = logits.to(wide);
      total.add(sums_of(logits, target, gradients != nullptr, in.count_correct));
    }
    if (!gradients) continue;
    const Tensor dlogits = logits.to(dtype);
    Tensor dx = gradients->x.narrow(0, first, count);
    at::mm_out(dx, dlogits, in.weight);
    if (first == 0) {
      // With more than one chunk the sum over chunks is kept in fp32 at least.
      gradients->weight = dlogits.t().mm(x);
      if (count < rows) gradients->weight = gradients->weight.to(wide);
      if (in.bias.defined()) gradients->bias = logits.sum(0, false, wide);
    } else if (dtype == wide) {
      gradients->weight.addmm_(dlogits.t(), x);
      if (in.bias.defined()) gradients->bias += logits.sum(0);
    } else {
      gradients->weight += dlogits.t().mm(x);
      if (in.bias.defined()) gradients->bias += logits.sum(0, false, wide);
    }
  }
  return total;
}

Tensor loss_tensor(const Sums& sums, const Tensor& x) {
  const auto dtype = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  if (sums.device_loss.defined()) return sums.device_loss.to(dtype);
  return torch::full({}, sums.loss, torch::dtype(dtype).device(x.device()));
}

// The gradients are made in forward, where the logits are; backward only scales them, in place.
class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const c10::optional<Tensor>& maybe_bias, const Tensor& target, std::int64_t chunk_rows,
                        bool count_correct, Sums* sums) {
    const Tensor bias = maybe_bias ? *maybe_bias : Tensor();
    Gradients gradients;
    *sums = chunked({x, weight, bias, target, chunk_rows, count_correct}, &gradients);
    ctx->saved_data["x"] = gradients.x;
    ctx->saved_data["weight"] = gradients.weight.to(weight.scalar_type());
    if (bias.defined()) ctx->saved_data["bias"] = gradients.bias.to(bias.scalar_type());
    return loss_tensor(*sums, x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    LOCKSTEP_ASSERT(ctx->saved_data.count("x") == 1, "backward of a loss was called twice");
    const auto scaled = [&](const char* name) {
      const auto found = ctx->saved_data.find(name);
      if (found == ctx->saved_data.end()) return Tensor();
      Tensor gradient = found->second.toTensor();
      return gradient.mul_(grads[0]);
    };
    variable_list result{scaled("x"), scaled("weight"), scaled("bias"), Tensor(), Tensor(), Tensor(), Tensor()};
    ctx->saved_data.clear();
    return result;
  }
};

}  // namespace

void check_targets(const Tensor& target, std::int64_t classes) {
  const Tensor near = target.cpu().contiguous();
  std::int64_t lowest = 0, highest = 0;  // a plain loop: there are few, and libtorch would wake its threads
  for (std::int64_t i = 0; i < near.numel(); ++i) {
    const std::int64_t value = near.data_ptr<std::int64_t>()[i];
    if (value == kIgnoredTarget) continue;
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  if (lowest >= 0 && highest < classes) return;
  throw bad_input("target " + std::to_string(lowest < 0 ? lowest : highest) + " is not one of the model's " +
                      std::to_string(classes) + " classes",
                  "use the tokenizer or data set that the model was made for, or set the model's vocab / classes");
}

CrossEntropy linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& target,
                                  bool count_correct, std::int64_t chunk_rows) {
  const std::int64_t classes = weight.size(0);
  if (target.is_cpu()) check_targets(target, classes);  // on a device libtorch checks without a synchronisation
  const Tensor x2 = x.reshape({-1, x.size(-1)});
  const Tensor flat_target = target.reshape({-1}).contiguous();
  LOCKSTEP_ASSERT(flat_target.size(0) == x2.size(0), "one target per row");
  if (x2.size(0) == 0) return {loss_tensor({}, x), 0, 0};
  if (chunk_rows <= 0) chunk_rows = std::max<std::int64_t>(32, kChunkElements / classes / 32 * 32);
  Sums sums;
  CrossEntropy result;
  if (torch::GradMode::is_enabled() && (x2.requires_grad() || weight.requires_grad())) {
    // An undefined tensor may not be an argument of an autograd function in libtorch 1.13; an absent one may.
    const auto maybe_bias = bias.defined() ? c10::optional<Tensor>(bias) : c10::optional<Tensor>();
    result.loss_sum = LinearCrossEntropy::apply(x2, weight, maybe_bias, flat_target, chunk_rows, count_correct, &sums);
  } else {
    sums = chunked({x2, weight, bias, flat_target, chunk_rows, count_correct}, nullptr);
    result.loss_sum = loss_tensor(sums, x);
  }
  result.count = sums.count;
  result.correct = count_correct ? sums.correct : 0;
  return result;
}

}  // namespace lockstep::nn
