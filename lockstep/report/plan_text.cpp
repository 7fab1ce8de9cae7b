#include "lockstep/report/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/explain/terms.h"
#include "lockstep/report/figures.h"
#include "lockstep/report/terminal/timeline.h"

namespace lockstep::report {
namespace {

constexpr int kNameWidth = 12, kBarCells = 44, kMostStageRows = 12;

struct MemoryPart {
  const char* name;
  double plan::MemoryBreakdown::*member;
  char letter;
  Ink ink;
};
constexpr std::array<MemoryPart, 6> kMemoryParts{{
    {"parameters", &plan::MemoryBreakdown::parameters, 'P', Ink::kBlue},
    {"gradients", &plan::MemoryBreakdown::gradients, 'G', Ink::kCyan},
    {"optimizer", &plan::MemoryBreakdown::optimizer, 'O', Ink::kGreen},
    {"activations", &plan::MemoryBreakdown::activations, 'A', Ink::kYellow},
    {"buffers", &plan::MemoryBreakdown::buffers, 'B', Ink::kRed},
    {"overhead", &plan::MemoryBreakdown::overhead, 'x', Ink::kDim},
}};

struct TimePart {
  const char* name;
  double plan::TimeBreakdown::*member;
  Ink ink;
};
constexpr std::array<TimePart, 10> kTimeParts{{
    {"compute", &plan::TimeBreakdown::compute, Ink::kGreen},
    {"tp traffic", &plan::TimeBreakdown::tp_comm, Ink::kBlue},
    {"dp traffic", &plan::TimeBreakdown::dp_comm, Ink::kCyan},
    {"pp traffic", &plan::TimeBreakdown::pp_comm, Ink::kBlue},
    {"cp traffic", &plan::TimeBreakdown::cp_comm, Ink::kCyan},
    {"ep traffic", &plan::TimeBreakdown::ep_comm, Ink::kBlue},
    {"bubble", &plan::TimeBreakdown::bubble, Ink::kRed},
    {"optimizer", &plan::TimeBreakdown::optimizer, Ink::kYellow},
    {"other", &plan::TimeBreakdown::other, Ink::kDim},
    {"chosen", &plan::TimeBreakdown::selection, Ink::kDim},
}};

// "dp=4, tp=2, uneven stages": breaks into lines.
std::string spaced(const std::string& layout) {
  std::vector<std::string> parts = split(layout, ',');
  for (std::string& part : parts) {
    if (part.starts_with("stage_layers=")) part = part == "stage_layers=even" ? "even stages" : "uneven stages";
  }
  return join(parts, ", ");
}

std::string assumed_figure(double value, const std::string& unit) {
  if (unit == "s") return format_seconds(value);
  if (unit == "B/s") return format_rate(value, "B");
  return fmt::format("{:.3g}", value);
}

// A rank's seconds in equal parts over its chunks. Sends that are not hidden keep the sender busy: they are in its
// passes already.
std::vector<plan::TaskSeconds> seconds_by_position(const plan::PipelineSchedule& schedule,
                                                   const std::vector<cost::StagePrice>& stages) {
  std::vector<plan::TaskSeconds> seconds;
  for (int position = 0; position < schedule.positions(); ++position) {
    const cost::StagePrice& stage = stages[static_cast<std::size_t>(schedule.rank_of(position))];
    seconds.push_back({.forward = stage.forward_seconds / schedule.chunks,
                       .backward_input = (stage.backward_seconds - stage.weight_gradient_seconds) / schedule.chunks,
                       .backward_weight = stage.weight_gradient_seconds / schedule.chunks});
  }
  return seconds;
}

class PlanPage {
 public:
  PlanPage(const planner::Explained& explained, const PlanTextOptions& options)
      : explained_(explained), best_(explained.plan.best), style_(options.style), options_(options) {}

  std::string write() {
    headline();
    memory();
    time();
    pipeline();
    reasons();
    losers();
    strategies();
    what_ifs();
    assumptions();
    if (options_.pareto) pareto();
    if (options_.passes) passes();
    return std::move(text_);
  }

