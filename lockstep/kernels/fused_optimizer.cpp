#include "lockstep/kernels/fused_optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/kernels/flat_loops.h"
#include "lockstep/kernels/parallel_blocks.h"
#ifdef LOCKSTEP_TORCH_HAS_CUDA
#include <c10/cuda/CUDAGuard.h>

#include "lockstep/kernels/cuda/flat_optimizer.h"
#endif

namespace lockstep::kernels {
namespace {

std::int64_t blocks_of(std::int64_t count) { return (count + kBlockElements - 1) / kBlockElements; }

void check(const OptimizerArrays& arrays, bool needs_second) {
  const torch::Tensor& p = arrays.parameter;
  const auto like_parameter = [&](const torch::Tensor& t) {
    return t.defined() && t.is_contiguous() && t.numel() == p.numel() && t.device() == p.device() &&
           t.scalar_type() == p.scalar_type();
  };
  LOCKSTEP_ASSERT(p.scalar_type() == torch::kFloat32 || p.scalar_type() == torch::kFloat64, "parameters: fp32 or fp64");
  // A kernel of CUDA reads narrow gradients of fp32 parameters as they are.
  const torch::Tensor& g = arrays.gradient;
  const bool narrow = p.is_cuda() && p.scalar_type() == torch::kFloat32 && g.scalar_type() == torch::kBFloat16 &&
                      g.is_contiguous() && g.numel() == p.numel() && g.device() == p.device();
  LOCKSTEP_ASSERT(like_parameter(p) && (narrow || like_parameter(g)), "flat arrays of one dtype and length");
  LOCKSTEP_ASSERT(!arrays.first.defined() || like_parameter(arrays.first), "first state array");
  LOCKSTEP_ASSERT(!needs_second || (like_parameter(arrays.first) && like_parameter(arrays.second)), "state arrays");
  if (arrays.copy.defined()) {
    const torch::ScalarType type = arrays.copy.scalar_type();
    LOCKSTEP_ASSERT(type == torch::kBFloat16 || type == torch::kHalf, "copy: bf16 or fp16");
    LOCKSTEP_ASSERT(p.scalar_type() == torch::kFloat32, "a low-precision copy needs fp32 parameters");
    LOCKSTEP_ASSERT(arrays.copy.is_contiguous() && arrays.copy.numel() == p.numel(), "copy: same length");
  }
}

// Calls run(begin, end, decays) over the stretches of [begin, end) that are wholly inside or outside the decay ranges.
template <typename Run>
void for_each_stretch(std::int64_t begin, std::int64_t end, std::span<const ElementRange> decay, const Run& run) {
  auto range = std::partition_point(decay.begin(), decay.end(),
                                    [begin](const ElementRange& candidate) { return candidate.end <= begin; });
  while (begin < end) {
    if (range == decay.end() || range->begin >= end) {
      run(begin, end, false);
      return;
    }
    if (begin < range->begin) {
      run(begin, range->begin, false);
      begin = range->begin;
    }
    const std::int64_t stop = std::min(end, range->end);
    run(begin, stop, true);
    begin = stop;
    ++range;
  }
}

void round_copy(const OptimizerArrays& arrays, std::int64_t begin, std::int64_t end) {
  const float* from = arrays.parameter.data_ptr<float>() + begin;
  std::uint16_t* to = static_cast<std::uint16_t*>(arrays.copy.data_ptr()) + begin;
  if (arrays.copy.scalar_type() == torch::kBFloat16) {
    round_to_bf16(from, to, end - begin);
  } else {
    round_to_fp16(from, to, end - begin);
  }
}

// Cuts the arrays into blocks, each block into stretches, and rounds the copy while the block is still in cache.
template <typename Run>
void over_blocks(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const Run& run) {
  const std::int64_t count = arrays.parameter.numel();
  parallel_blocks(blocks_of(count), [&](std::int64_t block) {
    const std::int64_t begin = block * kBlockElements;
    const std::int64_t end = std::min(count, begin + kBlockElements);
    for_each_stretch(begin, end, decay, run);
    if (arrays.copy.defined()) round_copy(arrays, begin, end);
  });
}

template <typename T>
AdamWConstants<T> adamw_constants(const AdamWStep& s) {
  const double correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(s.step));
  const double correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(s.step));
  return {static_cast<T>(s.gradient_factor),
          T(1),
          static_cast<T>(s.beta1),
          static_cast<T>(1.0 - s.beta1),
          static_cast<T>(s.beta2),
          static_cast<T>(1.0 - s.beta2),
          static_cast<T>(1.0 / std::sqrt(correction2)),
          static_cast<T>(s.epsilon),
          static_cast<T>(s.learning_rate / correction1)};
}

