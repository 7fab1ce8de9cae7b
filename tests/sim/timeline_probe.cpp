// How near the simulator is to the engine's own timeline. One question as JSON on stdin, one answer on stdout:
//
//   {"home", "schedule", "stages", "chunks", "warm_up",
//    "calibrate": RUN, "report": RUN}     RUN: {"run", "micro_batches", "forward": [s by rank], "backward": [s by
//    rank]}
//
// Both runs are recorded ones whose ranks sleep a known time in every pass. What a pass takes beyond that, how late a
// message comes, what stands between two passes and around them is learnt from the first run alone; the second one,
// with other times and another number of micro-batches, is foretold from its sleeps and compared.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/sim/step/player.h"
#include "lockstep/telemetry/run_store.h"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using nlohmann::json;
using plan::PipelineTaskKind;
using telemetry::SpanKind;

// A sender that was this much earlier than the rank itself kept nobody waiting.
constexpr double kClearly = 0.005;

struct RecordedPass {
  SpanKind kind = SpanKind::kForward;
  int position = 0, micro = 0;
  double begin = 0, end = 0;  // seconds since the first rank began the step
};

struct RecordedStep {
  std::int64_t number = 0;
  double seconds = 0;
  std::vector<std::vector<RecordedPass>> ranks;  // each in its order
};

struct Run {
  int micro_batches = 1;
  std::vector<double> forward, backward;  // seconds slept, by rank
  std::vector<RecordedStep> steps;
};

bool is_pass(const telemetry::Span& span) {
  const bool kind =
      span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward || span.kind == SpanKind::kWeightGradient;
  return kind && span.lane == telemetry::SpanLane::kMain && span.micro >= 0;
}

