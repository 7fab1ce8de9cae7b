// The kernels of encoders (BERT): dropout, residual sum with norm, GELU by the error function, joined gradients.
#include <array>
#include <memory>

#include "lockstep/kernels/cuda/add_norm.h"
#include "lockstep/kernels/cuda/gelu_erf.h"
#include "lockstep/kernels/cuda/join_columns.h"
#include "tests/kernels/cuda/harness.h"

namespace lockstep::kernels::cuda::test {
namespace {

constexpr double kBf16 = 4e-3;

// Philox4x32-10 by its paper, for the host.
std::array<std::uint32_t, 4> philox_words(std::array<std::uint32_t, 4> c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0], b = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
  }
  return c;
}

DropoutMask random_mask(Harness& h, double probability, std::int64_t rows_per_sample) {
  const auto n = h.integers(5, 0, 1 << 30);
  DropoutMask mask;
  mask.key[0] = static_cast<std::uint32_t>(n[0]) * 3u, mask.key[1] = static_cast<std::uint32_t>(n[1]);
  mask.first_index = static_cast<std::uint32_t>(n[2] % 1000), mask.layer = static_cast<std::uint32_t>(n[3] % 100);
  mask.step = static_cast<std::uint32_t>(n[4]);
  mask.threshold = static_cast<std::uint32_t>(probability * 0x1p32);
  mask.kept = static_cast<float>(1 / (1 - probability));
  mask.rows_per_sample = rows_per_sample;
  return mask;
}

// `positions`: of the rows of a sample; empty: in order.
std::vector<double> multipliers(const DropoutMask& mask, std::int64_t rows, std::int64_t cols,
                                const std::vector<std::int64_t>& positions = {}) {
  std::vector<double> out(rows * cols);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t sample = row / mask.rows_per_sample, inside = row % mask.rows_per_sample;
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t e = (positions.empty() ? inside : positions[inside]) * cols + c;
      const auto words = philox_words({static_cast<std::uint32_t>(e / 4),
                                       mask.first_index + static_cast<std::uint32_t>(sample), mask.layer, mask.step},
                                      mask.key[0], mask.key[1]);
      out[row * cols + c] = words[e % 4] < mask.threshold ? 0.0 : mask.kept;
    }
  }
  return out;
}

template <class T>
std::vector<T> values_of(Harness& h, std::int64_t count, double deviation) {
  if constexpr (std::is_same_v<T, float>) {
    return h.normal_floats(count, deviation);
  } else {
    return h.normal(count, deviation);
  }
}

template <class T>
void dropout_case(Harness& h, std::int64_t samples, std::int64_t rows_per_sample, std::int64_t cols, bool extras) {
  const std::int64_t rows = samples * rows_per_sample;
  const std::string name = "dropout " + std::to_string(rows) + "x" + std::to_string(cols);
  DropoutMask mask = random_mask(h, 0.3, rows_per_sample);
  const auto x = values_of<T>(h, rows * cols, 1), bias = values_of<T>(h, cols, 1),
             residual = values_of<T>(h, rows * cols, 1);
  std::vector<std::int64_t> positions;
  if (extras) {
    for (std::int64_t i = 0; i < rows_per_sample; ++i) positions.push_back(3 * i + 1);
  }
  const auto m = multipliers(mask, rows, cols, positions);
  std::vector<double> expected(rows * cols);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    expected[i] =
        m[i] * (value_of(x[i]) + (extras ? value_of(bias[i % cols]) : 0)) + (extras ? value_of(residual[i]) : 0);
  }
  DeviceArray<T> gx(x), gbias(bias), gresidual(residual), out(rows * cols);
  DeviceArray<std::int64_t> gpositions(extras ? positions : std::vector<std::int64_t>(1));
  if (extras) mask.positions = gpositions.get();
  dropout<T>(
      {gx.get(), extras ? gbias.get() : nullptr, extras ? gresidual.get() : nullptr, out.get(), mask, rows, cols},
      nullptr);
  h.close(name, out.host(), expected, std::is_same_v<T, float> ? 1e-6 : kBf16);
}

