#include "lockstep/report/simulation_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/base/units.h"
#include "lockstep/report/terminal/timeline.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMostRows = 12;  // stages in the table, kinds of ranks
constexpr int kMostTimelineRows = 16;
constexpr int kBarCells = 32;

struct SharePart {
  const char* name;
  double sim::TimeShares::*member;
  char letter;
  Ink ink;
};
constexpr std::array<SharePart, 8> kParts = {{{"compute", &sim::TimeShares::compute, 'C', Ink::kBlue},
                                              {"exchange", &sim::TimeShares::exchange, 'X', Ink::kYellow},
                                              {"gather", &sim::TimeShares::gather, 'G', Ink::kCyan},
                                              {"loader", &sim::TimeShares::data, 'L', Ink::kRed},
                                              {"idle", &sim::TimeShares::idle, '.', Ink::kDim},
                                              {"reduce", &sim::TimeShares::reduce, 'R', Ink::kRed},
                                              {"optimizer", &sim::TimeShares::optimizer, 'O', Ink::kGreen},
                                              {"host", &sim::TimeShares::host, 'H', Ink::kPlain}}};

std::string change(double from, double to) { return fmt::format("{:+.1f}%", 100 * (to / from - 1)); }

class StepPage {
 public:
  StepPage(const sim::StepStudy& study, const TerminalStyle& style)
      : study_(study), style_(style), last_(*study.simulation.steps.back().played) {}

  std::string write() {
    summary();
    comparison();
    where_it_goes();
    timeline();
    return std::move(text_);
  }

 private:
  const sim::StepStudy& study_;
  const TerminalStyle& style_;
  const sim::PlayedStep& last_;
  std::string text_;

  void heading(const std::string& title, const std::string& remark = "") {
    text_ += inked(title, Ink::kBold, style_) + (remark.empty() ? "" : "  " + remark) + "\n";
  }
  void line(const std::string& text) { text_ += text + "\n"; }

  void summary() {
    const plan::Candidate& best = study_.plan.best;
    const auto samples = static_cast<double>(best.batch.global_sequences);
    const std::int64_t length = best.batch.sequence_length;
    const double rate = (length > 0 ? samples * static_cast<double>(length) : samples) / study_.step_seconds;
    heading(fmt::format("A step of {} on {}", study_.plan.model.name, study_.plan.cluster.name),
            fmt::format("{}, {} micro-batches of {}", plan::to_string(best.layout), best.batch.accumulation,
                        best.batch.micro));
    std::string text = fmt::format("  {}, {} {}/s", format_seconds(study_.step_seconds), format_count(rate),
                                   length > 0 ? "tokens" : "samples");
    if (study_.mfu_seconds > 0) text += fmt::format(", MFU {:.1f}%", 100 * study_.mfu_seconds / study_.step_seconds);
    line(text + fmt::format("  ({})", study_.asked));
    if (study_.simulation.steps.size() > 1) several_steps();
    const auto& kinds = study_.simulation.symmetry.classes;
    line(fmt::format("  {} ranks, of which {} differ{} and were played: {} events", best.layout.world(),
                     kinds.size() * static_cast<std::size_t>(best.layout.pp * study_.question.ranks.group_size()),
                     kinds.size() == 1 && best.layout.pp == 1 && study_.question.ranks.group_size() == 1 ? "s" : "",
                     study_.simulation.events));
    line("");
  }

  void several_steps() {
    double shortest = last_.seconds, longest = last_.seconds;
    for (const sim::SimulatedStep& step : study_.simulation.steps) {
      shortest = std::min(shortest, step.played->seconds);
      longest = std::max(longest, step.played->seconds);
    }
    std::string text =
        fmt::format("  {} steps in {}, each {} to {}", study_.simulation.steps.size(),
                    format_seconds(study_.simulation.seconds()), format_seconds(shortest), format_seconds(longest));
    if (study_.checkpoints > 0) {
      text += fmt::format("; {} checkpoints stood still {} in all", study_.checkpoints,
                          format_seconds(study_.stall_seconds));
    }
    line(text);
  }

