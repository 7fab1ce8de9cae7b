#include "lockstep/kernels/cross_entropy.h"
#include "lockstep/kernels/cuda/arg_max.h"
#include "lockstep/kernels/cuda/cross_entropy.h"
#include "lockstep/kernels/cuda/embedding.h"
#include "lockstep/kernels/cuda/rms_norm.h"
#include "lockstep/kernels/cuda/rope.h"
#include "lockstep/kernels/cuda/swiglu.h"
#include "lockstep/kernels/rms_norm.h"
#include "lockstep/kernels/rope.h"
#include "lockstep/kernels/swiglu.h"
#include "tests/kernels/cuda/harness.h"

namespace lockstep::kernels::cuda::test {
namespace {

constexpr double kBf16 = 4e-3;  // one rounding is 2^-8 relative at most, half of it on average
constexpr float kEpsilon = 1e-5f;

// An 8-bit output with a scale that uses the format's range, and its check.
struct Fp8Check {
  Fp8Check(std::int64_t count, Fp8Format bits, float factor)
      : data(count),
        scale_value(factor),
        scale(std::vector<float>{factor}),
        amax(std::vector<float>{0.0f}),
        format(bits) {}
  Fp8Output output() const { return {data.get(), scale.get(), amax.get(), format}; }
  void check(Harness& h, const std::string& what, const std::vector<double>& reference) const {
    std::vector<double> decoded;
    for (const std::uint8_t bits : data.host()) decoded.push_back(decode_fp8(bits, format) / scale_value);
    // Half a unit of the last place is 1/16 (e5m2: 1/8) of a value at most, and about 0.6 of that on average; few
    // values may all come close to the most.
    const double most = format == Fp8Format::kE4m3 ? 1.0 / 16 : 1.0 / 8;
    const double limit = reference.size() < 512 ? most : 0.64 * most;
    h.close(what + " in 8 bits", decoded, reference, limit, 2 * limit);
    double largest = 0;
    for (const double v : reference) largest = std::max(largest, std::abs(v));
    h.is_true(what + " amax", std::abs(amax.host()[0] - largest) <= 0.01 * largest);
  }
  DeviceArray<std::uint8_t> data;
  float scale_value;
  DeviceArray<float> scale, amax;
  Fp8Format format;
};

void norm_case(Harness& h, std::int64_t rows, std::int64_t cols, bool with_delta) {
  const std::string name = "rms_norm " + std::to_string(rows) + "x" + std::to_string(cols);
  const auto x = h.normal(rows * cols), delta = h.normal(rows * cols), weight = h.normal(cols, 0.3, 1);
  std::vector<double> sum = doubles(x);
  if (with_delta)
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = value_of(__float2bfloat16(static_cast<float>(sum[i] + value_of(delta[i]))));
  std::vector<double> y(rows * cols), rstd(rows);
  kernels::rms_norm_forward(sum.data(), doubles(weight).data(), y.data(), rstd.data(), kEpsilon, rows, cols);

  DeviceArray<Bf16> dx_in(x), ddelta(delta), dweight_in(weight), dsum(rows * cols), dy(rows * cols);
  DeviceArray<float> drstd(rows);
  const Fp8Check y8(rows * cols, Fp8Format::kE4m3, 32);
  RmsNormForward a;
  a.x = dx_in.get();
  a.delta = with_delta ? ddelta.get() : nullptr;
  a.sum = with_delta ? dsum.get() : nullptr;
  a.weight = dweight_in.get();
  a.y = dy.get();
  a.y8 = y8.output();
  a.rstd = drstd.get();
  a.epsilon = kEpsilon;
  a.rows = rows;
  a.cols = cols;
  rms_norm_forward(a, nullptr);
  h.close(name + " forward", dy.host(), y, kBf16);
  h.close(name + " rstd", drstd.host(), rstd, 1e-5);
  if (with_delta) h.close(name + " sum", dsum.host(), sum, 1e-9);
  y8.check(h, name, y);
}

void norm_backward_case(Harness& h, std::int64_t rows, std::int64_t cols, bool residual, bool accumulate) {
  const std::string name = "rms_norm backward " + std::to_string(rows) + "x" + std::to_string(cols);
  const auto x = h.normal(rows * cols), weight = h.normal(cols, 0.3, 1), dy = h.normal(rows * cols);
  const auto dres = h.normal(rows * cols);
  std::vector<double> y(rows * cols), rstd(rows), dx(rows * cols), dweight(cols, accumulate ? 3.0 : 0.0);
  kernels::rms_norm_forward(doubles(x).data(), doubles(weight).data(), y.data(), rstd.data(), kEpsilon, rows, cols);
  kernels::rms_norm_backward(doubles(x).data(), doubles(weight).data(), rstd.data(), doubles(dy).data(), dx.data(),
                             dweight.data(), rows, cols);
  if (residual)
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += value_of(dres[i]);

  DeviceArray<Bf16> gx(x), gweight(weight), gdy(dy), gdx(residual ? dres : dy), gy(rows * cols);
  DeviceArray<float> grstd(std::vector<float>(rstd.begin(), rstd.end())), work(rms_norm_workspace_floats(cols));
  DeviceArray<float> gdweight(accumulate ? std::vector<float>(cols, 3.0f) : std::vector<float>(cols, NAN));
  const Fp8Check dx8(rows * cols, Fp8Format::kE5m2, 1024);
  RmsNormBackward a;
  a.x = gx.get();
  a.weight = gweight.get();
  a.rstd = grstd.get();
  a.dy = gdy.get();
  a.dresidual = residual ? gdx.get() : nullptr;
  a.dx = gdx.get();
  a.dx8 = dx8.output();
  a.y = gy.get();
  a.dweight = gdweight.get();
  a.accumulate = accumulate;
  a.workspace = work.get();
  a.rows = rows;
  a.cols = cols;
  rms_norm_backward(a, nullptr);
  h.close(name + " dx", gdx.host(), dx, kBf16);
  h.close(name + " dweight", gdweight.host(), dweight, 1e-4);
  h.close(name + " y", gy.host(), y, kBf16);
  dx8.check(h, name, dx);
}

// cos and sin [seq, dim/2] in double, as the tables hold them.
struct Tables {
  Tables(std::int64_t seq, std::int64_t dim) : cos(seq * dim / 2), sin(seq * dim / 2) {
    rope_tables(cos.get(), sin.get(), seq, rope_frequencies(dim, 10000.0), nullptr);
    c = doubles(cos.host());
    s = doubles(sin.host());
  }
  DeviceArray<float> cos, sin;
  std::vector<double> c, s;
};

void rope_case(Harness& h, std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t kv,
               std::int64_t dim) {
  const std::string name = "rope dim " + std::to_string(dim) + " heads " + std::to_string(heads);
  const std::int64_t tokens = batch * seq, all = heads + 2 * kv;
  const Tables tables(seq, dim);
  const auto x = h.normal(tokens * all * dim);
  std::vector<double> forward = doubles(x), back = doubles(x);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t head = 0; head < heads + kv; ++head) {
      const std::int64_t begin = b * seq * all * dim + head * dim;
      for (auto [values, direction] : {std::pair{&forward, 1}, std::pair{&back, -1}})
        kernels::rope_rotate(values->data() + begin, all * dim, values->data() + begin, all * dim, tables.c.data(),
                             tables.s.data(), direction, seq, dim);
    }
  DeviceArray<Bf16> gx(x);
  Rope a;
  a.x = gx.get();
  a.cos = tables.cos.get();
  a.sin = tables.sin.get();
  a.tokens = tokens;
  a.seq = seq;
  a.heads = all;
  a.rotated = heads + kv;
  a.dim = dim;
  rope(a, nullptr);
  h.close(name, gx.host(), forward, kBf16);
  DeviceArray<Bf16> gradient(x);
  a.x = gradient.get();
  a.inverse = true;
  rope(a, nullptr);
  h.close(name + " turned back in place", gradient.host(), back, kBf16);

