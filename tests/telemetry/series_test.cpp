// Curves in the store: packing, summaries, retention, and what charts read; compared with the same done by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/buckets.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/series_codec.h"
#include "lockstep/telemetry/span_budget.h"
#include "lockstep/telemetry/span_codec.h"

namespace lockstep::telemetry {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double value_at(std::int64_t step) { return 3.0 + std::sin(static_cast<double>(step) * 0.01) / 7.0; }

std::vector<Point> wave(std::int64_t first, std::int64_t count) {
  std::vector<Point> points;
  for (std::int64_t step = first; step < first + count; ++step)
    points.push_back({step, 1000.0 + static_cast<double>(step) / 4, value_at(step)});
  return points;
}

void expect_same(const std::vector<Point>& a, const std::vector<Point>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].step, b[i].step) << i;
    ASSERT_NEAR(a[i].time, b[i].time, 0.0005) << i;
    ASSERT_TRUE(a[i].value == b[i].value || (std::isnan(a[i].value) && std::isnan(b[i].value))) << i;
  }
}

TEST(SeriesCodec, gives_back_every_bit_of_points) {
  std::vector<Point> points = wave(-5, 600);
  points[3].value = kNan;
  points[4].value = kInfinity;
  points[5].value = -kInfinity;
  points[6].value = std::numeric_limits<double>::denorm_min();
  points[7].value = -0.0;
  points[8].step = std::numeric_limits<std::int64_t>::max();
  points[9].step = std::numeric_limits<std::int64_t>::min();
  expect_same(decode_points(encode_points(points)), points);
  EXPECT_TRUE(std::signbit(decode_points(encode_points(points))[7].value));
  EXPECT_TRUE(decode_points(encode_points({})).empty());
}

TEST(SeriesCodec, takes_a_few_bytes_for_a_value_that_stays_or_was_a_float) {
  std::vector<Point> constant = wave(1, 512), floats = wave(1, 512);
  for (Point& point : constant) point.value = 0.1;
  for (Point& point : floats) point.value = static_cast<float>(point.value);
  EXPECT_LT(encode_points(constant).size(), 512u * 3 + 64);
  EXPECT_LT(encode_points(floats).size(), 512u * 8);
}

TEST(SeriesCodec, rounds_summaries_to_floats_and_never_out_of_their_range) {
  const std::vector<Bucket> buckets = {{1, 16, 5.0, 16, 0.1, 0.3, 0.2, 16},
                                       {17, 17, 6.0, 1, kNan, kNan, kNan, 0},
                                       {18, 40, 7.5, 20, 1e-300, 1e300, 1.0, 19}};
  const auto back = decode_buckets(encode_buckets(buckets, false)),
             exact = decode_buckets(encode_buckets(buckets, true));
  ASSERT_EQ(back.size(), 3u);
  EXPECT_NEAR(back[0].minimum, 0.1, 1e-8);
  EXPECT_EQ(exact[0].minimum, 0.1);
  EXPECT_EQ(exact[0].mean, 0.2);
  EXPECT_TRUE(std::isnan(back[1].mean));
  EXPECT_EQ(back[1].finite, 0);
  EXPECT_EQ(back[2].minimum, 1e-300);
  EXPECT_EQ(back[2].maximum, 1e300);
  EXPECT_EQ(back[2].last_step, 40);
  EXPECT_EQ(back[2].finite, 19);
  EXPECT_EQ(back[2].time, 7.5);
}

TEST(SeriesCodec, refuses_damage_of_any_kind) {
  const std::string good = encode_points(wave(1, 40)),
                    summaries = encode_buckets({{{1, 2, 3.0, 2, 1, 2, 1.5, 2}}}, false);
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    EXPECT_THROW(decode_points(good.substr(0, cut)), UserError) << cut;
  EXPECT_THROW(decode_points(good + "x"), UserError);
  EXPECT_THROW(decode_buckets(summaries.substr(0, summaries.size() - 1)), UserError);
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {  // wrong numbers are possible, reading outside is not (sanitizers)
    std::string bytes = round % 2 ? good : summaries;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      decode_points(bytes);
    } catch (const UserError&) {
    }
    try {
      decode_buckets(bytes);
    } catch (const UserError&) {
    }
    try {
      for_each_value(bytes, [](std::int64_t, double) {});
    } catch (const UserError&) {
    }
  }
}

