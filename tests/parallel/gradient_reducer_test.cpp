#include "lockstep/parallel/gradient_reducer.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <chrono>
#include <thread>

#include "lockstep/base/error.h"
#include "tests/parallel/ranks.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kSamples = 144;  // divisible by every ranks x accumulation below
constexpr std::int64_t kWidth = 33;
constexpr double kTinyBucketMib = 1e-6;  // every parameter is a bucket of its own
constexpr double kSmallBucketMib = 0.005;

struct Arrangement {
  int ranks = 2;
  int accumulation = 1;
  double bucket_mib = kSmallBucketMib;
  std::function<comm::Communicator(comm::Communicator)> wrap;
};

// One optimizer step's worth of backward passes over this rank's share of the samples; the loss has weight 1/kSamples.
void accumulate(TinyNet& net, GradientReducer& reducer, int rank, const Arrangement& arrangement) {
  const torch::Tensor x = random_tensor({kSamples, 5}, 21, torch::kFloat64);
  const torch::Tensor y = random_tensor({kSamples, 2}, 22, torch::kFloat64);
  const std::int64_t share = kSamples / (arrangement.ranks * arrangement.accumulation);
  for (int micro = 0; micro < arrangement.accumulation; ++micro) {
    const std::int64_t first = (micro * arrangement.ranks + rank) * share;
    reducer.begin_micro_step(micro + 1 == arrangement.accumulation);
    const torch::Tensor error = net.forward(x.narrow(0, first, share)) - y.narrow(0, first, share);
    (error.square().sum() / static_cast<double>(kSamples)).backward();
  }
}

// The flat gradient of every rank after finish().
std::vector<torch::Tensor> reduced_gradients(const Arrangement& arrangement) {
  std::vector<torch::Tensor> result(static_cast<std::size_t>(arrangement.ranks));
  run_ranks(arrangement.ranks, [&](comm::Communicator group) {
    const int rank = group.rank();
    auto net = std::make_shared<TinyNet>(kWidth, torch::kFloat64);
    FlatParameters flat(net);
    ReducerOptions options;
    options.bucket_mib = arrangement.bucket_mib;
    comm::Communicator used = arrangement.wrap ? arrangement.wrap(group) : group;
    GradientReducer reducer(flat, used, options);
    accumulate(*net, reducer, rank, arrangement);
    reducer.finish();
    result[static_cast<std::size_t>(rank)] = flat.gradients().clone();
    group.barrier().wait();
  });
  return result;
}

torch::Tensor single_rank_gradient() { return reduced_gradients({.ranks = 1}).front(); }

// The comparator of the tests below; mutants must not pass it.
bool equal_to_round_off(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>() <= 1e-13 * b.abs().max().item<double>();
}

TEST(GradientReducer, equals_one_rank_for_any_ranks_accumulation_and_bucket_size) {
  const torch::Tensor expected = single_rank_gradient();
  ASSERT_GT(expected.abs().max().item<double>(), 0.01);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int accumulation = 1; accumulation <= 4; ++accumulation) {
      for (const double bucket_mib : {kTinyBucketMib, kSmallBucketMib, 25.0}) {
        const auto gradients =
            reduced_gradients({.ranks = ranks, .accumulation = accumulation, .bucket_mib = bucket_mib});
        for (const torch::Tensor& gradient : gradients) {
          EXPECT_TRUE(equal_to_round_off(gradient, expected))
              << ranks << " ranks, accumulation " << accumulation << ", bucket " << bucket_mib;
          EXPECT_TRUE(torch::equal(gradient, gradients.front())) << "ranks differ in bits";
        }
      }
    }
  }
}

TEST(GradientReducer, gives_the_same_bits_from_run_to_run) {
  const Arrangement arrangement{.ranks = 4, .accumulation = 3, .bucket_mib = kTinyBucketMib};
  const torch::Tensor first = reduced_gradients(arrangement).front();
  for (int run = 0; run < 5; ++run) EXPECT_TRUE(torch::equal(reduced_gradients(arrangement).front(), first));
}

