// Products with SwiGLU or rotary positions inside. A case needs more tiles than the device has places for clusters
// (66 on an H200) for a block to work on a second one.
#include "lockstep/kernels/cuda/fused_rope_gemm.h"
#include "lockstep/kernels/cuda/fused_swiglu_gemm.h"
#include "lockstep/kernels/cuda/rope.h"
#include "lockstep/kernels/cuda/swiglu.h"
#include "lockstep/kernels/swiglu.h"
#include "tests/kernels/cuda/harness.h"

namespace lockstep::kernels::cuda::test {
namespace {

constexpr double kBf16 = 4e-3;

struct Sizes {
  std::int64_t rows, hidden, ffn;
  std::string text() const { return std::to_string(rows) + "x" + std::to_string(hidden) + "x" + std::to_string(ffn); }
};

double rounded(double x) { return value_of(__float2bfloat16(static_cast<float>(x))); }

// a [m, k] times b [n, k]^T, or b [k, n], in double, rounded to bf16.
std::vector<double> product(const std::vector<Bf16>& a, const std::vector<Bf16>& b, std::int64_t n, std::int64_t k,
                            bool transposed) {
  const auto left = doubles(a), right = doubles(b);
  const auto m = static_cast<std::int64_t>(left.size()) / k;
  std::vector<double> out(m * n);
  for (std::int64_t r = 0; r < m; ++r) {
    double* const to = out.data() + r * n;
    for (std::int64_t i = 0; i < k && !transposed; ++i)
      for (std::int64_t j = 0; j < n; ++j) to[j] += left[r * k + i] * right[i * n + j];
    for (std::int64_t j = 0; j < n && transposed; ++j)
      for (std::int64_t i = 0; i < k; ++i) to[j] += left[r * k + i] * right[j * k + i];
    for (std::int64_t j = 0; j < n; ++j) to[j] = rounded(to[j]);
  }
  return out;
}

bool same_bits(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Bf16)) == 0;
}

void forward_case(Harness& h, const Sizes& s) {
  const std::string name = "fused swiglu forward " + s.text();
  const double deviation = 1.5 / std::sqrt(static_cast<double>(s.hidden));
  const auto x = h.normal(s.rows * s.hidden), w = h.normal(2 * s.ffn * s.hidden, deviation);
  const DeviceArray<Bf16> gx(x), gw(w), gate_up(s.rows * 2 * s.ffn), out(s.rows * s.ffn), again(s.rows * s.ffn);
  fused_swiglu_forward({gx.get(), gw.get(), gate_up.get(), out.get(), s.rows, s.hidden, s.ffn}, nullptr);
  h.close(name, gate_up.host(), product(x, w, 2 * s.ffn, s.hidden, true), kBf16);
  swiglu_forward({gate_up.get(), again.get(), {}, s.rows, s.ffn}, nullptr);
  h.is_true(name + ", the kernel's bits", same_bits(out.host(), again.host()));
  const DeviceArray<Bf16> only_gate_up(s.rows * 2 * s.ffn);
  fused_swiglu_forward({gx.get(), gw.get(), only_gate_up.get(), nullptr, s.rows, s.hidden, s.ffn}, nullptr);
  h.is_true(name + ", gate and up alone", same_bits(gate_up.host(), only_gate_up.host()));
}

void backward_case(Harness& h, const Sizes& s, bool with_h) {
  const std::string name = "fused swiglu backward " + s.text();
  const double deviation = 1.0 / std::sqrt(static_cast<double>(s.hidden));
  const auto dy = h.normal(s.rows * s.hidden), w = h.normal(s.ffn * s.hidden, deviation);
  const auto gate_up = h.normal(s.rows * 2 * s.ffn, 2);
  const auto in = doubles(gate_up), dh = product(dy, w, s.ffn, s.hidden, false);
  std::vector<double> value(s.rows * s.ffn), gradient(s.rows * 2 * s.ffn);
  for (std::int64_t r = 0; r < s.rows; ++r)
    kernels::swiglu_backward(in.data() + r * 2 * s.ffn, in.data() + (r * 2 + 1) * s.ffn, dh.data() + r * s.ffn,
                             gradient.data() + r * 2 * s.ffn, gradient.data() + (r * 2 + 1) * s.ffn,
                             value.data() + r * s.ffn, s.ffn);
  const DeviceArray<Bf16> gdy(dy), gw(w), ggate_up(gate_up), out(s.rows * s.ffn);
  fused_swiglu_backward({gdy.get(), gw.get(), ggate_up.get(), with_h ? out.get() : nullptr, s.rows, s.hidden, s.ffn},
                        nullptr);
  h.close(name, ggate_up.host(), gradient, kBf16);
  if (with_h) h.close(name + " h again", out.host(), value, kBf16);
}

