#include "lockstep/nn/cuda/operators.h"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/kernels/cuda/add_norm.h"
#include "lockstep/kernels/cuda/bias_gelu.h"
#include "lockstep/kernels/cuda/cross_entropy.h"
#include "lockstep/kernels/cuda/gelu_erf.h"
#include "lockstep/kernels/cuda/join_columns.h"
#include "lockstep/kernels/cuda/layer_norm.h"
#include "lockstep/kernels/cuda/random.h"
#include "lockstep/kernels/cuda/rope.h"
#include "lockstep/kernels/cuda/swiglu.h"

namespace lockstep::nn::cuda {
namespace {

namespace raw = kernels::cuda;
using raw::Bf16;
using torch::Tensor;

cudaStream_t stream_of(const Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()); }

Bf16* bf16(const Tensor& t) { return t.defined() ? static_cast<Bf16*>(t.data_ptr()) : nullptr; }
float* fp32(const Tensor& t) { return t.data_ptr<float>(); }

Tensor floats(const Tensor& like, std::int64_t count) {
  return torch::empty({count}, like.options().dtype(torch::kFloat));
}

void check_matrix(const Tensor& x) {
  LOCKSTEP_ASSERT(takes(x) && x.is_contiguous(), "CUDA kernels want contiguous rows of bf16");
}

raw::DropoutMask mask_of(const Drop& drop) {
  raw::DropoutMask mask;
  mask.rows_per_sample = drop.rows_per_sample;
  if (drop.probability <= 0) return mask;
  const PhiloxKey key = stream_key(drop.site.seed, "dropout");
  mask.key[0] = key[0];
  mask.key[1] = key[1];
  mask.first_index = static_cast<std::uint32_t>(drop.site.first_index);
  mask.layer = drop.site.layer;
  mask.step = static_cast<std::uint32_t>(drop.site.step);
  mask.threshold = static_cast<std::uint32_t>(std::min(drop.probability * 0x1p32, 0x1p32 - 1));
  mask.kept = static_cast<float>(1.0 / (1.0 - drop.probability));
  if (drop.positions.defined()) mask.positions = drop.positions.data_ptr<std::int64_t>();
  return mask;
}

template <typename T>
void run_dropout(const Tensor& x, const Tensor& bias, const Tensor& residual, const Tensor& out, const Drop& drop) {
  const auto pointer = [](const Tensor& t) { return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr; };
  raw::dropout<T>(
      {pointer(x), pointer(bias), pointer(residual), pointer(out), mask_of(drop), x.numel() / x.size(-1), x.size(-1)},
      stream_of(x));
}

// Widths that the fused kernel does not have: dropout, then the norm of the sum.
AddNorm composed_add_norm(const Tensor& x, const Tensor& bias, const Tensor& residual, const Tensor& norm_weight,
                          const Tensor& norm_bias, double epsilon, const Drop& drop) {
  const std::int64_t rows = x.size(0), cols = x.size(1);
  AddNorm result{torch::empty_like(x), dropout(x, bias, residual, drop), floats(x, rows), floats(x, rows), {}};
  raw::LayerNormForward a;
  a.x = bf16(result.sum), a.weight = bf16(norm_weight), a.bias = bf16(norm_bias), a.y = bf16(result.y);
  a.mean = fp32(result.mean), a.rstd = fp32(result.rstd), a.epsilon = static_cast<float>(epsilon);
  a.rows = rows, a.cols = cols;
  raw::layer_norm_forward(a, stream_of(x));
  return result;
}

AddNormGradients composed_backward(const Tensor& dy, const Tensor& sum, const Tensor& mean, const Tensor& rstd,
                                   const Tensor& norm_weight, const Drop& drop) {
  const std::int64_t rows = dy.size(0), cols = dy.size(1);
  AddNormGradients g;
  g.residual = torch::empty_like(dy);
  const Tensor dweight = floats(dy, cols), dbias = floats(dy, cols);
  const Tensor workspace = floats(dy, raw::layer_norm_workspace_floats(cols));
  raw::LayerNormBackward a;
  a.x = bf16(sum), a.weight = bf16(norm_weight), a.mean = fp32(mean), a.rstd = fp32(rstd), a.dy = bf16(dy);
  a.dx = bf16(g.residual), a.dweight = fp32(dweight), a.dbias = fp32(dbias), a.workspace = fp32(workspace);
  a.rows = rows, a.cols = cols;
  raw::layer_norm_backward(a, stream_of(dy));
  g.x = drop.probability > 0 ? dropout(g.residual, {}, {}, drop) : g.residual;
  g.norm_weight = dweight.to(dy.scalar_type());
  g.norm_bias = dbias.to(dy.scalar_type());
  g.bias = column_sums(g.x);
  return g;
}

}  // namespace