TEST(BucketGrid, splits_steps_evenly_and_counts_finite_values) {
  BucketGrid grid(10, 19, 5);
  for (std::int64_t step = 0; step < 30; ++step)
    grid.add(Point{step, static_cast<double>(step), step == 12 ? kNan : static_cast<double>(step)});
  const auto buckets = grid.take();
  ASSERT_EQ(buckets.size(), 5u);
  EXPECT_EQ(buckets[0].first_step, 10);
  EXPECT_EQ(buckets[0].last_step, 11);
  EXPECT_EQ(buckets[1].points, 2);
  EXPECT_EQ(buckets[1].finite, 1);
  EXPECT_EQ(buckets[1].minimum, 13.0);
  EXPECT_EQ(buckets[4].maximum, 19.0);
  EXPECT_EQ(buckets[4].mean, 18.5);
}

TEST(BucketGrid, takes_any_range) {
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();
  BucketGrid all(kLeast, kMost, 3);
  for (const std::int64_t step : {kLeast, std::int64_t{0}, kMost}) all.add(Point{step, 0.0, 1.0});
  EXPECT_EQ(all.take().size(), 3u);
  BucketGrid none(5, 4, 3), nothing(1, 4, 0);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(nothing.empty());
  none.add(Point{4, 0.0, 1.0});
  EXPECT_TRUE(none.take().empty());
}

TEST(SpanBudget, keeps_the_newest_all_and_older_ones_by_the_roundness_of_their_step) {
  SpanBudget budget;
  std::vector<std::int64_t> kept;
  for (std::int64_t step = 1; step <= 30000; ++step) {
    budget.add(step, 1000);
    kept.push_back(step);
    const auto surplus = budget.take_surplus(400'000);
    std::erase_if(kept, [&](std::int64_t known) { return std::binary_search(surplus.begin(), surplus.end(), known); });
    ASSERT_LE(budget.kept_bytes(), 400'000);
  }
  EXPECT_EQ(static_cast<std::int64_t>(kept.size()) * 1000, budget.kept_bytes());
  for (std::int64_t step = 1; step <= 10; ++step) EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), step));
  for (std::int64_t step = 1000; step <= 30000; step += 1000)
    EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), step)) << step;
  for (std::int64_t step = 30000 - 190; step <= 30000; ++step)
    EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), step)) << step;
  EXPECT_FALSE(std::binary_search(kept.begin(), kept.end(), 20011));
}

// --- in a store -----------------------------------------------------------------------------------------------------

class SeriesStore : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
    store_ = make_sqlite_run_store(folder_.path() / "runs.db");
  }
  void record(const std::string& metric, const std::vector<Point>& points, int rank = 0, std::size_t at_once = 700) {
    std::vector<Record> batch;
    for (const Point& point : points) {
      batch.push_back(MetricBatch{rank, point.step, point.time, {{metric, point.value}}});
      if (batch.size() < at_once) continue;
      store_->write("r", batch);
      batch.clear();
    }
    store_->write("r", batch);
  }
  void begin(int world) {
    RunInfo info = describe_this_process({.id = "r", .name = "job", .world = world});
    store_->write("r", std::vector<Record>{info});
  }
  TemporaryFolder folder_;
  std::unique_ptr<RunStore> store_;
};

