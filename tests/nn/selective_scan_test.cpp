#include "lockstep/nn/selective_scan.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

namespace lockstep::nn {
namespace {

using torch::Tensor;

Tensor random(at::IntArrayRef sizes) { return torch::randn(sizes, torch::TensorOptions().dtype(torch::kDouble)); }

// x, dt, A, B, C, D, initial state: leaves in fp64.
std::vector<Tensor> operands(std::int64_t batch, std::int64_t seq, std::int64_t channels, std::int64_t state) {
  torch::manual_seed(seq);
  std::vector<Tensor> all{random({batch, seq, channels}),   random({batch, seq, channels}).abs(),
                          -random({channels, state}).abs(), random({batch, seq, state}),
                          random({batch, seq, state}),      random({channels}),
                          random({batch, channels, state})};
  for (Tensor& t : all) t.requires_grad_();
  return all;
}

using Scan = decltype(&selective_scan);

ScanResult run(Scan scan, const std::vector<Tensor>& in) {
  return scan(in[0], in[1], in[2], in[3], in[4], in[5], in[6]);
}

// A number that depends on everything a scan returns.
Tensor objective(const ScanResult& result) {
  const auto weights = [](const Tensor& t) { return torch::arange(t.numel(), t.options()).view(t.sizes()).sin(); };
  return (result.y * weights(result.y)).sum() + (result.final_state * weights(result.final_state)).cos().sum();
}

std::vector<Tensor> gradients(const Tensor& value, const std::vector<Tensor>& in) {
  return torch::autograd::grad({value}, in);
}

double error(const Tensor& a, const Tensor& b) { return ((a - b).abs().max() / b.abs().max()).item<double>(); }

TEST(SelectiveScan, by_aten_equals_the_kernel) {
  for (const std::int64_t seq : {1, 5, 63, 64, 65, 130}) {
    const auto in = operands(2, seq, 19, 6);
    const ScanResult ours = run(selective_scan, in), theirs = run(selective_scan_by_aten, in);
    EXPECT_LE(error(ours.y, theirs.y), 1e-12) << "seq " << seq;
    EXPECT_LE(error(ours.final_state, theirs.final_state), 1e-12) << "seq " << seq;
    const auto dours = gradients(objective(ours), in), dtheirs = gradients(objective(theirs), in);
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_LE(error(dours[i], dtheirs[i]), 1e-12) << "gradient " << i << ", seq " << seq;
    }
  }
}

TEST(SelectiveScan, has_the_gradients_that_finite_differences_show) {
  const auto in = operands(2, 70, 5, 3);
  const auto slopes = gradients(objective(run(selective_scan, in)), in);
  const double step = 1e-6;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const Tensor direction = random(in[i].sizes());
    const auto moved = [&](double by) {
      auto changed = in;
      changed[i] = (in[i] + by * direction).detach();
      return objective(run(selective_scan, changed)).item<double>();
    };
    const double expected = (moved(step) - moved(-step)) / (2 * step);
    EXPECT_NEAR((slopes[i] * direction).sum().item<double>(), expected, 1e-7 * (1 + std::abs(expected)))
        << "operand " << i;
  }
}

TEST(SelectiveScan, of_a_sequence_in_two_pieces_is_that_of_the_whole_when_the_state_is_handed_on) {
  const auto in = operands(2, 90, 6, 4);
  const auto piece = [&](std::int64_t first, std::int64_t count, const Tensor& state) {
    const auto rows = [&](std::size_t i) { return in[i].narrow(1, first, count); };
    return selective_scan(rows(0), rows(1), in[2], rows(3), rows(4), in[5], state);
  };
  const ScanResult front = piece(0, 37, in[6]), back = piece(37, 53, front.final_state);
  const ScanResult joined{torch::cat({front.y, back.y}, 1), back.final_state};
  const ScanResult whole = run(selective_scan, in);
  EXPECT_LE(error(joined.y, whole.y), 1e-13);
  const auto dwhole = gradients(objective(whole), in), djoined = gradients(objective(joined), in);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_LE(error(djoined[i], dwhole[i]), 1e-12) << "gradient " << i;
}

TEST(SelectiveScan, of_bf16_computes_in_fp32_and_keeps_the_dtypes) {
  auto in = operands(1, 40, 8, 4);
  const Tensor exact = run(selective_scan, in).y;
  for (Tensor& t : in) t = t.detach().to(torch::kBFloat16);
  const ScanResult narrow = run(selective_scan, in);
  EXPECT_EQ(narrow.y.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(narrow.final_state.scalar_type(), torch::kBFloat16);
  for (Tensor& t : in) t = t.to(torch::kFloat);
  EXPECT_TRUE(torch::equal(narrow.y, run(selective_scan, in).y.to(torch::kBFloat16)));
  EXPECT_LE(error(narrow.y.to(torch::kDouble), exact), 0.05);
}

}  // namespace
}  // namespace lockstep::nn
