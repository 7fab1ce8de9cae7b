#include "lockstep/report/recipe/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/recipe/limits.h"
#include "lockstep/report/recipe/paste.h"
#include "lockstep/report/recipe/words.h"

namespace lockstep::report {
namespace {

constexpr double kDay = 86400;

const tune::KnobImportance* importance_of(const tune::Conclusion& conclusion, const std::string& knob) {
  for (const tune::KnobImportance& entry : conclusion.importance)
    if (entry.knob == knob) return &entry;
  return nullptr;
}

std::string name_shown(const std::string& knob) { return printable(knob, 60); }

std::vector<std::string> names_shown(const std::vector<std::string>& knobs) {
  std::vector<std::string> names;
  names.reserve(knobs.size());
  for (const std::string& knob : knobs) names.push_back(name_shown(knob));
  return names;
}

// Is the best known to be faster than the default? Where no default was given there is nothing to go back to.
bool beats_default(const tune::Conclusion& found) {
  if (!found.default_given || !found.baseline_throughput) return true;
  return found.gain && found.gain->percent.low > 0 && !(found.best->config == found.baseline);
}

const tune::Config& advised(const StudyView& study) {
  const tune::Conclusion& found = study.conclusion;
  return beats_default(found) ? found.best->config : found.baseline;
}

void fill_headline(Recipe& recipe, const StudyView& study) {
  const tune::Conclusion& found = study.conclusion;
  const tune::Estimate& best = found.best->throughput;
  recipe.throughput = rate(best.value, study.unit);
  recipe.throughput_detail = fmt::format(
      "95% interval {} to {}, {}", short_number(best.low), short_number(best.high),
      recipe.provisional ? "from the model"
                         : fmt::format("{} {} launch{}", best.launches, recipe.simulated ? "simulated" : "fresh",
                                       best.launches == 1 ? "" : "es"));
  if (found.best->devices > 1)
    recipe.throughput_detail += fmt::format("; {} per GPU", rate(best.value / found.best->devices, study.unit));
  if (!found.default_given) {
    recipe.baseline = found.median
                          ? fmt::format("{} at the median of what was tried", rate(found.median->value, study.unit))
                          : "no default given";
  } else if (found.baseline_throughput) {
    const tune::Estimate& standard = *found.baseline_throughput;
    recipe.baseline =
        fmt::format("{} by default ({} to {}, {})", rate(standard.value, study.unit), short_number(standard.low),
                    short_number(standard.high), launches_of(standard.launches));
  } else {
    recipe.baseline = "the default did not run";
  }
  if (!found.default_given) {
    recipe.gain = found.median ? signed_percent(100 * (best.value / found.median->value - 1)) : "gain unknown";
    recipe.gain_detail = "no default given";
  } else if (found.best->config == found.baseline) {
    recipe.gain = "keep the default";
    recipe.gain_detail = "nothing beats the default";
  } else if (!beats_default(found)) {
    recipe.gain = "keep the default";
    recipe.gain_detail =
        found.gain
            ? fmt::format("nothing beats the default beyond doubt: the best tried gains {}, 95% interval {} to {}",
                          signed_percent(found.gain->percent.value), signed_percent(found.gain->percent.low),
                          signed_percent(found.gain->percent.high))
            : "nothing beats the default beyond doubt";
  } else if (found.gain) {
    const tune::Estimate& gain = found.gain->percent;
    recipe.gain = signed_percent(gain.value);
    recipe.gain_detail = fmt::format(
        "95% interval {} to {}, {}", signed_percent(gain.low), signed_percent(gain.high),
        found.gain->paired ? fmt::format("{} pair{} of {} launches", gain.launches, gain.launches == 1 ? "" : "s",
                                         recipe.simulated ? "simulated" : "interleaved")
                           : launches_of(gain.launches) + ", not paired");
  } else {
    recipe.gain = "gain unknown";
    recipe.gain_detail = "the default did not run, so that there is nothing to compare with";
  }
}

void fill_warnings(Recipe& recipe, const StudyView& study) {
  const tune::Conclusion& found = study.conclusion;
  if (recipe.simulated) {
    recipe.warnings.push_back(
        "PREDICTION. Nothing ran: every figure is the predictor's. Measure before you rely on it.");
  }
  const bool others_confirmed = std::any_of(study.trials.begin(), study.trials.end(), [](const tune::Trial& trial) {
    return trial.purpose == tune::Purpose::kConfirm;
  });
  if (recipe.provisional && others_confirmed) {
    recipe.warnings.push_back(
        "PROVISIONAL. Fresh launches are of another setting: this version of the tuner reads the search differently "
        "than "
        "the one that made it. Tune again, or ask that version.");
  } else if (recipe.provisional && !recipe.simulated) {
    recipe.warnings.push_back(
        "PROVISIONAL. There were no fresh launches after the setting was chosen: see its interval.");
  }
  if (recipe.keep_default && !(found.best->config == found.baseline)) {
    recipe.warnings.push_back(
        fmt::format("Nothing beats the default beyond doubt. Best tried, if you want to look further: {}.",
                    printable(study.space.to_text(found.best->config, &found.baseline), 300)));
  }
  if (study.ended_at <= 0) recipe.warnings.push_back("The study is not finished: this is what it has found so far.");
}

void fill_settings(Recipe& recipe, const StudyView& study) {
  const tune::Config& best = advised(study);
  const tune::Config& standard = study.conclusion.default_given ? study.conclusion.baseline : tune::Config{};
  std::vector<std::pair<double, RecipeSetting>> rows;
  for (std::size_t i = 0; i < study.space.size(); ++i) {
    RecipeSetting row;
    row.knob = study.space.knobs()[i].name;
    row.best = shown_value(best.values[i]);
    row.standard = i < standard.values.size() ? shown_value(standard.values[i]) : "not given";
    row.changed =
        tune::is_active(best.values[i]) && (i >= standard.values.size() || !(best.values[i] == standard.values[i]));
    const tune::KnobImportance* entry = importance_of(study.conclusion, row.knob);
    if (entry != nullptr && row.changed) row.if_set_back = set_back_words(*entry);
    const double cost = entry != nullptr && entry->set_back_percent ? entry->set_back_percent->value : 0;
    rows.emplace_back(row.changed ? 1e6 + cost : 0, std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [order, row] : rows) recipe.settings.push_back(std::move(row));
}

std::string effect_sentence(const StudyView& study, const std::string& knob) {
  const auto index = study.space.find(knob);
  const tune::KnobImportance* entry = importance_of(study.conclusion, knob);
  if (!index || entry == nullptr) return name_shown(knob);
  const std::string value = shown_value(study.conclusion.best->config.values[*index]);
  std::string sentence;
  if (entry->set_back_fails) {
    sentence = fmt::format("{} = {}: reverted to {} it does not run", name_shown(knob), value,
                           shown_value(study.space.knobs()[*index].default_value));
  } else if (entry->set_back_percent) {
    const tune::Estimate& cost = *entry->set_back_percent;
    sentence = fmt::format("{} = {}: reverting it to {} costs {} ({} to {}, {})", name_shown(knob), value,
                           shown_value(study.space.knobs()[*index].default_value), percent(cost.value),
                           percent(cost.low), percent(cost.high), evidence_of(cost));
  } else {
    const tune::Estimate& share = entry->variance_total_percent;
    sentence = fmt::format("{} = {}: {} of the variance over the space ({} to {})", name_shown(knob), value,
                           percent(share.value), percent(share.low), percent(share.high));
  }
  if (entry->set_back_percent && !entry->moved_along.empty())
    sentence += fmt::format("; {} changes with it", join(names_shown(entry->moved_along), ", "));
  return sentence;
}

// Is it the same step as an earlier one, as where a product is held constant?
bool is_said(const StudyView& study, const std::string& knob, const std::vector<std::string>& said) {
  const auto step_of = [&](const std::string& name) {
    const auto index = study.space.find(name);
    return index ? study.space.set_back(study.conclusion.best->config, *index) : std::nullopt;
  };
  const auto mine = step_of(knob);
  return mine &&
         std::any_of(said.begin(), said.end(), [&](const std::string& other) { return step_of(other) == mine; });
}

void fill_importance(Recipe& recipe, const StudyView& study) {
  const tune::Conclusion& found = study.conclusion;
  if (recipe.keep_default) {
    recipe.matters.push_back("No knob's effect is larger than the noise.");
    for (const RecipeSetting& row : recipe.settings)
      if (row.best != kNotUsed) recipe.does_not_matter.push_back(row.knob);
    return;
  }
  std::vector<std::string> said;
  for (const std::string& knob : found.top) {
    if (is_said(study, knob, said)) continue;
    said.push_back(knob);
    recipe.matters.push_back(effect_sentence(study, knob));
  }
  if (!found.tied.empty()) {
    const std::size_t places = std::max<std::size_t>(1, 3 - std::min<std::size_t>(found.top.size(), 3));
    std::vector<std::string> parts;
    for (const std::string& knob : found.tied) parts.push_back(effect_sentence(study, knob));
    recipe.matters.push_back(fmt::format("Tie for {}: {}",
                                         places == 1 ? "the next place" : fmt::format("the next {} places", places),
                                         join(parts, "; ")));
  }
  const bool asked = std::any_of(found.importance.begin(), found.importance.end(),
                                 [](const tune::KnobImportance& entry) { return entry.set_back_percent.has_value(); });
  if (recipe.matters.empty() && asked) recipe.matters.push_back("No knob's effect is larger than the noise.");
  if (recipe.matters.empty()) {
    recipe.matters.push_back("What single knobs cost was not measured. By the model of all trials:");
    for (std::size_t i = 0; i < std::min<std::size_t>(3, found.importance.size()); ++i)
      recipe.matters.push_back(effect_sentence(study, found.importance[i].knob));
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(2, found.interactions.size()); ++i) {
    const tune::Interaction& pair = found.interactions[i];
    recipe.matters.push_back(fmt::format("{} and {} act together: {} of the variance ({} to {}). Change them together.",
                                         name_shown(pair.first), name_shown(pair.second),
                                         percent(pair.variance_percent.value), percent(pair.variance_percent.low),
                                         percent(pair.variance_percent.high)));
  }
  for (const RecipeSetting& row : recipe.settings) {
    const tune::KnobImportance* entry = importance_of(found, row.knob);
    const bool unused = row.best == kNotUsed;
    if (!unused && (!row.changed || (entry != nullptr && costs_nothing(*entry))))
      recipe.does_not_matter.push_back(row.knob);
  }
}

std::string trial_counts(const StudyView& study) {
  std::int64_t by_purpose[6] = {};
  for (const tune::Trial& trial : study.trials) ++by_purpose[static_cast<std::size_t>(trial.purpose)];
  std::vector<std::string> parts;
  const std::int64_t search = by_purpose[0] + by_purpose[1] + by_purpose[2];
  if (search > 0) parts.push_back(fmt::format("{} searching", search));
  if (by_purpose[3] > 0) parts.push_back(fmt::format("{} fresh launches of the winner", by_purpose[3]));
  if (by_purpose[4] > 0) parts.push_back(fmt::format("{} of the default for comparison", by_purpose[4]));
  if (by_purpose[5] > 0) parts.push_back(fmt::format("{} reverts", by_purpose[5]));
  return fmt::format("{} trials: {}", study.conclusion.trials, parts.empty() ? "none" : join(parts, ", "));
}

std::string gpu_time(double gpu_seconds, const StudyView& study) {
  const std::string device = tune::device_of(study.evaluator);
  if (gpu_seconds >= 3600) return fmt::format("{:.2f} {}-hours", gpu_seconds / 3600, device);
  return fmt::format("{:.1f} {}-minutes", gpu_seconds / 60, device);
}

void fill_made(Recipe& recipe, const StudyView& study) {
  const tune::Conclusion& found = study.conclusion;
  recipe.made.push_back(trial_counts(study) + ".");
  std::vector<std::string> failures;
  for (std::size_t i = 1; i < 6; ++i) {
    if (found.failures_by_outcome[i] > 0)
      failures.push_back(fmt::format("{} {}", found.failures_by_outcome[i], to_string(static_cast<tune::Outcome>(i))));
  }
  recipe.made.push_back(failures.empty() ? fmt::format("{} failed.", found.failed)
                                         : fmt::format("{} failed ({}).", found.failed, join(failures, ", ")));
  recipe.made.push_back(fmt::format(
      "{}{}, launch and warm-up included; seed {}.", gpu_time(found.gpu_seconds, study),
      study.gpu_seconds_allowed > 0 ? fmt::format(" of {} allowed", gpu_time(study.gpu_seconds_allowed, study)) : "",
      study.seed));
  const std::string first = day(study.created_at), last = day(study.ended_at > 0 ? study.ended_at : study.created_at);
  recipe.made.push_back(fmt::format("{}{}.", first == last ? first : fmt::format("{} to {}", first, last),
                                    study.host.empty() ? "" : " on " + printable(study.host)));
  if (found.launch_spread_percent > 0) {
    recipe.made.push_back(fmt::format("Launches of one setting differ by {} (standard deviation).",
                                      percent(found.launch_spread_percent)));
  }
}

void fill_versions(Recipe& recipe, const StudyView& study) {
  if (study.versions.is_object()) {
    for (const auto& [name, value] : study.versions.items()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
      if (!text.empty()) recipe.holds_for.emplace_back(printable(name), printable(text, 120));
    }
  }
  recipe.expiry.push_back(fmt::format("Until {}, {:.0f} days after the study.", day(recipe.expires_at), kRecipeDays));
  recipe.expiry.push_back("Until one of these versions changes: re-check then.");
}

}  // namespace

Recipe make_recipe(const StudyView& study) {
  if (!study.conclusion.best) {
    throw does_not_fit(fmt::format("study {} found no setting that runs, so there is no recipe", study.id),
                       fmt::format("see why with `lockstep tune --show {}`", study.id));
  }
  Recipe recipe;
  recipe.study = study.id;
  recipe.name = printable(study.name, 80);
  recipe.unit = study.unit;
  recipe.simulated = study.simulated();
  recipe.provisional = study.conclusion.best->provisional;
  recipe.made_at = study.ended_at > 0 ? study.ended_at : study.created_at;
  recipe.expires_at = recipe.made_at + kRecipeDays * kDay;
  recipe.keep_default = !beats_default(study.conclusion);
  recipe.no_default = !study.conclusion.default_given;
  fill_headline(recipe, study);
  fill_warnings(recipe, study);
  fill_settings(recipe, study);
  if (!recipe.keep_default) recipe.paste = ready_to_paste(study, study.conclusion.best->config);
  fill_importance(recipe, study);
  recipe.limits = limits_of(study);
  fill_versions(recipe, study);
  recipe.recheck = {fmt::format("lockstep recipe {} --check", shell_quoted(study.id))};
  fill_made(recipe, study);
  return recipe;
}

void add_check(Recipe& recipe, const CheckResult& check) {
  recipe.check = check;
  if (!check.ok()) {
    recipe.warnings.insert(recipe.warnings.begin(),
                           fmt::format("RE-CHECKED {}. {}", day(check.checked_at), check.sentence));
    return;
  }
  recipe.expires_at = std::max(recipe.expires_at, check.checked_at + kRecipeDays * kDay);
  recipe.expiry[0] = fmt::format("Until {}, {:.0f} days after the check.", day(recipe.expires_at), kRecipeDays);
}

std::vector<Bar> set_back_bars(const tune::Conclusion& conclusion, std::size_t most) {
  std::vector<Bar> bars;
  for (const tune::KnobImportance& entry : conclusion.importance) {
    if (!entry.set_back_percent && !entry.set_back_fails) continue;
    const bool stands_out = std::find(conclusion.top.begin(), conclusion.top.end(), entry.knob) != conclusion.top.end();
    const bool tied = std::find(conclusion.tied.begin(), conclusion.tied.end(), entry.knob) != conclusion.tied.end();
    Bar bar;
    bar.label = printable(entry.knob, 40);
    bar.tint = stands_out ? Tint::kAccent : tied ? Tint::kRamp4 : Tint::kRamp2;
    if (entry.set_back_fails) {
      bar.value = 100, bar.has_interval = false, bar.figure = "does not run";
    } else {
      const tune::Estimate& cost = *entry.set_back_percent;
      bar.value = cost.value, bar.low = cost.low, bar.high = cost.high, bar.has_interval = !is_no_set_back(cost);
      bar.figure = is_no_set_back(cost) ? "at its default"
                                        : fmt::format("{} ({} to {}{})", percent(cost.value), percent(cost.low),
                                                      percent(cost.high), cost.launches > 0 ? "" : ", model");
    }
    if (tied) bar.figure += ", tie";
    bar.hover = fmt::format("{}: {}", bar.label, bar.figure);
    bars.push_back(std::move(bar));
    if (bars.size() == most) break;
  }
  return bars;
}

}  // namespace lockstep::report
