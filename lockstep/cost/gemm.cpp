#include "lockstep/cost/gemm.h"

#include "lockstep/cost/states.h"

namespace lockstep::cost {
namespace {

double peak_of(const spec::Device& device, spec::Precision precision, const Constants& constants) {
  switch (precision) {
    case spec::Precision::kFp64:
      return device.peak_fp32_flops / 2;
    case spec::Precision::kFp32:
      return device.peak_fp32_flops;
    case spec::Precision::kFp16:
    case spec::Precision::kBf16:
      return device.peak_bf16_flops;
    case spec::Precision::kFp8:
      return device.peak_fp8_flops > 0 ? device.peak_bf16_flops * constants.fp8_speedup : device.peak_bf16_flops;
  }
  return device.peak_bf16_flops;
}

}  // namespace

DeviceRates rates_of(const spec::Device& device, spec::Precision precision, const Constants& constants) {
  DeviceRates rates;
  rates.gemm = FlopsPerSecond(peak_of(device, precision, constants) * constants.gemm_efficiency);
  const double attention_peak = is_narrow(precision) ? device.peak_bf16_flops : peak_of(device, precision, constants);
  rates.attention = FlopsPerSecond(attention_peak * constants.attention_efficiency);
  rates.vector = FlopsPerSecond(device.peak_fp32_flops);
  rates.memory = BytesPerSecond(device.memory_bytes_per_second * kStreamEfficiency);
  rates.m_half = constants.gemm_m_half;
  rates.n_half = constants.gemm_n_half;
  rates.k_half = constants.gemm_k_half;
  rates.attention_half = constants.attention_half;
  return rates;
}

}  // namespace lockstep::cost