TEST_F(SeriesStore, gives_back_every_point_of_a_loss_however_long) {
  const auto points = wave(1, 70'000);
  record("loss", points);
  expect_same(store_->points("r", "loss", 0), points);
  EXPECT_EQ(store_->last_step("r", "loss", 0), 70'000);
  store_->write("r", std::vector<Record>{RunEnd{2.0, RunStatus::kDone, "", {}}});
  expect_same(store_->points("r", "loss", 0), points);
}

TEST_F(SeriesStore, reads_only_what_is_new) {
  record("loss", wave(1, 5'000));
  EXPECT_EQ(store_->points_after("r", "loss", 0, 4'990).size(), 10u);
  EXPECT_EQ(store_->points_after("r", "loss", 0, 4'990, 3).back().step, 4'993);
  EXPECT_EQ(store_->points_after("r", "loss", 0, 100, 1000).back().step, 1'100);
  EXPECT_TRUE(store_->points_after("r", "loss", 0, 5'000).empty());
  EXPECT_TRUE(store_->points_after("r", "loss", 1, 0).empty());
  EXPECT_TRUE(store_->points_after("r", "nothing", 0, 0).empty());
}

// Whatever the width: all points of the range are counted once, and nothing else.
void expect_adds_up(const std::vector<Bucket>& buckets, const std::vector<Point>& points, std::int64_t first,
                    std::int64_t last, std::size_t count) {
  ASSERT_LE(buckets.size(), count);
  const double width = std::ceil(static_cast<double>(last - first + 1) / static_cast<double>(count));
  std::int64_t before = first - 1;
  std::size_t at = static_cast<std::size_t>(first - points.front().step);
  for (const Bucket& bucket : buckets) {
    ASSERT_GT(bucket.first_step, before);
    ASSERT_LE(static_cast<double>(bucket.last_step - bucket.first_step + 1), width * 1.25 + 1);
    before = bucket.last_step;
    double least = kInfinity, most = -kInfinity, sum = 0.0;
    for (std::int64_t i = 0; i < bucket.points; ++i, ++at) {
      least = std::min(least, points[at].value);
      most = std::max(most, points[at].value);
      sum += points[at].value;
    }
    ASSERT_EQ(points[at - 1].step, bucket.last_step);
    ASSERT_NEAR(bucket.minimum, least, 1e-6);
    ASSERT_NEAR(bucket.maximum, most, 1e-6);
    ASSERT_NEAR(bucket.mean, sum / static_cast<double>(bucket.points), 1e-6);
  }
  EXPECT_EQ(before, last);
  EXPECT_EQ(points[at - 1].step, last);
}

TEST_F(SeriesStore, adds_up_to_the_same_at_every_width) {
  const auto points = wave(1, 40'000);
  record("loss", points);
  record("other", points);
  for (const char* metric : {"loss", "other"}) {
    for (const std::size_t count : {1u, 7u, 150u, 1500u, 9000u}) {
      expect_adds_up(store_->buckets("r", metric, 0, 1, 40'000, count), points, 1, 40'000, count);
      expect_adds_up(store_->buckets("r", metric, 0, 700, 39'333, count), points, 700, 39'333, count);
      expect_adds_up(store_->buckets("r", metric, 0, 12'345, 12'399, count), points, 12'345, 12'399, count);
    }
  }
  EXPECT_TRUE(store_->buckets("r", "loss", 0, 50'000, 60'000, 10).empty());
  EXPECT_TRUE(store_->buckets("r", "loss", 0, 10, 1, 10).empty());
}

TEST_F(SeriesStore, steps_done_again_replace_what_was_packed) {
  std::vector<Point> points = wave(1, 3'000);
  record("loss", points);
  std::vector<Point> again = wave(1'800, 700);  // a recovery goes back over chunks and newest rows
  for (Point& point : again) point.value += 100.0;
  record("loss", again);
  for (const Point& point : again) points[static_cast<std::size_t>(point.step - 1)] = point;
  expect_same(store_->points("r", "loss", 0), points);
  expect_adds_up(store_->buckets("r", "loss", 0, 1, 3'000, 100), points, 1, 3'000, 100);
  EXPECT_EQ(store_->per_rank("r", "loss").at(0).points, 3'000);
  record("loss", wave(3'001, 2'000));
  const auto more = wave(3'001, 2'000);
  points.insert(points.end(), more.begin(), more.end());
  expect_same(store_->points("r", "loss", 0), points);
}

TEST_F(SeriesStore, metrics_that_come_seldom_or_from_another_process_are_kept_whole) {
  const auto agent = make_sqlite_run_store(folder_.path() / "runs.db");
  for (int step = 1; step <= 4'000; ++step) {
    std::vector<Metric> metrics = {{"step_seconds", 1.0 * step}};
    if (step % 100 == 0) metrics.push_back({"evaluation_accuracy", step / 4000.0});
    store_->write("r", std::vector<Record>{MetricBatch{0, step, 1.0 * step, metrics}});
    if (step % 5 == 0)
      agent->write("r", std::vector<Record>{MetricBatch{0, step / 5, 1.0 * step, {{"node_cpu_percent", 50.0}}}});
  }
  EXPECT_EQ(store_->points("r", "evaluation_accuracy", 0).size(), 40u);
  EXPECT_EQ(store_->points("r", "node_cpu_percent", 0).size(), 800u);
  EXPECT_EQ(store_->points("r", "step_seconds", 0).size(), 4'000u);
  EXPECT_EQ(store_->metric_names("r"),
            (std::vector<std::string>{"evaluation_accuracy", "node_cpu_percent", "step_seconds"}));
}

TEST_F(SeriesStore, thins_the_far_past_of_other_ranks_and_still_knows_what_it_was) {
  begin(64);
  constexpr int kSteps = 100'000;
  record("step_seconds", wave(1, kSteps), 3);
  record("step_seconds", wave(1, kSteps), 0);
  const auto points = store_->points("r", "step_seconds", 3);
  EXPECT_LT(points.size(), 6'000u);
  EXPECT_EQ(points.back().step, kSteps);
  for (std::size_t i = points.size() - 2'000; i + 1 < points.size(); ++i)
    EXPECT_EQ(points[i].value, value_at(points[i].step)) << "the newest are whole";
  const auto all = store_->per_rank("r", "step_seconds");
  ASSERT_EQ(all.size(), 2u);
  for (const RankSummary& rank : all) {
    EXPECT_EQ(rank.points, kSteps) << rank.rank;
    EXPECT_NEAR(rank.maximum, 3.0 + 1.0 / 7.0, 1e-4);
    EXPECT_NEAR(rank.mean, 3.0, 0.01);
  }
  EXPECT_GT(store_->points("r", "step_seconds", 0).size(), 65'000u);
  // A chart of the whole is still fine enough for a page, and the extremes are in it.
  const auto buckets = store_->buckets("r", "step_seconds", 3, 1, kSteps, 400);
  EXPECT_GT(buckets.size(), 300u);
  std::int64_t counted = 0;
  for (const Bucket& bucket : buckets) counted += bucket.points;
  EXPECT_EQ(counted, kSteps);
}

TEST_F(SeriesStore, thinned_steps_that_are_done_again_are_replaced_too) {
  begin(64);
  record("step_seconds", wave(1, 60'000), 3);
  record("step_seconds", wave(10'001, 10'000), 3);
  EXPECT_EQ(store_->last_step("r", "step_seconds", 3), 60'000);
  std::int64_t before = 0;
  for (const Point& point : store_->points("r", "step_seconds", 3)) {
    EXPECT_GT(point.step, before);
    before = point.step;
  }
  const auto all = store_->per_rank("r", "step_seconds");
  EXPECT_NEAR(static_cast<double>(all.back().points), 60'000.0, 600.0) << "up to a summary is lost at both ends";
  record("step_seconds", wave(60'001, 60'000), 3);
  EXPECT_NEAR(static_cast<double>(store_->per_rank("r", "step_seconds").back().points), 120'000.0, 600.0);
}

TEST_F(SeriesStore, spans_stay_within_their_bytes) {
  begin(64);
  SpanBatch batch{5, 0, 1.0, nullptr, std::vector<Span>(400, {.kind = SpanKind::kForward, .seconds = 0.001F})};
  const auto bytes = static_cast<std::int64_t>(encode_spans(batch).size());
  for (batch.step = 1; batch.step <= 1'500; ++batch.step) {
    if (batch.step == 700) store_ = make_sqlite_run_store(folder_.path() / "runs.db");  // a process that goes on
    store_->write("r", std::vector<Record>{batch});
  }
  const auto steps = store_->span_steps("r", 5);
  EXPECT_LE(static_cast<std::int64_t>(steps.size()) * bytes, span_budget_bytes(64));
  EXPECT_GE(static_cast<std::int64_t>(steps.size()) * bytes, span_budget_bytes(64) / 2);
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 1'500);
}

}  // namespace
}  // namespace lockstep::telemetry