// A broken reduction on one rank, in bucket `target`; every mutant still takes part, so that nobody hangs.
using Mutation = std::function<void(comm::Buffer, const TamperingBackend::Forward&)>;

std::vector<torch::Tensor> mutated(int target, int broken_rank, const Mutation& mutation) {
  return reduced_gradients({.ranks = 3, .accumulation = 2, .bucket_mib = kTinyBucketMib, .wrap = [&](auto group) {
                              const bool broken = group.rank() == broken_rank || broken_rank < 0;
                              return tampered(group, [=](int call, const comm::Operation& op, const auto& forward) {
                                if (broken && call == target) {
                                  mutation(op.output, forward);
                                } else {
                                  forward(op.output);
                                }
                              });
                            }});
}

bool noticed(const std::vector<torch::Tensor>& gradients, const torch::Tensor& expected) {
  for (const torch::Tensor& gradient : gradients) {
    if (!equal_to_round_off(gradient, expected)) return true;
  }
  return false;
}

void scale(comm::Buffer buffer, double factor) {
  double* values = static_cast<double*>(buffer.data);
  for (std::int64_t i = 0; i < buffer.count; ++i) values[i] *= factor;
}

TEST(GradientReducer, comparison_catches_every_broken_reduction) {
  const torch::Tensor expected = single_rank_gradient();
  const std::vector<std::pair<std::string, Mutation>> mutations{
      {"none", [](comm::Buffer buffer, const auto& forward) { forward(buffer); }},
      {"dropped",
       [](comm::Buffer buffer, const auto& forward) {
         const double* values = static_cast<const double*>(buffer.data);
         std::vector<double> scratch(values, values + buffer.count);
         forward({scratch.data(), buffer.count, buffer.dtype});
       }},
      {"doubled",
       [](comm::Buffer buffer, const auto& forward) {
         forward(buffer);
         scale(buffer, 2.0);
       }},
      {"averaged",
       [](comm::Buffer buffer, const auto& forward) {
         forward(buffer);
         scale(buffer, 1.0 / 3.0);
       }},
      {"contribution missing",
       [](comm::Buffer buffer, const auto& forward) {
         scale(buffer, 0.0);
         forward(buffer);
       }},
      {"last element cut off",
       [](comm::Buffer buffer, const auto& forward) {
         std::vector<double> scratch(static_cast<double*>(buffer.data),
                                     static_cast<double*>(buffer.data) + buffer.count);
         forward({scratch.data(), buffer.count, buffer.dtype});
         std::copy(scratch.begin() + 1, scratch.end(), static_cast<double*>(buffer.data) + 1);
       }},
  };
  // Buckets in order of reduction: b_bias, b, unused (its gradient is zero: no mutant can show there), shared, ...
  for (const int bucket : {0, 1, 3, 5}) {
    for (const int rank : {-1, 0, 2}) {
      for (const auto& [name, mutation] : mutations) {
        EXPECT_EQ(noticed(mutated(bucket, rank, mutation), expected), name != "none")
            << name << ", bucket " << bucket << ", rank " << rank;
      }
    }
  }
}

TEST(GradientReducer, starts_buckets_in_reverse_order_the_first_one_small) {
  auto net = std::make_shared<TinyNet>(kWidth, torch::kFloat64);
  FlatParameters flat(net);
  comm::LocalWorld world(1);
  ReducerOptions options;
  options.bucket_mib = 25.0;
  options.first_bucket_mib = kTinyBucketMib;
  const GradientReducer reducer(flat, world.communicator(0), options);
  ASSERT_EQ(reducer.buckets().size(), 2u);
  EXPECT_EQ(reducer.buckets()[0].parameters.front().name, "b_bias");
  EXPECT_EQ(reducer.buckets()[1].parameters.front().name, "a");
  std::int64_t covered = 0;
  for (const Bucket& bucket : reducer.buckets()) covered += bucket.gradient.numel();
  EXPECT_EQ(covered, flat.length());
}

