// Operators of newer libtorchs that modules saved by them call, for a libtorch that lacks them.
#pragma once

namespace lockstep::nn {

// Call before a module is read; the first call registers those that this libtorch has not, from any thread:
// rms_norm and scaled_dot_product_attention (RMSNorm, MultiheadAttention, every transformer of torch.nn) from operators
// that it has, differentiable; _upsample_lanczos2d_aa, which `interpolate` of torch 2.13 names for every mode, as one
// that throws when it is reached.
void register_missing_operators();

}  // namespace lockstep::nn