bool takes(const Tensor& x) {
  return x.is_cuda() && x.scalar_type() == torch::kBFloat16 && x.numel() > 0 && x.size(-1) % 8 == 0 &&
         x.size(-1) <= raw::kLayerNormMaxCols;
}

bool fill_normal(Tensor& tensor, double mean, double std, const PhiloxKey& key, std::int64_t first) {
  if (!tensor.is_cuda() || !tensor.is_contiguous()) return false;
  const c10::cuda::CUDAGuard guard(tensor.device());
  const std::uint32_t words[2] = {key[0], key[1]};
  const auto fill = [&](auto* out) {
    raw::fill_stream_normal(out, tensor.numel(), first, mean, std, words, stream_of(tensor));
    return true;
  };
  if (tensor.scalar_type() == torch::kDouble) return fill(tensor.data_ptr<double>());
  if (tensor.scalar_type() == torch::kFloat) return fill(tensor.data_ptr<float>());
  return tensor.scalar_type() == torch::kBFloat16 && fill(bf16(tensor));
}
bool takes_dropout(const Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == torch::kBFloat16 || x.scalar_type() == torch::kFloat) &&
         x.size(-1) % 8 == 0;
}

Tensor dropout(const Tensor& x, const Tensor& bias, const Tensor& residual, const Drop& drop) {
  LOCKSTEP_ASSERT(takes_dropout(x) && x.is_contiguous() && (!residual.defined() || residual.is_contiguous()),
                  "dropout wants contiguous rows");
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor out = torch::empty_like(x);
  if (x.scalar_type() == torch::kBFloat16) {
    run_dropout<Bf16>(x, bias, residual, out, drop);
  } else {
    run_dropout<float>(x, bias, residual, out, drop);
  }
  return out;
}

AddNorm add_norm(const Tensor& x, const Tensor& bias, const Tensor& residual, const Tensor& norm_weight,
                 const Tensor& norm_bias, double epsilon, const Drop& drop) {
  check_matrix(x);
  check_matrix(residual);
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t rows = x.size(0), cols = x.size(1);
  if (!raw::add_norm_takes(cols)) {
    return composed_add_norm(x, bias, residual, norm_weight, norm_bias, epsilon, drop);
  }
  AddNorm result{torch::empty_like(x), torch::empty_like(x), floats(x, rows), floats(x, rows), {}};
  raw::AddNormForward a;
  if (drop.probability > 0) {
    result.kept = torch::empty({rows, cols / 8}, x.options().dtype(torch::kByte));
    a.kept = result.kept.data_ptr<std::uint8_t>();
  }
  a.x = bf16(x), a.bias = bf16(bias), a.residual = bf16(residual), a.norm_weight = bf16(norm_weight);
  a.norm_bias = bf16(norm_bias), a.sum = bf16(result.sum), a.y = bf16(result.y);
  a.mean = fp32(result.mean), a.rstd = fp32(result.rstd), a.epsilon = static_cast<float>(epsilon);
  a.mask = mask_of(drop), a.rows = rows, a.cols = cols;
  raw::add_norm_forward(a, stream_of(x));
  return result;
}

