// What ranks record of their steps, under every kind of layout: phases that add up, spans that nest and match between
// ranks, and a slow rank that stands out in spite of the barrier.
#include "lockstep/engine/step_records.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/engine/chaos.h"
#include "lockstep/telemetry/group_label.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

namespace metric = telemetry::metric;
using telemetry::SpanKind;
using telemetry::SpanLane;

constexpr int kRanks = 4;
constexpr std::int64_t kSteps = 4;

// Everything that the ranks of one run recorded.
class Records : public telemetry::Recorder {
 public:
  void begin_run(const telemetry::RunInfo&) override {}
  void plan(nlohmann::json) override {}
  void metrics(int rank, std::int64_t step, std::vector<telemetry::Metric> metrics) override {
    const std::lock_guard lock(mutex_);
    for (const telemetry::Metric& one : metrics) values_[{rank, step}][one.name] = one.value;
  }
  void spans(telemetry::SpanBatch batch) override {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::move(batch));
  }
  void event(telemetry::Event) override {}
  void end_run(telemetry::RunStatus, std::string, nlohmann::json) override {}
  bool flush(double) override { return true; }
  telemetry::RecorderStats stats() const override { return {}; }

  double value(int rank, std::int64_t step, std::string_view name) const {
    return values_.at({rank, step}).at(std::string(name));
  }
  bool has(int rank, std::int64_t step, std::string_view name) const {
    return values_.at({rank, step}).contains(std::string(name));
  }
  // Over the steps after the first, which pays for cold caches.
  double sum(int rank, std::string_view name) const {
    double total = 0.0;
    for (std::int64_t step = 2; step <= kSteps; ++step) total += value(rank, step, name);
    return total;
  }
  const std::vector<telemetry::SpanBatch>& batches() const { return batches_; }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::int64_t>, std::map<std::string, double>> values_;
  std::vector<telemetry::SpanBatch> batches_;
};

constexpr const char* kLlama =
    "{arch: llama, name: small, layers: 4, hidden: 64, heads: 4, ffn_hidden: 128, vocab: 256, max_sequence: 64}";
constexpr const char* kMoe =
    "{arch: moe, name: small, layers: 2, hidden: 64, heads: 4, ffn_hidden: 64, vocab: 256, max_sequence: 64, experts: "
    "4, experts_per_token: 2}";

