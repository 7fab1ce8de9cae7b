#include "lockstep/report/terminal/timeline.h"

#include <fmt/format.h>

namespace lockstep::report {
namespace {

using Kind = plan::PipelineTaskKind;

char letter_of(const plan::PipelineTask& task) {
  if (task.kind == Kind::kWeightGradient) return 'w';
  return static_cast<char>(task.kind == Kind::kForward ? '0' + (task.micro + 1) % 10 : 'a' + task.micro % 10);
}

Ink ink_of(const plan::PipelineTask& task) {
  switch (task.kind) {
    case Kind::kForward:
      return Ink::kBlue;
    case Kind::kBackward:
    case Kind::kInputGradient:
      return Ink::kGreen;
    case Kind::kWeightGradient:
      return Ink::kCyan;
  }
  return Ink::kPlain;
}

std::string draw_row(const std::vector<const plan::PlayedTask*>& tasks, double seconds, int cells,
                     const TerminalStyle& style) {
  const std::string idle = style.unicode ? "·" : ".";
  std::string text, run;  // `run`: neighbours in one ink
  Ink run_ink = Ink::kPlain;
  std::size_t next = 0;
  for (int cell = 0; cell < cells; ++cell) {
    const double moment = (cell + 0.5) * seconds / cells;
    while (next < tasks.size() && tasks[next]->end <= moment) ++next;
    const bool busy = next < tasks.size() && tasks[next]->start <= moment;
    const Ink ink = busy ? ink_of(tasks[next]->task) : Ink::kDim;
    if (ink != run_ink) {
      text += inked(run, run_ink, style);
      run.clear();
      run_ink = ink;
    }
    run += busy ? std::string(1, letter_of(tasks[next]->task)) : idle;
  }
  return text + inked(run, run_ink, style);
}

}  // namespace

std::string draw_timeline(const std::vector<plan::PlayedTask>& played, int stages, int cells, int most_rows,
                          const TerminalStyle& style) {
  std::vector<std::vector<const plan::PlayedTask*>> rows(static_cast<std::size_t>(stages));
  for (const plan::PlayedTask& task : played) rows[static_cast<std::size_t>(task.rank)].push_back(&task);
  const double seconds = plan::step_seconds(played);
  const int head = stages <= most_rows ? stages : most_rows / 2;
  const int tail = stages <= most_rows ? stages : stages - most_rows / 2;
  std::string text;
  for (int stage = 0; stage < stages; ++stage) {
    if (stage == head && head < tail) text += fmt::format("  {:>8} {}\n", "...", style.unicode ? "⋮" : ":");
    if (stage >= head && stage < tail) continue;
    text += fmt::format("  stage {:>2} {}\n", stage,
                        draw_row(rows[static_cast<std::size_t>(stage)], seconds, cells, style));
  }
  return text;
}

}  // namespace lockstep::report
