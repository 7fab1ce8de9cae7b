// Exports: what is in the files, without the programs that they are for (tests/interop reads them with those).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/report/export/export.h"
#include "lockstep/report/export/tensorboard.h"
#include "lockstep/telemetry/import_lines.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using telemetry::Interval;
using telemetry::MetricBatch;
using telemetry::Record;
using telemetry::Span;
using telemetry::SpanBatch;
using telemetry::SpanKind;
using telemetry::SpanLane;

// Names as an enemy would choose them.
const std::vector<std::string>& hostile_names() {
  static const std::vector<std::string> names = {"=HYPERLINK(\"http://x\")",
                                                 "@SUM(1)",
                                                 "-2+3",
                                                 "+1",
                                                 "\t=1",
                                                 "<script>alert(1)</script>",
                                                 "\x1b]0;title\x07",
                                                 "../../../etc/passwd",
                                                 std::string("nul\0inside", 10),
                                                 "comma, \"quote\"\r\nline",
                                                 "\xff\xfe"};
  return names;
}

class Export : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = telemetry::make_json_lines_run_store(folder_.path());
    telemetry::RunInfo info;
    info.id = "r";
    info.name = hostile_names()[0];
    info.world = 2;
    std::vector<Record> records{info};
    for (int step = 1; step <= 20; ++step) {
      for (int rank = 0; rank < 2; ++rank) {
        MetricBatch batch{rank, step, 100.0 + step, {{"step_seconds", 0.5 * rank + step}}};
        if (rank == 0) batch.metrics.push_back({"loss", step == 3 ? NAN : 1.0 / step});
        records.emplace_back(batch);
        records.emplace_back(step_of(rank, step));
      }
    }
    store_->write("r", records);
    run_ = *store_->find("r");
  }

  // Forward 0 to 4, backward 4 to 9 that waits from 7 to 8; exchanges from 3 to 5 and from 6 to 10.
  static SpanBatch step_of(int rank, int step) {
    static const auto kNames = std::make_shared<const std::vector<std::string>>(
        std::vector<std::string>{"all_reduce (dp: gradients)", "dp:0-1", "send", "recv"});
    SpanBatch batch{rank, step, 1000.0 + 20.0 * step, kNames, {}};
    batch.spans = {{.kind = SpanKind::kStep, .begin = 0, .seconds = 10},
                   {.kind = SpanKind::kForward, .begin = 0, .seconds = 4},
                   {.kind = SpanKind::kCollective,
                    .lane = SpanLane::kComm,
                    .name = rank == 0 ? 2 : 3,
                    .group = 1,
                    .peer = 1 - rank,
                    .begin = 3,
                    .seconds = 2,
                    .bytes = 8,
                    .sequence = 1},
                   {.kind = SpanKind::kBackward, .begin = 4, .seconds = 5},
                   {.kind = SpanKind::kCollective,
                    .lane = SpanLane::kComm,
                    .name = 0,
                    .group = 1,
                    .begin = 6.0F + 0.5F * static_cast<float>(rank),
                    .seconds = 4.0F - 0.5F * static_cast<float>(rank),
                    .bytes = 64,
                    .sequence = step},
                   {.kind = SpanKind::kWait, .name = 0, .begin = 7, .seconds = 1}};
    return batch;
  }

  json perfetto(const ExportSelection& selection) {
    std::ostringstream out;
    export_perfetto(*store_, run_, selection, out);
    return json::parse(out.str());
  }

  TemporaryFolder folder_;
  std::unique_ptr<telemetry::RunStore> store_;
  telemetry::RunRow run_;
};

TEST(Intervals, are_united_cut_and_compared) {
  const auto all = telemetry::united({{5, 7}, {1, 2}, {2, 3}, {6, 9}});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].end, 3.0);
  EXPECT_EQ(telemetry::length(all), 6.0);
  const auto left = telemetry::without(all, {{0, 1.5}, {2.5, 6}, {8, 20}});
  EXPECT_EQ(telemetry::length(left), 1.0 + 2.0);
  EXPECT_EQ(telemetry::common_length(all, {{0, 1.5}, {2.5, 6}, {8, 20}}), 6.0 - 3.0);
}

