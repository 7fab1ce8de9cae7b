#include "lockstep/kernels/selective_scan.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "lockstep/kernels/causal_conv.h"

namespace lockstep::kernels {
namespace {

using torch::Tensor;

Tensor random(at::IntArrayRef sizes) { return torch::randn(sizes, torch::TensorOptions().dtype(torch::kDouble)); }

// Inputs of a scan and what flows into its backward, all fp64 leaves.
struct Case {
  ScanShape shape;
  Tensor x, dt, a, b, c, d, initial;
  Tensor dy, dfinal;

  explicit Case(ScanShape s) : shape(s) {
    torch::manual_seed(s.seq * 1000 + s.channels);
    x = random({s.batch, s.seq, s.channels}).requires_grad_();
    dt = random({s.batch, s.seq, s.channels}).abs().detach().requires_grad_();
    a = (-random({s.channels, s.state}).abs()).detach().requires_grad_();
    b = random({s.batch, s.seq, s.state}).requires_grad_();
    c = random({s.batch, s.seq, s.state}).requires_grad_();
    d = random({s.channels}).requires_grad_();
    initial = random({s.batch, s.channels, s.state}).requires_grad_();
    dy = random({s.batch, s.seq, s.channels});
    dfinal = random({s.batch, s.channels, s.state});
  }
};

struct Results {
  std::vector<std::pair<std::string, Tensor>> tensors;
};

// The recurrence as it is written in the paper, gradients by autograd.
Results textbook(const Case& in) {
  Tensor h = in.initial;
  std::vector<Tensor> y;
  for (std::int64_t t = 0; t < in.shape.seq; ++t) {
    const Tensor dt = in.dt.select(1, t).unsqueeze(-1), x = in.x.select(1, t).unsqueeze(-1);
    h = (dt * in.a).exp() * h + dt * x * in.b.select(1, t).unsqueeze(1);
    y.push_back((h * in.c.select(1, t).unsqueeze(1)).sum(-1) + in.d * in.x.select(1, t));
  }
  const Tensor all = torch::stack(y, 1);
  ((all * in.dy).sum() + (h * in.dfinal).sum()).backward();
  return {{{"y", all},
           {"final state", h},
           {"dx", in.x.grad()},
           {"ddt", in.dt.grad()},
           {"da", in.a.grad()},
           {"db", in.b.grad()},
           {"dc", in.c.grad()},
           {"dd", in.d.grad()},
           {"dinitial", in.initial.grad()}}};
}

template <typename T>
Results by_kernel(const Case& in, torch::Dtype dtype) {
  const ScanShape& s = in.shape;
  const auto options = torch::TensorOptions().dtype(dtype);
  const auto cast = [&](const Tensor& t) { return t.detach().to(dtype).contiguous(); };
  const auto empty = [&](at::IntArrayRef sizes) { return torch::empty(sizes, options); };
  const Tensor x = cast(in.x), dt = cast(in.dt), a = cast(in.a), b = cast(in.b), c = cast(in.c), d = cast(in.d);
  const Tensor initial = cast(in.initial), dy = cast(in.dy), dfinal = cast(in.dfinal);
  const ScanInput<T> input{x.data_ptr<T>(), dt.data_ptr<T>(), a.data_ptr<T>(),
                           b.data_ptr<T>(), c.data_ptr<T>(),  d.data_ptr<T>()};
  Tensor y = empty(x.sizes()), kept = empty({s.batch, s.chunks(), s.channels, s.state}), last = empty(initial.sizes());
  selective_scan_forward(s, input, initial.data_ptr<T>(), {y.data_ptr<T>(), kept.data_ptr<T>(), last.data_ptr<T>()});
  Tensor dx = empty(x.sizes()), ddt = empty(x.sizes()), da = empty(initial.sizes()), dinitial = empty(initial.sizes());
  Tensor db = torch::zeros({s.groups(), s.batch, s.seq, s.state}, options), dc = torch::zeros_like(db);
  Tensor dd = empty({s.batch, s.channels});
  selective_scan_backward(s, input, kept.data_ptr<T>(), dy.data_ptr<T>(), dfinal.data_ptr<T>(),
                          {dx.data_ptr<T>(), ddt.data_ptr<T>(), da.data_ptr<T>(), db.data_ptr<T>(), dc.data_ptr<T>(),
                           dd.data_ptr<T>(), dinitial.data_ptr<T>()});
  return {{{"y", y},
           {"final state", last},
           {"dx", dx},
           {"ddt", ddt},
           {"da", da.sum(0)},
           {"db", db.sum(0)},
           {"dc", dc.sum(0)},
           {"dd", dd.sum(0)},
           {"dinitial", dinitial}}};
}

void expect_close(const Results& ours, const Results& theirs, double bound, const ScanShape& s) {
  for (std::size_t i = 0; i < theirs.tensors.size(); ++i) {
    const Tensor expected = theirs.tensors[i].second.detach();
    const double error = (ours.tensors[i].second.to(torch::kDouble) - expected).abs().max().item<double>();
    EXPECT_LE(error, bound * expected.abs().max().item<double>())
        << theirs.tensors[i].first << " of batch " << s.batch << ", seq " << s.seq << ", channels " << s.channels
        << ", state " << s.state;
  }
}

// Around the edges of tiles (16 channels), groups (128) and chunks (64 steps).
const std::vector<ScanShape> kShapes{{1, 1, 1, 1},    {2, 7, 3, 4},     {2, 63, 16, 16}, {1, 64, 17, 16},
                                     {3, 65, 33, 16}, {2, 130, 130, 8}, {1, 20, 300, 5}};

TEST(SelectiveScan, equals_the_textbook_recurrence_in_values_and_gradients) {
  for (const ScanShape& shape : kShapes) {
    const Case in(shape);
    const Results expected = textbook(in);
    expect_close(by_kernel<double>(in, torch::kDouble), expected, 1e-12, shape);
    expect_close(by_kernel<float>(in, torch::kFloat), expected, 2e-5, shape);
  }
}

TEST(SelectiveScan, gives_the_same_bits_on_any_number_of_threads) {
  const Case in({2, 100, 300, 16});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Results one = by_kernel<float>(in, torch::kFloat);
  at::set_num_threads(3);
  const Results three = by_kernel<float>(in, torch::kFloat);
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(one.tensors[i].second, three.tensors[i].second)) << one.tensors[i].first;
  }
}