struct NormReference {
  std::vector<double> sum, y, mean, rstd, dresidual, dx, dweight, dbias, dlinear;
};
NormReference reference(const std::vector<double>& x, const std::vector<double>& bias,
                        const std::vector<double>& residual, const std::vector<double>& w, const std::vector<double>& b,
                        const std::vector<double>& dy, const std::vector<double>& m, std::int64_t rows,
                        std::int64_t cols) {
  NormReference r{std::vector<double>(rows * cols), std::vector<double>(rows * cols), std::vector<double>(rows),
                  std::vector<double>(rows),        std::vector<double>(rows * cols), std::vector<double>(rows * cols),
                  std::vector<double>(cols),        std::vector<double>(cols),        std::vector<double>(cols)};
  const auto n = static_cast<double>(cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    double variance = 0, total = 0, dot = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t at = i * cols + c;
      r.sum[at] = value_of(__float2bfloat16(static_cast<float>(residual[at] + m[at] * (x[at] + bias[c]))));
      r.mean[i] += r.sum[at] / n;
    }
    for (std::int64_t c = 0; c < cols; ++c) variance += std::pow(r.sum[i * cols + c] - r.mean[i], 2) / n;
    r.rstd[i] = 1 / std::sqrt(variance + 1e-12);
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t at = i * cols + c;
      const double normed = (r.sum[at] - r.mean[i]) * r.rstd[i];
      r.y[at] = normed * w[c] + b[c];
      total += w[c] * dy[at] / n;
      dot += w[c] * dy[at] * normed / n;
      r.dweight[c] += dy[at] * normed;
      r.dbias[c] += dy[at];
    }
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t at = i * cols + c;
      r.dresidual[at] = r.rstd[i] * (w[c] * dy[at] - total - (r.sum[at] - r.mean[i]) * r.rstd[i] * dot);
      r.dx[at] = m[at] * r.dresidual[at];
      r.dlinear[c] += r.dx[at];
    }
  }
  return r;
}

void add_norm_case(Harness& h, std::int64_t samples, std::int64_t rows_per_sample, std::int64_t cols, double p) {
  const std::int64_t rows = samples * rows_per_sample;
  const std::string name = "add_norm " + std::to_string(rows) + "x" + std::to_string(cols) + " p " + std::to_string(p);
  const auto x = h.normal(rows * cols), bias = h.normal(cols), residual = h.normal(rows * cols, 1, 2);
  const auto w = h.normal(cols, 0.3, 1), b = h.normal(cols), dy = h.normal(rows * cols);
  const DropoutMask mask = random_mask(h, p, rows_per_sample);
  const auto m = multipliers(mask, rows, cols);
  const auto r =
      reference(doubles(x), doubles(bias), doubles(residual), doubles(w), doubles(b), doubles(dy), m, rows, cols);
  DeviceArray<Bf16> gx(x), gbias(bias), gresidual(residual), gw(w), gb(b), sum(rows * cols), y(rows * cols), gdy(dy);
  DeviceArray<Bf16> dresidual(rows * cols), dx(rows * cols), sums(3 * cols);
  DeviceArray<float> mean(rows), rstd(rows), work(add_norm_workspace_floats(cols));
  DeviceArray<std::uint8_t> kept(rows * cols / 8);
  AddNormForward f;
  f.x = gx.get(), f.bias = gbias.get(), f.residual = gresidual.get(), f.norm_weight = gw.get();
  f.norm_bias = gb.get(), f.sum = sum.get(), f.y = y.get(), f.mean = mean.get(), f.rstd = rstd.get();
  f.kept = p > 0 ? kept.get() : nullptr, f.epsilon = 1e-12f, f.mask = mask, f.rows = rows, f.cols = cols;
  add_norm_forward(f, nullptr);
  h.close(name + " sum", sum.host(), r.sum, 1e-3);
  h.close(name + " forward", y.host(), r.y, kBf16);
  h.close(name + " mean", mean.host(), r.mean, 1e-4);
  h.close(name + " rstd", rstd.host(), r.rstd, 1e-3);
  AddNormBackward k;
  k.sum = sum.get(), k.norm_weight = gw.get(), k.mean = mean.get(), k.rstd = rstd.get(), k.dy = gdy.get();
  k.dresidual = dresidual.get(), k.dx = p > 0 ? dx.get() : nullptr, k.sums = sums.get(), k.workspace = work.get();
  k.mask = mask, k.rows = rows, k.cols = cols;
  for (const bool again : {true, false}) {  // the mask drawn again, and read
    k.kept = again || p == 0 ? nullptr : kept.get();
    add_norm_backward(k, nullptr);
    if (p > 0) h.close(name + (again ? " dx, drawn again" : " dx"), dx.host(), r.dx, kBf16);
  }
  h.close(name + " dresidual", dresidual.host(), r.dresidual, kBf16);
  std::vector<double> expected = r.dweight;
  expected.insert(expected.end(), r.dbias.begin(), r.dbias.end());
  expected.insert(expected.end(), r.dlinear.begin(), r.dlinear.end());
  h.close(name + " sums over rows", sums.host(), expected, kBf16);
}

