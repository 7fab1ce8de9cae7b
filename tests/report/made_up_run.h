// A run that never was, with figures that tests can look for: 8 H100 as pp=2,dp=2,tp=2 with full recomputation, 40
// steps of one second where 0.8 was predicted; rank 3 computes longest; rank 5 is lost at step 20.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/plan/plan.h"
#include "lockstep/report/run_facts.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::report {

struct MadeUpRun {
  static constexpr double kStart = 1.8e9;
  static constexpr int kWorld = 8, kSteps = 40;
  static constexpr double kTokens = 64.0 * 2048;  // of a step

  std::string id = "20270115-080000-a1b2c3-made-up", name = "made-up", job_yaml = "model: gpt2-124m\n";
  bool with_prediction = true, with_spans = true, with_phases = true, with_price = true, cpu = false;
  std::vector<telemetry::Record> more;  // events and the like

  plan::Plan plan() const {
    plan::Plan plan;
    plan.model = spec::load_model("gpt2-124m");
    plan.cluster = spec::load_cluster(cpu ? "1x8xcpu" : "1x8xH100");
    plan.cluster.groups[0].price_per_device_hour_usd = with_price ? 5.0 : 0.0;
    plan.best.layout = plan::parse_layout("pp=2,dp=2,tp=2,recompute=full,precision=bf16");
    plan.best.batch = {.micro = 4, .accumulation = 8, .global_sequences = 64, .sequence_length = 2048};
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    plan.best.memory = {.parameters = 2 * kGiB,
                        .gradients = 1 * kGiB,
                        .optimizer = 4 * kGiB,
                        .activations = 6 * kGiB,
                        .buffers = 0.5 * kGiB,
                        .overhead = 1.5 * kGiB,
                        .capacity = 80 * kGiB};
    if (with_prediction) {
      const plan::Interval seconds{0.7, 0.8, 1.0};
      const auto rate = [&](double amount) {
        return plan::Interval{amount / seconds.high, amount / seconds.expected, amount / seconds.low};
      };
      plan.best.prediction = plan::Prediction{seconds, rate(kTokens), rate(64), {0.32, 0.4, 0.4 * 0.8 / 0.7}};
      plan.best.breakdown = plan::TimeBreakdown{.compute = 0.5,
                                                .tp_comm = 0.05,
                                                .dp_comm = 0.08,
                                                .pp_comm = 0.01,
                                                .bubble = 0.1,
                                                .optimizer = 0.04,
                                                .other = 0.02};
      plan.best.checkpoint = plan::CheckpointCadence{600, 300, 600, 3, 0.98};
    }
    plan.best.reasons = {"because"};
    return plan;
  }

  std::vector<telemetry::Metric> metrics(int rank, int step) const {
    const double extra = rank == 3 ? 0.1 : 0.0;  // computes longer, waits less
    std::vector<telemetry::Metric> row{{"step_seconds", 1.0}, {"memory_bytes", (14.0 + 0.1 * rank) * 1073741824.0}};
    if (with_phases) {
      row.insert(row.end(), {{"data_seconds", 0.05},
                             {"compute_seconds", 0.6 + extra},
                             {"forward_seconds", 0.2},
                             {"backward_seconds", 0.4 + extra},
                             {"comm_seconds", 0.25 - extra},
                             {"wait_seconds", 0.15 - extra},
                             {"optimizer_seconds", 0.05},
                             {"checkpoint_seconds", 0.02},
                             {"host_seconds", 0.03},
                             {"allocated_bytes", 10e9 + 1e6 * step}});
    }
    if (rank == 0) {
      row.insert(row.end(), {{"loss", 2.0 + 8.0 / step},
                             {"tokens_per_second", kTokens},
                             {"gradient_norm", 1.0 + 1.0 / step},
                             {cpu ? "efficiency" : "mfu", 0.32}});
    }
    return row;
  }

  static telemetry::SpanBatch spans(int rank, int step) {
    using telemetry::SpanKind;
    using telemetry::SpanLane;
    telemetry::SpanBatch batch{rank, step, kStart + 10.0 + step};
    batch.names = std::make_shared<const std::vector<std::string>>(
        std::vector<std::string>{"world/tp0", "world/dp1", "pp", "all_reduce"});
    const auto add = [&](SpanKind kind, float begin, float seconds, std::int32_t group) {
      telemetry::Span span;
      span.kind = kind;
      span.begin = begin;
      span.seconds = seconds;
      span.group = group;
      span.stage = static_cast<std::int16_t>(rank / 4);
      batch.spans.push_back(span);
    };
    add(SpanKind::kStep, 0.0F, 1.0F, -1);
    add(SpanKind::kForward, 0.05F, 0.2F, -1);
    add(SpanKind::kWait, 0.25F, 0.05F, 0);
    add(SpanKind::kBackward, 0.3F, 0.4F, -1);
    add(SpanKind::kRecompute, 0.3F, 0.15F, -1);
    add(SpanKind::kWait, 0.7F, 0.1F, 1);
    add(SpanKind::kWait, 0.8F, 0.1F, 2);
    return batch;
  }

  void write(telemetry::RunStore& store) const {
    using namespace telemetry;
    RunInfo info{.id = id, .name = name, .started_at = kStart, .world = kWorld, .backend = "nccl", .host = "node-1"};
    info.job_yaml = job_yaml;
    info.versions = {{"lockstep", "0.9"}};
    std::vector<Record> records{info, PlanRecord{plan::to_json(plan())}};
    for (int step = 1; step <= kSteps; ++step) {
      // The recovery after step 20 takes 5 seconds.
      const double time = kStart + 10.0 + step + (step > 20 ? 5.0 : 0.0);
      for (int rank = 0; rank < kWorld; ++rank) {
        records.push_back(MetricBatch{rank, step, time, metrics(rank, step)});
        if (with_spans && step > 30) records.push_back(spans(rank, step));
      }
    }
    records.push_back(Event{kStart + 20,
                            Level::kInfo,
                            "checkpoint",
                            0,
                            10,
                            "saved /c/10",
                            {{"path", "/c/10"}, {"seconds", 2.0}, {"stall_seconds", 0.2}, {"bytes", 1e9}}});
    records.push_back(Event{kStart + 30.5, Level::kWarning, "rank_lost", 5, 20, "rank 5 was killed"});
    records.push_back(Event{kStart + 34,
                            Level::kInfo,
                            "resume",
                            0,
                            20,
                            "generation 2: state from the memory of the ranks",
                            {{"generation", 2}, {"step", 20}, {"lost_steps", 2}}});
    records.insert(records.end(), more.begin(), more.end());
    records.push_back(RunEnd{kStart + 60, RunStatus::kDone, "", {{"tokens_per_second", kTokens}, {"final_loss", 2.2}}});
    store.write(id, records);
  }

  // A store with this run, in `folder`.
  std::unique_ptr<telemetry::RunStore> store(const TemporaryFolder& folder) const {
    auto made = telemetry::make_json_lines_run_store(folder.path(), 0);
    write(*made);
    return made;
  }
};

}  // namespace lockstep::report
