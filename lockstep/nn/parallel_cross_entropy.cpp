// The loss of a vocabulary that tensor-parallel ranks have split: each has the logits of its own classes, and only
// three numbers per row travel (Shoeybi et al. 2019, section 3).

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/deferred_gradients.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::nn {
namespace {

constexpr std::int64_t kChunkElements = std::int64_t{1} << 24;  // 64 MiB of fp32 logits, as linear_cross_entropy

struct Problem {
  Tensor x;       // [rows, hidden]
  Tensor weight;  // [own classes, hidden]
  Tensor bias;    // [own classes] or undefined
  Tensor target;  // [rows]
  ClassShare classes;
  bool count_correct;
  double softcap;
};

struct Result {
  double loss = 0;
  std::int64_t count = 0, correct = 0;
  Tensor dx, dweight, dbias;
};

void reduce(const Problem& problem, const Tensor& values, comm::ReduceOp op, const char* site) {
  comm::Communicator group = problem.classes.group;
  if (group.valid()) group.all_reduce(buffer_of(values), op, comm::at_site(site)).wait();
}

// Turns `logits` [rows, own classes] into their gradient and adds up the loss of the rows.
void rows_of_loss(const Problem& problem, Tensor& logits, const Tensor& target, Result& result) {
  const Tensor counted = target != kIgnoredTarget;
  const Tensor local = target - problem.classes.own.first;
  const Tensor mine = counted & (local >= 0) & (local < problem.classes.own.count);
  const Tensor column = local.masked_fill(~mine, 0).unsqueeze(1);
  Tensor highest = problem.classes.own.count > 0
                       ? std::get<0>(logits.max(1))
                       : torch::full({logits.size(0)}, -std::numeric_limits<double>::infinity(), logits.options());
  reduce(problem, highest, comm::ReduceOp::kMax, "tp: softmax maximum");
  const Tensor at_target = logits.gather(1, column).squeeze(1).masked_fill(~mine, 0);
  logits.sub_(highest.unsqueeze(1)).exp_();
  Tensor sums = at::stack({logits.sum(1), at_target});  // [2, rows]
  reduce(problem, sums, comm::ReduceOp::kSum, "tp: softmax sums");
  const Tensor losses = (sums[0].log() + highest - sums[1]).masked_fill(~counted, 0);
  result.loss += losses.sum(torch::kDouble).item<double>();
  result.count += counted.sum().item<std::int64_t>();
  if (problem.count_correct) result.correct += ((sums[1] >= highest) & counted).sum().item<std::int64_t>();
  logits.div_(sums[0].unsqueeze(1));
  logits.scatter_add_(1, column, -mine.to(logits.scalar_type()).unsqueeze(1));
  logits.masked_fill_(~counted.unsqueeze(1), 0);
}

Result chunked(const Problem& problem, bool gradients) {
  const std::int64_t rows = problem.x.size(0);
  const auto dtype = problem.x.scalar_type();
  const auto wide = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  // Every rank makes the same number of exchanges: the chunk depends on the whole vocabulary.
  const std::int64_t chunk = std::max<std::int64_t>(32, kChunkElements / problem.classes.total / 32 * 32);
  Result result;
  if (gradients) result.dx = torch::empty_like(problem.x);
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t count = std::min(chunk, rows - first);
    const Tensor x = problem.x.narrow(0, first, count);
    Tensor logits =
        (problem.bias.defined() ? at::addmm(problem.bias, x, problem.weight.t()) : x.mm(problem.weight.t())).to(wide);
    Tensor slope;  // of the cap, where there is one
    if (problem.softcap > 0) {
      logits.div_(problem.softcap).tanh_();
      if (gradients) slope = 1.0 - logits.square();
      logits.mul_(problem.softcap);
    }
    rows_of_loss(problem, logits, problem.target.narrow(0, first, count), result);
    if (!gradients) continue;
    if (slope.defined()) logits.mul_(slope);
    const Tensor dlogits = logits.to(dtype);
    Tensor dx = result.dx.narrow(0, first, count);
    at::mm_out(dx, dlogits, problem.weight);
    const Tensor dweight = dlogits.t().mm(x);
    result.dweight = result.dweight.defined() ? result.dweight + dweight : dweight;
    if (problem.bias.defined()) result.dbias = result.dbias.defined() ? result.dbias + logits.sum(0) : logits.sum(0);
  }
  return result;
}

class SplitCrossEntropy : public torch::autograd::Function<SplitCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const c10::optional<Tensor>& bias,
                        const Problem* problem, Result* result) {
    Problem detached = *problem;
    detached.x = x;
    detached.weight = weight;
    detached.bias = bias ? *bias : Tensor();
    *result = chunked(detached, true);
    ctx->saved_data["x"] = result->dx;
    ctx->saved_data["weight"] = result->dweight;
    if (bias) ctx->saved_data["bias"] = result->dbias.to(bias->scalar_type());
    const auto wide = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    return torch::full({}, result->loss, torch::dtype(wide).device(x.device()));
  }

  // The gradients were made in forward, where the logits were; backward scales them.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto scaled = [&](const char* name) {
      const auto found = ctx->saved_data.find(name);
      return found == ctx->saved_data.end() ? Tensor() : found->second.toTensor() * grads[0];
    };
    return {scaled("x"), scaled("weight"), scaled("bias"), Tensor(), Tensor()};
  }
};

}  // namespace

CrossEntropy split_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& target,
                                 const ClassShare& classes, bool count_correct, double softcap) {
  Problem problem{
      x.reshape({-1, x.size(-1)}), weight, bias, target.reshape({-1}).contiguous(), classes, count_correct, softcap};
  Result result;
  CrossEntropy loss;
  if (torch::GradMode::is_enabled()) {
    const auto maybe_bias = bias.defined() ? c10::optional<Tensor>(bias) : c10::optional<Tensor>();
    loss.loss_sum = SplitCrossEntropy::apply(problem.x, weight, maybe_bias, &problem, &result);
  } else {
    result = chunked(problem, false);
    const auto wide = x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    loss.loss_sum = torch::full({}, result.loss, torch::dtype(wide).device(x.device()));
  }
  loss.count = result.count;
  loss.correct = count_correct ? result.correct : 0;
  return loss;
}

}  // namespace lockstep::nn