void rope_case(Harness& h, std::int64_t rows, std::int64_t hidden, std::int64_t seq, std::int64_t heads,
               std::int64_t rotated, std::int64_t dim) {
  const std::string name = "fused rope " + std::to_string(heads) + " heads of " + std::to_string(dim);
  const std::int64_t width = heads * dim;
  const auto x = h.normal(rows * hidden), w = h.normal(width * hidden, 1.0 / std::sqrt(static_cast<double>(hidden)));
  const DeviceArray<float> cos(seq * dim / 2), sin(seq * dim / 2);
  rope_tables(cos.get(), sin.get(), seq, rope_frequencies(dim, 10000), nullptr);
  const DeviceArray<Bf16> gx(x), gw(w), out(rows * width), plain(rows * width);
  fused_rope({gx.get(), gw.get(), out.get(), cos.get(), sin.get(), rows, hidden, seq, heads, rotated, dim}, nullptr);
  fused_rope({gx.get(), gw.get(), plain.get(), cos.get(), sin.get(), rows, hidden, seq, heads, 0, dim}, nullptr);
  h.close(name + ", product", plain.host(), product(x, w, width, hidden, true), kBf16);
  rope({plain.get(), cos.get(), sin.get(), false, rows, seq, heads, rotated, dim}, nullptr);
  h.close(name, out.host(), doubles(plain.host()), 1e-3);  // the kernel's, but for how products and sums contract
}

// What is not served is said so, and refused.
void refusals(Harness& h) {
  h.is_true("fused: 128 rows do not fit", !fused_swiglu_forward_fits(128, 256, 256));
  h.is_true("fused: 96 of hidden do not fit", !fused_swiglu_backward_fits(256, 96, 256));
  h.is_true("fused: 192 of ffn do not fit", !fused_swiglu_forward_fits(256, 256, 192));
  h.is_true("fused: 128 of ffn do not fit backward", !fused_swiglu_backward_fits(256, 256, 128));
  h.is_true("fused: no rows do not fit", !fused_swiglu_forward_fits(0, 256, 256));
  h.is_true("fused: heads of 32 do not fit",
            !fused_rope_fits({.rows = 256, .hidden = 64, .seq = 64, .heads = 8, .rotated = 4, .dim = 32}));
  bool refused = false;
  try {
    fused_swiglu_forward({nullptr, nullptr, nullptr, nullptr, 128, 256, 256}, nullptr);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  h.is_true("fused: what does not fit is refused", refused);
}

}  // namespace

void test_fused(Harness& h) {
  refusals(h);
  if (!fused_swiglu_forward_fits(256, 64, 128)) return;  // another chip
  for (const Sizes& s : {Sizes{256, 64, 128}, Sizes{512, 448, 256}, Sizes{4352, 64, 640}, Sizes{1536, 192, 1536}})
    forward_case(h, s);
  for (const Sizes& s : {Sizes{256, 64, 256}, Sizes{512, 448, 512}, Sizes{4352, 64, 1280}, Sizes{1280, 192, 3840}})
    for (const bool with_h : {false, true}) backward_case(h, s, with_h);
  rope_case(h, 256, 64, 96, 4, 3, 64);
  rope_case(h, 1024, 128, 1024, 40, 36, 64);
  rope_case(h, 4352, 64, 2048, 12, 8, 128);
}

}  // namespace lockstep::kernels::cuda::test