AddNormGradients add_norm_backward(const Tensor& dy, const Tensor& sum, const Tensor& mean, const Tensor& rstd,
                                   const Tensor& kept, const Tensor& norm_weight, const Drop& drop) {
  check_matrix(dy);
  const c10::cuda::CUDAGuard guard(dy.device());
  const std::int64_t rows = dy.size(0), cols = dy.size(1);
  if (!raw::add_norm_takes(cols)) return composed_backward(dy, sum, mean, rstd, norm_weight, drop);
  AddNormGradients g;
  g.residual = torch::empty_like(dy);
  g.x = drop.probability > 0 ? torch::empty_like(dy) : g.residual;
  const Tensor sums = torch::empty({3, cols}, dy.options());
  const Tensor workspace = floats(dy, raw::add_norm_workspace_floats(cols));
  raw::AddNormBackward a;
  a.sum = bf16(sum), a.norm_weight = bf16(norm_weight), a.mean = fp32(mean), a.rstd = fp32(rstd), a.dy = bf16(dy);
  a.dresidual = bf16(g.residual), a.dx = drop.probability > 0 ? bf16(g.x) : nullptr, a.sums = bf16(sums);
  a.workspace = fp32(workspace), a.mask = mask_of(drop), a.rows = rows, a.cols = cols;
  if (kept.defined()) a.kept = kept.data_ptr<std::uint8_t>();
  raw::add_norm_backward(a, stream_of(dy));
  g.norm_weight = sums[0];
  g.norm_bias = sums[1];
  g.bias = sums[2];
  return g;
}

Tensor gelu(const Tensor& x, const Tensor& bias, Gelu kind) {
  LOCKSTEP_ASSERT(x.is_contiguous() && x.dim() == 2, "gelu wants a contiguous matrix");
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor y = torch::empty_like(x);
  if (kind == Gelu::kErf) {
    raw::gelu_erf_forward({bf16(x), bf16(bias), bf16(y), x.size(0), x.size(1)}, stream_of(x));
  } else {
    const Tensor added = bias.defined() ? bias : torch::zeros({x.size(1)}, x.options());
    raw::bias_gelu_forward({bf16(x), bf16(added), bf16(y), x.size(0), x.size(1)}, stream_of(x));
  }
  return y;
}

Tensor gelu_backward(const Tensor& x, const Tensor& bias, Tensor& dy, Gelu kind) {
  LOCKSTEP_ASSERT(x.is_contiguous() && dy.is_contiguous() && x.dim() == 2, "gelu wants contiguous matrices");
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t cols = x.size(1);
  if (kind == Gelu::kErf) {
    const Tensor dbias = bias.defined() ? torch::empty({cols}, x.options()) : Tensor();
    const Tensor workspace = bias.defined() ? floats(x, raw::gelu_erf_workspace_floats(cols)) : Tensor();
    raw::gelu_erf_backward({bf16(x), bf16(bias), bf16(dy), bf16(dy), bf16(dbias),
                            workspace.defined() ? fp32(workspace) : nullptr, x.size(0), cols},
                           stream_of(x));
    return dbias;
  }
  const Tensor added = bias.defined() ? bias : torch::zeros({cols}, x.options());
  const Tensor dbias = floats(x, cols), workspace = floats(x, raw::bias_gelu_workspace_floats(cols));
  raw::bias_gelu_backward(
      {bf16(x), bf16(added), bf16(dy), bf16(dy), nullptr, fp32(dbias), false, fp32(workspace), x.size(0), cols},
      stream_of(x));
  return bias.defined() ? dbias.to(x.scalar_type()) : Tensor();
}

Tensor swiglu(const Tensor& gate_up) {
  LOCKSTEP_ASSERT(gate_up.is_contiguous() && gate_up.dim() == 2, "swiglu wants a contiguous matrix");
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const std::int64_t rows = gate_up.size(0), cols = gate_up.size(1) / 2;
  const Tensor h = torch::empty({rows, cols}, gate_up.options());
  raw::swiglu_forward({bf16(gate_up), bf16(h), {}, rows, cols}, stream_of(gate_up));
  return h;
}