 private:
  bool tokens() const { return best_.batch.sequence_length > 0; }
  const char* unit() const { return tokens() ? "tokens" : "samples"; }

  void line(const std::string& text = {}) { text_ += text + "\n"; }
  void heading(const std::string& text, const std::string& remark = {}) {
    line();
    line(fmt::format("{}{}{}", inked(text, Ink::kBold, style_), remark.empty() ? "" : "  ",
                     inked(remark, Ink::kDim, style_)));
  }
  void row(const std::string& name, const std::string& value) {
    text_ += wrapped(fmt::format("  {}", inked(fmt::format("{:<{}}", name, kNameWidth), Ink::kDim, style_)), value,
                     style_.width);
  }

  void headline() {
    const spec::Model& model = explained_.plan.model;
    const spec::Cluster& cluster = explained_.plan.cluster;
    line(fmt::format("{} ({} parameters) on {}", inked(model.name, Ink::kBold, style_),
                     format_count(static_cast<double>(spec::parameter_count(model))),
                     inked(cluster.name, Ink::kBold, style_)));
    for (const spec::NodeGroup& group : cluster.groups) row("cluster", describe_group(group));
    row("layout", inked(plan::to_string(best_.layout), Ink::kBold, style_));
    row("precision", spec::to_string(best_.layout.precision));
    row("batch", describe_batch(best_.batch, best_.layout));
    const plan::Prediction& prediction = *best_.prediction;
    const plan::Interval& rate = tokens() ? prediction.tokens_per_second : prediction.samples_per_second;
    const double ranks = static_cast<double>(best_.layout.world());
    row("speed", fmt::format("{} ({} to {}), {} per GPU", inked(format_rate(rate.expected, unit()), Ink::kBold, style_),
                             format_count(rate.low), format_count(rate.high), format_count(rate.expected / ranks)));
    row("step", fmt::format("{} ({} to {}){}", format_seconds(prediction.step_seconds.expected),
                            format_seconds(prediction.step_seconds.low), format_seconds(prediction.step_seconds.high),
                            prediction.mfu.expected > 0
                                ? fmt::format(", MFU {:.1f}% ({:.1f} to {:.1f}){}", 100 * prediction.mfu.expected,
                                              100 * prediction.mfu.low, 100 * prediction.mfu.high, fp8_share())
                                : ""));
    if (best_.cost) row("job", describe_job());
    if (best_.checkpoint) row("checkpoints", describe_cadence());
    row("bottleneck", inked(explained_.bottleneck, Ink::kYellow, style_));
    for (const std::string& notice : options_.notices) row("note", inked(notice, Ink::kYellow, style_));
  }

  // MFU is a share of the bf16 peak whatever the precision; of fp8's it is a smaller one.
  std::string fp8_share() const {
    if (best_.layout.precision != spec::Precision::kFp8) return "";
    const spec::Device& device = explained_.plan.cluster.groups.front().device;
    return fmt::format(" of the bf16 peak, {:.1f}% of that of fp8",
                       100 * best_.prediction->mfu.expected * device.peak_bf16_flops / device.peak_fp8_flops);
  }

  std::string describe_job() const {
    std::string text =
        fmt::format("{} {}: {}", format_count(explained_.request.tokens), unit(), describe_cost(*best_.cost));
    if (explained_.request.deadline_seconds > 0) {
      const bool in_time = best_.cost->days * 86400 <= explained_.request.deadline_seconds;
      text += fmt::format("; {} the deadline of {:.4g} days",
                          in_time ? inked("meets", Ink::kGreen, style_) : inked("misses", Ink::kRed, style_),
                          explained_.request.deadline_seconds / 86400);
    }
    return text;
  }

  std::string describe_cadence() const {
    const plan::CheckpointCadence& cadence = *best_.checkpoint;
    std::string text = fmt::format("every {}, stall {}, a failure loses {} (at worst {}), goodput {:.1f}%",
                                   format_seconds(cadence.interval_seconds), format_seconds(cadence.stall_seconds),
                                   format_seconds(cadence.expected_lost_seconds),
                                   format_seconds(cadence.worst_lost_seconds), 100 * cadence.goodput);
    if (cadence.worst_lost_seconds > explained_.request.max_lost_seconds) {
      text += inked(
          fmt::format("; storage is too slow for the cap of {}", format_seconds(explained_.request.max_lost_seconds)),
          Ink::kRed, style_);
    }
    return text;
  }

