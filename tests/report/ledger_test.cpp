#include "lockstep/report/ledger.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/permutation.h"

namespace lockstep::report {
namespace {

using telemetry::Ledger;
using telemetry::LedgerEntry;
using telemetry::SampleOrder;
using telemetry::SamplesRead;

constexpr SampleOrder kOrder{100, 7, true};

// What a data rank reads: `count` samples from `place` of the stream on.
SamplesRead part(std::int64_t place, std::int64_t count) { return samples_at(kOrder, place, count); }

LedgerEntry step_of(std::int64_t step, std::int64_t first, std::int64_t places, const SamplesRead& read) {
  return {.first_step = step, .last_step = step, .first = first, .places = places, .read = read};
}

// Steps 1..steps of 8 samples, each read by four data ranks of two. `spoil` may change what is recorded.
Ledger run_of(std::int64_t steps, const std::function<void(LedgerEntry&)>& spoil = {}) {
  Ledger ledger;
  ledger.go_on(kOrder, 0, 0);
  for (std::int64_t step = 1; step <= steps; ++step) {
    SamplesRead read;
    for (std::int64_t rank = 0; rank < 4; ++rank) read += part(8 * (step - 1) + 2 * rank, 2);
    LedgerEntry entry = step_of(step, 8 * (step - 1), 8, read);
    if (spoil) spoil(entry);
    ledger.add(entry);
  }
  return ledger;
}

void expect_one_problem(const LedgerProof& proof, LedgerProblem::Kind kind, std::int64_t step) {
  ASSERT_EQ(proof.problems.size(), 1U);
  EXPECT_EQ(proof.problems[0].kind, kind) << proof.problems[0].text;
  EXPECT_EQ(proof.problems[0].first_step, step);
  EXPECT_EQ(proof.problems[0].last_step, step);
}

TEST(Ledger, of_an_undisturbed_run_is_exact) {
  const LedgerProof proof = prove(run_of(50), 50);
  EXPECT_TRUE(proof.exact());
  EXPECT_EQ(proof.steps, 50);
  EXPECT_EQ(proof.samples, 400);
  EXPECT_EQ(proof.epochs_complete, 4);
}

TEST(Ledger, finds_a_step_whose_samples_came_before) {
  const LedgerProof proof = prove(run_of(9,
                                         [](LedgerEntry& entry) {
                                           if (entry.first_step != 6) return;
                                           entry.first = 8 * 4;  // those of step 5
                                           entry.read = part(8 * 4, 8);
                                         }),
                                  9);
  ASSERT_EQ(proof.problems.size(), 2U);
  EXPECT_EQ(proof.problems[0].kind, LedgerProblem::Kind::kTwice);
  EXPECT_EQ(proof.problems[0].first, 32);
  EXPECT_EQ(proof.problems[0].places, 8);
  EXPECT_EQ(proof.problems[1].kind, LedgerProblem::Kind::kLost);
  EXPECT_EQ(proof.problems[1].first, 40);
}

TEST(Ledger, finds_a_step_that_is_recorded_twice) {
  Ledger ledger = run_of(5);
  ledger.add(step_of(5, 32, 8, part(32, 8)));
  const LedgerProof proof = prove(ledger, 5);
  ASSERT_EQ(proof.problems.size(), 2U);
  EXPECT_EQ(proof.problems[0].kind, LedgerProblem::Kind::kSteps);
  EXPECT_EQ(proof.problems[1].kind, LedgerProblem::Kind::kTwice);
}

TEST(Ledger, finds_a_micro_batch_that_was_not_read) {
  const Ledger ledger = run_of(9, [](LedgerEntry& entry) {
    if (entry.first_step == 4) entry.read = part(24, 6);
  });
  expect_one_problem(prove(ledger, 9), LedgerProblem::Kind::kCount, 4);
}

TEST(Ledger, finds_a_rank_that_read_the_samples_of_another) {
  const Ledger ledger = run_of(9, [](LedgerEntry& entry) {
    if (entry.first_step != 7) return;
    entry.read = part(48, 2);
    entry.read += part(48, 2);  // instead of 50 and 51
    entry.read += part(52, 4);
  });
  expect_one_problem(prove(ledger, 9), LedgerProblem::Kind::kOthers, 7);
}

TEST(Ledger, finds_a_rank_with_another_seed) {
  const Ledger ledger = run_of(3, [](LedgerEntry& entry) {
    entry.read = part(entry.first, 6);
    entry.read += samples_at(SampleOrder{100, 8, true}, entry.first + 6, 2);
  });
  EXPECT_EQ(prove(ledger, 3).problems.size(), 3U);
}

TEST(Ledger, finds_steps_that_left_no_record) {
  const LedgerProof proof = prove(run_of(9), 12);
  ASSERT_EQ(proof.problems.size(), 1U);
  EXPECT_EQ(proof.problems[0].text, "steps 10-12 left no record");
}

TEST(Ledger, goes_on_with_other_ranks_and_another_batch) {
  Ledger ledger = run_of(10);
  ledger = telemetry::ledger_from_json(to_json(ledger));
  ledger.go_on(kOrder, 10, 80);
  ledger.add(step_of(11, 80, 12, part(80, 12)));
  LedgerEntry pairs = step_of(12, 92, 8, part(92, 8));  // two ranks of a tensor-parallel pair read each sample
  pairs.replicas = 2;
  pairs.read += pairs.read;
  ledger.add(pairs);
  EXPECT_EQ(ledger.sections().size(), 1U);
  const LedgerProof proof = prove(ledger, 12);
  EXPECT_TRUE(proof.exact());
  EXPECT_EQ(proof.epochs_complete, 1);
}

TEST(Ledger, of_other_data_is_judged_by_its_own_order) {
  Ledger ledger = run_of(10);
  const SampleOrder other{50, 3, true};
  ledger.go_on(other, 10, 0);
  ledger.add(step_of(11, 0, 8, samples_at(other, 0, 8)));
  const LedgerProof proof = prove(ledger, 11);
  EXPECT_TRUE(proof.exact());
  EXPECT_EQ(proof.sections, 2);
}

TEST(Ledger, names_steps_that_were_done_again) {
  Ledger ledger = run_of(10);
  ledger.add_again(8, 9);
  EXPECT_NE(to_text(prove(ledger, 10), "r").find("steps 8-9: done again"), std::string::npos);
}

TEST(Ledger, of_a_step_whose_readings_were_lost_is_counted_and_not_judged) {
  Ledger ledger = run_of(3);
  LedgerEntry entry = step_of(4, 24, 8, {});
  entry.kind = LedgerEntry::Kind::kUnconfirmed;
  ledger.add(entry);
  ledger.add(step_of(5, 32, 8, part(32, 8)));
  const LedgerProof proof = prove(ledger, 5);
  EXPECT_TRUE(proof.exact());
  EXPECT_EQ(proof.unconfirmed_steps, 1);
}

TEST(Ledger, tells_what_a_run_left_out_on_purpose) {
  Ledger ledger = run_of(3);
  ledger.leave_out(16);
  ledger.add(step_of(4, 40, 8, part(40, 8)));
  const LedgerProof proof = prove(ledger, 4);
  EXPECT_TRUE(proof.exact());
  EXPECT_EQ(proof.left_out, 16);
  EXPECT_EQ(proof.steps, 4);
}

TEST(Ledger, stays_small_over_a_hundred_thousand_steps_and_exact) {
  const Ledger ledger = run_of(100000);
  EXPECT_LE(ledger.sections()[0].entries.size(), 256U);
  EXPECT_LT(to_json(ledger).dump().size(), 30000U);
  EXPECT_TRUE(prove(ledger, 100000).exact());
}

TEST(Ledger, of_a_long_run_still_names_the_block_of_a_wrong_step) {
  const Ledger ledger = run_of(100000, [](LedgerEntry& entry) {
    if (entry.first_step == 54321) entry.read.digest += 1;
  });
  const LedgerProof proof = prove(ledger, 100000);
  ASSERT_GE(proof.problems.size(), 1U);
  EXPECT_LE(proof.problems[0].first_step, 54321);
  EXPECT_GE(proof.problems[0].last_step, 54321);
  EXPECT_LT(proof.problems[0].last_step - proof.problems[0].first_step, 1024);
}

TEST(Ledger, survives_the_way_through_a_checkpoint) {
  Ledger ledger = run_of(1000);
  ledger.add_again(5, 7);
  EXPECT_EQ(telemetry::ledger_from_json(nlohmann::json::parse(to_json(ledger).dump())), ledger);
}

TEST(Ledger, that_is_damaged_is_refused) {
  nlohmann::json value = to_json(run_of(3));
  value["sections"][0]["entries"] = "r 1 1 0 8 1 8 zz;";
  EXPECT_THROW(telemetry::ledger_from_json(value), UserError);
  EXPECT_THROW(telemetry::ledger_from_json(nlohmann::json::array()), UserError);
}

TEST(SamplesRead, of_many_ranks_add_up_as_numbers) {
  const SamplesRead one = part(0, 100);
  std::array<double, SamplesRead::kFields> sums = {};
  for (int rank = 0; rank < 10000; ++rank) {
    const auto numbers = one.numbers();
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += numbers[i];
  }
  const SamplesRead all = SamplesRead::of(sums.data());
  EXPECT_EQ(all.samples, 1000000);
  EXPECT_EQ(all.digest, one.digest * 10000);
}

}  // namespace
}  // namespace lockstep::report