TEST_F(Export, overlap_is_communication_behind_computing_without_what_was_waited) {
  const telemetry::Overlap rank0 = telemetry::overlap_of(step_of(0, 1));
  EXPECT_DOUBLE_EQ(rank0.compute_seconds, 8.0);  // 0 to 9 without the wait
  EXPECT_DOUBLE_EQ(rank0.comm_seconds, 6.0);
  EXPECT_DOUBLE_EQ(rank0.overlap_seconds, 2.0 + 2.0);  // 3 to 5, 6 to 7 and 8 to 9
  EXPECT_DOUBLE_EQ(telemetry::overlap_of(SpanBatch{}).share(), 0.0);
}

TEST_F(Export, csv_has_a_row_per_rank_and_step) {
  std::ostringstream out;
  export_csv(*store_, run_, {}, false, out);
  const auto table = planner::parse_csv(out.str(), "csv");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"rank", "step", "time", "loss", "step_seconds"}));
  ASSERT_EQ(table.rows.size(), 40u);
  EXPECT_EQ(table.rows[2][3], "nan");
  EXPECT_EQ(table.rows[3][3], "0.25");
  EXPECT_EQ(table.rows[20][3], "") << "rank 1 has no loss";
  std::ostringstream few;
  export_csv(*store_, run_, {.metrics = {"loss"}, .ranks = {0}, .first_step = 5, .last_step = 6}, true, few);
  EXPECT_EQ(few.str(), "rank,step,time,metric,value\n0,5,105,loss,0.2\n0,6,106,loss,0.16666666666666666\n");
}

TEST_F(Export, names_an_unknown_metric_and_the_nearest) {
  std::ostringstream out;
  try {
    export_csv(*store_, run_, {.metrics = {"los"}}, false, out);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("loss"), std::string::npos) << error.what();
  }
}

TEST_F(Export, hostile_names_stay_text_in_every_format) {
  MetricBatch batch{0, 21, 200.0, {}};
  for (const std::string& name : hostile_names()) batch.metrics.push_back({name, -1.5});
  store_->write("r", std::vector<Record>{batch});
  std::ostringstream csv, lines, document, parquet;
  export_csv(*store_, run_, {}, false, csv);
  const auto table = planner::parse_csv(csv.str(), "csv");
  for (const std::string& column : table.columns) {
    ASSERT_FALSE(column.empty());
    EXPECT_EQ(std::string("=+-@\t\r\n|%").find(column[0]), std::string::npos) << column;
    EXPECT_EQ(column.find('\0'), std::string::npos);
  }
  EXPECT_EQ(table.rows[20][3], "-1.5") << "a negative number is a number";
  export_csv(*store_, run_, {}, true, csv);
  export_json(*store_, run_, {}, document);
  EXPECT_TRUE(json::accept(document.str()));
  EXPECT_EQ(document.str().find('\x1b'), std::string::npos) << "no control character reaches a terminal";
  export_json_lines(*store_, run_, {}, lines);
  EXPECT_EQ(lines.str().find('\x1b'), std::string::npos);
  export_parquet(*store_, run_, {}, parquet);
  EXPECT_TRUE(parquet.str().starts_with("PAR1"));
  EXPECT_TRUE(parquet.str().ends_with("PAR1"));
}

TEST_F(Export, tensorboard_stays_in_its_folder_whatever_the_run_is_called) {
  for (const std::string& name : {std::string("../../up"), std::string("/etc"), std::string(".."), std::string()}) {
    const TemporaryFolder to;
    telemetry::RunRow run = run_;
    run.info.id = name;
    const TensorBoardExport exported(to.path() / "boards", run, {});
    EXPECT_EQ(exported.folder().parent_path(), to.path() / "boards") << name;
    EXPECT_NE(exported.folder().filename(), "..");
  }
}

