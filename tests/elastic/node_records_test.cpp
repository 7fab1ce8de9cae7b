#include "lockstep/elastic/node_records.h"

#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/base/file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::elastic {
namespace {

using namespace lockstep::telemetry;

void write(const std::filesystem::path& home, int rank, int steps) {
  const auto store = make_json_lines_run_store(home, rank);
  for (int step = 1; step <= steps; ++step) {
    const std::vector<Span> spans(20, {.kind = SpanKind::kForward, .seconds = 0.001F});
    store->write("r", std::vector<Record>{MetricBatch{rank, step, 5.0 + step, {{"step_seconds", 1.0 * step}}},
                                          SpanBatch{rank, step, 5.0 + step, nullptr, spans}});
  }
}

int bring(const std::filesystem::path& from, const std::filesystem::path& to, int world) {
  NodeRecords records(run_folder(from, "r"), world);
  int pieces = 0;
  for (auto piece = records.next(); piece; piece = records.next(), ++pieces) keep_records(to, "r", 1, *piece);
  return pieces;
}

TEST(NodeRecords, of_another_node_are_read_with_those_that_are_here) {
  const TemporaryFolder here, there;
  write(here.path(), 0, 3);
  write(there.path(), 2, 2000);  // more than a piece
  write(there.path(), 3, 3);
  write(there.path(), 0, 1);  // rank 0 was there once
  std::ofstream(lines_file(there.path(), "r", 3), std::ios::app) << R"({"run":"r","type":"metr)";  // a kill
  EXPECT_GT(bring(there.path(), here.path(), 4), 3);
  const auto store = open_run_store(here.path());
  EXPECT_EQ(store->ranks("r", "step_seconds"), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(store->points("r", "step_seconds", 2).size(), 2000u);
  EXPECT_EQ(store->points("r", "step_seconds", 3).size(), 3u);
  EXPECT_EQ(store->points("r", "step_seconds", 0).size(), 3u);
  EXPECT_EQ(store->spans("r", 2, 2).size(), 3u);
  EXPECT_EQ(bring(here.path(), there.path(), 4), 2) << "what came from elsewhere is not sent on";
}

TEST(NodeRecords, of_many_ranks_are_the_newest) {
  const TemporaryFolder here, there;
  write(there.path(), 2, 2000);
  bring(there.path(), here.path(), 4096);  // 64 KiB each
  const auto points = open_run_store(here.path())->points("r", "step_seconds", 2);
  EXPECT_LT(points.size(), 1500u);
  ASSERT_FALSE(points.empty());
  EXPECT_EQ(points.back().step, 2000);
}

TEST(NodeRecords, that_are_none_of_this_run_are_left_out) {
  const TemporaryFolder home;
  const std::string good = to_json_line("r", MetricBatch{1, 1, 6, {{"loss", 1.0}}});
  const std::string other = to_json_line("other", MetricBatch{1, 1, 6, {{"loss", 2.0}}});
  keep_records(home.path(), "r", 1, {{"rank", 1}, {"text", other + "\nno record\n" + good + "\n"}});
  keep_records(home.path(), "r", 1, {{"rank", -4}, {"text", good + "\n"}});
  keep_records(home.path(), "r", 1, {{"text", good + "\n"}});
  const auto points = open_run_store(home.path())->points("r", "loss", 1);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].value, 1.0);
}

TEST(NodeRecords, are_none_where_nothing_was_recorded) {
  const TemporaryFolder home;
  EXPECT_FALSE(NodeRecords(run_folder(home.path(), "r"), 1).next());
}

}  // namespace
}  // namespace lockstep::elastic
