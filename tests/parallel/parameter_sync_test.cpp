#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradient_reducer.h"
#include "tests/parallel/ranks.h"

namespace lockstep::parallel {
namespace {

struct WithBuffers : torch::nn::Module {
  explicit WithBuffers(int rank) {
    w = register_parameter("w", torch::full({3, 2}, static_cast<float>(rank)));
    mean = register_buffer("mean", torch::full({4}, static_cast<float>(rank)));
    count = register_buffer("count", torch::full({}, rank, torch::kInt64));
    mask = register_buffer("mask", torch::full({5}, rank == 0, torch::kBool));
    turned = register_buffer("turned", (torch::arange(6) + rank).view({2, 3}).t());
  }
  torch::Tensor w, mean, count, mask, turned;
};

TEST(BroadcastParameters, makes_every_rank_hold_rank_zeros_parameters_and_buffers) {
  run_ranks(3, [](comm::Communicator group) {
    auto net = std::make_shared<WithBuffers>(group.rank());
    FlatParameters flat(net);
    broadcast_parameters(flat, group);
    const WithBuffers zero(0);
    EXPECT_TRUE(torch::equal(net->w, zero.w));
    EXPECT_TRUE(torch::equal(net->mean, zero.mean));
    EXPECT_TRUE(torch::equal(net->count, zero.count));
    EXPECT_TRUE(torch::equal(net->mask, zero.mask));
    EXPECT_TRUE(torch::equal(net->turned, zero.turned));
    group.barrier().wait();
  });
}

TEST(BroadcastParameters, sends_the_master_weights_too) {
  struct One : torch::nn::Module {
    One() { register_parameter("w", torch::ones({3}, torch::kBFloat16)); }
  };
  run_ranks(2, [](comm::Communicator group) {
    FlatOptions options;
    options.gradient_dtype = torch::kFloat32;
    options.master_dtype = torch::kFloat32;
    FlatParameters flat(std::make_shared<One>(), options);
    flat.master().fill_(1.0f + static_cast<float>(group.rank()) / 1024.0f);
    broadcast_parameters(flat, group);
    EXPECT_EQ(flat.master().max().item<float>(), 1.0f);
    group.barrier().wait();
  });
}

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

struct Named : torch::nn::Module {
  explicit Named(const Shapes& parameters) {
    for (const auto& [name, sizes] : parameters) register_parameter(name, torch::ones(sizes));
  }
};

// What check_same_parameters() says on each rank; rank 1 holds the second model.
std::vector<std::string> messages(const Shapes& first, const Shapes& second) {
  std::vector<std::string> result(3);
  run_ranks(3, [&](comm::Communicator group) {
    FlatParameters flat(std::make_shared<Named>(group.rank() == 1 ? second : first));
    try {
      check_same_parameters(flat, group);
    } catch (const UserError& error) {
      result[static_cast<std::size_t>(group.rank())] = error.what();
    }
    group.barrier().wait();
  });
  return result;
}

TEST(CheckSameParameters, is_silent_when_all_ranks_agree) {
  const Shapes net({{"a", {2, 3}}, {"b", {3}}});
  EXPECT_EQ(messages(net, net), (std::vector<std::string>{"", "", ""}));
}

TEST(CheckSameParameters, names_the_first_difference_on_every_rank) {
  const Shapes first({{"a", {2, 3}}, {"b", {3}}, {"c", {1}}});
  const Shapes second({{"a", {2, 3}}, {"b", {4}}, {"d", {1}}});
  for (const std::string& message : messages(first, second)) {
    EXPECT_NE(message.find("ranks 0 and 1"), std::string::npos) << message;
    EXPECT_NE(message.find("b [3]"), std::string::npos) << message;
    EXPECT_NE(message.find("b [4]"), std::string::npos) << message;
  }
}

TEST(CheckSameParameters, notices_a_missing_parameter) {
  const Shapes first({{"a", {2, 3}}, {"b", {3}}});
  const Shapes second({{"a", {2, 3}}});
  for (const std::string& message : messages(first, second)) {
    EXPECT_NE(message.find("b [3]"), std::string::npos) << message;
    EXPECT_NE(message.find("absent"), std::string::npos) << message;
  }
}

TEST(CheckSameParameters, notices_two_parameters_in_another_order) {
  const Shapes first({{"a", {2}}, {"b", {2}}});
  const Shapes second({{"b", {2}}, {"a", {2}}});
  for (const std::string& message : messages(first, second)) EXPECT_NE(message, "");
}

}  // namespace
}  // namespace lockstep::parallel
