#include "lockstep/engine/precision.h"

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::engine {
namespace {

// Tried, not looked up: which dtypes a libtorch build can multiply depends on its version and its BLAS.
void require_matmul(torch::ScalarType type, torch::Device device, const char* precision) {
  torch::NoGradGuard no_grad;
  try {
    const torch::Tensor ones = torch::ones({2, 2}, torch::TensorOptions().dtype(type).device(device));
    const double sum = torch::mm(ones, ones).sum().to(torch::kFloat64).item<double>();
    if (sum == 8.0) return;
  } catch (const c10::Error&) {
    // "addmm_impl_cpu_" not implemented for 'Half', and the like: reported below, with a fix.
  }
  throw environment_error(
      std::string("this libtorch cannot multiply ") + c10::toString(type) + " matrices on " + device.str() +
          ", so precision " + precision + " does not work here",
      device.is_cpu() ? "use precision bf16 or fp32, or build against a newer libtorch" : "use precision bf16 or fp32");
}

}  // namespace

PrecisionPolicy precision_policy(spec::Precision precision, torch::Device device) {
  switch (precision) {
    case spec::Precision::kFp64:
      return {torch::kFloat64, torch::kFloat64, torch::kFloat64, false};
    case spec::Precision::kFp32:
      return {torch::kFloat32, torch::kFloat32, torch::kFloat32, false};
    case spec::Precision::kBf16:
      require_matmul(torch::kBFloat16, device, "bf16");
      return {torch::kBFloat16, torch::kFloat32, torch::kFloat32, false};
    case spec::Precision::kFp16:
      require_matmul(torch::kHalf, device, "fp16");
      return {torch::kHalf, torch::kFloat32, torch::kFloat32, true};
    case spec::Precision::kFp8:
      throw environment_error("precision fp8 can be planned but not trained by this version", "use bf16");
  }
  throw InternalError("unknown precision");
}

}  // namespace lockstep::engine
