#include "lockstep/kernels/cuda/adamw.h"
#include "lockstep/kernels/cuda/fp8.h"
#include "lockstep/kernels/cuda/random.h"
#include "tests/kernels/cuda/harness.h"

namespace lockstep::kernels::cuda::test {
namespace {

constexpr double kRate = 1e-2, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;

void master_is_kept_exactly(Harness& h) {
  auto values = h.normal_floats(4099);
  values[0] = 0.0f, values[1] = -0.0f, values[2] = 1e-40f, values[3] = 3e38f;
  const auto count = static_cast<std::int64_t>(values.size());
  DeviceArray<float> master(values), back(count);
  DeviceArray<Bf16> weight(count);
  DeviceArray<std::int16_t> remainder(count);
  split_master(master.get(), weight.get(), remainder.get(), count, nullptr);
  join_master(weight.get(), remainder.get(), back.get(), count, nullptr);
  const auto result = back.host();
  h.is_true("master weights come back bit for bit", std::memcmp(result.data(), values.data(), count * 4) == 0);
  const auto rounded = weight.host();
  bool nearest = true;
  for (std::size_t i = 4; i < values.size(); ++i)
    nearest &= std::abs(value_of(rounded[i]) - values[i]) <= std::abs(values[i]) * 0x1p-8;
  h.is_true("weights are masters rounded to nearest", nearest);
}

template <class Gradient, class State>
void adamw_case(Harness& h, std::int64_t count, bool clipped) {
  const std::string name = std::string("adamw gradient ") + (sizeof(Gradient) == 4 ? "fp32" : "bf16") + " state " +
                           (sizeof(State) == 4 ? "fp32" : "bf16");
  const auto first = h.normal_floats(count);
  std::vector<double> w(first.begin(), first.end()), m(count), v(count);
  DeviceArray<float> master(first), joined(count), factor(std::vector<float>{0.5f});
  DeviceArray<Bf16> weight(count);
  DeviceArray<std::int16_t> remainder(count);
  DeviceArray<State> gm(std::vector<State>(count, static_cast<State>(0.0f))),
      gv(std::vector<State>(count, static_cast<State>(0.0f)));
  split_master(master.get(), weight.get(), remainder.get(), count, nullptr);
  for (int step = 1; step <= 5; ++step) {
    std::vector<Gradient> g(count);
    for (Gradient& x : g) x = static_cast<Gradient>(h.normal_floats(1)[0]);
    for (std::int64_t i = 0; i < count; ++i) {
      const double gradient = value_of(g[i]) * (clipped ? 0.5 : 1.0);
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * gradient;
      v[i] = kBeta2 * v[i] + (1 - kBeta2) * gradient * gradient;
      const double mean = m[i] / (1 - std::pow(kBeta1, step)), root = std::sqrt(v[i] / (1 - std::pow(kBeta2, step)));
      w[i] = w[i] * (1 - kRate * kDecay) - kRate * mean / (root + kEps);
    }
    DeviceArray<Gradient> gradient(g);
    DeviceArray<AdamWStep> values(std::vector<AdamWStep>{adamw_step(kRate, kBeta1, kBeta2, kEps, step)});
    AdamW<Gradient, State> a;
    a.weight = weight.get();
    a.remainder = remainder.get();
    a.m = gm.get();
    a.v = gv.get();
    a.gradient = gradient.get();
    a.step = values.get();
    a.gradient_factor = clipped ? factor.get() : nullptr;
    a.weight_decay = static_cast<float>(kDecay);
    a.count = count;
    adamw(a, nullptr);
    LOCKSTEP_CUDA(cudaDeviceSynchronize());
  }
  join_master(weight.get(), remainder.get(), joined.get(), count, nullptr);
  const bool exact = sizeof(State) == 4;
  h.close(name + " weight", joined.host(), w, exact ? 1e-5 : 1e-3);
  h.close(name + " m", gm.host(), m, exact ? 1e-5 : 0.02, 0.05);
  h.close(name + " v", gv.host(), v, exact ? 1e-5 : 0.02, 0.05);
  double error = 0, sum = 0;  // stochastic rounding has no drift
  const auto result = gv.host();
  for (std::int64_t i = 0; i < count; ++i) error += value_of(result[i]) - v[i], sum += v[i];
  h.is_true(name + " has no drift", std::abs(error) / sum < (exact ? 1e-5 : 1e-3));
}

template <class Gradient>
void norm_case(Harness& h, std::int64_t count) {
  std::vector<Gradient> g(count);
  const auto values = h.normal_floats(count);
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i)
    g[i] = static_cast<Gradient>(values[i]), squares += value_of(g[i]) * value_of(g[i]);
  DeviceArray<Gradient> gradient(g);
  DeviceArray<float> parts(kNormParts), norm(1), factor(1);
  sum_of_squares(gradient.get(), count, parts.get(), nullptr);
  gradient_clip(parts.get(), 1, 1.0f, norm.get(), factor.get(), nullptr);
  h.close("gradient norm", norm.host(), {std::sqrt(squares)}, 1e-5);
  h.close("clip factor", factor.host(), {std::min(1.0, 1.0 / (std::sqrt(squares) + 1e-6))}, 1e-5);
}

// A gradient that is not finite: the factor is NaN, and the update leaves everything as it is.
void not_finite_is_skipped(Harness& h) {
  const std::int64_t count = 4096;
  const auto first = h.normal_floats(count);
  std::vector<float> g = h.normal_floats(count);
  g[count / 3] = INFINITY;
  DeviceArray<float> master(first), joined(count), gradient(g), parts(kNormParts), norm(1), factor(1);
  DeviceArray<float> m(std::vector<float>(count, 0.25f)), v(std::vector<float>(count, 0.5f));
  DeviceArray<Bf16> weight(count);
  DeviceArray<std::int16_t> remainder(count);
  split_master(master.get(), weight.get(), remainder.get(), count, nullptr);
  sum_of_squares(gradient.get(), count, parts.get(), nullptr);
  gradient_clip(parts.get(), 1, 1.0f, norm.get(), factor.get(), nullptr);
  h.is_true("a factor says that the norm is not finite", std::isnan(factor.host()[0]));
  DeviceArray<AdamWStep> values(std::vector<AdamWStep>{adamw_step(kRate, kBeta1, kBeta2, kEps, 1)});
  AdamW<float, float> a;
  a.weight = weight.get();
  a.remainder = remainder.get();
  a.m = m.get();
  a.v = v.get();
  a.gradient = gradient.get();
  a.step = values.get();
  a.gradient_factor = factor.get();
  a.weight_decay = static_cast<float>(kDecay);
  a.count = count;
  adamw(a, nullptr);
  join_master(weight.get(), remainder.get(), joined.get(), count, nullptr);
  h.is_true("a skipped update changes no weight", joined.host() == first);
  h.is_true("a skipped update changes no state",
            m.host() == std::vector<float>(count, 0.25f) && v.host() == std::vector<float>(count, 0.5f));
}

void first_values(Harness& h) {
  const std::int64_t count = 1 << 20;
  DeviceArray<Bf16> weight(count);
  DeviceArray<std::int16_t> remainder(count);
  DeviceArray<float> joined(count);
  fill_normal(weight.get(), remainder.get(), count, 0.02f, 7, nullptr);
  join_master(weight.get(), remainder.get(), joined.get(), count, nullptr);
  double mean = 0, square = 0;
  for (const float x : joined.host()) mean += x, square += static_cast<double>(x) * x;
  h.is_true("first values have mean 0", std::abs(mean / count) < 1e-4);
  h.close("first values have their deviation", std::vector<double>{std::sqrt(square / count)}, {0.02}, 0.01);
  fill_uniform(weight.get(), remainder.get(), count, 0.5f, 7, nullptr);
  join_master(weight.get(), remainder.get(), joined.get(), count, nullptr);
  double least = 1, largest = -1;
  mean = square = 0;
  for (const float x : joined.host()) {
    mean += x, square += static_cast<double>(x) * x;
    least = std::min<double>(least, x), largest = std::max<double>(largest, x);
  }
  h.is_true("uniform first values fill their interval",
            least >= -0.5 && least < -0.4999 && largest < 0.5 && largest > 0.4999 && std::abs(mean / count) < 2e-3);
  h.close("uniform first values have their deviation", std::vector<double>{std::sqrt(square / count)},
          {0.5 / std::sqrt(3.0)}, 0.01);
  fill_value(weight.get(), remainder.get(), count, 1.0f, nullptr);
  bool ones = true;
  for (const Bf16 x : weight.host()) ones &= value_of(x) == 1.0;
  h.is_true("constant first values", ones);
}

void quantize_case(Harness& h, std::int64_t rows, std::int64_t cols, Fp8Format format) {
  const auto x = h.normal(rows * cols);
  const float scale = format == Fp8Format::kE4m3 ? 64.0f : 4096.0f;
  double largest = 0;
  for (const Bf16 v : x) largest = std::max(largest, std::abs(value_of(v)));
  DeviceArray<Bf16> gx(x);
  DeviceArray<std::uint8_t> plain(rows * cols), same(rows * cols), transposed(rows * cols);
  DeviceArray<float> gscale(std::vector<float>{scale}), amax(std::vector<float>(3, 0.0f));
  quantize(gx.get(), {plain.get(), gscale.get(), amax.get(), format}, rows * cols, nullptr);
  quantize_transpose(gx.get(), {same.get(), gscale.get(), amax.get() + 1, format}, transposed.get(), rows, cols,
                     nullptr);
  measure_amax(gx.get(), rows * cols, amax.get() + 2, nullptr);
  std::vector<double> decoded;
  const auto bits = plain.host(), turned = transposed.host();
  for (const std::uint8_t b : bits) decoded.push_back(decode_fp8(b, format) / scale);
  h.close("quantize", decoded, doubles(x), format == Fp8Format::kE4m3 ? 0.04 : 0.08, 0.13);
  h.is_true("quantize_transpose writes the same bits", same.host() == bits);
  bool equal = true;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) equal &= turned[c * rows + r] == bits[r * cols + c];
  h.is_true("quantize_transpose transposes", equal);
  for (const float a : amax.host()) h.is_true("amax", a == static_cast<float>(largest));
}

