#include "lockstep/cli/tune_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/counted.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/study/figures.h"

namespace lockstep::cli {
namespace {

std::string budget_text(const tune::StudySetup& setup) {
  std::string text =
      fmt::format("{} trials of up to {}", setup.strategy.trials, format_seconds(setup.strategy.trial_seconds));
  if (setup.strategy.gpu_seconds > 0)
    text += fmt::format(", at most {}", gpu_time_text(setup.strategy.gpu_seconds, setup));
  return text;
}

// Said before anything is spent: a budget that will not pay for the trials asked for.
std::string shortfall_text(const tune::StudySetup& setup) {
  const std::string gpus = setup.evaluator.value("gpus", "");
  double devices = 1;
  if (!gpus.empty() && gpus.find_first_not_of("0123456789") == std::string::npos) devices = std::stod(gpus);
  const double price = setup.strategy.trial_seconds * devices;
  const double paid = setup.strategy.gpu_seconds / price;
  if (setup.strategy.gpu_seconds <= 0 || paid >= static_cast<double>(setup.strategy.trials)) return "";
  return fmt::format(
      "note: {} pays for {:.0f} trials of {} on {:g} {}, not for {}; trials that end earlier leave more for others",
      gpu_time_text(setup.strategy.gpu_seconds, setup), std::floor(paid), format_seconds(setup.strategy.trial_seconds),
      devices, devices == 1 ? "GPU" : "GPUs", setup.strategy.trials);
}

std::string interval_text(const tune::Estimate& estimate, const char* format, const char* launches) {
  const std::string low = fmt::format(fmt::runtime(format), estimate.low);
  const std::string high = fmt::format(fmt::runtime(format), estimate.high);
  return fmt::format("95%: {} to {}, {}", low, high, counted(estimate.launches, launches));
}

void add_row(std::string& text, const std::string& name, const std::string& value) {
  text += fmt::format("  {:<12} {}\n", name, value);
}

void add_importance(std::string& text, const tune::Conclusion& conclusion) {
  std::vector<std::string> knobs = conclusion.top;
  knobs.insert(knobs.end(), conclusion.tied.begin(), conclusion.tied.end());
  std::string label = "top knobs";
  for (const std::string& name : knobs) {
    const auto knob = std::find_if(conclusion.importance.begin(), conclusion.importance.end(),
                                   [&](const tune::KnobImportance& entry) { return entry.knob == name; });
    if (knob == conclusion.importance.end()) continue;
    std::string what;
    if (knob->set_back_fails) {
      what = "does not run at its default";
    } else if (knob->set_back_percent) {
      what = fmt::format("{:.1f}% slower at its default ({})", knob->set_back_percent->value,
                         interval_text(*knob->set_back_percent, "{:.1f}%", "launch"));
    } else {
      what = fmt::format("{:.0f}% of the variance", knob->variance_total_percent.value);
    }
    const bool tied = std::find(conclusion.tied.begin(), conclusion.tied.end(), name) != conclusion.tied.end();
    add_row(text, label, fmt::format("{}: {}{}", name, what, tied ? " (tied)" : ""));
    label.clear();
  }
}

void add_front(std::string& text, const tune::StoredStudy& study, const tune::Front& front) {
  std::string label = "front";
  for (const tune::Front::Point& point : front.points) {
    std::vector<std::string> values;
    for (std::size_t i = 0; i < point.values.size(); ++i)
      values.push_back(report::objective_text(front.objectives[i], point.values[i].value, study.setup.unit));
    const bool standard = study.space.has_default() && point.config == study.space.default_config();
    add_row(
        text, label,
        fmt::format("{}   {}{}", join(values, ", "),
                    standard ? "the default"
                             : study.space.to_text(point.config,
                                                   study.space.has_default() ? &study.space.default_config() : nullptr),
                    point.provisional ? "   (by the models, no fresh launch)" : ""));
    label.clear();
  }
}

std::string failures_text(const tune::Conclusion& conclusion) {
  std::vector<std::string> parts;
  for (std::size_t i = 1; i < std::size(conclusion.failures_by_outcome); ++i) {
    if (conclusion.failures_by_outcome[i] == 0) continue;
    parts.push_back(
        fmt::format("{} {}", conclusion.failures_by_outcome[i], tune::to_string(static_cast<tune::Outcome>(i))));
  }
  return parts.empty() ? "none failed" : fmt::format("{} failed: {}", conclusion.failed, join(parts, ", "));
}

}  // namespace

std::string rate_text(double value, const std::string& unit) {
  const bool rate = unit.ends_with("/s");
  return rate ? format_rate(value, unit.substr(0, unit.size() - 2)) : fmt::format("{} {}", format_count(value), unit);
}

std::string gpu_time_text(double gpu_seconds, const tune::StudySetup& setup) {
  const std::string device = tune::device_of(setup.evaluator);
  if (gpu_seconds >= 2 * 3600) return fmt::format("{:.4g} {}-hours", gpu_seconds / 3600, device);
  if (gpu_seconds >= 120) return fmt::format("{:.3g} {}-minutes", gpu_seconds / 60, device);
  return fmt::format("{:.3g} {}-seconds", gpu_seconds, device);
}

std::string trial_line(const tune::Trial& trial, const tune::Space& space, const std::string& unit, double best_before,
                       const std::string& reason) {
  const bool is_default = space.has_default() && trial.config == space.default_config();
  const std::string config = is_default            ? "the default"
                             : space.has_default() ? space.to_text(trial.config, &space.default_config())
                                                   : space.to_text(trial.config);
  const std::string head = fmt::format("{:>4}  {:<9}", trial.number, tune::to_string(trial.purpose));
  const std::string cost = format_seconds(trial.seconds);
  if (!tune::measured(trial)) {
    std::string line = fmt::format("{} {:>17} {:>8} {:>9}  {}", head, tune::to_string(trial.outcome), "", cost, config);
    if (!trial.message.empty()) line += fmt::format("   {}", trial.message);
    return line;
  }
  const std::string against =
      best_before > 0 ? fmt::format("{:+.1f}%", 100 * (trial.throughput / best_before - 1)) : std::string();
  std::string note = trial.stopped_early ? "stopped early" : reason;
  if (trial.purpose == tune::Purpose::kSetBack) note = fmt::format("{} reverted", trial.set_back_knob);
  return fmt::format("{} {:>17} {:>8} {:>9}  {}{}{}", head, rate_text(trial.throughput, unit), against, cost, config,
                     note.empty() ? "" : "   ", note);
}

TuneProgress::TuneProgress(std::FILE* out, const tune::StoredStudy& study) : out_(out), study_(study) {
  if (out_ == nullptr) return;
  telemetry::ProgressRenderer::Options options;
  options.title = study.setup.name;
  options.style = telemetry::detect_style(out);
  renderer_ = std::make_unique<telemetry::ProgressRenderer>(out, options);
  for (const tune::Trial& trial : study.trials) best_ = std::max(best_, trial.throughput);
}

void TuneProgress::begin() {
  if (out_ == nullptr) return;
  renderer_->message(
      fmt::format("study {}: {} knobs, {}", study_.id(), study_.space.size(), budget_text(study_.setup)));
  for (const nlohmann::json& earlier : study_.setup.evaluator.value("transfer", nlohmann::json::array())) {
    renderer_->message(fmt::format("earlier study {}: {} of its {} trials have a place in this space",
                                   printable(earlier.value("name", ""), 100),
                                   earlier.value("trials", nlohmann::json::array()).size(), earlier.value("told", 0)));
  }
  if (const std::string note = shortfall_text(study_.setup); !note.empty()) renderer_->message(note);
  if (!study_.trials.empty() || study_.interrupted > 0) {
    renderer_->message(fmt::format("goes on after {} trials{}", study_.trials.size(),
                                   study_.interrupted > 0 ? "; one that was cut off is made again" : ""));
  }
  renderer_->message(fmt::format("{:>4}  {:<9} {:>17} {:>8} {:>9}  {}", "", "purpose", "throughput", "to best", "took",
                                 study_.space.has_default() ? "differs from the default in" : "no default given"));
}

void TuneProgress::update(const tune::StudyProgress& progress) {
  if (out_ == nullptr) return;
  if (progress.ended != nullptr) {
    const std::string reason = progress.proposal != nullptr ? progress.proposal->reason : "";
    std::string line = trial_line(*progress.ended, study_.space, study_.setup.unit, best_, reason);
    const telemetry::TerminalStyle style = telemetry::detect_style(out_);
    if (style.live && telemetry::display_width(line) > style.width) {  // better no reason than a broken table
      line = trial_line(*progress.ended, study_.space, study_.setup.unit, best_, "");
    }
    renderer_->message(line);
    best_ = std::max(best_, progress.best_throughput);
    std::fflush(out_);
  }
  if (!telemetry::detect_style(out_).live) return;  // plain lines are the trials themselves
  telemetry::ProgressSample sample;
  sample.step = progress.done;
  sample.steps_total = study_.setup.strategy.trials;
  if (progress.best_throughput > 0) sample.per_second = progress.best_throughput;
  sample.unit =
      study_.setup.unit.ends_with("/s") ? study_.setup.unit.substr(0, study_.setup.unit.size() - 2) : study_.setup.unit;
  renderer_->update(sample);
}

void TuneProgress::finish() {
  if (renderer_) renderer_->finish();
}

std::string result_text(const tune::StoredStudy& study, const tune::StudyResult& result) {
  const tune::Conclusion& found = result.conclusion;
  std::string text = fmt::format("\n{}\n", result.interrupted ? "So far" : "Result");
  if (found.best) {
    const bool same = found.best->config == found.baseline;
    add_row(text, "best",
            !found.default_given ? study.space.to_text(found.best->config)
            : same               ? "the default"
                                 : study.space.to_text(found.best->config, &found.baseline));
    const tune::Estimate& rate = found.best->throughput;
    const std::string source =
        found.best->provisional ? "by the model, no fresh launches" : counted(rate.launches, "fresh launch");
    add_row(text, "throughput",
            fmt::format("{} (95%: {} to {}, {})", rate_text(rate.value, study.setup.unit),
                        rate_text(rate.low, study.setup.unit), rate_text(rate.high, study.setup.unit), source));
    if (found.best->devices > 1)
      add_row(text, "per " + tune::device_of(study.setup.evaluator),
              rate_text(rate.value / found.best->devices, study.setup.unit));
  } else {
    add_row(text, "best", "none: no configuration ran");
  }
  if (found.gain) {
    add_row(text, "gain",
            fmt::format("{:+.1f}% over the default ({})", found.gain->percent.value,
                        interval_text(found.gain->percent, "{:+.1f}%", found.gain->paired ? "pair" : "launch")));
  }
  if (!found.default_given && found.best && found.median) {
    add_row(text, "gain",
            fmt::format("no default given; {:+.1f}% over the median of what was tried ({})",
                        100 * (found.best->throughput.value / found.median->value - 1),
                        rate_text(found.median->value, study.setup.unit)));
  }
  if (found.front) add_front(text, study, *found.front);
  add_importance(text, found);
  add_row(text, "trials", fmt::format("{}, {}", found.trials, failures_text(found)));
  const double spent = found.gpu_seconds + result.interrupted_gpu_seconds;
  const double allowed = study.setup.strategy.gpu_seconds;
  add_row(text, "spent",
          allowed > 0
              ? fmt::format("{} of {}{}", gpu_time_text(spent, study.setup), gpu_time_text(allowed, study.setup),
                            result.out_of_budget ? ", which ended the study" : "")
              : gpu_time_text(spent, study.setup));
  const char* next = result.interrupted ? "tune --resume" : found.best ? "recipe" : "tune --all --show";
  text += fmt::format("\nNext: lockstep {} {}\n", next, study.id());
  return text;
}

}  // namespace lockstep::cli