  void memory() {
    constexpr double kRisky = 0.01;
    const plan::MemoryBreakdown& memory = best_.memory;
    std::string remark = fmt::format("{} of {}", format_bytes(memory.total()), format_bytes(memory.capacity));
    if (best_.out_of_memory_probability && *best_.out_of_memory_probability > kRisky) {
      remark += fmt::format(", out of memory with a probability of {:.0f}%", 100 * *best_.out_of_memory_probability);
    }
    heading(explained_.plan.cluster.is_cpu() ? "Memory per rank" : "Memory per GPU", remark);
    double before = 0;
    for (const MemoryPart& part : kMemoryParts) {
      const double bytes = memory.*part.member;
      line(
          fmt::format("  {:<{}} {} {:>10}", part.name, kNameWidth - 1,
                      placed_bar(before, bytes, std::max(memory.capacity, memory.total()), kBarCells, part.ink, style_),
                      format_bytes(bytes)));
      before += bytes;
    }
    if (memory.snapshots > 0) {
      line(fmt::format("  {:<{}} {} of host memory beside it, for recovery", "snapshots", kNameWidth - 1,
                       format_bytes(memory.snapshots)));
    }
    if (memory.host > 0) {
      line(fmt::format("  {:<{}} {}{} of host memory a rank, offloaded", "host", kNameWidth - 1,
                       format_bytes(memory.host),
                       memory.host_capacity > 0 ? " of " + format_bytes(memory.host_capacity) : std::string()));
    }
    if (explained_.stages.size() > 1) stage_memory();
  }

  void stage_memory() {
    constexpr int kStageBarCells = 36;
    const auto& stages = explained_.stages;
    line();
    const std::size_t rows = std::min<std::size_t>(stages.size(), kMostStageRows);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const bool hidden = stages.size() > rows && i >= rows / 2 && i < stages.size() - rows / 2;
      if (hidden && i == rows / 2) line(fmt::format("  {:>8}", "..."));
      if (hidden) continue;
      std::vector<Segment> parts;
      parts.reserve(kMemoryParts.size());
      for (const MemoryPart& part : kMemoryParts)
        parts.push_back({stages[i].memory.*part.member, part.letter, part.ink});
      line(fmt::format("  stage {:>2}    {} {:>9}  {} layers, {} in flight, {}", i,
                       stacked_bar(parts, stages[i].memory.capacity, kStageBarCells, style_),
                       format_bytes(stages[i].memory.total()), stages[i].layers, stages[i].in_flight,
                       stages[i].device));
    }
    if (!style_.colour) line("  P parameters, G gradients, O optimizer, A activations, B buffers, x overhead");
  }

  void time() {
    constexpr double kSmallestShare = 0.002;  // of the step: shorter terms get no row
    const plan::TimeBreakdown& time = *best_.breakdown;
    heading("Time of a step", "what is hidden behind compute is not shown");
    double before = 0;
    for (const TimePart& part : kTimeParts) {
      const double seconds = time.*part.member;
      if (seconds > kSmallestShare * time.total()) {
        line(fmt::format("  {:<{}} {} {:>10} {:>6}", part.name, kNameWidth - 1,
                         placed_bar(before, seconds, time.total(), kBarCells, part.ink, style_),
                         format_seconds(seconds), fmt::format("{:.1f}%", 100 * seconds / time.total())));
      }
      before += seconds;
    }
  }

