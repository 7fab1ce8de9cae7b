// Recipe: what a study found, on one page that a team can act on without having seen the study.
//
//   make_recipe()     the contents, from a study's record, trials and conclusion; every figure is the conclusion's
//   to_markdown(), to_html(), to_pdf(), to_json()     the same contents, four times
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/report/recipe/check.h"
#include "lockstep/report/study/view.h"
#include "lockstep/tune/study/conclusion.h"

namespace lockstep::report {

struct RecipeSetting {
  std::string knob;
  std::string standard;  // the default's value; "not used" where the knob is inactive
  std::string best;      // what to set
  bool changed = false;
  std::string if_set_back;  // what that costs: recipe_words.h; "" when it was not asked
};

struct Snippet {
  std::string title;
  std::string text;  // lines that a shell or file takes as they are
};

struct Recipe {
  std::string study;  // its id
  std::string name;
  std::string unit;
  bool simulated = false;
  bool provisional = false;  // no fresh launches after the choice
  double made_at = 0;        // of the study's end
  double expires_at = 0;

  bool keep_default = false;  // nothing beats it beyond doubt: `settings` and `paste` change nothing
  std::string gain;           // "+23.4%"; "keep the default"
  bool no_default = false;    // the space gives none: `gain` is over the median of what was tried
  std::string gain_detail;    // "95% interval +21.0% to +25.8%, 5 paired launches"
  std::string throughput;     // "51.2k tokens/s"
  std::string throughput_detail;
  std::string baseline;               // "41.5k tokens/s by default"
  std::vector<std::string> warnings;  // shown on top: prediction, provisional, unfinished

  std::vector<RecipeSetting> settings;  // changed ones first, highest cost first
  std::vector<Snippet> paste;
  std::vector<std::string> matters;          // sentences, highest cost first, ties called ties
  std::vector<std::string> does_not_matter;  // knobs
  std::vector<std::string> limits;           // when it does not apply
  std::vector<std::pair<std::string, std::string>> holds_for;
  std::vector<std::string> expiry;
  std::vector<std::string> recheck;  // commands
  std::vector<std::string> made;     // how it was found

  std::optional<CheckResult> check;
};

inline constexpr double kRecipeDays = 90;

Recipe make_recipe(const StudyView& study);

// Adds what a re-check found; a check that holds renews the expiry.
void add_check(Recipe& recipe, const CheckResult& check);

std::string to_markdown(const Recipe& recipe);
// Self-contained: no scripts, fonts or pictures from elsewhere. Prints on one A4 page.
std::string to_html(const Recipe& recipe, const StudyView& study);
// One A4 page, whatever the study: text shrinks to two thirds, then lists are cut and say so.
std::string to_pdf(const Recipe& recipe, const StudyView& study);
// Schema lockstep.recipe/1 (docs/reference/recipe.md).
nlohmann::json to_json(const Recipe& recipe, const StudyView& study);

// What is worth changing, as bars: the `most` highest costs of reverting. Shared by the pages.
struct Bar;
std::vector<Bar> set_back_bars(const tune::Conclusion& conclusion, std::size_t most);

}  // namespace lockstep::report
