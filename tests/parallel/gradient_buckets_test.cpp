#include "lockstep/parallel/gradient_buckets.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradient_hooks.h"
#include "tests/parallel/ranks.h"

namespace lockstep::parallel {
namespace {

constexpr double kTinyBucketMib = 1e-6;  // every parameter is a bucket of its own
constexpr double kSmallBucketMib = 0.005;
const std::vector<std::int64_t> kSizes = {165, 33, 1089, 21, 66, 2};

struct Flat {
  explicit Flat(const std::vector<std::int64_t>& sizes = kSizes) {
    std::int64_t offset = 0;
    for (const std::int64_t size : sizes) {
      ranges.push_back({"p" + std::to_string(ranges.size()), {size}, offset, size});
      offset += size;
    }
    gradient = torch::zeros({offset}, torch::kFloat64);
  }
  GradientBuckets buckets(comm::Communicator group, double bucket_mib) {
    return GradientBuckets(gradient, ranges, std::move(group), {.bucket_mib = bucket_mib}, "test",
                           [this](const Bucket& bucket) { prepared.push_back(bucket.index); });
  }
  std::vector<ParameterRange> ranges;
  torch::Tensor gradient;
  std::vector<std::size_t> prepared;
};

comm::Communicator none() { return {}; }

// The sum over the ranks of every rank's values, by buckets whose parameters get ready in the order given.
std::vector<torch::Tensor> summed(int ranks, double bucket_mib, const std::vector<std::size_t>& order) {
  std::vector<torch::Tensor> result(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](comm::Communicator group) {
    Flat flat;
    GradientBuckets buckets = flat.buckets(ranks > 1 ? group : none(), bucket_mib);
    for (int step = 0; step < 2; ++step) {
      flat.gradient.copy_(random_tensor({flat.gradient.numel()}, 10 * step + group.rank(), torch::kFloat64));
      for (const std::size_t parameter : order) buckets.ready(parameter);
      buckets.finish();
    }
    result[static_cast<std::size_t>(group.rank())] = flat.gradient.clone();
    if (ranks > 1) group.barrier().wait();
  });
  return result;
}

TEST(GradientBuckets, sum_over_any_ranks_with_any_bucket_size) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    torch::Tensor expected = torch::zeros({1376}, torch::kFloat64);
    for (int rank = 0; rank < ranks; ++rank) expected += random_tensor({1376}, 10 + rank, torch::kFloat64);
    for (const double bucket_mib : {kTinyBucketMib, kSmallBucketMib, 25.0}) {
      const auto results = summed(ranks, bucket_mib, {5, 4, 3, 2, 1, 0});
      for (const torch::Tensor& gradient : results) {
        EXPECT_LT((gradient - expected).abs().max().item<double>(), 1e-14) << ranks << " ranks, " << bucket_mib;
        EXPECT_TRUE(torch::equal(gradient, results.front())) << "ranks differ in bits";
      }
    }
  }
}

TEST(GradientBuckets, reduce_what_never_got_ready_too) {
  EXPECT_TRUE(torch::equal(summed(3, kTinyBucketMib, {4, 1}).front(), summed(3, 25.0, {5, 4, 3, 2, 1, 0}).front()));
}

TEST(GradientBuckets, start_from_the_end_the_first_one_small) {
  comm::LocalWorld world(2);
  Flat flat({100000, 200000, 300000});
  GradientBuckets all(flat.gradient, flat.ranges, world.communicator(0), {.bucket_mib = 25.0}, "test",
                      [](const Bucket&) {});
  ASSERT_EQ(all.buckets().size(), 2u);
  EXPECT_EQ(all.buckets()[0].begin, 300000);  // 2.3 MiB, above the first one's limit of 1
  EXPECT_EQ(all.buckets()[1].begin, 0);
  EXPECT_EQ(all.buckets()[1].parameters.size(), 2u);
}

TEST(GradientBuckets, issue_operations_in_one_order_whatever_order_gradients_come_in) {
  std::vector<std::vector<std::int64_t>> sizes(2);
  run_ranks(2, [&](comm::Communicator group) {
    std::vector<std::int64_t>& mine = sizes[static_cast<std::size_t>(group.rank())];
    comm::Communicator spying = tampered(group, [&](int, const comm::Operation& op, const auto& forward) {
      mine.push_back(op.output.count);
      forward(op.output);
    });
    Flat flat;
    GradientBuckets buckets = flat.buckets(spying, kTinyBucketMib);
    std::vector<std::size_t> order(kSizes.size());
    std::iota(order.begin(), order.end(), 0);
    if (group.rank() == 1) std::reverse(order.begin(), order.end());
    for (const std::size_t parameter : order) buckets.ready(parameter);
    buckets.finish();
    group.barrier().wait();
  });
  EXPECT_EQ(sizes[0], (std::vector<std::int64_t>{2, 66, 21, 1089, 33, 165}));
  EXPECT_EQ(sizes[1], sizes[0]);
}

TEST(GradientBuckets, start_as_soon_as_all_their_parameters_are_ready) {
  run_ranks(2, [&](comm::Communicator group) {
    Flat flat;
    GradientBuckets buckets = flat.buckets(group, kTinyBucketMib);
    buckets.ready(4);
    EXPECT_EQ(buckets.started(), 0u) << "the last parameter's bucket goes first";
    buckets.ready(5);
    EXPECT_EQ(buckets.started(), 2u);
    EXPECT_EQ(flat.prepared, (std::vector<std::size_t>{0, 1}));
    buckets.finish();
    EXPECT_EQ(flat.prepared.size(), kSizes.size());
    group.barrier().wait();
  });
}

TEST(GradientBuckets, of_a_rank_alone_are_one_that_is_prepared_and_goes_nowhere) {
  Flat flat;
  GradientBuckets buckets = flat.buckets({}, kTinyBucketMib);
  buckets.finish();
  EXPECT_EQ(flat.prepared, (std::vector<std::size_t>{0}));
}

TEST(GradientBuckets, free_the_peers_at_once_when_a_step_is_abandoned) {
  run_ranks(2, [](comm::Communicator group) {
    Flat flat;
    auto buckets = std::make_unique<GradientBuckets>(flat.gradient, flat.ranges, group, BucketOptions{}, "test",
                                                     [](const Bucket&) {});
    if (group.rank() == 1) {
      // The step dies between backward and finish(), with its all-reduce in flight.
      for (std::size_t i = 0; i < kSizes.size(); ++i) buckets->ready(i);
      buckets.reset();
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    try {
      buckets->finish();
    } catch (const Fault&) {
      return;  // rank 1 went away before rank 0 came
    }
    group.barrier().wait();
    ADD_FAILURE() << "rank 0 should have been told";
  });
}

TEST(GradientBuckets, refuse_to_have_no_size) {
  Flat flat;
  EXPECT_THROW(flat.buckets({}, 0.0), UserError);
}

TEST(GradientHooks, call_once_per_backward_after_all_uses_were_summed) {
  TinyNet net(9, torch::kFloat64);
  std::vector<torch::Tensor> seen;
  {
    const GradientHooks hooks({net.shared, net.unused}, [&](std::size_t i) {
      seen.push_back((i == 0 ? net.shared : net.unused).grad().clone());
    });
    net.forward(random_tensor({4, 5}, 8, torch::kFloat64)).sum().backward();
  }
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(torch::equal(seen[0], net.shared.grad()));
  net.forward(random_tensor({4, 5}, 8, torch::kFloat64)).sum().backward();
  EXPECT_EQ(seen.size(), 1u) << "called after their end";
}

}  // namespace
}  // namespace lockstep::parallel
