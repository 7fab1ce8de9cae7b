// Inside of compression.h: the compressors with state, each in a file of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/compression.h"

namespace lockstep::parallel {

std::unique_ptr<GradientExchange> make_powersgd(const CompressionOptions& options, const std::vector<Bucket>& buckets);
std::unique_ptr<GradientExchange> make_onebit(const std::vector<Bucket>& buckets, int ranks);

// The tensor of that name; bad_input when it is missing or its shape or dtype differs from `like`.
const torch::Tensor& state_tensor(const TensorMap& state, const std::string& name, const torch::Tensor& like);

comm::OpOptions at_site(const Bucket& bucket);

}  // namespace lockstep::parallel