template <typename T>
void update_on_cpu(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const AdamWStep& step) {
  const AdamWConstants<T> plain = adamw_constants<T>(step);
  AdamWConstants<T> decaying = plain;
  decaying.keep = static_cast<T>(1.0 - step.learning_rate * step.weight_decay);
  T* p = arrays.parameter.data_ptr<T>();
  const T* g = arrays.gradient.data_ptr<T>();
  T* m = arrays.first.data_ptr<T>();
  T* v = arrays.second.data_ptr<T>();
  over_blocks(arrays, decay, [&](std::int64_t begin, std::int64_t end, bool decays) {
    adamw_stretch(p + begin, g + begin, m + begin, v + begin, end - begin, decays ? decaying : plain);
  });
}

template <typename T>
void update_on_cpu(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const SgdStep& step) {
  const SgdConstants<T> plain{static_cast<T>(step.gradient_factor), T(0), static_cast<T>(step.learning_rate),
                              static_cast<T>(step.momentum), step.nesterov};
  SgdConstants<T> decaying = plain;
  decaying.weight_decay = static_cast<T>(step.weight_decay);
  T* p = arrays.parameter.data_ptr<T>();
  const T* g = arrays.gradient.data_ptr<T>();
  T* b = arrays.first.defined() ? arrays.first.data_ptr<T>() : nullptr;
  over_blocks(arrays, decay, [&](std::int64_t begin, std::int64_t end, bool decays) {
    sgd_stretch(p + begin, g + begin, b == nullptr ? nullptr : b + begin, end - begin, decays ? decaying : plain);
  });
}

void update_on_device(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const AdamWStep& step) {
  torch::NoGradGuard no_grad;
  const AdamWConstants<double> c = adamw_constants<double>(step);
  const torch::Tensor g = arrays.gradient * c.gradient_factor;
  for (const ElementRange& range : decay) {
    arrays.parameter.narrow(0, range.begin, range.end - range.begin).mul_(1.0 - step.learning_rate * step.weight_decay);
  }
  arrays.first.mul_(c.beta1).add_(g, c.one_minus_beta1);
  arrays.second.mul_(c.beta2).addcmul_(g, g, c.one_minus_beta2);
  const torch::Tensor denominator = arrays.second.sqrt().mul_(c.inverse_root_correction2).add_(c.epsilon);
  arrays.parameter.addcdiv_(arrays.first, denominator, -c.step_size);
  if (arrays.copy.defined()) arrays.copy.copy_(arrays.parameter);
}

void update_on_device(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const SgdStep& step) {
  torch::NoGradGuard no_grad;
  torch::Tensor g = arrays.gradient * step.gradient_factor;
  for (const ElementRange& range : decay) {
    const std::int64_t count = range.end - range.begin;
    g.narrow(0, range.begin, count).add_(arrays.parameter.narrow(0, range.begin, count), step.weight_decay);
  }
  if (arrays.first.defined()) {
    arrays.first.mul_(step.momentum).add_(g);
    g = step.nesterov ? g.add_(arrays.first, step.momentum) : arrays.first;
  }
  arrays.parameter.add_(g, -step.learning_rate);
  if (arrays.copy.defined()) arrays.copy.copy_(arrays.parameter);
}

#ifdef LOCKSTEP_TORCH_HAS_CUDA
template <typename T>
cuda::FlatArrays<T> cuda_arrays(const OptimizerArrays& arrays, std::int64_t begin, std::int64_t end) {
  const auto at = [begin](const torch::Tensor& t) { return t.defined() ? t.data_ptr<T>() + begin : nullptr; };
  cuda::FlatArrays<T> a;
  a.parameter = at(arrays.parameter);
  a.first = at(arrays.first);
  a.second = at(arrays.second);
  if (arrays.gradient.scalar_type() == torch::kBFloat16) {
    a.narrow_gradient = static_cast<const cuda::Bf16*>(arrays.gradient.data_ptr()) + begin;
  } else {
    a.gradient = at(arrays.gradient);
  }
  if (arrays.copy.defined()) {
    a.copy = static_cast<std::uint16_t*>(arrays.copy.data_ptr()) + begin;
    a.copy_type = arrays.copy.scalar_type() == torch::kBFloat16 ? cuda::CopyType::kBf16 : cuda::CopyType::kFp16;
  }
  a.count = end - begin;
  return a;
}

template <typename T>
void update_on_cuda(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const AdamWStep& step) {
  const c10::cuda::CUDAGuard guard(arrays.parameter.device());
  const AdamWConstants<T> c = adamw_constants<T>(step);
  const T keep = static_cast<T>(1.0 - step.learning_rate * step.weight_decay);
  for_each_stretch(0, arrays.parameter.numel(), decay, [&](std::int64_t begin, std::int64_t end, bool decays) {
    cuda::flat_adamw<T>(cuda_arrays<T>(arrays, begin, end),
                        {c.gradient_factor, decays ? keep : T(1), c.beta1, c.one_minus_beta1, c.beta2,
                         c.one_minus_beta2, c.inverse_root_correction2, c.epsilon, c.step_size},
                        c10::cuda::getCurrentCUDAStream());
  });
}

