// For the files of this folder that define autograd functions.
#pragma once

#include <torch/autograd.h>

#include <utility>

namespace lockstep::nn {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An undefined tensor may not be an argument of an autograd function in libtorch 1.13; an absent one may.
using MaybeTensor = c10::optional<Tensor>;
inline MaybeTensor maybe(const Tensor& t) { return t.defined() ? MaybeTensor(t) : MaybeTensor(); }
inline Tensor given(const MaybeTensor& t) { return t ? *t : Tensor(); }

// A function's context keeps IValues only; one value of any other type rides along in a capsule.
template <class T>
struct Kept : torch::CustomClassHolder {
  explicit Kept(T kept) : value(std::move(kept)) {}
  T value;
};
template <class T>
void keep(AutogradContext* ctx, const T& value) {
  ctx->saved_data["kept"] = c10::IValue::make_capsule(c10::make_intrusive<Kept<T>>(value));
}
template <class T>
T& kept(AutogradContext* ctx) {
  return static_cast<Kept<T>&>(*ctx->saved_data["kept"].toCapsule()).value;
}

inline Tensor as_matrix(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// Whether the CPU kernels take it: they exist for fp32 and fp64.
inline bool has_kernels(const Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kDouble);
}

}  // namespace lockstep::nn
