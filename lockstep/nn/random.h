// The counter-based generator behind every random number of a model: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A number is a pure function of its key and counter, so it does not depend
// on ranks, threads, order of evaluation, dtype or libtorch's version. Nothing here has state; all of it is
// thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <torch/types.h>

namespace lockstep::nn {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxCounter = std::array<std::uint32_t, 4>;

// Ten rounds: four independent uniform 32-bit words.
PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key);

// Key for one named stream of a seed ("transformer.wte.weight", "dropout"): a 64-bit mix of both.
PhiloxKey stream_key(std::uint64_t seed, std::string_view stream);

// Fill `tensor` (any floating dtype, contiguous or not) with draws number `first`, first + 1, ... of the stream,
// element i of the logical (row-major) order taking draw first + i: a slice of a tensor gets what the whole would have
// there. Draws are computed in fp64 and rounded once to the tensor's dtype. Meta tensors are left alone. Normal draws
// of contiguous CUDA tensors (fp64, fp32, bf16) are made on the device, where the last bit of a double may differ;
// others are drawn on the CPU and copied.
void fill_normal(torch::Tensor& tensor, double mean, double std, PhiloxKey key, std::int64_t first = 0);
void fill_uniform(torch::Tensor& tensor, double low, double high, PhiloxKey key, std::int64_t first = 0);

// Where a dropout mask is drawn. Element e of sample s (dim 0 of the tensor is the sample) is kept or dropped by the
// word at (seed, step, layer, first_index + s, e): the same however a global batch is split over ranks and micro-steps.
struct DropoutSite {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_index = 0;
  std::uint32_t layer = 0;
};

// Multiplies [samples, ...] by the mask divided by (1 - probability). `multipliers` has the shape of the tensor; values
// are 0 or 1 / (1 - probability). probability in [0, 1).
torch::Tensor dropout_multipliers(torch::IntArrayRef shape, const torch::TensorOptions& options, double probability,
                                  const DropoutSite& site);

// For [samples, rows, features] whose row i is row positions[i] of the sample's whole tensor (int64, or undefined:
// row i itself): the multipliers that a rank with the whole tensor draws for these rows.
torch::Tensor dropout_multipliers(torch::IntArrayRef shape, const torch::TensorOptions& options, double probability,
                                  const DropoutSite& site, const torch::Tensor& positions);

// The same multipliers for elements [first_element, first_element + count) of one sample, into fp32 or fp64.
template <typename T>
void dropout_row(T* out, std::int64_t count, std::int64_t first_element, std::int64_t sample, double probability,
                 const DropoutSite& site);

}  // namespace lockstep::nn
