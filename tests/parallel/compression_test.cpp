#include "lockstep/parallel/compression.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradient_buckets.h"
#include "tests/parallel/ranks.h"

namespace lockstep::parallel {
namespace {

using spec::Compression;

const std::vector<std::vector<std::int64_t>> kShapes = {{64, 96}, {70}, {40, 80}, {16, 8, 5, 5}, {3, 3}};

struct Rank {
  Rank(comm::Communicator communicator, Compression kind, torch::ScalarType type, double bucket_mib = 0.02,
       const std::vector<std::vector<std::int64_t>>& shapes = kShapes)
      : group(std::move(communicator)) {
    std::int64_t offset = 0;
    for (const auto& sizes : shapes) {
      const std::int64_t count = c10::multiply_integers(sizes);
      ranges.push_back({std::string(1, static_cast<char>('a' + ranges.size())), sizes, offset, count});
      offset += count;
    }
    flat = torch::zeros({offset}, type);
    BucketOptions options;
    options.bucket_mib = bucket_mib;
    options.compression.kind = kind;
    options.compression.powersgd_rank = 2;
    buckets = std::make_unique<GradientBuckets>(flat, ranges, group, options, "test", [](const Bucket&) {});
  }
  torch::Tensor view(const torch::Tensor& whole, std::size_t i) const {
    return whole.narrow(0, ranges[i].offset, ranges[i].count).view(ranges[i].sizes);
  }
  // This rank's gradient of one step: a part shared by all ranks and steps, and noise.
  torch::Tensor gradient(int step) const {
    torch::Tensor result = torch::zeros_like(flat);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const auto& sizes = ranges[i].sizes;
      const torch::ScalarType type = result.scalar_type();
      view(result, i).copy_(random_tensor(sizes, 50 + static_cast<std::int64_t>(i), type) +
                            random_tensor(sizes, 1000 * step + 10 * group.rank() + 7, type));
    }
    return result;
  }
  torch::Tensor exchange(const torch::Tensor& gradient) {
    flat.copy_(gradient);
    buckets->finish();
    return flat.clone();
  }

