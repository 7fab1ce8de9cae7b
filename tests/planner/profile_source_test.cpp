#include "lockstep/planner/profile_source.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/base/file.h"

namespace lockstep::planner {
namespace {

// A home of its own, and no profile named by the environment.
class ProfileSource : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("LOCKSTEP_HOME", folder_.path().c_str(), 1);
    unsetenv("LOCKSTEP_PROFILE");
    std::filesystem::create_directories(folder_.path() / "profiles");
  }
  void TearDown() override {
    unsetenv("LOCKSTEP_HOME");
    unsetenv("LOCKSTEP_PROFILE");
  }

  static std::optional<cost::Profile> find(const std::string& cluster_name, const std::string& name = "") {
    const spec::Cluster cluster = spec::load_cluster(cluster_name);
    const spec::Precision precision = cluster.is_cpu() ? spec::Precision::kFp32 : spec::Precision::kBf16;
    return find_profile(cluster, precision, ranks_here(cluster, 1, "", cluster.devices()), name);
  }

  static std::string identity(const std::optional<cost::Profile>& profile) {
    return profile ? profile->identity() : "none";
  }

  TemporaryFolder folder_;
};

TEST_F(ProfileSource, a_name_and_a_file_mean_the_same) {
  const std::string file = (folder_.path() / "mine.json").string();
  cost::save_profile(cost::find_profile("H100"), file);
  EXPECT_EQ(identity(find("1x8xA100", "H100")), cost::find_profile("H100").identity());
  EXPECT_EQ(identity(find("1x8xA100", file)), cost::find_profile("H100").identity());
}

TEST_F(ProfileSource, the_environment_names_one_where_the_caller_does_not) {
  setenv("LOCKSTEP_PROFILE", "H100", 1);
  EXPECT_EQ(identity(find("1x2xcpu")), cost::find_profile("H100").identity());
  EXPECT_EQ(identity(find("1x2xcpu", "A100")), cost::find_profile("A100").identity());
}

TEST_F(ProfileSource, what_was_measured_on_this_gpu_prices_one_of_its_kind) {
  cost::Profile measured = cost::find_profile("H200-lockstep");
  measured.provenance.date = "2001-01-01";
  cost::save_profile(measured, device_profile_path("cuda").string());
  EXPECT_EQ(identity(find("1x1xH200")), measured.identity());
  EXPECT_NE(identity(find("1x8xH200")), measured.identity()) << "one device says nothing about links";
  EXPECT_NE(identity(find("1x1xH100")), measured.identity());
}

TEST_F(ProfileSource, processors_are_priced_by_what_was_measured_with_as_many_ranks) {
  EXPECT_EQ(identity(find("1x2xcpu")), "none");
  cost::Profile measured = cost::find_profile("H100");
  measured.provenance.hardware = "this machine";
  cost::save_profile(measured,
                     profile_path({.world = 2, .threads = 1, .backend = "tcp"}, spec::Precision::kFp32).string());
  EXPECT_EQ(identity(find("1x2xcpu")), measured.identity());
  EXPECT_EQ(identity(find("1x4xcpu")), "none");
}

TEST_F(ProfileSource, gpus_that_were_not_measured_are_priced_as_others_of_their_kind) {
  EXPECT_EQ(identity(find("1x8xH100")), cost::engine_profile_for(spec::load_cluster("1x8xH100")).identity());
}

}  // namespace
}  // namespace lockstep::planner
