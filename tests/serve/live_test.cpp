#include "lockstep/serve/live.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/serve/hub.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
using telemetry::Event;
using telemetry::Level;
using telemetry::MetricBatch;
using telemetry::Record;

// What a Live tells, to wait for.
class Told {
 public:
  Live::Send send() {
    return [this](const std::string& topic, LiveMessage message) {
      const std::lock_guard lock(mutex_);
      messages_.emplace_back(topic, std::move(message));
      came_.notify_all();
    };
  }
  // The first message of that kind after those that were waited for before.
  LiveMessage wait(LiveMessage::Kind kind) {
    std::unique_lock lock(mutex_);
    const auto is_it = [&] {
      for (std::size_t i = next_; i < messages_.size(); ++i) {
        if (messages_[i].second.kind == kind) return next_ = i + 1, true;
      }
      return false;
    };
    EXPECT_TRUE(came_.wait_for(lock, std::chrono::seconds(60), is_it));
    return next_ > 0 ? messages_[next_ - 1].second : LiveMessage{};
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return messages_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::pair<std::string, LiveMessage>> messages_;
  std::size_t next_ = 0;
};

class LiveRun : public ::testing::Test {
 protected:
  LiveRun() : store_(telemetry::make_json_lines_run_store(home_.path())) {
    write(telemetry::describe_this_process({.id = "run", .name = "job"}));
  }
  void write(Record record) { store_->write("run", std::vector<Record>{std::move(record)}); }
  static LiveOptions quick() {
    return {.tick_seconds = 0.01, .slow_seconds = 0.01, .list_seconds = 0.01, .most_share = 1};
  }