RecordedStep read_step(const std::vector<telemetry::SpanBatch>& batches) {
  RecordedStep step;
  double first = batches.front().time, last = 0;
  for (const telemetry::SpanBatch& batch : batches) first = std::min(first, batch.time);
  step.number = batches.front().step;
  for (const telemetry::SpanBatch& batch : batches) {
    const double from = batch.time - first;
    std::vector<RecordedPass> passes;
    for (const telemetry::Span& span : batch.spans) {
      const double begin = from + static_cast<double>(span.begin), end = begin + static_cast<double>(span.seconds);
      if (span.kind == SpanKind::kStep) last = std::max(last, end);
      if (is_pass(span)) passes.push_back({span.kind, span.stage, span.micro, begin, end});
    }
    std::sort(passes.begin(), passes.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    step.ranks.push_back(std::move(passes));
  }
  step.seconds = last;
  return step;
}

Run read_run(const telemetry::RunStore& store, const json& asked, std::size_t ranks, std::int64_t warm_up) {
  Run run{.micro_batches = asked.at("micro_batches"), .forward = asked.at("forward"), .backward = asked.at("backward")};
  const std::string id = asked.at("run");
  for (const std::int64_t step : store.span_steps(id)) {
    if (step <= warm_up) continue;
    const auto batches = store.spans(id, step, step);
    if (batches.size() == ranks) run.steps.push_back(read_step(batches));
  }
  if (run.steps.empty()) throw bad_input("run " + id + " has no whole step", "record more");
  return run;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double slept(const Run& run, SpanKind kind, int rank) {
  return (kind == SpanKind::kForward ? run.forward : run.backward)[static_cast<std::size_t>(rank)];
}

// What the engine adds to the sleeps.
struct Calibration {
  std::map<std::pair<SpanKind, int>, double> beyond;  // of a pass, by kind and position
  double between = 0;                                 // two passes of a rank that waited for nothing
  double late = 0;                                    // from the end of a pass to the begin of the next rank's
  double before = 0, after = 0;                       // the first pass, and the last one
};

using Ends = std::map<std::tuple<bool, int, int>, double>;  // forward, position, micro: when its result was there

Ends ends_of(const RecordedStep& step) {
  Ends ends;
  for (const auto& passes : step.ranks) {
    for (const RecordedPass& pass : passes) {
      if (pass.kind == SpanKind::kWeightGradient) continue;
      ends[{pass.kind == SpanKind::kForward, pass.position, pass.micro}] = pass.end;
    }
  }
  return ends;
}

Calibration calibrate(const Run& run, const plan::PipelineSchedule& schedule) {
  std::map<std::pair<SpanKind, int>, std::vector<double>> beyond;
  std::vector<double> between, late, before, after;
  for (const RecordedStep& step : run.steps) {
    const Ends ends = ends_of(step);
    double first = step.seconds, last = 0;
    for (const auto& passes : step.ranks) {
      for (std::size_t i = 0; i < passes.size(); ++i) {
        const RecordedPass& pass = passes[i];
        beyond[{pass.kind, pass.position}].push_back(pass.end - pass.begin -
                                                     slept(run, pass.kind, schedule.rank_of(pass.position)));
        first = std::min(first, pass.begin);
        last = std::max(last, pass.end);
        if (i == 0) continue;
        const bool forward = pass.kind == SpanKind::kForward;
        const auto sender = ends.find({forward, pass.position + (forward ? -1 : 1), pass.micro});
        const double free = passes[i - 1].end;
        const bool waits = pass.kind != SpanKind::kWeightGradient && sender != ends.end();
        if (!waits || sender->second < free - kClearly) between.push_back(pass.begin - free);
        if (waits && sender->second > free + kClearly) late.push_back(pass.begin - sender->second);
      }
    }
    before.push_back(first);
    after.push_back(step.seconds - last);
  }
  Calibration found{.between = median(between), .late = median(late), .before = median(before), .after = median(after)};
  for (auto& [pass, seconds] : beyond) found.beyond[pass] = median(std::move(seconds));
  return found;
}

sim::PlayedStep foretell(const Run& run, const Calibration& calibration, const plan::PipelineSchedule& schedule) {
  std::vector<plan::TaskSeconds> seconds;
  for (int position = 0; position < schedule.positions(); ++position) {
    const auto of = [&](SpanKind kind) {
      const auto found = calibration.beyond.find({kind, position});
      if (found == calibration.beyond.end()) return 0.0;
      return slept(run, kind, schedule.rank_of(position)) + found->second + calibration.between;
    };
    seconds.push_back({.forward = of(SpanKind::kForward),
                       .backward_input = of(SpanKind::kBackward),
                       .backward_weight = of(SpanKind::kWeightGradient),
                       .send = std::max(0.0, calibration.late - calibration.between)});
  }
  sim::StepProgram program = sim::program_of(schedule, seconds);
  program.host_seconds = calibration.before + calibration.after;
  plan::Layout layout;
  layout.pp = schedule.stages;
  layout.schedule = schedule.schedule;
  layout.virtual_stages = schedule.chunks;
  const sim::RankMap ranks{layout, layout.pp};
  return sim::play_step(program, ranks, sim::find_symmetry(ranks, {}, 1), {}, {.contention = false});
}

PipelineTaskKind kind_of(const RecordedPass& pass, bool split) {
  if (pass.kind == SpanKind::kForward) return PipelineTaskKind::kForward;
  if (pass.kind == SpanKind::kWeightGradient) return PipelineTaskKind::kWeightGradient;
  return split ? PipelineTaskKind::kInputGradient : PipelineTaskKind::kBackward;
}

json compare(const Run& run, const Calibration& calibration, const plan::PipelineSchedule& schedule) {
  const sim::PlayedStep played = foretell(run, calibration, schedule);
  const bool split = schedule.schedule == plan::Schedule::kZeroBubble;
  json steps = json::array();
  double sum = 0, worst = 0;
  std::size_t passes = 0, out_of_order = 0;
  for (const RecordedStep& step : run.steps) {
    for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
      const auto& foretold = played.stages[rank].passes;
      if (foretold.size() != step.ranks[rank].size()) throw bad_input("a pass is missing", "record all of them");
      for (std::size_t i = 0; i < foretold.size(); ++i) {
        const RecordedPass& pass = step.ranks[rank][i];
        const plan::PipelineTask task{kind_of(pass, split), schedule.chunk_of(pass.position), pass.micro};
        out_of_order += task == foretold[i].task ? 0 : 1;
        const double begin = std::abs(calibration.before + foretold[i].begin - pass.begin);
        const double end = std::abs(calibration.before + foretold[i].end - calibration.between - pass.end);
        for (const double off : {begin, end}) {
          sum += off / step.seconds;
          worst = std::max(worst, off / step.seconds);
        }
        ++passes;
      }
    }
    steps.push_back({{"step", step.number}, {"measured", step.seconds}, {"simulated", played.seconds}});
  }
  return {{"steps", steps},
          {"passes", passes},
          {"out_of_order", out_of_order},
          {"timeline", {{"mean", sum / (2.0 * static_cast<double>(passes))}, {"worst", worst}}}};
}

}  // namespace

int main() {
  try {
    const json asked = json::parse(std::string(std::istreambuf_iterator<char>(std::cin), {}));
    const auto store = telemetry::open_run_store(asked.at("home").get<std::string>());
    const std::string name = asked.at("schedule");
    const int stages = asked.at("stages"), chunks = asked.at("chunks");
    const plan::Layout layout = plan::parse_layout("pp=" + std::to_string(stages) + ",schedule=" + name +
                                                   ",virtual_stages=" + std::to_string(chunks));
    const auto table = [&](int micro_batches) {
      return plan::make_pipeline_schedule(layout.schedule, stages, chunks, micro_batches);
    };
    const auto ranks = static_cast<std::size_t>(stages);
    const Run known = read_run(*store, asked.at("calibrate"), ranks, asked.at("warm_up"));
    const Run other = read_run(*store, asked.at("report"), ranks, asked.at("warm_up"));
    const Calibration calibration = calibrate(known, table(known.micro_batches));
    json answer = compare(other, calibration, table(other.micro_batches));
    answer["calibrated"] = {{"between", calibration.between},
                            {"late", calibration.late},
                            {"before", calibration.before},
                            {"after", calibration.after}};
    std::printf("%s\n", answer.dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
