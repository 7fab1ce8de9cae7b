// The operator lists of the architectures, as lockstep/nn executes them (see flops.h for the meaning of the fields).
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/cost/flops.h"

namespace lockstep::cost {

// Y[m,n] = X[m,k] W[n,k]^T, `saved` elements kept for its backward.
Operator matmul(const char* name, std::int64_t count, std::int64_t m, std::int64_t n, std::int64_t k,
                std::int64_t saved);
Operator pointwise(const char* name, PointwiseKernel kernel, std::int64_t count, std::int64_t elements,
                   std::int64_t saved);

std::vector<Operator> gpt_operators(const spec::Model& model, std::int64_t samples, std::int64_t sequence);
std::vector<Operator> llama_operators(const spec::Model& model, std::int64_t samples, std::int64_t sequence);
std::vector<Operator> cnn_operators(const spec::Model& model, std::int64_t samples);
// What was counted in a module from Python.
std::vector<Operator> script_operators(const spec::Model& model, std::int64_t samples);
std::vector<Operator> resnet_operators(const spec::Model& model, std::int64_t samples);

}  // namespace lockstep::cost
