#include "lockstep/nn/script_operators.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/library.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/torch_compat.h"

namespace lockstep::nn {
namespace {

namespace jit = torch::jit;
using torch::Tensor;

constexpr double kNever = -std::numeric_limits<double>::infinity();

Tensor rms_norm(const Tensor& x, std::int64_t dims, const Tensor& weight, std::optional<double> epsilon) {
  const Tensor wide = x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);  // bf16 and fp16: statistics in fp32
  std::vector<std::int64_t> last;
  for (std::int64_t dim = 1; dim <= dims; ++dim) last.push_back(-dim);
  const double smallest = wide.scalar_type() == torch::kDouble ? std::numeric_limits<double>::epsilon()
                                                               : std::numeric_limits<float>::epsilon();
  Tensor result = wide * torch::rsqrt(wide.square().mean(last, true) + epsilon.value_or(smallest));
  if (weight.defined()) result = result * weight;
  return result.to(x.scalar_type());
}

struct Attention {
  Tensor q, k, v;  // [..., rows, head_dim]
  Tensor mask;     // bool (true: seen), or added to the scores; undefined: everything is seen
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale;
  bool shared_heads = false;  // several heads of q for one of k and v
};

// What is added to the scores, undefined where nothing is.
Tensor added(const Attention& a, const Tensor& scores) {
  if (a.causal && a.mask.defined()) throw std::runtime_error("attention with is_causal takes no attn_mask");
  Tensor mask = a.mask;
  if (a.causal) mask = torch::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(torch::kBool)).tril();
  if (!mask.defined() || mask.scalar_type() != torch::kBool) return mask;
  return torch::zeros(mask.sizes(), scores.options()).masked_fill(mask.logical_not(), kNever);
}

Tensor attend(const Attention& a) {
  Tensor k = a.k, v = a.v;
  if (a.shared_heads) {
    k = k.repeat_interleave(a.q.size(-3) / k.size(-3), -3);
    v = v.repeat_interleave(a.q.size(-3) / v.size(-3), -3);
  }
  const double root = std::sqrt(a.scale.value_or(1.0 / std::sqrt(static_cast<double>(a.q.size(-1)))));
  Tensor scores = torch::matmul(a.q * root, (k * root).transpose(-2, -1));
  Tensor mask = added(a, scores), blind;
  if (mask.defined()) {
    blind = mask.eq(kNever).all(-1, true);  // rows that see nothing give zero, not NaN
    scores = scores + mask.masked_fill(blind, 0.0);
  }
  Tensor shares = torch::softmax(scores, -1);
  if (blind.defined()) shares = shares.masked_fill(blind, 0.0);
  return torch::matmul(torch::dropout(shares, a.dropout, /*train=*/a.dropout > 0), v);
}

Tensor tensor_or_none(const c10::IValue& value) { return value.isNone() ? Tensor() : value.toTensor(); }

std::optional<double> number_or_none(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional<double>(value.toDouble());
}

void call_rms_norm(jit::Stack& stack) {
  const std::vector<c10::IValue> in = jit::pop(stack, 4);
  const auto dims = static_cast<std::int64_t>(in[1].toIntVector().size());
  jit::push(stack, rms_norm(in[0].toTensor(), dims, tensor_or_none(in[2]), number_or_none(in[3])));
}

void call_attention(jit::Stack& stack) {
  const std::vector<c10::IValue> in = jit::pop(stack, 8);
  jit::push(stack, attend({.q = in[0].toTensor(),
                           .k = in[1].toTensor(),
                           .v = in[2].toTensor(),
                           .mask = tensor_or_none(in[3]),
                           .dropout = in[4].toDouble(),
                           .causal = in[5].toBool(),
                           .scale = number_or_none(in[6]),
                           .shared_heads = in[7].toBool()}));
}

void call_lanczos(jit::Stack& /*stack*/) {
  throw std::runtime_error("interpolate(mode=\"lanczos\") needs a newer libtorch than this one");
}

using Call = void (*)(jit::Stack&);

// The schemas are those of torch 2.13.
const std::vector<std::pair<std::string, Call>> kOperators = {
    {"aten::rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
     call_rms_norm},
    {"aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
     "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
     call_attention},
    {"aten::_upsample_lanczos2d_aa(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors) "
     "-> Tensor",
     call_lanczos},
};

#if !LOCKSTEP_TORCH_AT_LEAST(2, 0)
// Older libtorchs normalise groups on processors only where values and weights have one type.
Tensor group_norm_in_fp32(const Tensor& x, std::int64_t groups, const c10::optional<Tensor>& weight,
                          const c10::optional<Tensor>& bias, double epsilon, bool cudnn) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const auto wide = [](const c10::optional<Tensor>& tensor) {
    return tensor && tensor->defined() ? c10::make_optional(tensor->to(torch::kFloat)) : tensor;
  };
  return at::group_norm(x.to(torch::kFloat), groups, wide(weight), wide(bias), epsilon, cudnn);
}

TORCH_LIBRARY_IMPL(aten, AutocastCPU, library) { library.impl("group_norm", TORCH_FN(group_norm_in_fp32)); }
#endif

}  // namespace

void register_missing_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const auto& [schema, call] : kOperators) {
      const auto name = c10::Symbol::fromQualString(schema.substr(0, schema.find('(')));
      if (!jit::getAllOperatorsFor(name).empty()) continue;
      jit::registerOperator(jit::Operator(schema, jit::Operation(call), c10::AliasAnalysisKind::FROM_SCHEMA));
    }
  });
}

}  // namespace lockstep::nn
