// Which dtype each part of a training step uses.
#pragma once

#include <torch/types.h>

#include "lockstep/spec/job.h"

namespace lockstep::engine {

// precision   model    gradient  master   loss scaling
// fp64        float64  float64   -        no
// fp32        float32  float32   -        no
// bf16        bfloat16 float32   float32  no
// fp16        float16  float32   float32  yes
struct PrecisionPolicy {
  torch::ScalarType model = torch::kFloat32;     // weights and activations
  torch::ScalarType gradient = torch::kFloat32;  // accumulated and reduced
  torch::ScalarType master = torch::kFloat32;    // what the optimizer updates
  bool loss_scaling = false;

  bool has_master() const { return master != model; }
};

// environment_error when this libtorch cannot multiply matrices of that dtype on `device` (fp16 on the CPU with
// libtorch 1.13; fp8 anywhere in this version), found by trying it.
PrecisionPolicy precision_policy(spec::Precision precision, torch::Device device);

}  // namespace lockstep::engine