class StepRecordsTest : public testing::Test {
 protected:
  std::shared_ptr<Records> train(const std::string& layout, const std::string& chaos = {},
                                 const std::string& model = kLlama, const std::string& more = {}) {
    spec::Job job = runs_.job(
        "batch: {micro: 2, accumulation: 4, sequence_length: 64}\nsteps: " + std::to_string(kSteps) + "\n" + more,
        model);
    job.cluster = spec::load_cluster("1x4xcpu");
    plan::Layout ranks = plan::parse_layout(layout);
    ranks.precision = job.precision;
    const plan::Run run = plan::run_of(job, ranks);
    auto records = std::make_shared<Records>();
    comm::LocalWorld world(kRanks, comm::milliseconds{120'000});
    const LockstepEngineHost host{nullptr, nullptr, nullptr};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const nn::DeviceThread thread(torch::kCPU);
        elastic::RankRequest request;
        request.run_id = "test";
        request.backend = "local";
        RunContext context{request, job, run, world.communicator(rank), records, Host(&host), torch::kCPU};
        Chaos disturbing(context.host);
        std::vector<elastic::ChaosEvent> own;
        if (!chaos.empty()) own = elastic::parse_chaos(chaos, kRanks);
        std::erase_if(own, [&](const auto& event) { return event.rank != rank; });
        disturbing.enter(own, 1);
        context.chaos = &disturbing;
        context.log = start_log(context);
        const telemetry::CurrentSpanLog logging(context.log.get());
        try {
          Trainer(context).run();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
          context.world.abort(error.what());
        }
        context.world.barrier().settle();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return records;
  }

  TrainingRuns runs_;
};

// Spans of one lane nest or follow each other.
void expect_nested(const telemetry::SpanBatch& batch, SpanLane lane) {
  std::vector<double> ends;
  for (const telemetry::Span& span : batch.spans) {
    if (span.lane != lane) continue;
    const double begin = span.begin, end = begin + static_cast<double>(span.seconds);
    while (!ends.empty() && ends.back() <= begin + 2e-6) ends.pop_back();
    if (!ends.empty()) {
      EXPECT_LE(end, ends.back() + 2e-6) << to_string(span.kind) << " at step " << batch.step;
    }
    ends.push_back(end);
  }
}

struct LayoutCase {
  const char* layout;
  const char* model;
  const char* group;  // in which ranks exchange
};

class StepRecordsOfLayout : public StepRecordsTest, public testing::WithParamInterface<LayoutCase> {};

TEST_P(StepRecordsOfLayout, add_up_and_match_between_ranks) {
  const auto records = train(GetParam().layout, "", GetParam().model);
  double communicated = 0.0;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const auto value = [&](std::string_view name) { return records->value(rank, step, name); };
      const double parts = value(metric::kDataSeconds) + value(metric::kComputeSeconds) +
                           value(metric::kExposedCommSeconds) + value(metric::kOptimizerSeconds) +
                           value(metric::kCheckpointSeconds) + value(metric::kHostSeconds);
      EXPECT_NEAR(parts, value(metric::kStepSeconds), 1e-9) << "rank " << rank << " step " << step;
      EXPECT_GT(value(metric::kForwardSeconds), 0.0);
      EXPECT_GT(value(metric::kBackwardSeconds), 0.0);
      EXPECT_GT(value(metric::kOptimizerSeconds), 0.0);
      communicated += value(metric::kExposedCommSeconds);  // the last rank to come may wait for nobody
      EXPECT_LE(value(metric::kWaitSeconds), value(metric::kExposedCommSeconds));
      EXPECT_GT(value(metric::kTargets), 0.0);
      EXPECT_EQ(records->has(rank, step, metric::kLoss), rank == 0);
    }
  }
  EXPECT_GT(communicated, 0.0);
  ASSERT_EQ(records->batches().size(), static_cast<std::size_t>(kRanks * kSteps));
  // (group, sequence) -> ranks, of the collectives.
  std::map<std::pair<std::string, std::int64_t>, std::set<int>> members;
  std::map<std::string, int> messages;
  for (const telemetry::SpanBatch& batch : records->batches()) {
    expect_nested(batch, SpanLane::kMain);
    std::int64_t forwards = 0;
    for (const telemetry::Span& span : batch.spans) {
      forwards += span.kind == SpanKind::kForward ? 1 : 0;
      if (span.kind != SpanKind::kCollective) continue;
      EXPECT_EQ(span.lane, SpanLane::kComm);
      const std::string name(batch.text(span.name)), group(batch.text(span.group));
      const bool sends = name.starts_with("send"), receives = name.starts_with("recv");
      if (!sends && !receives) members[{group, span.sequence}].insert(batch.rank);
      const auto [from, to] = sends ? std::pair(batch.rank, span.peer) : std::pair(span.peer, batch.rank);
      const std::string pair = group + " " + std::to_string(from) + ">" + std::to_string(to) + " " +
                               std::to_string(span.sequence) + " " + std::to_string(span.bytes);
      if (sends || receives) messages[pair] += sends ? 1 : -1;
    }
    EXPECT_EQ(forwards, 4) << "micro-batches of rank " << batch.rank;
  }
  bool found = false;
  for (const auto& [key, ranks] : members) {
    const auto label = telemetry::parse_group_label(key.first);
    ASSERT_TRUE(label) << key.first;
    EXPECT_EQ(ranks, std::set<int>(label->ranks.begin(), label->ranks.end())) << key.first << " #" << key.second;
    found |= label->name == GetParam().group;
  }
  for (const auto& [pair, left] : messages) {
    EXPECT_EQ(left, 0) << pair;
    found |= pair.starts_with(std::string(GetParam().group) + ":");
  }
  EXPECT_TRUE(found) << GetParam().group;
}

