// AdamW and SGD over flat arrays, and sums of squares: against torch.optim's formulas in fp64.
#include "lockstep/kernels/cuda/flat_optimizer.h"

#include "tests/kernels/cuda/harness.h"

namespace lockstep::kernels::cuda::test {
namespace {

struct State {
  std::vector<double> p, g, m, v;
};

template <class T>
std::vector<T> narrowed(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

State random_state(Harness& h, std::int64_t count) {
  const auto draw = [&](double deviation) {
    const auto values = h.normal_floats(count, deviation);
    return std::vector<double>(values.begin(), values.end());
  };
  State s{draw(1), draw(0.1), draw(0.01), draw(0.01)};
  for (double& v : s.v) v = v * v;
  return s;
}

template <class T>
void adamw_case(Harness& h, std::int64_t count, std::int64_t shift, bool narrow = false) {
  const std::string name = "flat adamw of " + std::to_string(count) + ", shifted by " + std::to_string(shift);
  State s = random_state(h, count);
  std::vector<Bf16> rounded_g;
  for (double& g : s.g) {
    rounded_g.push_back(__float2bfloat16(static_cast<float>(g)));
    if (narrow) g = value_of(rounded_g.back());
  }
  const double factor = 0.7, rate = 1e-2, decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  const int t = 3;
  std::vector<double> p = s.p, m = s.m, v = s.v;
  for (std::int64_t i = shift; i < count; ++i) {
    const double g = factor * s.g[i];
    p[i] -= rate * decay * p[i];
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    p[i] -= rate / (1 - std::pow(beta1, t)) * m[i] / (std::sqrt(v[i]) / std::sqrt(1 - std::pow(beta2, t)) + epsilon);
  }
  DeviceArray<T> gp(narrowed<T>(s.p)), gg(narrowed<T>(s.g)), gm(narrowed<T>(s.m)), gv(narrowed<T>(s.v));
  DeviceArray<Bf16> copy(count), narrow_g(rounded_g);
  FlatArrays<T> a;
  a.parameter = gp.get() + shift, a.first = gm.get() + shift, a.second = gv.get() + shift;
  a.copy = copy.get() + shift, a.copy_type = CopyType::kBf16, a.count = count - shift;
  if (narrow) {
    a.narrow_gradient = narrow_g.get() + shift;
  } else {
    a.gradient = gg.get() + shift;
  }
  FlatAdamW<T> step;
  step.gradient_factor = factor, step.keep = static_cast<T>(1 - rate * decay), step.beta1 = beta1;
  step.one_minus_beta1 = static_cast<T>(1 - beta1), step.beta2 = beta2,
  step.one_minus_beta2 = static_cast<T>(1 - beta2);
  step.inverse_root_correction2 = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, t)));
  step.epsilon = static_cast<T>(epsilon), step.step_size = static_cast<T>(rate / (1 - std::pow(beta1, t)));
  flat_adamw(a, step, nullptr);
  const double limit = sizeof(T) == 8 ? 1e-13 : 1e-6;
  h.close(name, gp.host(), p, limit);
  h.close(name + " m", gm.host(), m, limit);
  h.close(name + " v", gv.host(), v, limit);
  const auto rounded = copy.host();
  h.close(name + " copy", std::vector<Bf16>(rounded.begin() + shift, rounded.end()),
          std::vector<double>(p.begin() + shift, p.end()), 4e-3);
}

template <class T>
void sgd_case(Harness& h, std::int64_t count, double momentum, bool nesterov) {
  const std::string name = "flat sgd of " + std::to_string(count) + ", momentum " + std::to_string(momentum);
  const State s = random_state(h, count);
  const double factor = 1.3, rate = 0.05, decay = 0.01;
  std::vector<double> p = s.p, b = s.m;
  for (std::int64_t i = 0; i < count; ++i) {
    double g = factor * s.g[i] + decay * p[i];
    if (momentum > 0) {
      b[i] = momentum * b[i] + g;
      g = nesterov ? g + momentum * b[i] : b[i];
    }
    p[i] -= rate * g;
  }
  DeviceArray<T> gp(narrowed<T>(s.p)), gg(narrowed<T>(s.g)), gb(narrowed<T>(s.m));
  FlatArrays<T> a;
  a.parameter = gp.get(), a.gradient = gg.get(), a.first = momentum > 0 ? gb.get() : nullptr, a.count = count;
  flat_sgd(a,
           FlatSgd<T>{static_cast<T>(factor), static_cast<T>(decay), static_cast<T>(rate), static_cast<T>(momentum),
                      nesterov},
           nullptr);
  const double limit = sizeof(T) == 8 ? 1e-13 : 1e-6;
  h.close(name, gp.host(), p, limit);
  if (momentum > 0) h.close(name + " buffer", gb.host(), b, limit);
}

void squares_case(Harness& h, std::int64_t count) {
  const auto values = h.normal_floats(count, 3);
  double expected = 1.5;
  for (const float v : values) expected += static_cast<double>(v) * v;
  DeviceArray<float> device(values);
  DeviceArray<double> parts(kSquareParts), sum(std::vector<double>{1.5});
  add_squares(device.get(), count, parts.get(), sum.get(), nullptr);
  h.close("squares of " + std::to_string(count), sum.host(), {expected}, 1e-12);
  const auto narrow = h.normal(count);
  expected = 1.5;
  for (const Bf16 v : narrow) expected += value_of(v) * value_of(v);
  DeviceArray<Bf16> narrow_device(narrow);
  DeviceArray<double> narrow_sum(std::vector<double>{1.5});
  add_squares(narrow_device.get(), count, parts.get(), narrow_sum.get(), nullptr);
  h.close("squares of bf16, " + std::to_string(count), narrow_sum.host(), {expected}, 1e-6);
}

}  // namespace

void test_flat_optimizer(Harness& h) {
  for (const std::int64_t count : {1, 7, 1000, 300001}) {
    adamw_case<float>(h, count, 0);
    adamw_case<double>(h, count, 0);
    if (count > 7) adamw_case<float>(h, count, 3);
    adamw_case<float>(h, count, 0, /*narrow=*/true);
    sgd_case<float>(h, count, 0.0, false);
    sgd_case<float>(h, count, 0.9, true);
    sgd_case<double>(h, count, 0.9, false);
    squares_case(h, count);
  }
  squares_case(h, 3000000);
}

}  // namespace lockstep::kernels::cuda::test
