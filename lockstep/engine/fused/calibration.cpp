// The measurements of calibration_fused.h.
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/engine/calibrate/fused.h"
#include "lockstep/engine/fused/step.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {
namespace {

using cost::FusedPoint;
using cuda::FusedOptions;
using cuda::FusedStep;

constexpr int kWarmUp = 3, kSteps = 7;

FusedOptions options_of(const FusedPoint& point) {
  FusedOptions o;
  o.micro_batch = point.micro;
  o.sequence_length = point.sequence_length;
  o.accumulation = point.accumulation;
  if (point.precision == spec::Precision::kFp8) o.precision = cuda::LinearPrecision::kFp8;
  if (point.bf16_states) o.states = cuda::StatePrecision::kBf16;
  o.recompute = static_cast<cuda::Recompute>(point.recompute);
  return o;
}
static_assert(static_cast<int>(cuda::Recompute::kNone) == static_cast<int>(plan::Recompute::kNone));
static_assert(static_cast<int>(cuda::Recompute::kSelective) == static_cast<int>(plan::Recompute::kSelective));
static_assert(static_cast<int>(cuda::Recompute::kFull) == static_cast<int>(plan::Recompute::kFull));

std::vector<std::int32_t> random_tokens(const FusedPoint& point) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(point.model.vocab - 1));
  std::vector<std::int32_t> tokens(point.micro * point.accumulation * point.sequence_length);
  for (std::int32_t& t : tokens) t = token(random);
  return tokens;
}

FusedPoint measured(FusedPoint point) {
  FusedStep step(point.model, options_of(point));
  step.initialize(1);
  const std::vector<std::int32_t> tokens = random_tokens(point);
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUp + kSteps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const FusedStep::Result result = step.step(tokens.data(), tokens.data(), 1e-4);
    if (!std::isfinite(result.loss)) throw std::runtime_error("[calibrate] the loss of " + point.name() + " diverged");
    if (i >= kWarmUp) {
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  }
  std::sort(seconds.begin(), seconds.end());
  point.seconds = seconds[kSteps / 2];
  point.spread = (seconds[3 * kSteps / 4] - seconds[kSteps / 4]) / (2 * point.seconds);
  point.peak_bytes = static_cast<double>(step.memory().total());
  std::map<std::string, double> operations;
  for (const auto& o : step.profile(tokens.data(), tokens.data(), 1e-4)) {
    operations[o.name] += 1e-3 * (o.end_ms - o.begin_ms);
  }
  for (const auto& [name, total] : operations) point.operations.push_back({name, total});
  return point;
}

}  // namespace

std::vector<FusedPoint> measure_fused_points(const std::vector<FusedPoint>& points) {
  const torch::Device device(torch::kCUDA, 0);
  torch::empty({1}, torch::TensorOptions().device(device));  // before it libtorch's allocator knows no device to ask
  std::vector<FusedPoint> done;
  for (const FusedPoint& point : points) {
    nn::compat::release_cached_memory(device);
    nn::compat::reset_peak_allocated(device);  // what attention's buffers are counted from
    try {
      done.push_back(measured(point));
    } catch (const UserError& problem) {
      if (problem.code() != ExitCode::kAnswerIsNo) throw;  // else: this GPU is too small for it
    }
  }
  nn::compat::release_cached_memory(device);
  return done;
}

}  // namespace lockstep::engine