INSTANTIATE_TEST_SUITE_P(layouts, StepRecordsOfLayout,
                         testing::Values(LayoutCase{"dp=4", kLlama, "everyone"},
                                         LayoutCase{"shard=4,zero=3", kLlama, "shards"},
                                         LayoutCase{"tp=2,pp=2,schedule=1f1b", kLlama, "tp"},
                                         LayoutCase{"pp=4,schedule=1f1b", kLlama, "pp"},
                                         LayoutCase{"pp=4,schedule=zero_bubble", kLlama, "pp"},
                                         LayoutCase{"cp=2,dp=2", kLlama, "cp"}, LayoutCase{"dp=4,ep=4", kMoe, "ep"}),
                         [](const auto& tested) {
                           std::string name = tested.param.layout;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

class SlowRankTiming : public StepRecordsTest, public testing::WithParamInterface<const char*> {};

// The rank sleeps for long enough that nothing else of so small a step comes near it.
TEST_P(SlowRankTiming, stands_out_in_its_phase_and_the_others_wait) {
  const auto records = train(GetParam(), "slow rank=2 phase=forward delay=40ms");
  const double slept = 3 * 4 * 0.040;
  EXPECT_GE(records->sum(2, metric::kForwardSeconds), slept);
  EXPECT_GE(records->sum(2, metric::kComputeSeconds), slept);
  for (const int rank : {0, 1, 3}) {
    EXPECT_LT(records->sum(rank, metric::kComputeSeconds), 0.6 * records->sum(2, metric::kComputeSeconds)) << rank;
    EXPECT_GT(records->sum(rank, metric::kExposedCommSeconds),
              records->sum(2, metric::kExposedCommSeconds) + 0.5 * slept)
        << rank;
    EXPECT_GT(records->sum(rank, metric::kWaitSeconds), 0.4 * slept) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(layouts, SlowRankTiming, testing::Values("dp=4", "shard=4,zero=3", "tp=4"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// Whatever else the machine does, a sleep is at least as long as asked for, and inside what was slowed down.
TEST_F(StepRecordsTest, what_is_slowed_down_on_purpose_counts_where_it_happens) {
  const auto records =
      train("dp=4",
            "slow rank=0 phase=forward delay=20ms; slow rank=1 phase=loader delay=200ms; slow rank=2 phase=backward "
            "delay=20ms; slow rank=3 phase=optimizer delay=20ms");
  EXPECT_GE(records->sum(0, metric::kForwardSeconds), 3 * 4 * 0.020);
  EXPECT_GE(records->sum(2, metric::kBackwardSeconds), 3 * 4 * 0.020);
  EXPECT_GE(records->sum(3, metric::kOptimizerSeconds), 3 * 0.020);
  EXPECT_GT(records->sum(1, metric::kDataSeconds), 0.2);  // some of it is hidden behind the steps
}

class SlowLoaderTiming : public StepRecordsTest {};

TEST_F(SlowLoaderTiming, is_waited_for_as_data_by_its_own_rank_alone) {
  const auto records = train("dp=4", "slow rank=1 phase=loader delay=60ms");
  EXPECT_GT(records->sum(1, metric::kDataSeconds), 3 * 0.060);
  for (const int rank : {0, 2, 3}) {
    EXPECT_LT(records->sum(rank, metric::kDataSeconds), 0.5 * records->sum(1, metric::kDataSeconds));
  }
}

TEST_F(StepRecordsTest, a_leak_shows_in_what_is_allocated) {
  const auto records = train("dp=4", "leak rank=3 size=8MiB");
  const auto growth = [&](int rank) {
    return records->value(rank, kSteps, metric::kAllocatedBytes) - records->value(rank, 2, metric::kAllocatedBytes);
  };
  EXPECT_GE(growth(3), 2 * 8e6);
  EXPECT_LT(growth(0), 4e6);
}

TEST_F(StepRecordsTest, without_spans_there_are_metrics_alone) {
  const auto records = train("dp=4", "", kLlama, "telemetry: {spans: false}\n");
  EXPECT_TRUE(records->batches().empty());
  EXPECT_GT(records->value(3, kSteps, metric::kStepSeconds), 0.0);
}

TEST_F(StepRecordsTest, an_evaluation_is_outside_the_step) {
  const auto records = train("dp=4", "", kLlama, "evaluation: {every: 2, batches: 1}\n");
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    for (const telemetry::SpanBatch& batch : records->batches()) {
      if (batch.rank != 0 || batch.step != step) continue;
      double evaluated = 0.0;
      for (const auto& span : batch.spans) evaluated += span.kind == SpanKind::kEvaluation ? span.seconds : 0.0F;
      EXPECT_EQ(evaluated > 0.0, step % 2 == 0);
      EXPECT_NEAR(batch.spans.front().seconds, records->value(0, step, metric::kStepSeconds) + evaluated, 1e-4);
    }
  }
}

TEST(SpanCadence, keeps_the_first_steps_and_then_a_few_in_a_second) {
  SpanCadence quick(0), slow(0);
  std::int64_t kept = 0;
  for (std::int64_t step = 1; step <= 1000; ++step) {
    EXPECT_TRUE(step > 10 || quick.keeps(step));
    EXPECT_TRUE(slow.keeps(step));
    kept += quick.keeps(step) ? 1 : 0;
    quick.stepped(0.010);
    slow.stepped(0.4);
  }
  EXPECT_NEAR(static_cast<double>(kept), 10 + 1000 / 16.0, 3.0);  // 25 steps are a quarter of a second
}

}  // namespace
}  // namespace lockstep::engine