  std::vector<Bf16> parts[3];  // q, k, v apart
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t head = 0; head < all; ++head) {
      auto& part = parts[head < heads ? 0 : head < heads + kv ? 1 : 2];
      part.insert(part.end(), x.begin() + (t * all + head) * dim, x.begin() + (t * all + head + 1) * dim);
    }
  DeviceArray<Bf16> dq(parts[0]), dk(parts[1]), dv(parts[2]), packed(tokens * all * dim);
  const Fp8Check packed8(tokens * all * dim, Fp8Format::kE5m2, 1024);
  RopeBackward r;
  r.dq = dq.get();
  r.dk = dk.get();
  r.dv = dv.get();
  r.packed = packed.get();
  r.packed8 = packed8.output();
  r.cos = tables.cos.get();
  r.sin = tables.sin.get();
  r.tokens = tokens;
  r.seq = seq;
  r.heads = heads;
  r.kv_heads = kv;
  r.dim = dim;
  rope_backward(r, nullptr);
  h.close(name + " backward", packed.host(), back, kBf16);
  packed8.check(h, name + " backward", back);
}

void swiglu_case(Harness& h, std::int64_t rows, std::int64_t cols) {
  const std::string name = "swiglu " + std::to_string(rows) + "x" + std::to_string(cols);
  const auto gate_up = h.normal(rows * 2 * cols, 2), dh = h.normal(rows * cols);
  const auto in = doubles(gate_up), d = doubles(dh);
  std::vector<double> value(rows * cols), dgate_up(rows * 2 * cols);
  for (std::int64_t r = 0; r < rows; ++r)
    kernels::swiglu_backward(in.data() + r * 2 * cols, in.data() + (r * 2 + 1) * cols, d.data() + r * cols,
                             dgate_up.data() + r * 2 * cols, dgate_up.data() + (r * 2 + 1) * cols,
                             value.data() + r * cols, cols);
  DeviceArray<Bf16> ggate_up(gate_up), gdh(dh), gh(rows * cols);
  // Products of two normal values reach 70 in wide rows: a larger scale would leave the format's range.
  const Fp8Check h8(rows * cols, Fp8Format::kE4m3, 4), d8(rows * 2 * cols, Fp8Format::kE5m2, 1024);
  swiglu_forward({ggate_up.get(), gh.get(), h8.output(), rows, cols}, nullptr);
  h.close(name, gh.host(), value, kBf16);
  h8.check(h, name, value);
  swiglu_backward({ggate_up.get(), gdh.get(), ggate_up.get(), d8.output(), gdh.get(), rows, cols}, nullptr);
  h.close(name + " backward, in place", ggate_up.host(), dgate_up, kBf16);
  h.close(name + " h again", gdh.host(), value, kBf16);
  d8.check(h, name + " backward", dgate_up);
}