// Two branches; which one comes later in backward, and whether the second is used at all, depends on the rank.
struct Branches : torch::nn::Module {
  Branches() {
    left = register_parameter("left", random_tensor({8}, 1, torch::kFloat64));
    right = register_parameter("right", random_tensor({8}, 2, torch::kFloat64));
    idle = register_parameter("idle", random_tensor({8}, 3, torch::kFloat64));
  }
  torch::Tensor left, right, idle;
};

TEST(GradientReducer, reduces_parameters_that_only_some_ranks_used) {
  run_ranks(3, [](comm::Communicator group) {
    auto net = std::make_shared<Branches>();
    FlatParameters flat(net);
    ReducerOptions options;
    options.bucket_mib = kTinyBucketMib;
    GradientReducer reducer(flat, group, options);
    for (int step = 0; step < 3; ++step) {
      flat.zero_gradients();
      reducer.begin_micro_step(true);
      // Rank 0 uses left, rank 1 right then left, rank 2 has no samples and runs no backward at all.
      if (group.rank() == 0) net->left.sum().backward();
      if (group.rank() == 1) ((net->right * 10).sum() + (net->left * 100).sum()).backward();
      reducer.finish();
      EXPECT_TRUE(torch::equal(net->left.grad(), torch::full({8}, 101.0, torch::kFloat64)));
      EXPECT_TRUE(torch::equal(net->right.grad(), torch::full({8}, 10.0, torch::kFloat64)));
      EXPECT_TRUE(torch::equal(net->idle.grad(), torch::zeros({8}, torch::kFloat64)));
    }
    group.barrier().wait();
  });
}

TEST(GradientReducer, issues_operations_in_one_order_whatever_order_gradients_come_in) {
  std::vector<std::vector<std::int64_t>> sizes(2);
  run_ranks(2, [&](comm::Communicator group) {
    struct Chain : torch::nn::Module {
      Chain() {
        for (int i = 0; i < 4; ++i) {
          w.push_back(register_parameter("w" + std::to_string(i), torch::ones({64 * (i + 1)}, torch::kFloat64)));
        }
      }
      std::vector<torch::Tensor> w;
    };
    auto net = std::make_shared<Chain>();
    FlatParameters flat(net);
    ReducerOptions options;
    options.bucket_mib = kTinyBucketMib;
    std::vector<std::int64_t>& mine = sizes[static_cast<std::size_t>(group.rank())];
    comm::Communicator spying = tampered(group, [&](int, const comm::Operation& op, const auto& forward) {
      mine.push_back(op.output.count);
      forward(op.output);
    });
    GradientReducer reducer(flat, spying, options);
    reducer.begin_micro_step(true);
    torch::Tensor sum = torch::zeros({}, torch::kFloat64);
    for (int i = 0; i < 4; ++i) {
      const int which = group.rank() == 0 ? i : 3 - i;
      sum = torch::tanh(sum + net->w[static_cast<std::size_t>(which)].sum() * 0.001);
    }
    sum.backward();
    reducer.finish();
    group.barrier().wait();
  });
  EXPECT_EQ(sizes[0], (std::vector<std::int64_t>{256, 192, 128, 64}));
  EXPECT_EQ(sizes[1], sizes[0]);
}

TEST(GradientReducer, communicates_nothing_before_the_last_micro_step_and_nothing_alone) {
  const auto operations = [](int ranks, int accumulation) {
    std::int64_t count = 0;
    run_ranks(ranks, [&](comm::Communicator group) {
      auto net = std::make_shared<TinyNet>(kWidth, torch::kFloat64);
      FlatParameters flat(net);
      GradientReducer reducer(flat, group);
      accumulate(*net, reducer, group.rank(), {.ranks = ranks, .accumulation = accumulation});
      reducer.finish();
      if (group.rank() == 0) count = group.traffic()[comm::OpKind::kAllReduce].operations;
      if (ranks > 1) group.barrier().wait();
    });
    return count;
  };
  EXPECT_EQ(operations(1, 3), 0);
  EXPECT_EQ(operations(2, 3), operations(2, 1));
  EXPECT_GE(operations(2, 3), 1);
}

