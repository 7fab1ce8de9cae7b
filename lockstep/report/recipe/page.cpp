#include "lockstep/report/recipe/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/report/recipe/words.h"

namespace lockstep::report {

std::string subtitle_of(const Recipe& recipe) {
  return fmt::format("{} {}; use it until {}; study {}", recipe.simulated ? "predicted" : "measured",
                     day(recipe.made_at), day(recipe.expires_at), recipe.study);
}

Front front_of(const Recipe& recipe) {
  Front front;
  front.title = "Recipe: " + recipe.name;
  front.badge = recipe.simulated ? "PREDICTION" : recipe.provisional ? "PROVISIONAL" : "MEASURED";
  front.sure = !recipe.simulated && !recipe.provisional;
  front.subtitle = subtitle_of(recipe);
  front.warnings = recipe.warnings;
  const std::string over = recipe.no_default ? "the median tried" : "the default";
  front.cards = {{fmt::format("{} over {}", recipe.simulated ? "Predicted gain" : "Gain", over),
                  recipe.gain,
                  {recipe.gain_detail},
                  true},
                 {recipe.keep_default ? "Throughput of the best tried" : "Throughput with this setting",
                  recipe.throughput,
                  {recipe.throughput_detail, recipe.baseline}},
                 {recipe.check ? "Re-checked " + day(recipe.check->checked_at) : "Use it until",
                  recipe.check ? check_word(*recipe.check) : day(recipe.expires_at),
                  {recipe.check ? recipe.check->sentence : "or until a version below changes; then re-check"}}};
  return front;
}

std::vector<std::pair<std::string, std::string>> holds_for(const Recipe& recipe) {
  if (recipe.holds_for.empty()) return {{"versions", "not recorded"}};
  return recipe.holds_for;
}

std::string footer_of(const Recipe& recipe) {
  return fmt::format("Intervals are 95%. {} All plots: lockstep recipe {} --full",
                     recipe.simulated     ? "Figures are predictions."
                     : recipe.provisional ? "Figures are from the model."
                                          : "Figures are from fresh launches.",
                     recipe.study);
}

std::string check_word(const CheckResult& check) {
  return named<CheckVerdict::kNoComparison>(check.verdict, "holds", "holds, and more", "no longer holds",
                                            "within noise", "does not run", "not comparable");
}

std::string recheck_sentence(const Recipe& recipe) {
  if (recipe.simulated)
    return "Measured figures need the hardware; this asks the predictor of the installed version again:";
  return "Three fresh launches each of this setting and of the default, in turn, against the interval above:";
}

std::vector<std::vector<std::string>> setting_rows(const Recipe& recipe, std::size_t most) {
  std::vector<std::vector<std::string>> rows{{"knob", "default", "set to", "cost of reverting"}};
  std::size_t left_out = 0;
  for (const RecipeSetting& row : recipe.settings) {
    if (!row.changed) continue;
    if (rows.size() > most) {
      ++left_out;
    } else {
      rows.push_back({printable(row.knob, 60), row.standard, row.best, row.if_set_back});
    }
  }
  const bool asked = std::any_of(recipe.settings.begin(), recipe.settings.end(),
                                 [](const RecipeSetting& row) { return !row.if_set_back.empty(); });
  if (rows.size() == 1) rows.push_back({"nothing", "", "", "the default is the best found"});
  if (left_out > 0) rows.push_back({fmt::format("{} more", left_out), "", "", "see the lines to paste"});
  if (!asked && rows.size() > 2)
    for (std::vector<std::string>& row : rows) row.resize(3);
  return rows;
}

std::string rest_sentence(const Recipe& recipe) {
  std::vector<std::string> rest;
  for (const RecipeSetting& row : recipe.settings)
    if (!row.changed) rest.push_back(fmt::format("{} = {}", printable(row.knob, 40), row.best));
  if (rest.empty()) return "";
  const std::size_t count = rest.size();
  return fmt::format("Stay at their defaults ({}): {}.", count, join(cut(std::move(rest), 20), ", "));
}

std::vector<std::string> indifference(const Recipe& recipe) {
  std::vector<std::string> standing, free;
  for (const std::string& knob : recipe.does_not_matter) {
    const auto row = std::find_if(recipe.settings.begin(), recipe.settings.end(),
                                  [&](const RecipeSetting& setting) { return setting.knob == knob; });
    (row != recipe.settings.end() && row->changed ? free : standing).push_back(printable(knob, 40));
  }
  std::vector<std::string> sentences;
  if (!free.empty())
    sentences.push_back(fmt::format("Changed, but as good at the default: {}.", join(cut(free, 12), ", ")));
  if (!standing.empty())
    sentences.push_back(
        fmt::format("Nothing better than the default was found for: {}.", join(cut(standing, 12), ", ")));
  if (sentences.empty()) sentences.push_back("Reverting any of the changed knobs has a cost.");
  return sentences;
}

std::vector<std::string> cut(std::vector<std::string> items, std::size_t most) {
  if (items.size() <= most) return items;
  const std::size_t left_out = items.size() - most;
  items.resize(most);
  items.push_back(fmt::format("{} more", left_out));
  return items;
}

}  // namespace lockstep::report
