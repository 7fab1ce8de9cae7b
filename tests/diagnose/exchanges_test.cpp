// Who came last, and what the transfer itself took: from spans of all members.
#include "lockstep/diagnose/exchanges.h"

#include <gtest/gtest.h>

#include "lockstep/diagnose/statistics.h"
#include "tests/diagnose/synthetic.h"

namespace lockstep::diagnose {
namespace {

using telemetry::SpanBatch;

TEST(Exchanges, NameTheMemberThatCameLast) {
  std::vector<SpanBatch> batches;
  for (int step = 1; step <= 5; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      batches.push_back(made_spans(rank, step, {{rank == 1 ? 0.030F : 0.010F, rank == 1 ? 0.005F : 0.025F, 4096}}));
    }
  }
  const auto exchanges = match_exchanges(batches, false);
  ASSERT_EQ(exchanges.size(), 5U);
  EXPECT_EQ(exchanges[0].last_rank(), 1);
  EXPECT_NEAR(exchanges[0].lateness(), 0.020, 1e-4);
  EXPECT_NEAR(exchanges[0].transfer_seconds(), 0.005, 1e-4);
  const std::vector<Part> parts = parts_by_rank(exchanges, 3);
  EXPECT_NEAR(parts[1].late, 0.020, 1e-4);
  EXPECT_NEAR(parts[0].late, 0.0, 1e-9);
  EXPECT_NEAR(parts[0].waited, 0.020, 1e-4);
  EXPECT_NEAR(parts[0].moved, 0.005, 1e-4);
  EXPECT_NEAR(parts[0].moved_share(), 0.2, 0.01);
}

TEST(Exchanges, AlignClocksOfNodesByTheirEnds) {
  std::vector<SpanBatch> batches;
  for (int step = 1; step <= 5; ++step) {
    for (int rank = 0; rank < 4; ++rank) {
      SpanBatch batch = made_spans(rank, step, {{rank == 2 ? 0.030F : 0.010F, rank == 2 ? 0.005F : 0.025F, 4096}});
      if (rank == 3) batch.time += 7.0;  // its clock is wrong
      batches.push_back(batch);
    }
  }
  EXPECT_EQ(match_exchanges(batches, false)[0].last_rank(), 3);
  const auto exchanges = match_exchanges(batches, true);
  EXPECT_EQ(exchanges[0].last_rank(), 2);
  EXPECT_NEAR(exchanges[0].lateness(), 0.020, 1e-3);
}

TEST(Exchanges, OfOneMemberAloneAreLeftOut) {
  const std::vector<SpanBatch> batches = {made_spans(0, 1, {{0.0F, 0.1F, 10}})};
  EXPECT_TRUE(match_exchanges(batches, false).empty());
}

void add_spans(MadeRun& made, int ranks, const std::function<MadeExchange(int rank, int number)>& exchange, int count) {
  for (int step = 10; step <= made.steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<MadeExchange> all;
      for (int number = 0; number < count; ++number) all.push_back(exchange(rank, number));
      made.more.emplace_back(made_spans(rank, step, all));
    }
  }
}

TEST(SlowLink, IsNotTheVictimsOfASlowRank) {
  MadeRun made;  // rank 2 always comes 30 ms late, so that its peers' exchanges take long without being slow
  made.change = [](int rank, int, MadeStep& one) {
    if (rank == 2) one.backward += 0.030;
  };
  add_spans(
      made, 4,
      [](int rank, int) {
        return rank == 2 ? MadeExchange{0.130F, 0.004F, 1 << 20} : MadeExchange{0.100F, 0.034F, 1 << 20};
      },
      1);
  const Diagnosis found = diagnose(made);
  ASSERT_EQ(found.findings.size(), 1U) << to_text(found);
  EXPECT_EQ(found.findings[0].cause, Cause::kSlowRank);
  EXPECT_EQ(found.findings[0].ranks, std::vector<int>{2});
  EXPECT_GE(found.findings[0].confidence, 0.9);
}

TEST(SlowLink, OfTheRankWhoseExchangesEndLate) {
  MadeRun made;
  made.change = [](int, int, MadeStep& one) { one.transfer = 0.030; };
  add_spans(
      made, 4,
      [](int rank, int) {
        return MadeExchange{0.100F, rank == 3 ? 0.040F : 0.004F, 1 << 20};
      },
      1);
  const Diagnosis found = diagnose(made);
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].cause, Cause::kSlowLink) << to_text(found);
  EXPECT_EQ(found.findings[0].ranks, std::vector<int>{3}) << to_text(found);
}

TEST(SlowLink, OfEverybodyIsSlowerThanAnySoundLink) {
  MadeRun made;
  made.change = [](int, int, MadeStep& one) { one.transfer = 0.120; };
  add_spans(
      made, 4,
      [](int, int) {
        return MadeExchange{0.100F, 0.120F, 1 << 20};
      },
      1);
  const Diagnosis found = diagnose(made);
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].cause, Cause::kSlowLink) << to_text(found);
}

TEST(SmallMessages, OfBucketsThatAreTiny) {
  MadeRun made;
  made.change = [](int, int, MadeStep& one) { one.transfer = 0.040; };
  add_spans(
      made, 4,
      [](int, int number) {
        return MadeExchange{0.050F + 0.001F * static_cast<float>(number), 0.0008F, 4096};
      },
      50);
  const Diagnosis found = diagnose(made);
  ASSERT_FALSE(found.findings.empty());
  EXPECT_EQ(found.findings[0].cause, Cause::kSmallMessages) << to_text(found);
  EXPECT_NE(found.findings[0].fix.find("communication.bucket"), std::string::npos);
}

TEST(Statistics, LeaveOutWhatIsOddOrNoNumber) {
  const std::vector<double> values = {1, 2, 3, std::nan(""), 100};
  EXPECT_DOUBLE_EQ(median(values), 2.5);
  EXPECT_DOUBLE_EQ(trimmed_mean(values), 2.0);
  EXPECT_DOUBLE_EQ(median({}), 0.0);
  EXPECT_NEAR(slope(std::vector<double>{0, 2, 4, 90, 8, 10}), 2.0, 1e-9);
  EXPECT_TRUE(is_clearly_positive(std::vector<double>{1, 1.1, 0.9, 1, 1.05}));
  EXPECT_FALSE(is_clearly_positive(std::vector<double>{1, -1.1, 0.9, -1, 1.05}));
}

}  // namespace
}  // namespace lockstep::diagnose