template <typename T>
void update_on_cuda(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const SgdStep& step) {
  const c10::cuda::CUDAGuard guard(arrays.parameter.device());
  for_each_stretch(0, arrays.parameter.numel(), decay, [&](std::int64_t begin, std::int64_t end, bool decays) {
    cuda::flat_sgd<T>(cuda_arrays<T>(arrays, begin, end),
                      {static_cast<T>(step.gradient_factor), decays ? static_cast<T>(step.weight_decay) : T(0),
                       static_cast<T>(step.learning_rate), static_cast<T>(step.momentum), step.nesterov},
                      c10::cuda::getCurrentCUDAStream());
  });
}

void add_squares_on_cuda(const torch::Tensor& flat, torch::Tensor& sum) {
  const c10::cuda::CUDAGuard guard(flat.device());
  const torch::Tensor parts = torch::empty({cuda::kSquareParts}, sum.options());
  const auto add = [&]<typename T>(const T* values) {
    cuda::add_squares(values, flat.numel(), parts.data_ptr<double>(), sum.data_ptr<double>(),
                      c10::cuda::getCurrentCUDAStream());
  };
  switch (flat.scalar_type()) {
    case torch::kBFloat16:
      return add(static_cast<const cuda::Bf16*>(flat.data_ptr()));
    case torch::kFloat32:
      return add(flat.data_ptr<float>());
    default:
      return add(flat.data_ptr<double>());
  }
}
#endif

// A piece at a time: the whole in fp64 would take four times the memory of the gradient.
void add_squares_on_device(const torch::Tensor& flat, torch::Tensor& sum) {
  torch::NoGradGuard no_grad;
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  if (flat.is_cuda()) return add_squares_on_cuda(flat, sum);
#endif
  constexpr std::int64_t kPiece = std::int64_t{1} << 25;
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kPiece) {
    sum += flat.narrow(0, begin, std::min(kPiece, flat.numel() - begin)).to(torch::kFloat64).square().sum();
  }
}

template <typename T>
double squared_norm_on_cpu(const torch::Tensor& flat) {
  const std::int64_t count = flat.numel();
  const T* x = flat.data_ptr<T>();
  std::vector<double> sums(static_cast<std::size_t>(blocks_of(count)));
  parallel_blocks(static_cast<std::int64_t>(sums.size()), [&](std::int64_t block) {
    const std::int64_t begin = block * kBlockElements;
    sums[static_cast<std::size_t>(block)] = squared_sum(x + begin, std::min(kBlockElements, count - begin));
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

template <typename Step>
void update(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const Step& step) {
  const bool fp32 = arrays.parameter.scalar_type() == torch::kFloat32;
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  if (arrays.parameter.is_cuda())
    return fp32 ? update_on_cuda<float>(arrays, decay, step) : update_on_cuda<double>(arrays, decay, step);
#endif
  if (!arrays.parameter.device().is_cpu()) return update_on_device(arrays, decay, step);
  if (fp32) return update_on_cpu<float>(arrays, decay, step);
  update_on_cpu<double>(arrays, decay, step);
}

}  // namespace

void adamw(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const AdamWStep& step) {
  check(arrays, true);
  LOCKSTEP_ASSERT(step.step >= 1, "AdamW counts steps from 1");
  update(arrays, decay, step);
}

void sgd(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const SgdStep& step) {
  check(arrays, false);
  update(arrays, decay, step);
}

double squared_norm(const torch::Tensor& flat) {
  LOCKSTEP_ASSERT(flat.is_contiguous(), "squared_norm wants a contiguous tensor");
  if (!flat.device().is_cpu()) {
    torch::Tensor sum = torch::zeros({}, flat.options().dtype(torch::kFloat64));
    add_squares_on_device(flat, sum);
    return sum.item<double>();
  }
  if (flat.scalar_type() == torch::kFloat32) return squared_norm_on_cpu<float>(flat);
  LOCKSTEP_ASSERT(flat.scalar_type() == torch::kFloat64, "squared_norm wants fp32 or fp64");
  return squared_norm_on_cpu<double>(flat);
}

void add_squared_norm(const torch::Tensor& flat, torch::Tensor& sum) {
  LOCKSTEP_ASSERT(sum.device() == flat.device() && sum.scalar_type() == torch::kFloat64,
                  "the sum is fp64 on the same device");
  if (flat.device().is_cpu()) {
    sum += squared_norm(flat);
  } else {
    LOCKSTEP_ASSERT(flat.is_contiguous(), "squared_norm wants a contiguous tensor");
    add_squares_on_device(flat, sum);
  }
}

}  // namespace lockstep::kernels
