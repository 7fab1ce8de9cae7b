// What the tests of the CUDA kernels share: device arrays that start poisoned, fresh random inputs, comparison with
// fp64. A plain executable without a test framework, so that it also runs under compute-sanitizer in seconds.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/kernels/cuda/check.h"
#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda::test {

// Device memory that holds NaN patterns until it is written.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t count) : count_(count) {
    LOCKSTEP_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T) + 1));
    LOCKSTEP_CUDA(cudaMemset(data_, 0xff, count * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(static_cast<std::int64_t>(values.size())) {
    LOCKSTEP_CUDA(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    LOCKSTEP_CUDA(cudaDeviceSynchronize());
    LOCKSTEP_CUDA(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::int64_t count_;
};

inline double value_of(Bf16 x) {
  std::uint16_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
  float f;
  std::memcpy(&f, &word, sizeof f);
  return f;
}
inline double value_of(float x) { return x; }
inline double value_of(double x) { return x; }
// 8-bit floats by their definition: sign, exponent, mantissa.
inline double decode_fp8(std::uint8_t bits, Fp8Format format) {
  const int mantissa_bits = format == Fp8Format::kE4m3 ? 3 : 2, bias = format == Fp8Format::kE4m3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  if (format == Fp8Format::kE4m3 ? (bits & 0x7f) == 0x7f : exponent == 31) return NAN;
  const double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                     : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return bits & 0x80 ? -value : value;
}
template <class T>
std::vector<double> doubles(const std::vector<T>& values) {
  std::vector<double> out;
  out.reserve(values.size());
  for (const T& v : values) out.push_back(value_of(v));
  return out;
}

class Harness {
 public:
  explicit Harness(std::uint64_t seed) : random_(seed) {}

  std::vector<Bf16> normal(std::int64_t count, double deviation = 1, double mean = 0) {
    std::normal_distribution<float> distribution(static_cast<float>(mean), static_cast<float>(deviation));
    std::vector<Bf16> out(count);
    for (Bf16& v : out) v = __float2bfloat16(distribution(random_));
    return out;
  }
  std::vector<float> normal_floats(std::int64_t count, double deviation = 1) {
    std::normal_distribution<float> distribution(0, static_cast<float>(deviation));
    std::vector<float> out(count);
    for (float& v : out) v = distribution(random_);
    return out;
  }
  std::vector<std::int32_t> integers(std::int64_t count, std::int32_t low, std::int32_t high) {
    std::uniform_int_distribution<std::int32_t> distribution(low, high);
    std::vector<std::int32_t> out(count);
    for (auto& v : out) v = distribution(random_);
    return out;
  }

  // ||out - reference|| / ||reference|| at most `limit`, and no element further off than `element` of the largest; NaN,
  // which is what an element that was not written holds, fails.
  template <class T>
  void close(const std::string& what, const std::vector<T>& out, const std::vector<double>& reference, double limit,
             double element = 0.02) {
    double error = 0, norm = 0, largest = 0, worst = 0;
    for (std::size_t i = 0; i < reference.size(); ++i) {
      const double difference = value_of(out[i]) - reference[i];
      error += difference * difference;
      norm += reference[i] * reference[i];
      largest = std::max(largest, std::abs(reference[i]));
      worst = std::max(worst, std::abs(difference));
    }
    const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
    const bool good = out.size() == reference.size() && std::isfinite(error) && relative <= limit &&
                      worst <= element * largest + 1e-12;
    record(what, good, "relative error " + std::to_string(relative) + ", worst element " + std::to_string(worst));
  }
  void is_true(const std::string& what, bool good) { record(what, good, ""); }

  int failures() const { return failures_; }
  int checks() const { return checks_; }

 private:
  void record(const std::string& what, bool good, const std::string& detail) {
    ++checks_;
    if (good) return;
    ++failures_;
    std::printf("FAILED %s: %s\n", what.c_str(), detail.c_str());
  }
  std::mt19937_64 random_;
  int failures_ = 0, checks_ = 0;
};

void test_norms(Harness& h);
void test_rope(Harness& h);
void test_swiglu(Harness& h);
void test_fused(Harness& h);
void test_cross_entropy(Harness& h);
void test_embedding(Harness& h);
void test_optimizer(Harness& h);
void test_fp8(Harness& h);
void test_gpt(Harness& h);
void test_batch_norm(Harness& h);
void test_encoder(Harness& h);
void test_flat_optimizer(Harness& h);

}  // namespace lockstep::kernels::cuda::test