  void pipeline() {
    const auto& stages = explained_.stages;
    if (stages.size() < 2) return;
    const int count = static_cast<int>(stages.size());
    const int cells = std::max(40, style_.width - 14);
    // A forward wants a cell at least; a backward takes about two.
    const auto shown = static_cast<int>(
        std::clamp<std::int64_t>(cells / 3 - count, std::min<std::int64_t>(2, best_.batch.accumulation),
                                 std::min<std::int64_t>(best_.batch.accumulation, std::max(8, count))));
    const plan::PipelineSchedule schedule = plan::make_pipeline_schedule(
        best_.layout.schedule, count, static_cast<int>(best_.layout.virtual_stages), shown);
    const auto played = plan::play(schedule, seconds_by_position(schedule, stages));
    std::string remark = plan::to_string(best_.layout.schedule);
    if (shown < best_.batch.accumulation) {
      remark += fmt::format(", drawn with {} of {} micro-batches: the bubble is {:.1f}% of the step", shown,
                            best_.batch.accumulation, 100 * best_.breakdown->bubble / best_.breakdown->total());
    }
    heading("Pipeline", remark);
    text_ += draw_timeline(played, count, cells, kMostStageRows, style_);
    line(inked("  1 2 3: forward of a micro-batch; a b c: its backward; w: weight gradients; dots: idle", Ink::kDim,
               style_));
  }

  void reasons() {
    heading("Why");
    for (const std::string& reason : best_.reasons) {
      text_ += wrapped(style_.unicode ? "  • " : "  - ", reason, style_.width);
    }
  }

  void losers() {
    if (explained_.plan.alternatives.empty()) return;
    heading("What lost");
    for (const plan::Candidate& loser : explained_.plan.alternatives) {
      const std::vector<std::string> cells = summary_cells(loser);
      text_ += wrapped(style_.unicode ? "  • " : "  - ", loser.why_not, style_.width);
      const std::string what =
          fmt::format("--layout {} --micro {}: {} {}/s, {}", cells[0], cells[1], cells[2], unit(), cells[3]);
      for (const std::string& part : split(wrapped("    ", what, style_.width), '\n')) {
        if (!part.empty()) line(inked(part, Ink::kDim, style_));
      }
    }
  }

  // FSDP, tensor parallel, pipeline or hybrid?
  void strategies() {
    constexpr std::size_t kMostNames = 3;
    if (explained_.strategies.size() < 2) return;
    heading("Which strategy", "each at its best on this job, and who runs that");
    std::vector<std::vector<std::string>> rows{
        {"strategy", unit() + std::string("/s"), "gain", "memory", "layout", "runs on"}};
    for (const planner::Strategy& strategy : explained_.strategies) {
      const std::string name = strategy.is_planned ? strategy.name + " (the plan)" : strategy.name;
      if (!strategy.best) {
        rows.push_back({name, "-", "-", "-", "does not fit", ""});
        continue;
      }
      const std::vector<std::string> cells = summary_cells(*strategy.best);
      std::vector<std::string> names = strategy.runs_on;
      const std::size_t more = names.size() > kMostNames ? names.size() - kMostNames : 0;
      names.resize(names.size() - more);
      rows.push_back({name, cells[2], fmt::format("{:+.1f}%", 100 * strategy.gain), cells[3],
                      spaced(fmt::format("{},micro={}", cells[0], cells[1])),
                      names.empty() ? "nobody" : join(names, ", ") + (more > 0 ? fmt::format(", {} more", more) : "")});
    }
    text_ += table(rows, {1, 2, 3}, 2, style_);
  }

  // For --layout of the same command, which asks for the plan's precision.
  std::string pasteable(const plan::Layout& layout) const {
    std::string text = short_layout(layout);
    if (layout.precision == best_.layout.precision) return text;
    return fmt::format("{},precision={}", text, spec::to_string(layout.precision));
  }

  std::vector<std::string> summary_cells(const plan::Candidate& candidate) const {
    const plan::Prediction& prediction = *candidate.prediction;
    const plan::Interval& rate = tokens() ? prediction.tokens_per_second : prediction.samples_per_second;
    return {pasteable(candidate.layout), std::to_string(candidate.batch.micro), format_count(rate.expected),
            format_bytes(candidate.memory.total())};
  }