  TemporaryFolder home_;
  std::unique_ptr<telemetry::RunStore> store_;
  Told told_;
};

TEST_F(LiveRun, tells_new_steps_events_and_the_end) {
  write(MetricBatch{0, 1, 100.0, {{"loss", 4.0}, {"step_seconds", 0.5}}});
  Live live(home_.path(), told_.send(), quick());
  live.watch("run");
  const LiveMessage first = told_.wait(LiveMessage::Kind::kTick);
  EXPECT_EQ(json::parse(first.data),
            (json{{"step", 1}, {"time", 100.0}, {"values", {{"loss", 4.0}, {"step_seconds", 0.5}}}}));
  write(MetricBatch{0, 2, 101.0, {{"loss", 3.0}, {"step_seconds", 0.25}}});
  EXPECT_EQ(json::parse(told_.wait(LiveMessage::Kind::kTick).data)["step"], 2);
  write(Event{unix_seconds(), Level::kWarning, "spike", 0, 2, "<b>loss</b>", {{"loss", 9}}});
  const LiveMessage event = told_.wait(LiveMessage::Kind::kEvent);
  EXPECT_EQ(json::parse(event.data)["message"], "<b>loss</b>");
  write(telemetry::RunEnd{unix_seconds(), telemetry::RunStatus::kDone, "", {}});
  EXPECT_EQ(json::parse(told_.wait(LiveMessage::Kind::kEnd).data)["status"], "done");
  const std::size_t before = told_.size(), asked = live.asked();
  while (live.asked() < asked + 5) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(told_.size(), before);  // nothing is told twice
}

TEST_F(LiveRun, a_tick_tells_one_step_alone) {
  write(MetricBatch{0, 2, 99.0, {{"evaluation_loss", 5.0}}});
  write(MetricBatch{0, 3, 100.0, {{"loss", 4.0}, {"step_seconds", 0.5}}});
  write(MetricBatch{0, 50, 101.0, {{"cpu_percent", 80.0}, {"node_cpu_percent", 90.0}, {"resident_bytes", 1e9}}});
  Live live(home_.path(), told_.send(), quick());
  live.watch("run");
  EXPECT_EQ(json::parse(told_.wait(LiveMessage::Kind::kTick).data),
            (json{{"step", 3}, {"time", 100.0}, {"values", {{"loss", 4.0}, {"step_seconds", 0.5}}}}));
}

TEST_F(LiveRun, a_tick_has_at_most_two_kilobytes) {
  MetricBatch batch{0, 1, 100.0, {{"loss", 1.0 / 3}}};
  for (int i = 0; i < 1000; ++i)
    batch.metrics.push_back({"metric_with_quite_a_long_name_" + std::to_string(i), 1e300 / 3});
  write(batch);
  Live live(home_.path(), told_.send(), quick());
  live.watch("run");
  const LiveMessage tick = told_.wait(LiveMessage::Kind::kTick);
  EXPECT_LE(tick.text().size(), kMostTickBytes);
  EXPECT_TRUE(json::parse(tick.data)["values"].contains("loss"));
}

TEST_F(LiveRun, an_event_that_is_too_large_loses_its_data) {
  Live live(home_.path(), told_.send(), quick());
  live.watch("run");
  write(Event{unix_seconds(), Level::kError, "hang", 0, 2, "stuck", {{"stack", std::string(100'000, 'x')}}});
  const LiveMessage event = told_.wait(LiveMessage::Kind::kEvent);
  EXPECT_LT(event.data.size(), 1000u);
  EXPECT_EQ(json::parse(event.data)["message"], "stuck");
}

TEST_F(LiveRun, is_asked_once_however_many_look) {
  write(MetricBatch{0, 1, 100.0, {{"loss", 4.0}}});
  LiveOptions slow = quick();
  slow.tick_seconds = slow.slow_seconds = 3600;
  Live live(home_.path(), told_.send(), slow);
  for (int i = 0; i < 64; ++i) live.watch("run");
  told_.wait(LiveMessage::Kind::kTick);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(live.asked(), 1u);
  for (int i = 0; i < 64; ++i) live.unwatch("run");
}

TEST_F(LiveRun, says_when_the_list_of_runs_changes) {
  Live live(home_.path(), told_.send(), quick());
  live.watch("");
  while (live.asked() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(told_.size(), 0u);
  write(telemetry::RunEnd{unix_seconds(), telemetry::RunStatus::kFailed, "", {}});
  EXPECT_EQ(json::parse(told_.wait(LiveMessage::Kind::kRuns).data), (json{{"changed", {"run"}}}));
}

TEST(LivePlace, is_what_the_id_of_an_event_says) {
  EXPECT_EQ(parse_place("120-5000").step, 120);
  EXPECT_EQ(parse_place("120-5000").time_ms, 5000);
  EXPECT_EQ(parse_place("120").step, 120);
  EXPECT_EQ(parse_place("120").time_ms, -1);
  for (const char* wrong : {"", "x", "1-", "1-x", "1-2-3", "99999999999999999999"})
    EXPECT_EQ(parse_place(wrong).step, -1) << wrong;
}

class Reader : public Viewer {
 public:
  void send(const std::shared_ptr<const std::string>& bytes) override { got.push_back(*bytes); }
  std::vector<std::string> got;
};

TEST(Hub, shows_who_comes_back_what_was_missed_and_the_newest_tick) {
  std::vector<std::string> interest;
  Hub hub({[&](const std::string& topic) { interest.push_back("+" + topic); },
           [&](const std::string& topic) { interest.push_back("-" + topic); }});
  const auto first = std::make_shared<Reader>(), second = std::make_shared<Reader>();
  hub.add("run", first, {});
  for (int step = 1; step <= 3; ++step) hub.publish("run", {LiveMessage::Kind::kTick, step, 0, "{}"});
  hub.publish("run", {LiveMessage::Kind::kEvent, 3, 1000, "old"});
  hub.publish("run", {LiveMessage::Kind::kEvent, 3, 2000, "new"});
  hub.publish("other", {LiveMessage::Kind::kEvent, 3, 2000, "of nobody's"});
  EXPECT_EQ(first->got.size(), 5u);
  hub.add("run", second, {.step = 2, .time_ms = 1000});
  ASSERT_EQ(second->got.size(), 2u);
  EXPECT_NE(second->got[0].find("data: new"), std::string::npos);
  EXPECT_NE(second->got[1].find("id: 3-0"), std::string::npos);
  const auto third = std::make_shared<Reader>();
  hub.add("run", third, {.step = 3, .time_ms = 2000});
  EXPECT_TRUE(third->got.empty());
  hub.remove("run", first.get());
  hub.remove("run", first.get());
  hub.remove("run", second.get());
  EXPECT_EQ(hub.viewers(), 1u);
  hub.remove("run", third.get());
  EXPECT_EQ(interest, (std::vector<std::string>{"+run", "-run"}));
}

TEST(Hub, is_not_troubled_by_viewers_that_leave_while_they_are_sent_to) {
  class Leaver : public Viewer {
   public:
    explicit Leaver(Hub& hub) : hub_(hub) {}
    void send(const std::shared_ptr<const std::string>&) override { hub_.remove("run", this); }

   private:
    Hub& hub_;
  };
  Hub hub({[](const std::string&) {}, [](const std::string&) {}});
  const auto stays = std::make_shared<Reader>();
  hub.add("run", stays, {});
  for (int i = 0; i < 300; ++i) hub.publish("run", {LiveMessage::Kind::kEvent, 1, i, std::string(1000, 'x')});
  hub.remove("run", stays.get());
  hub.add("run", stays, {});
  for (int i = 0; i < 5; ++i) hub.publish("run", {LiveMessage::Kind::kEvent, 1, i, "{}"});
  const auto back = std::make_shared<Leaver>(hub);
  hub.add("run", back, {.step = 0, .time_ms = 0});  // leaves at the first of several events
  hub.remove("run", stays.get());
  std::vector<std::shared_ptr<Viewer>> viewers;
  for (int i = 0; i < 8; ++i) hub.add("run", viewers.emplace_back(std::make_shared<Leaver>(hub)), {});
  hub.publish("run", {LiveMessage::Kind::kTick, 1, 0, "{}"});
  EXPECT_EQ(hub.viewers(), 0u);
  hub.heartbeat();
}

}  // namespace
}  // namespace lockstep::serve