  // From the closed form to what was played, one difference at a time.
  void comparison() {
    std::vector<std::vector<std::string>> rows = {{"the step", "seconds", "change", "because"}};
    const auto add = [&](const char* name, double seconds, double before, const std::string& because) {
      rows.push_back({name, format_seconds(seconds), before > 0 ? change(before, seconds) : "", because});
    };
    if (study_.planned_seconds > 0) add("in the plan", study_.planned_seconds, 0, "");
    if (study_.before_what_if_seconds > 0) {
      add("on the plan's cluster", study_.before_what_if_seconds, 0, "played, undisturbed");
    }
    add("closed form", study_.closed_form_seconds, 0, "as priced now");
    const double full = study_.closed_form_full_idle_seconds;
    if (full != study_.closed_form_seconds) {
      add("with all idle time", full, study_.closed_form_seconds, "profiles count a fitted share of it");
    }
    add("played", study_.without_contention_seconds, full, "order, overlap and unequal stages as they are");
    if (study_.request.contention) {
      add("with contention", study_.undisturbed_seconds, study_.without_contention_seconds,
          "transfers share links and NICs");
    }
    if (study_.step_seconds != study_.undisturbed_seconds) {
      add("as asked", study_.step_seconds, study_.undisturbed_seconds, "what was injected, jitter");
    }
    text_ += table(rows, {1, 2}, 2, style_);
    line("");
  }

  void where_it_goes() {
    heading("Where it goes", "last step, by stage and kind of data rank");
    std::vector<std::vector<std::string>> rows;
    rows.push_back({"stage", "data ranks"});
    for (const SharePart& part : kParts) rows.back().emplace_back(part.name);
    rows.back().emplace_back("");
    for (const sim::PlayedStage& stage : last_.stages) {
      if (rows.size() > kMostRows) break;
      const sim::DataClass& kind = study_.simulation.symmetry.classes[static_cast<std::size_t>(stage.data_class)];
      const sim::TimeShares shares = sim::time_shares(last_, stage, study_.question.program);
      rows.push_back({std::to_string(stage.stage),
                      kind.members == 1 ? fmt::format("{}", kind.data_rank)
                                        : fmt::format("{} and {} alike", kind.data_rank, kind.members - 1)});
      std::vector<Segment> segments;
      for (const SharePart& part : kParts) {
        rows.back().push_back(format_seconds(shares.*part.member));
        segments.push_back({shares.*part.member, part.letter, part.ink});
      }
      rows.back().push_back(stacked_bar(segments, last_.seconds, kBarCells, style_));
    }
    text_ += table(rows, {0, 2, 3, 4, 5, 6, 7, 8, 9}, 2, style_);
    if (last_.stages.size() + 1 > rows.size()) {
      line(fmt::format("  ... {} more rows with --json", last_.stages.size() + 1 - rows.size()));
    }
    line("");
  }

  // The kind of data rank that ends last, which is the one others wait for.
  static int slowest_kind(const sim::PlayedStep& step) {
    const auto last = std::max_element(
        step.stages.begin(), step.stages.end(),
        [](const sim::PlayedStage& a, const sim::PlayedStage& b) { return a.reduce_begin < b.reduce_begin; });
    return last->data_class;
  }

  // More micro-batches than there is room for are left out: the same step is played with fewer.
  void timeline() {
    const plan::PipelineSchedule& table = study_.question.program.schedule;
    if (table.stages < 2) return;
    const int cells = std::max(40, style_.width - 14);
    const int room = std::max(2, cells / 3 - table.stages), most = std::max(8, table.stages);
    const int shown = std::min({table.micro_batches, room, most});
    sim::StepsQuestion few = study_.question;
    few.steps = 1;
    few.program.schedule = plan::make_pipeline_schedule(table.schedule, table.stages, table.chunks, shown);
    const sim::Simulation simulation = sim::simulate(few);
    const sim::PlayedStep& step = *simulation.steps.front().played;
    const int kind = slowest_kind(step);
    std::string remark =
        fmt::format("data rank {}, {}", simulation.symmetry.classes[static_cast<std::size_t>(kind)].data_rank,
                    plan::to_string(table.schedule));
    if (shown < table.micro_batches) remark += fmt::format(", {} of {} micro-batches", shown, table.micro_batches);
    const double idle = plan::idle_share(sim::played_tasks(last_, slowest_kind(last_)), table.stages);
    heading("Pipeline", remark + fmt::format("; {:.1f}% of the whole step is idle", 100 * idle));
    text_ += draw_timeline(sim::played_tasks(step, kind), table.stages, cells, kMostTimelineRows, style_);
    line(inked("  1 2 3: forward of a micro-batch; a b c: its backward; w: weight gradients; dots: idle", Ink::kDim,
               style_));
  }
};

}  // namespace

std::string to_text(const sim::StepStudy& study, const TerminalStyle& style) { return StepPage(study, style).write(); }

}  // namespace lockstep::report
