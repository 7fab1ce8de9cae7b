#include "lockstep/parallel/same_parameters.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/parallel/ranks.h"

namespace lockstep::parallel {
namespace {

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

std::vector<nn::DeclaredParameter> declared(const Shapes& shapes) {
  std::vector<nn::DeclaredParameter> result;
  for (const auto& [name, sizes] : shapes) result.push_back({name, torch::ones(sizes), {.whole = sizes}, {}});
  return result;
}

// What check_same_parameters() says on each rank; rank 1 holds the second model.
std::vector<std::string> messages(const Shapes& first, const Shapes& second) {
  std::vector<std::string> result(3);
  run_ranks(3, [&](comm::Communicator group) {
    try {
      check_same_parameters(declared(group.rank() == 1 ? second : first), group);
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