TEST_F(Export, event_files_are_whole_records_with_their_checksums) {
  const TemporaryFolder to;
  TensorBoardExport exported(to.path(), run_, {.metrics = {"loss"}});
  EXPECT_EQ(exported.update(*store_), 20u);
  EXPECT_EQ(exported.update(*store_), 0u) << "nothing is written twice";
  store_->write("r", std::vector<Record>{MetricBatch{0, 21, 200.0, {{"loss", 0.5}}}});
  EXPECT_EQ(exported.update(*store_), 1u);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(to.path()))
    if (entry.is_regular_file()) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1u);
  const std::string bytes = read_file(files[0]);
  const auto masked = [](std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; };
  int records = 0;
  for (std::size_t at = 0; at < bytes.size(); ++records) {
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
    ASSERT_LE(at + 12, bytes.size());
    std::memcpy(&size, bytes.data() + at, 8);
    std::memcpy(&crc, bytes.data() + at + 8, 4);
    ASSERT_EQ(crc, masked(crc32c(bytes.data() + at, 8)));
    ASSERT_LE(at + 16 + size, bytes.size());
    std::memcpy(&crc, bytes.data() + at + 12 + size, 4);
    ASSERT_EQ(crc, masked(crc32c(bytes.data() + at + 12, size)));
    at += 16 + size;
  }
  EXPECT_EQ(records, 22);
}

// The steps that TensorBoard would show of the events of a file, in order: Event {2: step, 7: SessionLog, which takes
// back everything from its step on}.
std::vector<std::int64_t> steps_shown(const std::string& bytes) {
  std::vector<std::int64_t> steps;
  for (std::size_t at = 0; at + 16 <= bytes.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, 8);
    const auto* byte = reinterpret_cast<const unsigned char*>(bytes.data()) + at + 12 + 9;  // behind the time
    at += 16 + size;
    std::int64_t step = 0;
    EXPECT_EQ(*byte++, 2 << 3);
    for (int shift = 0;; shift += 7, ++byte) {
      step |= std::int64_t(*byte & 127) << shift;
      if (*byte < 128) break;
    }
    const int field = byte[1] >> 3;
    if (field == 7) std::erase_if(steps, [&](std::int64_t known) { return known >= step; });
    if (field == 5) steps.push_back(step);
  }
  return steps;
}

TEST_F(Export, steps_that_were_done_again_are_written_again) {
  const TemporaryFolder to;
  TensorBoardExport exported(to.path(), run_, {.metrics = {"loss"}});
  EXPECT_EQ(exported.update(*store_), 20u);
  const auto redo = [&](int first, int last) {
    std::vector<Record> records;
    for (int step = first; step <= last; ++step)
      records.emplace_back(MetricBatch{0, step, 200.0 + step, {{"loss", 2.0 / step}}});
    store_->write("r", records);
  };
  redo(11, 15);
  EXPECT_EQ(exported.update(*store_), 0u) << "not as far as before";
  redo(16, 21);
  EXPECT_EQ(exported.update(*store_), 11u);
  EXPECT_EQ(exported.update(*store_), 0u);
  redo(22, 22);
  EXPECT_EQ(exported.update(*store_), 1u);
  std::vector<std::int64_t> expected(22);
  std::iota(expected.begin(), expected.end(), 1);
  for (const auto& entry : fs::recursive_directory_iterator(to.path())) {
    if (entry.is_regular_file()) {
      EXPECT_EQ(steps_shown(read_file(entry.path())), expected);
    }
  }
}

