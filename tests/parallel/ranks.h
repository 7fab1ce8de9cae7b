// What the tests of parallel/ share: ranks as threads, a communicator whose operations can be tampered with, small
// nets.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local.h"

namespace lockstep::parallel {

inline constexpr std::chrono::milliseconds kTestTimeout{60'000};

// Runs body(communicator) on `count` threads, one per rank; rethrows the first rank's exception.
inline void run_ranks(int count, const std::function<void(comm::Communicator)>& body) {
  comm::LocalWorld world(count, kTestTimeout);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank, communicator = world.communicator(rank)]() mutable {
      try {
        body(std::move(communicator));
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Passes every collective on to `inner`; `tamper(call, operation, forward)` decides what happens to all-reduce number
// `call` (from 0) and may call forward() or not.
class TamperingBackend : public comm::Backend {
 public:
  using Forward = std::function<void(comm::Buffer)>;
  using Tamper = std::function<void(int call, const comm::Operation&, const Forward&)>;

  TamperingBackend(comm::Communicator inner, Tamper tamper) : inner_(std::move(inner)), tamper_(std::move(tamper)) {}

  const char* name() const override { return "tampering"; }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void run(const comm::Operation& op, comm::Clock::time_point) override {
    LOCKSTEP_ASSERT(op.kind == comm::OpKind::kAllReduce, "only all-reduce is passed on");
    tamper_(call_++, op, [&](comm::Buffer buffer) { inner_.all_reduce(buffer, op.reduce).wait(); });
  }
  std::unique_ptr<comm::Backend> subgroup(const std::vector<int>&, const std::string&,
                                          comm::Clock::time_point) override {
    return nullptr;
  }
  void abort() noexcept override { inner_.abort("test"); }

 private:
  comm::Communicator inner_;
  Tamper tamper_;
  int call_ = 0;
};

inline comm::Communicator tampered(comm::Communicator inner, TamperingBackend::Tamper tamper) {
  return comm::Communicator(std::make_unique<TamperingBackend>(std::move(inner), std::move(tamper)), "tampered", {},
                            kTestTimeout);
}

inline torch::Tensor random_tensor(std::vector<std::int64_t> sizes, std::int64_t seed, torch::ScalarType type) {
  // Not torch::manual_seed: ranks are threads and share the default generator.
  torch::Tensor x = torch::arange(1, 1 + c10::multiply_integers(sizes), torch::TensorOptions().dtype(torch::kFloat64));
  x = (x * 12.9898 + static_cast<double>(seed) * 78.233).sin() * 43758.5453;
  return (x - x.floor() - 0.5).view(sizes).to(type);  // in [-0.5, 0.5)
}

// y = (tanh(tanh(x A + a) S) S^T) B + b: the square matrix S is used twice (tied), `unused` never.
struct TinyNet : torch::nn::Module {
  TinyNet(std::int64_t width, torch::ScalarType type) {
    a = register_parameter("a", random_tensor({5, width}, 1, type));
    a_bias = register_parameter("a_bias", random_tensor({width}, 2, type));
    shared = register_parameter("shared", random_tensor({width, width}, 3, type));
    unused = register_parameter("unused", random_tensor({3, 7}, 4, type));
    b = register_parameter("b", random_tensor({width, 2}, 5, type));
    b_bias = register_parameter("b_bias", random_tensor({2}, 6, type));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = torch::tanh(torch::tanh(x.mm(a) + a_bias).mm(shared)).mm(shared.t());
    return h.mm(b) + b_bias;
  }
  torch::Tensor a, a_bias, shared, unused, b, b_bias;
};

}  // namespace lockstep::parallel
