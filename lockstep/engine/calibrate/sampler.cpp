#include "lockstep/engine/calibrate/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lockstep::engine {
namespace {

constexpr int kWarmUpCalls = 2;

}  // namespace

Sampler::Sampler(comm::Communicator& communicator, double window_seconds, int windows, comm::milliseconds timeout,
                 torch::Device device)
    : communicator_(communicator), window_seconds_(window_seconds), windows_(windows), device_(device) {
  op_options_.timeout = timeout;
}

void Sampler::barrier() { communicator_.barrier(op_options_).wait(); }

Sample Sampler::summarize(const std::vector<double>& own_seconds) {
  const auto count = static_cast<std::int64_t>(own_seconds.size());
  std::vector<double> all(own_seconds.size() * static_cast<std::size_t>(communicator_.size()));
  communicator_
      .all_gather({own_seconds.data(), count, comm::DType::kF64},
                  {all.data(), static_cast<std::int64_t>(all.size()), comm::DType::kF64}, op_options_)
      .wait();
  double sum = 0;
  for (const double seconds : all) sum += seconds;
  std::sort(all.begin(), all.end());
  const auto quantile = [&](double share) {
    return all[static_cast<std::size_t>(share * static_cast<double>(all.size() - 1))];
  };
  const double seconds = device_.is_cpu() ? sum / static_cast<double>(all.size()) : quantile(0.5);
  return {seconds, 0.5 * (quantile(0.75) - quantile(0.25)) / quantile(0.5)};
}

double Sampler::largest(double value) {
  communicator_.all_reduce({&value, 1, comm::DType::kF64}, comm::ReduceOp::kMax, op_options_).wait();
  return value;
}

bool Sampler::exhausted() { return std::isfinite(budget_seconds_) && largest(watch_.seconds()) > budget_seconds_; }

Sample Sampler::on_device(const std::function<void()>& body) {
  // Lazy initialisation, the choice of algorithms, and clocks that rise.
  for (int call = 0; call < kWarmUpCalls; ++call) body();
  nn::compat::DeviceTimer timer(device_);
  timer.start();
  body();
  const double once = largest(timer.stop());
  const auto calls = static_cast<std::int64_t>(std::clamp(std::ceil(window_seconds_ / once), 1.0, 1000.0));
  std::vector<double> windows;
  for (int window = 0; window < windows_; ++window) {
    barrier();
    timer.start();
    for (std::int64_t call = 0; call < calls; ++call) body();
    windows.push_back(timer.stop() / static_cast<double>(calls));
  }
  return summarize(windows);
}

ProcessorTime Sampler::read_processor() const { return discounts_others_ ? processor_time() : ProcessorTime{}; }

Sample Sampler::independent(const std::function<void()>& body) {
  if (!device_.is_cpu()) return on_device(body);
  const Stopwatch first;
  body();  // first touch, caches, lazy initialisation
  const int count = largest(first.seconds()) > window_seconds_ ? 1 : windows_;
  std::vector<double> windows;
  for (int window = 0; window < count; ++window) {
    barrier();
    const Stopwatch watch;
    const ProcessorTime before = read_processor();
    std::int64_t calls = 0;
    do {
      body();
      ++calls;
    } while (watch.seconds() < window_seconds_);
    const double seconds = watch.seconds();
    windows.push_back(seconds * share_between(before, read_processor()) / static_cast<double>(calls));
  }
  return summarize(windows);
}

Sample Sampler::collective(const std::function<void()>& body) {
  if (!device_.is_cpu()) return on_device(body);
  body();
  barrier();
  const Stopwatch estimate;
  const ProcessorTime start = read_processor();
  body();
  const double undisturbed = estimate.seconds() * share_between(start, read_processor());
  // The slowest rank decides for all how many calls fill a window.
  const double once = largest(estimate.seconds());
  const auto calls = static_cast<std::int64_t>(std::clamp(std::ceil(window_seconds_ / once), 1.0, 10000.0));
  const bool long_calls = once > window_seconds_;
  std::vector<double> windows;
  if (long_calls) windows.push_back(largest(undisturbed));  // a window of its own
  for (int window = 0; window < (long_calls ? 1 : windows_); ++window) {
    barrier();
    const Stopwatch watch;
    const ProcessorTime before = read_processor();
    for (std::int64_t call = 0; call < calls; ++call) body();
    const double seconds = watch.seconds();
    windows.push_back(largest(seconds * share_between(before, read_processor()) / static_cast<double>(calls)));
  }
  return summarize(windows);
}

double Sampler::mean(double value) {
  communicator_.all_reduce({&value, 1, comm::DType::kF64}, comm::ReduceOp::kSum, op_options_).wait();
  return value / communicator_.size();
}

}  // namespace lockstep::engine