void cross_entropy_case(Harness& h, std::int64_t rows, std::int64_t classes) {
  const std::string name = "cross_entropy " + std::to_string(rows) + "x" + std::to_string(classes);
  const auto logits = h.normal(rows * classes, 3);
  auto targets = h.integers(rows, 0, static_cast<std::int32_t>(classes) - 1);
  for (std::int64_t r = 0; r < rows; r += 3) targets[r] = r % 2 == 0 ? -100 : static_cast<std::int32_t>(classes);
  std::vector<double> gradient = doubles(logits), losses(rows);
  std::int64_t counted = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool ignored = targets[r] < 0 || targets[r] >= classes;
    const std::int64_t target = ignored ? -1 : targets[r];
    const auto result = kernels::cross_entropy_rows(gradient.data() + r * classes, &target, -1, true, 1, classes);
    losses[r] = result.loss_sum;
    counted += result.count;
  }
  const double scale = counted > 0 ? 1.0 / static_cast<double>(counted * 2) : 0;
  double total = 0;
  for (double& g : gradient) g *= scale;
  for (const double l : losses) total += l * scale;
  DeviceArray<Bf16> glogits(logits);
  DeviceArray<std::int32_t> gtargets(targets);
  DeviceArray<float> gscale(1), glosses(rows), gloss(1);
  count_targets(gtargets.get(), rows, classes, 2.0f, gscale.get(), nullptr);
  cross_entropy({glogits.get(), gtargets.get(), gscale.get(), glosses.get(), rows, classes}, nullptr);
  reduce_losses(glosses.get(), rows, gscale.get(), gloss.get(), false, nullptr);
  h.close(name + " scale", gscale.host(), {scale}, 1e-6);
  h.close(name + " losses", glosses.host(), losses, 1e-5);
  h.close(name + " loss", gloss.host(), {total}, 1e-5);
  h.close(name + " gradient", glogits.host(), gradient, kBf16);
}