TEST_F(Export, a_trace_connects_messages_and_members_of_collectives) {
  const json events = perfetto({.first_step = 5, .last_step = 6}).at("traceEvents");
  int messages = 0, collectives = 0;
  for (const json& event : events) {
    if (event.at("ph") == "s") (event.at("cat") == "message" ? messages : collectives) += 1;
    if (event.at("ph") == "s" && event.at("cat") == "message") {
      EXPECT_EQ(event.at("pid"), 0) << "rank 0 sends";
    }
    if (event.at("ph") == "s" && event.at("cat") == "collective") {
      EXPECT_EQ(event.at("pid"), 1) << "rank 1 came last";
    }
    if (event.at("ph") == "X" && event.at("args").contains("wait_us")) {
      EXPECT_NEAR(event.at("args").at("wait_us").get<double>(), event.at("pid") == 0 ? 5e5 : 0.0, 1.0);
    }
  }
  EXPECT_EQ(messages, 2);
  EXPECT_EQ(collectives, 2);
}

TEST_F(Export, clocks_that_differ_are_aligned_in_a_trace) {
  std::vector<Record> again;
  for (int step = 1; step <= 20; ++step) {
    SpanBatch batch = step_of(1, step);
    batch.time += 3600.0;
    again.emplace_back(batch);
  }
  store_->write("r", again);
  double last = 0.0;
  const json document = perfetto({.first_step = 5, .last_step = 6});
  for (const json& event : document.at("traceEvents")) last = std::max(last, event.value("ts", 0.0));
  EXPECT_LT(last, 60e6);
}

TEST_F(Export, traces_stay_within_their_bytes_and_say_so) {
  std::ostringstream out;
  const TraceResult result = export_perfetto(*store_, run_, {}, out, 40'000);
  EXPECT_TRUE(result.cut);
  EXPECT_FALSE(result.steps.empty());
  EXPECT_LT(result.steps.size(), 20u);
  EXPECT_LT(out.str().size(), 40'000u);
  const TraceResult whole = export_perfetto(*store_, run_, {}, out);
  EXPECT_FALSE(whole.cut);
  EXPECT_EQ(whole.steps.size(), 20u);
}

TEST_F(Export, traces_of_ranks_look_like_the_profilers) {
  const TemporaryFolder to;
  const TraceResult result = export_kineto(*store_, run_, {.ranks = {1}}, to.path());
  ASSERT_EQ(result.overlaps.size(), 1u);
  EXPECT_FALSE(fs::exists(to.path() / "rank-00000.json"));
  const std::string text = read_file(to.path() / "rank-00001.json");
  EXPECT_NE(text.find("\"rank\": 1"), std::string::npos);
  double compute = 0.0, comm = 0.0;
  const json document = json::parse(text);
  for (const json& event : document.at("traceEvents")) {
    if (event.value("cat", "") != "kernel") continue;
    const bool is_comm = event.at("name").get<std::string>().starts_with("ncclKernel_");
    (is_comm ? comm : compute) += event.at("dur").get<double>();
  }
  EXPECT_NEAR(compute, 20 * 8e6, 20.0);
  EXPECT_NEAR(comm, 20 * 5.5e6, 20.0);
}

TEST_F(Export, json_lines_are_imported_as_the_same_run) {
  const fs::path file = folder_.path() / "out.jsonl";
  {
    std::ofstream out(file);
    export_json_lines(*store_, run_, {}, out);
  }
  const TemporaryFolder other;
  const auto copy = telemetry::make_json_lines_run_store(other.path());
  const auto counts = telemetry::import_lines(file, *copy);
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(copy->points("r", "loss", 0).size(), 20u);
  EXPECT_EQ(copy->spans("r", 7, 7).size(), 2u);
  EXPECT_EQ(copy->find("r")->info.name, run_.info.name);
  std::ofstream(file, std::ios::app) << "nonsense\n";
  EXPECT_THROW(telemetry::import_lines(file, *copy), UserError);
  EXPECT_THROW(telemetry::import_lines(other.path(), *copy), UserError) << "no files in there";
}

}  // namespace
}  // namespace lockstep::report
