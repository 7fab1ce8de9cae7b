#include "lockstep/elastic/token_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <future>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::elastic {
namespace {

class TokenFile : public testing::Test {
 protected:
  TokenFile() { ::unsetenv("LOCKSTEP_TOKEN"); }
  TemporaryFolder folder_;
  const std::filesystem::path home_ = folder_.path() / "home";
};

TEST_F(TokenFile, is_made_for_its_owner_alone_and_stays) {
  const std::string token = shared_token(home_);
  EXPECT_EQ(token.size(), 64u);
  struct stat status {};
  ASSERT_EQ(::stat((home_ / "token").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(shared_token(home_), token);
}

TEST_F(TokenFile, is_the_same_for_nodes_that_make_it_at_once) {
  std::vector<std::future<std::string>> nodes;
  for (int i = 0; i < 16; ++i) nodes.push_back(std::async(std::launch::async, [this] { return shared_token(home_); }));
  std::set<std::string> tokens;
  for (auto& node : nodes) tokens.insert(node.get());
  EXPECT_EQ(tokens.size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(home_), {}), 1) << "no part is left";
}

TEST_F(TokenFile, that_others_can_read_is_refused_with_the_fix) {
  shared_token(home_);
  ::chmod((home_ / "token").c_str(), 0644);
  try {
    shared_token(home_);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("chmod 600"), std::string::npos) << error.what();
  }
}

TEST_F(TokenFile, is_not_looked_at_when_the_variable_is_set) {
  ::setenv("LOCKSTEP_TOKEN", "of the user", 1);
  EXPECT_EQ(shared_token(home_), "of the user");
  EXPECT_FALSE(std::filesystem::exists(home_));
  ::unsetenv("LOCKSTEP_TOKEN");
}

}  // namespace
}  // namespace lockstep::elastic
