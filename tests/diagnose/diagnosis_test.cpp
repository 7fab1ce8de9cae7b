#include "lockstep/diagnose/diagnosis.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::diagnose {
namespace {

Finding finding(Cause cause, double cost, double confidence = 0.9) {
  Finding made;
  made.cause = cause;
  made.cost_percent = cost;
  made.confidence = confidence;
  made.evidence = "seen";
  made.fix = "lockstep train job.yaml loader.num_workers=4";
  return made;
}

TEST(Settle, PutsTheDearestFirstAndKeepsThree) {
  Diagnosis diagnosis;
  diagnosis.findings = {finding(Cause::kLoader, 6), finding(Cause::kBubble, 40), finding(Cause::kSlowLink, 12),
                        finding(Cause::kCrash, 100)};
  settle(diagnosis);
  ASSERT_EQ(diagnosis.findings.size(), kMostFindings);
  EXPECT_EQ(diagnosis.findings[0].cause, Cause::kCrash);
  EXPECT_EQ(diagnosis.findings[1].cause, Cause::kBubble);
  EXPECT_EQ(diagnosis.findings[2].cause, Cause::kSlowLink);
}

TEST(Settle, DropsWhatIsNotWorthSayingAndWhatIsNoNumber) {
  Diagnosis diagnosis;
  diagnosis.findings = {finding(Cause::kLoader, kWorthSayingPercent - 0.1), finding(Cause::kBubble, std::nan(""))};
  settle(diagnosis);
  EXPECT_TRUE(diagnosis.findings.empty());
}

TEST(Settle, PutsTheSurerFirstAmongEquals) {
  Diagnosis diagnosis;
  diagnosis.findings = {finding(Cause::kLoader, 20, 0.5), finding(Cause::kBubble, 20, 0.8)};
  settle(diagnosis);
  EXPECT_EQ(diagnosis.findings[0].cause, Cause::kBubble);
}

TEST(Text, OfAHealthyRunSaysSo) {
  Diagnosis diagnosis;
  diagnosis.read.push_back({"20261118-a", "run", 4});
  EXPECT_EQ(to_text(diagnosis), "run 20261118-a, 4 ranks\nhealthy: nothing that costs more than 4% of the step\n");
}

TEST(Text, ManyFilesOfAFolderShareALine) {
  Diagnosis diagnosis;
  for (int rank = 0; rank < 16; ++rank) diagnosis.read.push_back({fmt::format("dumps/{}", rank), "flight_recorder", 1});
  diagnosis.read.push_back({"kern.log", "kernel_log", 0});
  const std::string text = to_text(diagnosis);
  EXPECT_EQ(text.substr(0, text.find("healthy")), "flight_recorder dumps: 16 files, 16 ranks\nkernel_log kern.log\n");
}

TEST(Text, HasCostEvidenceFixAndGainAndNoControlCharacters) {
  Diagnosis diagnosis;
  Finding made = finding(Cause::kSlowRank, 30);
  made.ranks = {0, 1, 2, 3, 6};
  made.evidence = "computes\x1b[2J 40% longer";
  made.gain_percent = 43;
  made.cost_usd_per_hour = 12.5;
  diagnosis.findings.push_back(made);
  const std::string text = to_text(diagnosis);
  for (const char* piece : {"1. slow_rank, ranks 0-3, 6", "30% of the step", "$12.50 per hour", "40% longer (90% sure)",
                            "loader.num_workers=4", "about 43% more per second"}) {
    EXPECT_NE(text.find(piece), std::string::npos) << piece << "\n" << text;
  }
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Json, HasTheNamesOfTheContract) {
  Diagnosis diagnosis;
  diagnosis.read.push_back({"a.json", "kineto", 1});
  diagnosis.findings.push_back(finding(Cause::kHostBound, 20));
  const nlohmann::json document = to_json(diagnosis);
  EXPECT_EQ(document["schema"], "lockstep.diagnosis/1");
  EXPECT_EQ(document["read"][0]["kind"], "kineto");
  const nlohmann::json& first = document["findings"][0];
  EXPECT_EQ(first["cause"], "host_bound");
  for (const char* key : {"confidence", "cost_percent", "ranks", "evidence", "fix", "gain_percent"}) {
    EXPECT_TRUE(first.contains(key)) << key;
  }
  EXPECT_TRUE(first["cost_usd_per_hour"].is_null());
}

}  // namespace
}  // namespace lockstep::diagnose
