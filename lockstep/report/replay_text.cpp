#include "lockstep/report/replay_text.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::report {
namespace {

constexpr int kWidth = 80;
constexpr std::size_t kMostRows = 12;

std::string percent(double share) { return fmt::format("{:.2f}%", 100.0 * share); }

std::string seconds(double value) { return fmt::format("{:.4g} s", value); }

std::string cause_of(const std::optional<diagnose::Finding>& worst) {
  if (!worst) return "-";
  constexpr std::size_t kMostRanks = 4;
  std::string text = to_string(worst->cause);
  for (std::size_t i = 0; i < std::min(worst->ranks.size(), kMostRanks); ++i)
    text += fmt::format("{}{}", i == 0 ? ", rank " : " ", worst->ranks[i]);
  return worst->ranks.size() > kMostRanks ? text + " ..." : text;
}

std::string steps_table(const diagnose::ReplayedTrace& replayed, const TerminalStyle& style) {
  std::vector<std::vector<std::string>> rows = {{"step", "measured", "simulated", "off by", "slow-down", "cause"}};
  for (std::size_t i = 0; i < std::min(replayed.steps.size(), kMostRows); ++i) {
    const diagnose::ReplayedStep& step = replayed.steps[i];
    rows.push_back({fmt::format("{}", step.figures.step), seconds(step.figures.recorded_seconds),
                    seconds(step.figures.simulated_seconds), percent(step.error()),
                    fmt::format("{:.3f}", step.slow_down()), cause_of(step.worst)});
  }
  std::string text = table(rows, {0, 1, 2, 3, 4}, 2, style);
  if (replayed.steps.size() > kMostRows)
    text += fmt::format("  ... and {} more: --json has all\n", replayed.steps.size() - kMostRows);
  return text;
}

std::string errors_text(const diagnose::ReplayedTrace& replayed) {
  const auto both = [](const diagnose::ReplayError& error) {
    return fmt::format("{} on average, {} at worst", percent(error.mean), percent(error.worst));
  };
  std::string text = wrapped("  ", "off by " + both(replayed.error()), kWidth);
  if (const diagnose::ReplayError foretold = replayed.error_foretold(); std::isfinite(foretold.mean))
    text += wrapped("  ", "with the pauses of the other steps instead of its own: " + both(foretold), kWidth);
  return text + wrapped("  ", "without pauses: " + both(replayed.error_without_pauses()), kWidth);
}

std::string cause_text(const std::optional<diagnose::Finding>& worst, const TerminalStyle& style) {
  std::string text = "\n" + inked("Cause", Ink::kBold, style) + "  " + cause_of(worst) + "\n";
  if (!worst) return text + "  nothing costs enough to be named\n";
  text += wrapped("  because  ", worst->evidence, kWidth);
  return text + wrapped("  do       ", worst->fix, kWidth);
}

}  // namespace

std::string to_text(const diagnose::ReplayedTrace& replayed, const TerminalStyle& style) {
  const diagnose::StragglerFigures& figures = replayed.figures;
  std::string text = inked("Replay", Ink::kBold, style) +
                     fmt::format("  {} steps of {} workers ({} data ranks x {} stages){}\n", replayed.steps.size(),
                                 figures.workers.size(), replayed.data_ranks, replayed.stages,
                                 replayed.mesh ? fmt::format(", {} GPUs", replayed.mesh->world()) : "");
  text += fmt::format("  measured {} a step, simulated {}\n", seconds(figures.recorded_seconds),
                      seconds(replayed.simulated_seconds()));
  text += errors_text(replayed);
  text += fmt::format("  slow-down {:.3f}: without stragglers {}, pauses left out on both sides\n", figures.slow_down(),
                      seconds(figures.ideal_seconds));
  for (std::size_t i = 0; i < std::min(replayed.left_out.size(), kMostRows); ++i) {
    text +=
        wrapped("  ", fmt::format("step {} left out: {}", replayed.left_out[i].step, replayed.left_out[i].why), kWidth);
  }
  if (replayed.left_out.size() > kMostRows)
    text += fmt::format("  ... and {} more steps left out\n", replayed.left_out.size() - kMostRows);
  text += cause_text(replayed.worst, style);
  return text + "\n" + inked("Steps", Ink::kBold, style) + "\n" + steps_table(replayed, style);
}

std::string to_text(const diagnose::ReplayedRun& replayed, const TerminalStyle& style) {
  const diagnose::ReplayedRunStep mean = replayed.mean();
  std::string text = inked("Replay", Ink::kBold, style) +
                     fmt::format("  {} steps of {}, {} ranks\n", replayed.steps.size(), replayed.run, replayed.ranks);
  text += fmt::format("  measured {} a step, simulated {}: off by {} on average, {} at worst\n",
                      seconds(mean.measured_seconds), seconds(mean.simulated_seconds), percent(replayed.mean_error()),
                      percent(replayed.worst_error()));
  text += fmt::format("  slow-down {:.3f}: without stragglers {}, pauses left out on both sides\n", mean.slow_down(),
                      seconds(mean.straggler_free_seconds));
  text += cause_text(replayed.worst, style);
  std::vector<std::vector<std::string>> rows = {{"step", "measured", "simulated", "off by", "slow-down"}};
  for (std::size_t i = 0; i < std::min(replayed.steps.size(), kMostRows); ++i) {
    const diagnose::ReplayedRunStep& step = replayed.steps[i];
    rows.push_back({fmt::format("{}", step.step), seconds(step.measured_seconds), seconds(step.simulated_seconds),
                    percent(step.error()), fmt::format("{:.3f}", step.slow_down())});
  }
  text += "\n" + inked("Steps", Ink::kBold, style) + "\n" + table(rows, {0, 1, 2, 3, 4}, 2, style);
  if (replayed.steps.size() > kMostRows)
    text += fmt::format("  ... and {} more: --json has all\n", replayed.steps.size() - kMostRows);
  return text;
}

}  // namespace lockstep::report
