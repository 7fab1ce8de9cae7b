// Spans: what is written is read back, in every store, and damage is an error.
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/span_codec.h"

namespace lockstep::telemetry {
namespace {

SpanBatch sample(int rank, std::int64_t step) {
  SpanBatch batch{rank, step, 1000.0 + static_cast<double>(step), nullptr, {}};
  batch.names = std::make_shared<const std::vector<std::string>>(
      std::vector<std::string>{"unused", "tp: attention output", "dp"});
  batch.spans.push_back({.kind = SpanKind::kStep, .begin = 0.0F, .seconds = 0.5F});
  batch.spans.push_back({.kind = SpanKind::kBackward, .micro = 3, .stage = 2, .begin = 0.1F, .seconds = 0.25F});
  batch.spans.push_back({.kind = SpanKind::kCollective,
                         .lane = SpanLane::kComm,
                         .name = 1,
                         .group = 2,
                         .peer = 5,
                         .begin = 0.05F,
                         .seconds = 0.01F,
                         .bytes = std::int64_t{1} << 40,
                         .sequence = 1234567});
  return batch;
}

void expect_same(const SpanBatch& a, const SpanBatch& b) {
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.step, b.step);
  EXPECT_DOUBLE_EQ(a.time, b.time);
  ASSERT_EQ(a.spans.size(), b.spans.size());
  for (std::size_t i = 0; i < a.spans.size(); ++i) {
    const Span &x = a.spans[i], &y = b.spans[i];
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(x.lane, y.lane);
    EXPECT_NEAR(x.begin, y.begin, 1e-6);
    EXPECT_NEAR(x.seconds, y.seconds, 1e-6);
    EXPECT_EQ(a.text(x.name), b.text(y.name));
    EXPECT_EQ(a.text(x.group), b.text(y.group));
    EXPECT_EQ(x.bytes, y.bytes);
    EXPECT_EQ(x.sequence, y.sequence);
    EXPECT_EQ(x.peer, y.peer);
    EXPECT_EQ(x.micro, y.micro);
    EXPECT_EQ(x.stage, y.stage);
  }
}

class Spans : public testing::Test {
 protected:
  void SetUp() override {
    home_ = std::filesystem::temp_directory_path() / ("spans-" + std::to_string(::getpid()));
    std::filesystem::create_directories(home_);
  }
  void TearDown() override { std::filesystem::remove_all(home_); }
  std::filesystem::path home_;
};

TEST_F(Spans, SurviveTheirEncoding) {
  const SpanBatch batch = sample(3, 7);
  SpanBatch back{3, 7, batch.time, nullptr, {}};
  decode_spans(encode_spans(batch), back);
  expect_same(batch, back);
  EXPECT_EQ(back.names->size(), 2U) << "unused names are left out";
}

TEST_F(Spans, SurviveJsonLines) {
  const SpanBatch batch = sample(3, 7);
  expect_same(batch, std::get<SpanBatch>(parse_json_line(to_json_line("r", batch)).record));
}

TEST_F(Spans, CutShortOrChangedAreAnErrorAndNeverMore) {
  const std::string whole = encode_spans(sample(0, 1));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    SpanBatch back;
    EXPECT_THROW(decode_spans(std::string_view(whole).substr(0, length), back), UserError) << length;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0xff);
    SpanBatch back;
    try {
      decode_spans(changed, back);
    } catch (const UserError&) {  // either is fine; a crash or a huge allocation is not
    }
    EXPECT_LE(back.spans.size(), whole.size());
  }
}

TEST_F(Spans, AreReadBackFromTablesAndLinesAsOneStore) {
  auto tables = make_sqlite_run_store(store_file(home_));
  if (!tables) GTEST_SKIP() << "a build without SQLite";
  const std::vector<Record> here = {sample(0, 1), sample(0, 2), sample(1, 2)};
  tables->write("r", here);
  const std::vector<Record> there = {sample(2, 2), sample(2, 3)};
  make_json_lines_run_store(home_, 2)->write("r", there);
  const auto store = open_run_store(home_);
  EXPECT_EQ(store->span_steps("r"), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(store->span_steps("r", 2), (std::vector<std::int64_t>{2, 3}));
  const auto second = store->spans("r", 2, 2);
  ASSERT_EQ(second.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) expect_same(second[rank], sample(rank, 2));
  EXPECT_EQ(store->spans("r", 1, 9, 2).size(), 2U);
  EXPECT_TRUE(store->spans("unknown", 0, 9).empty());
}

TEST_F(Spans, BucketsHoldEveryPointOnce) {
  auto store = make_json_lines_run_store(home_, 0);
  std::vector<Record> records;
  for (std::int64_t step = 1; step <= 1000; ++step)
    records.push_back(MetricBatch{0, step, 1.0, {{"loss", static_cast<double>(step)}}});
  store->write("r", records);
  const auto buckets = store->buckets("r", "loss", 0, 1, 1000, 64);
  ASSERT_LE(buckets.size(), 64U);
  std::int64_t points = 0;
  for (const Bucket& bucket : buckets) {
    points += bucket.points;
    EXPECT_DOUBLE_EQ(bucket.minimum, static_cast<double>(bucket.first_step));
    EXPECT_DOUBLE_EQ(bucket.maximum, static_cast<double>(bucket.last_step));
    EXPECT_NEAR(bucket.mean, 0.5 * static_cast<double>(bucket.first_step + bucket.last_step), 1e-9);
  }
  EXPECT_EQ(points, 1000);
  EXPECT_EQ(store->points_after("r", "loss", 0, 990).size(), 10U);
  EXPECT_EQ(store->points_after("r", "loss", 0, 10, 5).size(), 5U);
}

}  // namespace
}  // namespace lockstep::telemetry