// The scales proper, without the room between them.
std::vector<float> picked(const DeviceArray<float>& scales) {
  std::vector<float> out;
  const auto all = scales.host();
  for (std::size_t i = 0; i < all.size(); i += kFp8Stride) out.push_back(all[i]);
  return out;
}

void scales_follow_the_history(Harness& h) {
  DeviceArray<float> amax(std::vector<float>{2.0f, 4.0f, 0.0f}), history(std::vector<float>(3 * kFp8History, 0.0f));
  DeviceArray<float> scale(std::vector<float>(3 * kFp8Stride, 1.0f)), inverse(std::vector<float>(3 * kFp8Stride, 1.0f));
  DeviceArray<std::uint8_t> gradients(std::vector<std::uint8_t>{0, 1, 0});
  DeviceArray<std::int32_t> slot(std::vector<std::int32_t>(3, 0));
  const Fp8Scales s{amax.get(), history.get(), scale.get(), inverse.get(), gradients.get(), slot.get(), 3};
  update_scales(s, 1.0f, nullptr);
  h.close("scales", picked(scale), {448.0 / 2 / 2, 57344.0 / 4 / 2, 1.0}, 1e-6);
  h.close("inverse scales", picked(inverse), {4 / 448.0, 8 / 57344.0, 1.0}, 1e-6);
  h.close("amax starts again", amax.host(), {0, 0, 0}, 0);
  for (int i = 1; i < kFp8History; ++i) update_scales(s, 1.0f, nullptr);
  h.close("scales remember", picked(scale), {112.0, 7168.0, 1.0}, 1e-6);
  const float larger = 8;
  LOCKSTEP_CUDA(cudaMemcpy(amax.get(), &larger, sizeof larger, cudaMemcpyHostToDevice));
  current_scale(s, 0, 0.0f, nullptr);
  h.close("current scale", picked(scale), {56.0, 7168.0, 1.0}, 1e-6);
}

}  // namespace

void test_optimizer(Harness& h) {
  master_is_kept_exactly(h);
  adamw_case<float, float>(h, 4096, false);
  adamw_case<Bf16, float>(h, 5000, true);
  adamw_case<Bf16, float>(h, 3464, false);  // the last block ends within its second half
  adamw_case<float, float>(h, 8, false);
  adamw_case<float, Bf16>(h, 65536, false);
  adamw_case<Bf16, Bf16>(h, 65536, true);
  norm_case<float>(h, 100003);
  norm_case<Bf16>(h, 300000);
  not_finite_is_skipped(h);
  first_values(h);
}
void test_fp8(Harness& h) {
  quantize_case(h, 128, 192, Fp8Format::kE4m3);
  quantize_case(h, 64, 320, Fp8Format::kE5m2);
  scales_follow_the_history(h);
}

}  // namespace lockstep::kernels::cuda::test