  void what_ifs() {
    constexpr double kWorthInk = 0.005;  // smaller gains are neither green nor red
    if (explained_.what_ifs.empty()) return;
    heading("What if", "layouts near the plan, searched again with the change");
    const char* gain = planner::is_about_money(explained_.request.objective) ? "saves" : "gain";
    std::vector<std::vector<std::string>> rows{{"change", unit() + std::string("/s"), gain, "then"}};
    for (const planner::WhatIf& change : explained_.what_ifs) {
      if (!change.layout) {
        rows.push_back({change.change, "-", "-", "does not fit"});
        continue;
      }
      const Ink ink = change.gain > kWorthInk ? Ink::kGreen : change.gain < -kWorthInk ? Ink::kRed : Ink::kPlain;
      const std::string difference = planner::layout_difference(best_.layout, *change.layout);
      rows.push_back({change.change, format_count(change.per_second),
                      inked(fmt::format("{:+.1f}%", 100 * change.gain), ink, style_),
                      (difference.empty() ? "the same layout" : spaced(difference)) +
                          (change.idle_devices > 0 ? fmt::format(", {} idle", change.idle_devices) : "")});
    }
    text_ += table(rows, {1, 2}, 2, style_);
  }

  void assumptions() {
    const planner::Sensitivity& all = explained_.sensitivity;
    if (all.empty()) return;
    heading("What it rests on", "time of the run at the ends of each range");
    std::vector<std::vector<std::string>> rows{{"assumption", "as planned", "range", "time", "then better"}};
    for (const planner::Assumption& each : all) {
      const auto value = [&](double figure) { return assumed_figure(figure, each.unit); };
      rows.push_back({each.name, value(each.value), fmt::format("{} to {}", value(each.low), value(each.high)),
                      fmt::format("{:+.1f}% to {:+.1f}%", 100 * each.time_at_low, 100 * each.time_at_high),
                      each.other_layout.empty() ? "-"
                                                : fmt::format("{} by {:.1f}%",
                                                              spaced(planner::layout_difference(
                                                                  best_.layout, plan::parse_layout(each.other_layout))),
                                                              100 * each.other_gain)});
    }
    text_ += table(rows, {1}, 2, style_);
    const planner::Assumption& first = all.front();
    text_ += wrapped("  ",
                     fmt::format("Most sensitive to: {} ({}). What settles it: {}: {}", first.name, first.meaning,
                                 first.measurement, first.command),
                     style_.width);
  }

  void pareto() {
    constexpr double kParetoStep = 0.95;  // of the memory of the row above: nearer ones are left out
    heading("Pareto front", "no other is better in speed, memory and money at once; steps of 5% of memory");
    std::vector<std::vector<std::string>> rows{{"layout", "micro", unit() + std::string("/s"), "memory", "USD"}};
    double shown_bytes = std::numeric_limits<double>::infinity();
    std::int64_t shown_devices = 0;
    for (const plan::Candidate& candidate : explained_.pareto) {
      const bool near =
          candidate.memory.total() > kParetoStep * shown_bytes && candidate.layout.world() == shown_devices;
      if (near) continue;
      shown_bytes = candidate.memory.total();
      shown_devices = candidate.layout.world();
      rows.push_back(summary_cells(candidate));
      rows.back().push_back(candidate.cost ? format_dollars(candidate.cost->usd) : "-");
    }
    text_ += table(rows, {1, 2, 3, 4}, 2, style_);
  }

  void passes() {
    heading("Search", fmt::format("{} candidates, {} fit, {}", explained_.plan.search.candidates,
                                  explained_.plan.search.feasible, format_seconds(explained_.plan.search.seconds)));
    std::vector<std::vector<std::string>> rows{{"pass", "in", "out", "seconds"}};
    for (const planner::PassReport& pass : explained_.passes) {
      rows.push_back(
          {pass.name, std::to_string(pass.in), std::to_string(pass.out), fmt::format("{:.4f}", pass.seconds)});
    }
    text_ += table(rows, {1, 2, 3}, 2, style_);
  }

  const planner::Explained& explained_;
  const plan::Candidate& best_;
  const TerminalStyle& style_;
  const PlanTextOptions& options_;
  std::string text_;
};

}  // namespace

std::string to_text(const planner::Explained& explained, const PlanTextOptions& options) {
  return PlanPage(explained, options).write();
}

}  // namespace lockstep::report