// Identity whose backward takes a while: stands for the computation that communication hides behind.
struct SlowBackward : torch::autograd::Function<SlowBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return gradients;
  }
};

TEST(GradientReducer, hides_communication_behind_backward) {
  constexpr int kLayers = 6;
  struct Deep : torch::nn::Module {
    Deep() {
      for (int i = 0; i < kLayers; ++i) {
        w.push_back(register_parameter("w" + std::to_string(i), torch::ones({64}, torch::kFloat64)));
      }
    }
    std::vector<torch::Tensor> w;
  };
  // Sleeping needs no processor, so a busy machine only delays; the best of a few attempts counts.
  double best = 1e9;
  for (int attempt = 0; attempt < 5; ++attempt) {
    run_ranks(2, [&](comm::Communicator group) {
      auto net = std::make_shared<Deep>();
      FlatParameters flat(net);
      comm::Communicator slow = tampered(group, [](int, const comm::Operation& op, const auto& forward) {
        forward(op.output);
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
      });
      ReducerOptions options;
      options.bucket_mib = kTinyBucketMib;
      GradientReducer reducer(flat, slow, options);
      torch::Tensor x = torch::ones({64}, torch::kFloat64);
      for (int i = 0; i < kLayers; ++i) x = SlowBackward::apply(x * net->w[static_cast<std::size_t>(i)]);
      const auto start = std::chrono::steady_clock::now();
      reducer.begin_micro_step(true);
      x.sum().backward();
      reducer.finish();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      EXPECT_EQ(reducer.statistics().launched_in_backward, kLayers);
      EXPECT_EQ(reducer.statistics().gradient_bytes, kLayers * 64 * 8);
      EXPECT_LT(reducer.statistics().wait_seconds, seconds);
      if (group.rank() == 0) best = std::min(best, seconds);
      group.barrier().wait();
    });
    if (best < 0.36) break;
  }
  // One after the other it would take at least 6 x 40 + 6 x 40 ms; overlapped about 7 x 40 ms.
  EXPECT_LT(best, 0.40);
}

TEST(GradientReducer, refuses_a_second_backward_once_gradients_are_on_their_way) {
  run_ranks(2, [](comm::Communicator group) {
    auto net = std::make_shared<Branches>();
    FlatParameters flat(net);
    GradientReducer reducer(flat, group);
    reducer.begin_micro_step(true);
    (net->left.sum() + net->right.sum() + net->idle.sum()).backward();
    EXPECT_THROW(net->left.sum().backward(), InternalError);
    reducer.finish();
    group.barrier().wait();
  });
}

TEST(GradientReducer, abandoning_a_step_frees_the_peers_at_once) {
  const auto start = std::chrono::steady_clock::now();
  run_ranks(2, [](comm::Communicator group) {
    auto net = std::make_shared<Branches>();
    FlatParameters flat(net);
    auto reducer = std::make_unique<GradientReducer>(flat, group);
    reducer->begin_micro_step(true);
    if (group.rank() == 1) {
      // The step dies between backward and finish(), with its all-reduce in flight.
      (net->left.sum() + net->right.sum() + net->idle.sum()).backward();
      reducer.reset();
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    try {
      reducer->finish();
    } catch (const Fault&) {
      return;  // rank 1 went away before rank 0 came
    }
    group.barrier().wait();
    ADD_FAILURE() << "rank 0 should have been told";
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(GradientReducer, refuses_a_bucket_without_size) {
  auto net = std::make_shared<Branches>();
  FlatParameters flat(net);
  comm::LocalWorld world(1);
  comm::Communicator group = world.communicator(0);
  ReducerOptions options;
  options.bucket_mib = 0.0;
  EXPECT_THROW(GradientReducer(flat, group, options), UserError);
}

}  // namespace
}  // namespace lockstep::parallel