void arg_max_case(Harness& h, std::int64_t rows, std::int64_t classes) {
  auto logits = h.normal(rows * classes, 3);
  auto targets = h.integers(rows, 0, static_cast<std::int32_t>(classes) - 1);
  std::vector<double> hits(rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    Bf16* const row = logits.data() + r * classes;
    std::int64_t first = 0;
    for (std::int64_t c = 1; c < classes; ++c)
      if (value_of(row[c]) > value_of(row[first])) first = c;
    if (r % 4 == 1) targets[r] = static_cast<std::int32_t>(first);
    // As large as the first one, behind it and before it.
    if (r % 4 == 2) row[targets[r]] = row[first], first = std::min<std::int64_t>(first, targets[r]);
    if (r % 8 == 3) targets[r] = -100;
    hits[r] = targets[r] == first ? 1.0 : 0.0;
  }
  const DeviceArray<Bf16> glogits(logits);
  const DeviceArray<std::int32_t> gtargets(targets);
  const DeviceArray<float> ghits(rows);
  arg_max_hits({glogits.get(), gtargets.get(), ghits.get(), rows, classes}, nullptr);
  h.close("arg_max " + std::to_string(rows) + "x" + std::to_string(classes), ghits.host(), hits, 0);
}

template <class Gradient>
void embedding_case(Harness& h, std::int64_t count, std::int64_t vocab, std::int64_t cols, bool accumulate) {
  const std::string name = "embedding " + std::to_string(count) + " of " + std::to_string(vocab);
  const auto tokens = h.integers(count, 0, static_cast<std::int32_t>(vocab / 2));  // half of the rows stay absent
  const auto table = h.normal(vocab * cols), dout = h.normal(count * cols);
  std::vector<double> out(count * cols), gradient(vocab * cols, accumulate ? 1.5 : 0.0);
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t c = 0; c < cols; ++c) {
      out[t * cols + c] = value_of(table[tokens[t] * cols + c]);
      gradient[tokens[t] * cols + c] += value_of(dout[t * cols + c]);
    }
  DeviceArray<std::int32_t> gtokens(tokens);
  DeviceArray<Bf16> gtable(table), gout(count * cols), gdout(dout);
  const Gradient first = static_cast<Gradient>(accumulate ? 1.5f : NAN);
  DeviceArray<Gradient> ggradient(std::vector<Gradient>(vocab * cols, first));
  DeviceArray<char> work(static_cast<std::int64_t>(embedding_workspace_bytes(count)));
  embedding_forward(gtokens.get(), gtable.get(), gout.get(), count, cols, nullptr);
  h.close(name, gout.host(), out, 0);
  EmbeddingBackward<Gradient> a;
  a.tokens = gtokens.get();
  a.dout = gdout.get();
  a.gradient = ggradient.get();
  a.accumulate = accumulate;
  a.workspace = work.get();
  a.workspace_bytes = embedding_workspace_bytes(count);
  a.count = count;
  a.vocab = vocab;
  a.cols = cols;
  embedding_backward(a, nullptr);
  const auto result = ggradient.host();
  h.close(name + " backward", result, gradient, sizeof(Gradient) == 4 ? 1e-6 : kBf16);
}

}  // namespace

void test_norms(Harness& h) {
  for (const auto& [rows, cols] :
       {std::pair<int, int>{1, 8}, {3, 40}, {37, 768}, {1000, 2048}, {70, 4096}, {5, 8192}}) {
    norm_case(h, rows, cols, false);
    norm_case(h, rows, cols, true);
    norm_backward_case(h, rows, cols, true, false);
    norm_backward_case(h, rows, cols, false, true);
  }
}
void test_rope(Harness& h) {
  rope_case(h, 2, 33, 12, 12, 64);
  rope_case(h, 1, 70, 16, 16, 128);
  rope_case(h, 3, 17, 6, 2, 32);
}
void test_swiglu(Harness& h) {
  swiglu_case(h, 1, 8);
  swiglu_case(h, 67, 5632);
  swiglu_case(h, 130, 704);
}
void test_cross_entropy(Harness& h) {
  cross_entropy_case(h, 7, 512);
  cross_entropy_case(h, 300, 32000);
  cross_entropy_case(h, 140, 50304);
  cross_entropy_case(h, 9, 128256);
  cross_entropy_case(h, 1, 8);
  arg_max_case(h, 64, 256);
  arg_max_case(h, 33, 32000);
  arg_max_case(h, 5, 8);
}
void test_embedding(Harness& h) {
  embedding_case<float>(h, 500, 64, 768, false);
  embedding_case<Bf16>(h, 3000, 300, 2048, false);
  embedding_case<float>(h, 77, 1000, 40, true);
}

}  // namespace lockstep::kernels::cuda::test