void gelu_case(Harness& h, std::int64_t rows, std::int64_t cols, bool with_bias) {
  const std::string name = "gelu_erf " + std::to_string(rows) + "x" + std::to_string(cols);
  const auto x = h.normal(rows * cols, 2), bias = h.normal(cols), dy = h.normal(rows * cols);
  std::vector<double> y(rows * cols), dx(rows * cols), dbias(cols);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const double v = value_of(x[i]) + (with_bias ? value_of(bias[i % cols]) : 0.0);
    const double cdf = 0.5 * std::erfc(-v / std::sqrt(2.0)), density = std::exp(-0.5 * v * v) / std::sqrt(2 * M_PI);
    y[i] = v * cdf;
    dx[i] = value_of(dy[i]) * (cdf + v * density);
    dbias[i % cols] += dx[i];
  }
  DeviceArray<Bf16> gx(x), gbias(bias), gdy(dy), gy(rows * cols), gdbias(cols);
  DeviceArray<float> work(gelu_erf_workspace_floats(cols));
  gelu_erf_forward({gx.get(), with_bias ? gbias.get() : nullptr, gy.get(), rows, cols}, nullptr);
  h.close(name, gy.host(), y, kBf16);
  gelu_erf_backward({gx.get(), with_bias ? gbias.get() : nullptr, gdy.get(), gdy.get(),
                     with_bias ? gdbias.get() : nullptr, work.get(), rows, cols},
                    nullptr);
  h.close(name + " dx, in place", gdy.host(), dx, kBf16);
  if (with_bias) h.close(name + " dbias", gdbias.host(), dbias, kBf16);
}

void join_case(Harness& h, std::int64_t rows, std::int64_t cols, int count) {
  const std::string name = "join " + std::to_string(count) + " of " + std::to_string(rows) + "x" + std::to_string(cols);
  std::vector<std::vector<Bf16>> parts;
  for (int i = 0; i < count; ++i) parts.push_back(h.normal(rows * cols, 1, 0.5));
  std::vector<double> joined(rows * cols * count), sums(cols * count);
  for (std::int64_t row = 0; row < rows; ++row)
    for (int part = 0; part < count; ++part)
      for (std::int64_t c = 0; c < cols; ++c) {
        const double value = value_of(parts[part][row * cols + c]);
        joined[(row * count + part) * cols + c] = value;
        sums[part * cols + c] += value;
      }
  std::vector<std::unique_ptr<DeviceArray<Bf16>>> device;
  JoinColumns a;
  for (int i = 0; i < count; ++i) {
    device.push_back(std::make_unique<DeviceArray<Bf16>>(parts[i]));
    a.parts[i] = device.back()->get();
  }
  DeviceArray<Bf16> out(rows * cols * count), gsums(cols * count);
  DeviceArray<float> work(join_workspace_floats(cols * count));
  a.count = count, a.part_cols = cols, a.out = out.get(), a.sums = gsums.get(), a.workspace = work.get(), a.rows = rows;
  join_columns(a, nullptr);
  h.close(name, out.host(), joined, 1e-9);
  h.close(name + ", sums", gsums.host(), sums, kBf16);
}

}  // namespace

void test_encoder(Harness& h) {
  dropout_case<Bf16>(h, 3, 5, 40, false);
  dropout_case<Bf16>(h, 2, 70, 1024, true);
  dropout_case<float>(h, 4, 9, 64, true);
  for (const double p : {0.0, 0.1})
    for (const auto& [samples, rows, cols] : {std::array<int, 3>{1, 1, 256}, {3, 7, 512}, {2, 33, 768}, {5, 384, 1024}})
      add_norm_case(h, samples, rows, cols, p);
  gelu_case(h, 1, 8, true);
  gelu_case(h, 300, 4096, true);
  gelu_case(h, 40, 5000, false);
  join_case(h, 1, 8, 1);
  join_case(h, 700, 1024, 3);
  join_case(h, 33, 40, 3);
}

}  // namespace lockstep::kernels::cuda::test
