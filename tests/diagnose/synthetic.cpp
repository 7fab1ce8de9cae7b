#include "tests/diagnose/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "lockstep/plan/plan.h"
#include "lockstep/plan/run.h"
#include "lockstep/spec/job.h"

namespace lockstep::diagnose {
namespace {

namespace metric = telemetry::metric;

spec::Job job_of(const MadeRun& made, const plan::Layout& layout) {
  spec::Job job = spec::parse_job(
      fmt::format("model: {{arch: {}, layers: {}, hidden: {}, heads: 4, vocab: 256, max_sequence: 64}}\n"
                  "cluster: {}\ndata: {{kind: text, path: /tmp/none.txt}}\n"
                  "batch: {{micro: {}, accumulation: {}, sequence_length: 64}}\nsteps: {}\nthreads_per_rank: 1\n",
                  made.experts ? "moe, ffn_hidden: 256, experts: 8, experts_per_token: 2" : "gpt", made.layers,
                  made.hidden, made.cluster, made.micro, made.accumulation, made.steps),
      "made.yaml");
  job.name = "made";
  job.layout = plan::request_from_layout(layout);
  for (spec::NodeGroup& group : job.cluster.groups) group.price_per_device_hour_usd = made.price_per_device_hour;
  return job;
}

plan::Plan plan_of(const MadeRun& made, const spec::Job& job, const plan::Layout& layout) {
  plan::Plan plan;
  plan.model = job.model;
  plan.cluster = job.cluster;
  plan.best.layout = layout;
  plan.best.batch = plan::batch_of(job, layout);
  plan.best.memory.parameters = 1e6;
  plan.best.memory.capacity = made.capacity_bytes;
  plan.search = {1, 1, 0.0};
  return plan;
}

telemetry::MetricBatch metrics_of(int rank, int step, const MadeStep& one, double step_seconds) {
  telemetry::MetricBatch batch;
  batch.rank = rank;
  batch.step = step;
  batch.time = 1000.0 + step;
  const auto add = [&](std::string_view name, double value) { batch.metrics.push_back({std::string(name), value}); };
  const double comm = step_seconds - one.own();
  add(metric::kStepSeconds, step_seconds);
  add(metric::kForwardSeconds, one.forward);
  add(metric::kBackwardSeconds, one.backward);
  add(metric::kComputeSeconds, one.forward + one.backward);
  add(metric::kOptimizerSeconds, one.optimizer);
  add(metric::kHostSeconds, one.host);
  add(metric::kDataSeconds, one.data);
  add(metric::kCheckpointSeconds, one.checkpoint);
  add(metric::kExposedCommSeconds, comm);
  add(metric::kWaitSeconds, std::max(0.0, comm - one.transfer));
  add(metric::kCpuWaitSeconds, one.cpu_wait);
  add(metric::kTargets, one.targets);
  add(metric::kAllocatedBytes, one.allocated_bytes);
  if (one.expert_imbalance > 0.0) add(metric::kExpertImbalance, one.expert_imbalance);
  return batch;
}

std::vector<telemetry::Record> records_of(const MadeRun& made, std::size_t number) {
  const plan::Layout layout = plan::parse_layout(made.layout);
  const spec::Job job = job_of(made, layout);
  telemetry::RunInfo info;
  info.id = id_of(number);
  info.name = "made";
  info.started_at = 1000.0;
  info.world = static_cast<int>(layout.world());
  info.job_yaml = spec::to_yaml(job);
  std::vector<telemetry::Record> records = {info, telemetry::PlanRecord{plan::to_json(plan_of(made, job, layout))}};
  std::mt19937_64 random(number + 7);
  std::normal_distribution<double> scatter(0.0, made.noise);
  for (int step = 1; step <= made.steps; ++step) {
    std::vector<MadeStep> ranks(static_cast<std::size_t>(info.world));
    double longest = 0.0;
    for (int rank = 0; rank < info.world; ++rank) {
      MadeStep& one = ranks[static_cast<std::size_t>(rank)];
      if (made.change) made.change(rank, step, one);
      for (double* phase : {&one.forward, &one.backward, &one.optimizer, &one.host, &one.data}) {
        *phase *= std::max(0.1, 1.0 + scatter(random) + (step == 1 ? 4.0 : 0.0));
      }
      longest = std::max(longest, one.own() + one.transfer);
    }
    for (int rank = 0; rank < info.world; ++rank) {
      records.emplace_back(metrics_of(rank, step, ranks[static_cast<std::size_t>(rank)], longest));
    }
  }
  records.insert(records.end(), made.more.begin(), made.more.end());
  telemetry::RunEnd end;
  end.time = 1000.0 + made.steps + 1;
  end.status = made.status;
  records.emplace_back(end);
  return records;
}

}  // namespace

telemetry::SpanBatch made_spans(int rank, int step, const std::vector<MadeExchange>& exchanges) {
  telemetry::SpanBatch batch;
  batch.rank = rank;
  batch.step = step;
  batch.time = 1000.0 + step;
  std::vector<std::string> names = {"all_reduce"};
  for (const MadeExchange& exchange : exchanges) names.push_back(exchange.group);
  batch.names = std::make_shared<const std::vector<std::string>>(std::move(names));
  for (std::size_t i = 0; i < exchanges.size(); ++i) {
    telemetry::Span span;
    span.kind = telemetry::SpanKind::kCollective;
    span.lane = telemetry::SpanLane::kComm;
    span.name = 0;
    span.group = static_cast<std::int32_t>(i) + 1;
    span.begin = exchanges[i].begin;
    span.seconds = exchanges[i].seconds;
    span.bytes = exchanges[i].bytes;
    span.sequence = step * 1000 + static_cast<std::int64_t>(i);
    batch.spans.push_back(span);
  }
  return batch;
}

std::string id_of(std::size_t number) { return fmt::format("20261118-00000{}-abcdef-made", number); }

std::unique_ptr<telemetry::RunStore> store_with(const std::vector<MadeRun>& made, const std::string& folder) {
  auto store = telemetry::make_json_lines_run_store(folder);
  for (std::size_t i = 0; i < made.size(); ++i) store->write(id_of(i), records_of(made[i], i));
  return store;
}

Diagnosis diagnose(const MadeRun& made) {
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep-diagnose-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder");
  Diagnosis found = diagnose_run(*store_with({made}, folder), id_of(0));
  std::filesystem::remove_all(folder);
  return found;
}

}  // namespace lockstep::diagnose
