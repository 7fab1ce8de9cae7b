#include "lockstep/nn/random.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/nn/cuda/operators.h"

namespace lockstep::nn {
namespace {

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The middle of one of 2^32 equal cells of (0, 1): never 0, never 1.
double to_unit(std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// Four draws from the four words of one counter.
using Draws = std::array<double, 4>;

Draws normal_draws(const PhiloxCounter& words) {
  Draws draws;
  for (int pair = 0; pair < 2; ++pair) {  // Box-Muller
    const double radius = std::sqrt(-2.0 * std::log(to_unit(words[2 * pair])));
    const double angle = 2.0 * std::numbers::pi * to_unit(words[2 * pair + 1]);
    draws[2 * pair] = radius * std::cos(angle);
    draws[2 * pair + 1] = radius * std::sin(angle);
  }
  return draws;
}

Draws uniform_draws(const PhiloxCounter& words) {
  return {to_unit(words[0]), to_unit(words[1]), to_unit(words[2]), to_unit(words[3])};
}

template <typename MakeDraws>
void fill(torch::Tensor& tensor, double offset, double scale, PhiloxKey key, std::int64_t first, MakeDraws make_draws) {
  if (tensor.is_meta()) return;
  const torch::NoGradGuard no_grad;
  const bool direct = tensor.is_cpu() && tensor.is_contiguous();
  torch::Tensor drawn = direct ? tensor : torch::empty(tensor.sizes(), tensor.options().device(torch::kCPU));
  const std::int64_t count = drawn.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, drawn.scalar_type(), "fill", [&] {
    scalar_t* data = drawn.data_ptr<scalar_t>();
    const std::int64_t first_counter = first / 4, counters = (first + count + 3) / 4 - first_counter;
    constexpr std::int64_t kPiece = 16384;
    kernels::parallel_blocks((counters + kPiece - 1) / kPiece, [&](std::int64_t piece) {
      for (std::int64_t block = piece * kPiece; block < std::min(counters, (piece + 1) * kPiece); ++block) {
        const auto counter = static_cast<std::uint64_t>(first_counter + block);
        const Draws draws = make_draws(
            philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}, key));
        const std::int64_t at = 4 * static_cast<std::int64_t>(counter) - first;  // of the counter's first draw
        for (std::int64_t i = std::max<std::int64_t>(0, -at); i < std::min<std::int64_t>(4, count - at); ++i) {
          data[at + i] = static_cast<scalar_t>(offset + scale * draws[i]);
        }
      }
    });
  });
  if (!direct) tensor.copy_(drawn);
}

// Words below the threshold are dropped.
std::uint32_t drop_threshold(double probability) {
  return static_cast<std::uint32_t>(std::min(probability * 0x1p32, 0x1p32 - 1));
}

}  // namespace

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

PhiloxKey stream_key(std::uint64_t seed, std::string_view stream) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a of the name, then mixed with the seed
  for (const unsigned char c : stream) hash = (hash ^ c) * 0x100000001b3u;
  const std::uint64_t mixed = splitmix64(splitmix64(seed) ^ hash);
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

void fill_normal(torch::Tensor& tensor, double mean, double std, PhiloxKey key, std::int64_t first) {
  if (!cuda::fill_normal(tensor, mean, std, key, first)) fill(tensor, mean, std, key, first, normal_draws);
}

void fill_uniform(torch::Tensor& tensor, double low, double high, PhiloxKey key, std::int64_t first) {
  fill(tensor, low, high - low, key, first, uniform_draws);
}

template <typename T>
void dropout_row(T* out, std::int64_t count, std::int64_t first_element, std::int64_t sample, double probability,
                 const DropoutSite& site) {
  const PhiloxKey key = stream_key(site.seed, "dropout");
  const std::uint32_t threshold = drop_threshold(probability);
  const T kept = static_cast<T>(1.0 / (1.0 - probability));
  const auto index = static_cast<std::uint32_t>(site.first_index + sample);
  const auto words_of = [&](std::int64_t element) {  // of four elements
    const auto block = static_cast<std::uint32_t>(element / 4);
    return philox({block, index, site.layer, static_cast<std::uint32_t>(site.step)}, key);
  };
  std::int64_t e = 0;
  if (const std::int64_t skipped = first_element % 4; skipped != 0) {
    const PhiloxCounter words = words_of(first_element);
    for (; e < std::min(4 - skipped, count); ++e) out[e] = words[skipped + e] < threshold ? T(0) : kept;
  }
  for (; e < count; e += 4) {
    const PhiloxCounter words = words_of(first_element + e);
    const std::int64_t last = std::min<std::int64_t>(4, count - e);
    for (std::int64_t i = 0; i < last; ++i) out[e + i] = words[i] < threshold ? T(0) : kept;
  }
}
template void dropout_row(float*, std::int64_t, std::int64_t, std::int64_t, double, const DropoutSite&);
template void dropout_row(double*, std::int64_t, std::int64_t, std::int64_t, double, const DropoutSite&);

torch::Tensor dropout_multipliers(torch::IntArrayRef shape, const torch::TensorOptions& options, double probability,
                                  const DropoutSite& site) {
  const bool wide = options.dtype() == torch::kDouble;
  torch::Tensor mask = torch::empty(shape, torch::dtype(wide ? torch::kDouble : torch::kFloat));
  const std::int64_t samples = shape[0];
  const std::int64_t elements = samples > 0 ? mask.numel() / samples : 0;
  constexpr std::int64_t kPiece = 4096;  // elements of one sample drawn by one task; a multiple of 4
  const std::int64_t pieces = (elements + kPiece - 1) / kPiece;
  AT_DISPATCH_FLOATING_TYPES(mask.scalar_type(), "dropout_multipliers", [&] {
    scalar_t* data = mask.data_ptr<scalar_t>();
    kernels::parallel_blocks(samples * pieces, [&](std::int64_t task) {
      const std::int64_t sample = task / pieces;
      const std::int64_t first = (task % pieces) * kPiece;
      dropout_row(data + sample * elements + first, std::min(kPiece, elements - first), first, sample, probability,
                  site);
    });
  });
  return mask.to(options.device(), options.dtype().toScalarType());
}

torch::Tensor dropout_multipliers(torch::IntArrayRef shape, const torch::TensorOptions& options, double probability,
                                  const DropoutSite& site, const torch::Tensor& positions) {
  if (!positions.defined()) return dropout_multipliers(shape, options, probability, site);
  const bool wide = options.dtype() == torch::kDouble;
  torch::Tensor mask = torch::empty(shape, torch::dtype(wide ? torch::kDouble : torch::kFloat));
  const std::int64_t rows = shape[1], features = shape[2];
  const torch::Tensor dense = positions.cpu().contiguous();
  const std::int64_t* position = dense.data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES(mask.scalar_type(), "dropout_multipliers", [&] {
    scalar_t* data = mask.data_ptr<scalar_t>();
    kernels::parallel_blocks(shape[0] * rows, [&](std::int64_t row) {
      dropout_row(data + row * features, features, position[row % rows] * features, row / rows, probability, site);
    });
  });
  return mask.to(options.device(), options.dtype().toScalarType());
}

}  // namespace lockstep::nn
