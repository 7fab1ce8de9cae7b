#include "lockstep/cost/profile/profile.h"

#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::cost {
namespace {

Profile sample_profile() {
  Profile profile;
  profile.provenance = {"2 x some CPU", "libtorch 1.13", "0.1.0", "2026-01-02T03:04:05Z", "by hand", 4, 1, 2, "gloo"};
  profile.peak_flops = 5e10 / 3;
  profile.matmuls = {{MatmulKind::kWeightGradient, spec::Precision::kBf16, 1, 2, 3, 1e9 / 7, 0.03}};
  profile.attention = {{spec::Precision::kFp32, true, 8, 128, 32, 1e-3, 2e-3, 0.1}};
  profile.pointwise = {{PointwiseKernel::kResidualAdd, spec::Precision::kFp32, 4096, 0, 1e-6, 0.2},
                       {PointwiseKernel::kAveragePool, spec::Precision::kFp32, 16, 1e-6, 1e-6, 0.2}};
  profile.memory_bytes_per_second = 1e10;
  profile.operator_seconds = 1e-6;
  profile.backward_operator_seconds = 2e-6;
  profile.optimizer_bytes_per_second = 5e9;
  profile.collectives = {{CollectiveOp::kSendReceive, 4, 1024, 1e-4, 0.1}};
  profile.overlap = 0.25;
  profile.framework_bytes = 3e8;
  profile.checks = {{"c", CheckFamily::kImage, 0.1, 0.12, 0.02},
                    {"d", CheckFamily::kTransformer, 0.1, 0.12, 0.02, 1e9}};
  profile.checks[1].workload = CheckWorkload{.precision = spec::Precision::kBf16, .ranks = 2, .micro = 3};
  profile.checks[1].workload->model.layers = 7;
  return profile;
}

std::string error_after(const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json document = to_json(sample_profile());
  change(document);
  try {
    read_profile(document, "p.json");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(ProfileFile, comes_back_the_same_through_a_file) {
  const TemporaryFolder folder("profile");
  const std::string path = (folder.path() / "here.json").string();
  save_profile(sample_profile(), path);
  const Profile back = load_profile(path);
  EXPECT_EQ(to_json(back), to_json(sample_profile()));
  EXPECT_EQ(back.matmuls[0].flops_per_second, 1e9 / 7);
  EXPECT_EQ(back.matmuls[0].kind, MatmulKind::kWeightGradient);
  EXPECT_EQ(back.pointwise[0].kernel, PointwiseKernel::kResidualAdd);
  EXPECT_EQ(back.checks[0].family, CheckFamily::kImage);
  EXPECT_FALSE(back.checks[0].workload.has_value());
  EXPECT_EQ(back.checks[1].workload->model.layers, 7);
  EXPECT_EQ(back.checks[1].peak_bytes, 1e9);
  EXPECT_EQ(back.identity(), sample_profile().identity());
}

TEST(ProfileFile, keeps_every_fact_of_a_stack) {
  Profile profile = sample_profile();
  profile.fitted = Fitted{.hardware = "H200", .stack = "lockstep"};
  EXPECT_FALSE(to_json(profile)["fitted"]["facts"].contains("scatters_experts"));  // nothing to say: as most stacks
  profile.fitted->facts = lockstep_facts({.reduce_each_micro_step = true, .reshard_after_forward = false});
  EXPECT_EQ(read_profile(to_json(profile), "p.json").fitted->facts, profile.fitted->facts);
}

TEST(ProfileFile, errors_name_the_path) {
  EXPECT_EQ(error_after([](nlohmann::json&) {}), "");
  EXPECT_NE(error_after([](nlohmann::json& json) {
              json["tables"]["matmuls"][0]["flops_per_second"] = -1;
            }).find("matmuls[0].flops_per_second"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["tables"]["matmuls"][0]["m"] = 0; }).find("matmuls[0].m"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) {
              json["tables"]["pointwise"][1]["kernel"] = "averagepool";
            }).find("did you mean `average_pool`"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["tables"]["overlap"] = 1.5; }).find("overlap"),
            std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["provenance"].erase("ranks"); }).find("provenance.ranks"),
            std::string::npos);
  EXPECT_NE(
      error_after([](nlohmann::json& json) { json["tables"]["collectives"] = 3; }).find("collectives` is not a list"),
      std::string::npos);
  EXPECT_NE(error_after([](nlohmann::json& json) { json["extra"] = 3; }).find("`extra` is an unknown key"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::cost
