// The queue in front of the stores, and records as JSON lines.
#include "lockstep/telemetry/recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::telemetry {
namespace {

// What a fake store has received; shared with the test.
struct Received {
  std::mutex mutex;
  std::vector<Record> records;
  std::atomic<bool> broken{false};
  std::atomic<int> attempts{0};

  template <class T>
  std::vector<T> all() {
    const std::lock_guard lock(mutex);
    std::vector<T> found;
    for (const Record& record : records) {
      if (const T* value = std::get_if<T>(&record)) found.push_back(*value);
    }
    return found;
  }
};

std::unique_ptr<Recorder> fake_recorder(Received& received, QueueOptions options) {
  return make_queued_recorder(
      [&received](std::span<const Record> batch) {
        ++received.attempts;
        if (received.broken) throw environment_error("the store is broken");
        const std::lock_guard lock(received.mutex);
        received.records.insert(received.records.end(), batch.begin(), batch.end());
      },
      options);
}

TEST(Recorder, writes_records_in_the_order_they_were_given) {
  Received received;
  auto recorder = fake_recorder(received, {.batch_seconds = 0.01});
  for (int step = 0; step < 10'000; ++step) recorder->metrics(0, step, {{"loss", double(step)}});
  ASSERT_TRUE(recorder->flush(30.0));
  const auto batches = received.all<MetricBatch>();
  ASSERT_EQ(batches.size(), 10'000u);
  for (int step = 0; step < 10'000; ++step) ASSERT_EQ(batches[step].step, step);
  EXPECT_EQ(recorder->stats().written, 10'000u);
  EXPECT_EQ(recorder->stats().queued, 0u);
}

TEST(Recorder, drops_and_counts_metrics_but_never_events_when_the_store_is_stuck) {
  Received received;
  received.broken = true;
  auto recorder = fake_recorder(received, {.capacity = 100, .batch_seconds = 0.001});
  for (int step = 0; step < 1000; ++step) {
    recorder->metrics(0, step, {{"loss", 1.0}});
    recorder->event({.kind = "tick", .step = step});
  }
  EXPECT_GE(recorder->stats().dropped, 900u);
  EXPECT_FALSE(recorder->flush(0.05));
  received.broken = false;
  ASSERT_TRUE(recorder->flush(30.0));
  EXPECT_EQ(received.all<MetricBatch>().size() + recorder->stats().dropped, 1000u);
  ASSERT_TRUE(recorder->flush(30.0));  // what the first one found out
  const auto events = received.all<Event>();
  ASSERT_EQ(events.size(), 1001u);
  EXPECT_EQ(events.back().kind, event_kind::kRecordsLost) << "readers must know which steps are missing";
  EXPECT_EQ(events.back().data.at("last_step"), 999);
  EXPECT_EQ(events.back().data.at("first_step").get<std::size_t>(), received.all<MetricBatch>().size());
  EXPECT_GT(recorder->stats().retries, 0u);
  EXPECT_NE(recorder->stats().last_error.find("the store is broken"), std::string::npos);
}

TEST(Recorder, writes_a_failed_batch_once_when_the_store_comes_back) {
  Received received;
  received.broken = true;
  auto recorder = fake_recorder(received, {.batch_seconds = 0.001});
  recorder->event({.kind = "only"});
  while (received.attempts < 3) std::this_thread::yield();
  received.broken = false;
  ASSERT_TRUE(recorder->flush(30.0));
  EXPECT_EQ(received.all<Event>().size(), 1u);
}

TEST(Recorder, closes_when_the_store_never_comes_back) {
  Received received;
  received.broken = true;
  std::uint64_t lost = 0;
  std::string why;
  auto recorder = fake_recorder(
      received, {.close_timeout_seconds = 0.2, .on_lost = [&](std::uint64_t count, const std::string& error) {
                   lost = count;
                   why = error;
                 }});
  recorder->event({.kind = "lost"});
  recorder->event({.kind = "lost too"});
  recorder.reset();  // ends at all
  EXPECT_GE(received.attempts, 1);
  EXPECT_EQ(lost, 2u);
  EXPECT_NE(why.find("the store is broken"), std::string::npos);
}

TEST(Recorder, writes_what_is_queued_when_it_is_destroyed) {
  Received received;
  auto recorder = fake_recorder(received, {.batch_seconds = 36000.0});
  recorder->event({.kind = "late"});
  recorder.reset();
  EXPECT_EQ(received.all<Event>().size(), 1u);
}

TEST(Recorder, takes_records_from_many_threads) {
  Received received;
  auto recorder = fake_recorder(received, {.capacity = 1'000'000});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int step = 0; step < 2000; ++step) recorder->metrics(rank, step, {{"loss", 1.0}});
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(recorder->flush(30.0));
  EXPECT_EQ(received.all<MetricBatch>().size(), 8000u);
}

TEST(JsonLines, bring_every_kind_of_record_back) {
  const double nan = std::nan(""), infinity = INFINITY;
  const RunInfo info{"id", "name", 1.5, 4, "gloo", "host", 7, 8, "model: x", {{"torch", "1.13"}}};
  const std::vector<Record> records = {
      info,
      PlanRecord{{{"best", {{"x", 1}}}}},
      MetricBatch{3, 9, 2.5, {{"a", nan}, {"b", -infinity}, {"c", 0.1}}},
      Event{4.5, Level::kWarning, "kind", 2, 5, "a \"quoted\"\nline", {{"k", true}}},
      RunEnd{9.5, RunStatus::kInterrupted, "Ctrl-C", {{"steps", 5}}},
  };
  for (const Record& record : records) {
    const std::string line = to_json_line("id", record);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const ParsedLine back = parse_json_line(line);
    EXPECT_EQ(back.run, "id");
    EXPECT_EQ(back.record.index(), record.index());
    EXPECT_EQ(to_json_line("id", back.record), line);
  }
  const auto batch = std::get<MetricBatch>(parse_json_line(to_json_line("id", records[2])).record);
  EXPECT_TRUE(std::isnan(batch.metrics[0].value));
  EXPECT_EQ(batch.metrics[1].value, -infinity);
  EXPECT_EQ(batch.metrics[2].value, 0.1);
}

TEST(JsonLines, refuse_lines_that_are_no_records) {
  for (const std::string line : {"", "{", "[]", "3", R"({"run":"a"})", R"({"run":"a","type":"nonsense"})",
                                 R"({"run":"a","type":"span","rank":0,"step":1,"name":"x","start":1,"seconds":1})",
                                 R"({"run":"a","type":"metrics","rank":"x","step":1,"time":1,"values":{}})",
                                 R"({"run":"a","type":"metrics","rank":0,"step":1,"time":1,"values":{"a":"b"}})"}) {
    EXPECT_THROW(parse_json_line(line), UserError) << line;
  }
  EXPECT_THROW(parse_json_line(std::string(1'000'000, '[')), UserError);
}

TEST(RunId, is_sortable_safe_and_unique) {
  const std::string a = make_run_id("my job/../x"), b = make_run_id("my job/../x");
  EXPECT_NE(a, b);
  EXPECT_EQ(a.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"), std::string::npos);
  EXPECT_EQ(a[8], '-');
  EXPECT_EQ(a.substr(22), "-my-job----x");
  EXPECT_THROW(run_folder("/home", ".."), UserError);
  EXPECT_THROW(run_folder("/home", "a/b"), UserError);
}

TEST(Home, comes_from_the_environment) {
  ::setenv("LOCKSTEP_HOME", "/somewhere", 1);
  EXPECT_EQ(home_directory(), "/somewhere");
  ::unsetenv("LOCKSTEP_HOME");
  ::setenv("XDG_DATA_HOME", "/data", 1);
  EXPECT_EQ(home_directory(), "/data/lockstep");
  ::unsetenv("XDG_DATA_HOME");
  ::setenv("HOME", "/home/x", 1);
  EXPECT_EQ(home_directory(), "/home/x/.local/share/lockstep");
}

}  // namespace
}  // namespace lockstep::telemetry