// The convolution.

struct ConvCase {
  Tensor x, weight, bias, dy;  // weight [taps, channels]

  explicit ConvCase(const ConvShape& s) {
    torch::manual_seed(s.seq * 100 + s.channels);
    x = random({s.batch, s.taps - 1 + s.seq, s.channels}).requires_grad_();
    weight = random({s.taps, s.channels}).requires_grad_();
    bias = random({s.channels}).requires_grad_();
    dy = random({s.batch, s.seq, s.channels});
  }
};

TEST(CausalConv, equals_a_depthwise_convolution_and_silu_in_values_and_gradients) {
  const std::vector<ConvShape> shapes{{1, 1, 1, 1}, {2, 9, 5, 4}, {3, 2, 64, 3}, {2, 33, 130, 4}};
  for (const ConvShape& s : shapes) {
    const ConvCase in(s);
    const Tensor theirs = at::silu(at::conv1d(in.x.transpose(1, 2), in.weight.t().unsqueeze(1), in.bias, 1,
                                              at::IntArrayRef{0}, 1, s.channels))
                              .transpose(1, 2);
    (theirs * in.dy).sum().backward();
    Tensor y = torch::empty_like(in.dy);
    causal_conv_silu_forward(s, in.x.data_ptr<double>(), in.weight.data_ptr<double>(), in.bias.data_ptr<double>(),
                             y.data_ptr<double>());
    Tensor dx = torch::zeros(in.x.sizes(), y.options()), dbias = torch::zeros({s.batch, s.channels}, y.options());
    Tensor dweight = torch::zeros({s.batch, s.taps, s.channels}, y.options());
    causal_conv_silu_backward(s, in.x.data_ptr<double>(), in.weight.data_ptr<double>(), in.bias.data_ptr<double>(),
                              in.dy.data_ptr<double>(), dx.data_ptr<double>(), dweight.data_ptr<double>(),
                              dbias.data_ptr<double>());
    const auto close = [](const Tensor& a, const Tensor& b) { return torch::allclose(a, b, 1e-12, 1e-12); };
    EXPECT_TRUE(close(y, theirs.detach())) << "y, seq " << s.seq;
    EXPECT_TRUE(close(dx, in.x.grad())) << "dx, seq " << s.seq;
    EXPECT_TRUE(close(dweight.sum(0), in.weight.grad())) << "dweight, seq " << s.seq;
    EXPECT_TRUE(close(dbias.sum(0), in.bias.grad())) << "dbias, seq " << s.seq;
  }
}

}  // namespace
}  // namespace lockstep::kernels