Tensor swiglu_backward(const Tensor& gate_up, Tensor& dh) {
  LOCKSTEP_ASSERT(gate_up.is_contiguous() && dh.is_contiguous(), "swiglu wants contiguous matrices");
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const Tensor gradient = torch::empty_like(gate_up);
  raw::SwigluBackward a;
  a.gate_up = bf16(gate_up), a.dh = bf16(dh), a.dgate_up = bf16(gradient), a.h = bf16(dh);
  a.rows = dh.size(0), a.cols = dh.size(1);
  raw::swiglu_backward(a, stream_of(gate_up));
  return gradient;
}

bool takes_rope(const Tensor& x, const Tensor& cos) {
  return x.is_cuda() && x.scalar_type() == torch::kBFloat16 && x.dim() == 4 && x.numel() > 0 && x.size(3) % 16 == 0 &&
         cos.scalar_type() == torch::kFloat;
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor y = x.clone(torch::MemoryFormat::Contiguous), c = cos.contiguous(), s = sin.contiguous();
  raw::Rope a;
  a.x = bf16(y), a.cos = fp32(c), a.sin = fp32(s), a.inverse = inverse;
  a.tokens = y.size(0) * y.size(1), a.seq = y.size(1), a.heads = a.rotated = y.size(2), a.dim = y.size(3);
  raw::rope(a, stream_of(x));
  return y;
}

Tensor column_sums(const Tensor& x) {
  LOCKSTEP_ASSERT(x.is_contiguous() && x.dim() == 2, "column_sums wants a contiguous matrix");
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor sums = torch::empty({x.size(1)}, x.options());
  const Tensor workspace = floats(x, raw::join_workspace_floats(x.size(1)));
  raw::JoinColumns a;
  a.parts[0] = bf16(x), a.part_cols = x.size(1), a.sums = bf16(sums), a.workspace = fp32(workspace);
  a.rows = x.size(0);
  raw::join_columns(a, stream_of(x));
  return sums;
}

Joined join_columns(const Tensor& first, const Tensor& second, const Tensor& third) {
  const std::int64_t rows = first.size(0), cols = 3 * first.size(1);
  for (const Tensor& t : {first, second, third}) {
    LOCKSTEP_ASSERT(t.is_contiguous() && t.sizes() == first.sizes(), "join_columns wants equal contiguous matrices");
  }
  const c10::cuda::CUDAGuard guard(first.device());
  const Joined result{torch::empty({rows, cols}, first.options()), torch::empty({cols}, first.options())};
  const Tensor workspace = floats(first, raw::join_workspace_floats(cols));
  raw::JoinColumns a;
  a.parts[0] = bf16(first), a.parts[1] = bf16(second), a.parts[2] = bf16(third), a.count = 3;
  a.part_cols = first.size(1), a.out = bf16(result.matrix), a.sums = bf16(result.sums), a.workspace = fp32(workspace);
  a.rows = rows;
  raw::join_columns(a, stream_of(first));
  return result;
}

bool takes_logits(const Tensor& logits) {
  constexpr std::int64_t kClasses = 1024;  // fewer: a classifier, whose few logits are quick in any way
  return logits.is_cuda() && logits.scalar_type() == torch::kBFloat16 && logits.size(1) >= kClasses &&
         logits.size(1) % 8 == 0 && logits.is_contiguous();
}

Tensor cross_entropy(Tensor& logits, const Tensor& target) {
  const c10::cuda::CUDAGuard guard(logits.device());
  const Tensor targets = target.to(torch::kInt), unit = torch::ones({1}, logits.options().dtype(torch::kFloat));
  const Tensor losses = floats(logits, logits.size(0));
  raw::CrossEntropy a;
  a.logits = bf16(logits), a.targets = targets.data_ptr<std::int32_t>(), a.gradient_scale = fp32(unit);
  a.losses = fp32(losses), a.rows = logits.size(0), a.classes = logits.size(1);
  raw::cross_entropy(a, stream_of(logits));
  return losses;
}

}  // namespace lockstep::nn::cuda