  comm::Communicator group;
  std::vector<ParameterRange> ranges;
  torch::Tensor flat;
  std::unique_ptr<GradientBuckets> buckets;
};

constexpr int kRanks = 3;
const Compression kAllKinds[] = {Compression::kNone, Compression::kFp16, Compression::kBf16, Compression::kPowerSgd,
                                 Compression::kOneBit};

TEST(Compression, gives_every_rank_the_same_bits) {
  for (const Compression kind : kAllKinds) {
    std::vector<torch::Tensor> results(kRanks);
    run_ranks(kRanks, [&](comm::Communicator group) {
      Rank rank(group, kind, torch::kFloat32);
      torch::Tensor result;
      for (int step = 0; step < 4; ++step) result = rank.exchange(rank.gradient(step));
      results[static_cast<std::size_t>(group.rank())] = result;
      group.barrier().wait();
    });
    for (const torch::Tensor& result : results) EXPECT_TRUE(torch::equal(result, results[0])) << static_cast<int>(kind);
  }
}

TEST(Compression, by_casting_is_as_exact_as_the_narrow_type) {
  for (const auto& [kind, tolerance] : {std::pair{Compression::kFp16, 4e-3}, std::pair{Compression::kBf16, 3e-2}}) {
    run_ranks(kRanks, [&, kind = kind, tolerance = tolerance](comm::Communicator group) {
      Rank plain(group, Compression::kNone, torch::kFloat32);
      const torch::Tensor exact = plain.exchange(plain.gradient(0));
      Rank rank(group, kind, torch::kFloat32);
      const torch::Tensor narrow = rank.exchange(rank.gradient(0));
      EXPECT_LT((narrow - exact).abs().max().item<double>(), tolerance);
      EXPECT_GT((narrow - exact).abs().max().item<double>(), 0.0);
      group.barrier().wait();
    });
  }
}

// Sum over ranks of everything that error feedback still holds, laid out like the flat gradient.
torch::Tensor owed(Rank& rank, Compression kind) {
  torch::Tensor result = torch::zeros_like(rank.flat);
  const TensorMap state = rank.buckets->state();
  if (kind == Compression::kPowerSgd) {
    for (std::size_t i = 0; i < rank.ranges.size(); ++i) {
      const auto found = state.find("compression.powersgd.error." + rank.ranges[i].name);
      if (found != state.end()) rank.view(result, i).copy_(found->second.view(rank.ranges[i].sizes));
    }
  } else {
    for (const Bucket& bucket : rank.buckets->buckets()) {
      const std::int64_t begin = bucket.begin;
      const std::int64_t count = bucket.gradient.numel();
      const std::string suffix = std::to_string(bucket.index);
      result.narrow(0, begin, count).add_(state.at("compression.onebit.error." + suffix));
      const torch::Tensor& sum = state.at("compression.onebit.sum_error." + suffix);
      const std::int64_t from = std::min<std::int64_t>(count, rank.group.rank() * sum.numel());
      const std::int64_t length = std::min<std::int64_t>(sum.numel(), count - from);
      result.narrow(0, begin + from, length).add_(sum.narrow(0, 0, length));
    }
  }
  rank.group.all_reduce({result.data_ptr(), result.numel(), comm::DType::kF64}).wait();
  return result;
}

TEST(Compression, delays_gradients_but_loses_nothing) {
  for (const Compression kind : {Compression::kPowerSgd, Compression::kOneBit}) {
    run_ranks(kRanks, [&](comm::Communicator group) {
      Rank rank(group, kind, torch::kFloat64);
      torch::Tensor true_sum = torch::zeros_like(rank.flat);
      torch::Tensor sent = torch::zeros_like(true_sum);
      double owed_half_way = 0.0;
      for (int step = 0; step < 120; ++step) {
        const torch::Tensor gradient = rank.gradient(step);
        true_sum += gradient;
        sent += rank.exchange(gradient);
        if (step == 59) owed_half_way = owed(rank, kind).norm().item<double>();
      }
      group.all_reduce({true_sum.data_ptr(), true_sum.numel(), comm::DType::kF64}).wait();
      const torch::Tensor rest = owed(rank, kind);
      EXPECT_LT((sent + rest - true_sum).abs().max().item<double>(), 1e-10);
      EXPECT_GT(rest.abs().max().item<double>(), 1e-2) << "nothing was compressed";
      // What is owed does not pile up: a matrix of rank 64 takes 32 steps to get through, and then it stays so.
      EXPECT_LT(rest.norm().item<double>(), 1.3 * owed_half_way);
      group.barrier().wait();
    });
  }
}

TEST(PowerSgd, is_exact_for_a_gradient_of_low_rank) {
  run_ranks(kRanks, [&](comm::Communicator group) {
    Rank rank(group, Compression::kPowerSgd, torch::kFloat64);
    torch::Tensor gradient = torch::zeros_like(rank.flat);
    const torch::Tensor left = random_tensor({64, 2}, 5, torch::kFloat64);
    const torch::Tensor right = random_tensor({2, 96}, 6 + group.rank(), torch::kFloat64);
    rank.view(gradient, 0).copy_(left.mm(right));
    torch::Tensor expected = gradient.clone();
    group.all_reduce({expected.data_ptr(), expected.numel(), comm::DType::kF64}).wait();
    const torch::Tensor result = rank.exchange(gradient);
    EXPECT_LT((result - expected).abs().max().item<double>(), 1e-12);
    group.barrier().wait();
  });
}

TEST(PowerSgd, recovers_the_directions_that_a_zero_gradient_killed) {
  run_ranks(2, [&](comm::Communicator group) {
    Rank rank(group, Compression::kPowerSgd, torch::kFloat64);
    const torch::Tensor zero = torch::zeros_like(rank.flat);
    for (int step = 0; step < 3; ++step) EXPECT_EQ(rank.exchange(zero).abs().max().item<double>(), 0.0);
    torch::Tensor gradient = zero.clone();
    rank.view(gradient, 0)
        .copy_(random_tensor({64, 2}, 5, torch::kFloat64).mm(random_tensor({2, 96}, 6, torch::kFloat64)));
    EXPECT_LT((rank.exchange(gradient) - 2 * gradient).abs().max().item<double>(), 1e-12);
    group.barrier().wait();
  });
}

std::int64_t bytes_per_step(Compression kind) {
  std::int64_t bytes = 0;
  run_ranks(2, [&](comm::Communicator group) {
    Rank rank(group, kind, torch::kFloat32, 25.0);
    group.reset_traffic();
    rank.exchange(rank.gradient(0));
    if (group.rank() == 0) bytes = group.traffic().total_bytes();
    group.barrier().wait();
  });
  return bytes;
}

TEST(Compression, saves_the_bytes_it_promises) {
  const std::int64_t plain = bytes_per_step(Compression::kNone);
  EXPECT_GE(plain, 4 * (64 * 96 + 70 + 40 * 80 + 16 * 200 + 9));
  EXPECT_EQ(bytes_per_step(Compression::kFp16) * 2, plain);
  EXPECT_EQ(bytes_per_step(Compression::kBf16) * 2, plain);
  // Rank 2: factors of the three matrices, the vector and the small matrix whole.
  EXPECT_EQ(bytes_per_step(Compression::kPowerSgd), 4 * (2 * ((64 + 96) + (40 + 80) + (16 + 200)) + 70 + 9));
  // Two legs of one bit and 1/32 for scales: 2.06 of 32 bits, and parts rounded up to blocks.
  EXPECT_LT(bytes_per_step(Compression::kOneBit) * 13, plain);
}

TEST(Compression, continues_bit_for_bit_from_a_saved_state) {
  for (const Compression kind : {Compression::kPowerSgd, Compression::kOneBit}) {
    run_ranks(kRanks, [&](comm::Communicator group) {
      Rank first(group, kind, torch::kFloat32);
      for (int step = 0; step < 5; ++step) first.exchange(first.gradient(step));
      TensorMap saved;
      for (const auto& [name, tensor] : first.buckets->state()) saved.emplace(name, tensor.clone());
      Rank second(group, kind, torch::kFloat32);
      Rank forgetful(group, kind, torch::kFloat32);
      second.buckets->load_state(saved);
      bool differs = false;
      for (int step = 5; step < 10; ++step) {
        const torch::Tensor expected = first.exchange(first.gradient(step));
        EXPECT_TRUE(torch::equal(second.exchange(second.gradient(step)), expected)) << "step " << step;
        differs = differs || !torch::equal(forgetful.exchange(forgetful.gradient(step)), expected);
      }
      EXPECT_TRUE(differs) << "the state makes no difference, so this test proves nothing";
      group.barrier().wait();
    });
  }
}

TEST(Compression, refuses_a_state_that_does_not_fit) {
  for (const Compression kind : {Compression::kPowerSgd, Compression::kOneBit}) {
    run_ranks(2, [&](comm::Communicator group) {
      Rank rank(group, kind, torch::kFloat32);
      TensorMap state;
      for (const auto& [name, tensor] : rank.buckets->state()) state.emplace(name, tensor.clone());
      ASSERT_FALSE(state.empty());
      const std::string name = state.begin()->first;
      state[name] = torch::zeros({1});
      EXPECT_THROW(rank.buckets->load_state(state), UserError);
      state.erase(name);
      EXPECT_THROW(rank.buckets->load_state(state), UserError);
      group.barrier().wait();
    });
  }
}

TEST(Compression, shows_an_overflow_on_every_rank_and_recovers) {
  for (const Compression kind : kAllKinds) {
    run_ranks(kRanks, [&](comm::Communicator group) {
      Rank rank(group, kind, torch::kFloat32);
      rank.exchange(rank.gradient(0));
      torch::Tensor bad = rank.gradient(1);
      if (group.rank() == 1) bad[17] = std::numeric_limits<float>::infinity();
      EXPECT_FALSE(torch::isfinite(rank.exchange(bad)).all().item<bool>()) << static_cast<int>(kind);
      EXPECT_TRUE(torch::isfinite(rank.exchange(rank.gradient(2))).all().item<bool>()) << static_cast<int>(kind);
      group.barrier().wait();
    });
  }
}

// Least squares, y = x W with W [32, 24]; SGD with a fixed rate. Returns the loss at the start and at the end.
std::pair<double, double> trained_loss(Compression kind) {
  std::pair<double, double> result;
  run_ranks(2, [&](comm::Communicator group) {
    Rank rank(group, kind, torch::kFloat64, 25.0, {{32, 24}});
    torch::Tensor w = torch::zeros({32, 24}, torch::kFloat64);
    const torch::Tensor truth = random_tensor({32, 24}, 77, torch::kFloat64);
    for (int step = 0; step < 400; ++step) {
      const torch::Tensor x = random_tensor({64, 32}, 2 * step + group.rank(), torch::kFloat64);
      const torch::Tensor gradient = x.t().mm(x.mm(w) - x.mm(truth)) / 64.0;
      w.sub_(rank.exchange(gradient.reshape({-1})).view({32, 24}), 0.5);
      if (group.rank() == 0) {
        const double error = (w - truth).square().sum().item<double>();
        if (step == 0) result.first = error;
        result.second = error;
      }
    }
    group.barrier().wait();
  });
  return result;
}

TEST(Compression, trains_as_far_as_without) {
  const auto [start, plain] = trained_loss(Compression::kNone);
  ASSERT_LT(plain, 1e-3 * start);
  for (const Compression kind : {Compression::kBf16, Compression::kPowerSgd, Compression::kOneBit}) {
    const double end = trained_loss(kind).second;
    RecordProperty("distance_" + std::to_string(static_cast<int>(kind)), std::to_string(end / start));
    EXPECT_LT(end, 1e-3 * start) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace lockstep::parallel
