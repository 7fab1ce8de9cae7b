// The kernels of GPT-shaped models: layer normalisation, bias and GELU.
#include "lockstep/kernels/bias_gelu.h"
#include "lockstep/kernels/cuda/bias_gelu.h"
#include "lockstep/kernels/cuda/layer_norm.h"
#include "tests/kernels/cuda/harness.h"

namespace lockstep::kernels::cuda::test {
namespace {

constexpr double kBf16 = 4e-3;

struct LayerNormReference {
  std::vector<double> y, mean, rstd, dx, dweight, dbias;
};
// x, dy, residual [rows, cols]; the textbook formulas in double.
LayerNormReference reference(const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b,
                             const std::vector<double>& dy, const std::vector<double>& residual, std::int64_t rows,
                             std::int64_t cols) {
  LayerNormReference r{std::vector<double>(rows * cols), std::vector<double>(rows), std::vector<double>(rows),
                       std::vector<double>(rows * cols), std::vector<double>(cols), std::vector<double>(cols)};
  const auto n = static_cast<double>(cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    const double* const row = x.data() + i * cols;
    double variance = 0, sum = 0, dot = 0;
    for (std::int64_t c = 0; c < cols; ++c) r.mean[i] += row[c] / n;
    for (std::int64_t c = 0; c < cols; ++c) variance += (row[c] - r.mean[i]) * (row[c] - r.mean[i]) / n;
    r.rstd[i] = 1 / std::sqrt(variance + 1e-5);
    for (std::int64_t c = 0; c < cols; ++c) {
      const double normed = (row[c] - r.mean[i]) * r.rstd[i], g = dy[i * cols + c];
      r.y[i * cols + c] = normed * w[c] + b[c];
      sum += w[c] * g / n;
      dot += w[c] * g * normed / n;
      r.dweight[c] += g * normed;
      r.dbias[c] += g;
    }
    for (std::int64_t c = 0; c < cols; ++c)
      r.dx[i * cols + c] =
          residual[i * cols + c] + r.rstd[i] * (w[c] * dy[i * cols + c] - sum - (row[c] - r.mean[i]) * r.rstd[i] * dot);
  }
  return r;
}

void layer_norm_case(Harness& h, std::int64_t rows, std::int64_t cols) {
  const std::string name = "layer_norm " + std::to_string(rows) + "x" + std::to_string(cols);
  const auto x = h.normal(rows * cols, 1, 3), delta = h.normal(rows * cols), w = h.normal(cols, 0.3, 1);
  const auto b = h.normal(cols), dy = h.normal(rows * cols), residual = h.normal(rows * cols);
  std::vector<double> sum = doubles(x);
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = value_of(__float2bfloat16(static_cast<float>(sum[i] + value_of(delta[i]))));
  const auto r = reference(sum, doubles(w), doubles(b), doubles(dy), doubles(residual), rows, cols);
  DeviceArray<Bf16> gx(x), gdelta(delta), gw(w), gb(b), gsum(rows * cols), gy(rows * cols), gdy(dy), gdx(residual);
  DeviceArray<float> mean(rows), rstd(rows), work(layer_norm_workspace_floats(cols)), dweight(cols), dbias(cols);
  LayerNormForward f;
  f.x = gx.get(), f.delta = gdelta.get(), f.weight = gw.get(), f.bias = gb.get(), f.sum = gsum.get();
  f.y = gy.get(), f.mean = mean.get(), f.rstd = rstd.get(), f.rows = rows, f.cols = cols;
  layer_norm_forward(f, nullptr);
  h.close(name + " sum", gsum.host(), sum, 1e-9);
  h.close(name + " forward", gy.host(), r.y, kBf16);
  h.close(name + " mean", mean.host(), r.mean, 1e-5);
  h.close(name + " rstd", rstd.host(), r.rstd, 1e-4);
  LayerNormBackward k;
  k.x = gsum.get(), k.weight = gw.get(), k.mean = mean.get(), k.rstd = rstd.get(), k.dy = gdy.get();
  k.dresidual = k.dx = gdx.get();
  k.dweight = dweight.get(), k.dbias = dbias.get(), k.workspace = work.get(), k.rows = rows, k.cols = cols;
  layer_norm_backward(k, nullptr);
  h.close(name + " dx", gdx.host(), r.dx, kBf16);
  h.close(name + " dweight", dweight.host(), r.dweight, 1e-3);
  h.close(name + " dbias", dbias.host(), r.dbias, 1e-4);
}

void bias_gelu_case(Harness& h, std::int64_t rows, std::int64_t cols) {
  const std::string name = "bias_gelu " + std::to_string(rows) + "x" + std::to_string(cols);
  const auto x = h.normal(rows * cols, 2), bias = h.normal(cols), dy = h.normal(rows * cols);
  std::vector<double> y(rows * cols), dx(rows * cols), dbias(cols, 2.0);
  kernels::bias_gelu_backward(doubles(x).data(), doubles(bias).data(), doubles(dy).data(), dx.data(), y.data(),
                              dbias.data(), rows, cols);
  DeviceArray<Bf16> gx(x), gbias(bias), gdy(dy), gy(rows * cols);
  DeviceArray<float> gdbias(std::vector<float>(cols, 2.0f)), work(bias_gelu_workspace_floats(cols));
  bias_gelu_forward({gx.get(), gbias.get(), gy.get(), rows, cols}, nullptr);
  h.close(name, gy.host(), y, kBf16);
  bias_gelu_backward(
      {gx.get(), gbias.get(), gdy.get(), gx.get(), gdy.get(), gdbias.get(), true, work.get(), rows, cols}, nullptr);
  h.close(name + " dx, in place", gx.host(), dx, kBf16);
  h.close(name + " y again", gdy.host(), y, kBf16);
  h.close(name + " dbias", gdbias.host(), dbias, 1e-3);
}

}  // namespace

void test_gpt(Harness& h) {
  for (const auto& [rows, cols] : {std::pair<int, int>{1, 8}, {3, 40}, {600, 768}, {70, 4096}, {5, 8192}})
    layer_norm_case(h, rows, cols);
  for (const auto& [rows, cols] : {std::pair<int, int>{1, 8}, {300, 3072}, {40, 5000}}) bias_gelu_case(h, rows, cols);
}

}  // namespace lockstep::kernels::cuda::test
