// The recipe as Markdown and as JSON.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/report/recipe/page.h"
#include "lockstep/report/recipe/recipe.h"
#include "lockstep/report/recipe/words.h"

namespace lockstep::report {
namespace {

// Text that Markdown shows as it is, also inside tables.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\`*_[]<>|#~").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

// A fence longer than any run of backticks inside.
std::string fenced(const std::string& text, const char* language) {
  std::size_t longest = 2, run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fmt::format("{}{}\n{}{}{}\n\n", fence, language, text, text.ends_with('\n') ? "" : "\n", fence);
}

std::string list(const std::vector<std::string>& items, bool numbered) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i)
    out += fmt::format("{} {}\n", numbered ? fmt::format("{}.", i + 1) : "-", plain(items[i]));
  return out + "\n";
}

std::string settings_table(const Recipe& recipe) {
  std::string out;
  bool header = true;
  for (const std::vector<std::string>& row : setting_rows(recipe, recipe.settings.size() + 1)) {
    for (const std::string& cell : row) out += fmt::format("| {} ", plain(cell));
    out += "|\n";
    if (header) {
      for (std::size_t i = 0; i < row.size(); ++i) out += "|---";
      out += "|\n";
    }
    header = false;
  }
  return out + "\n";
}

nlohmann::json estimate(const tune::Estimate& value) {
  return {{"estimate", value.value}, {"low", value.low}, {"high", value.high}, {"launches", value.launches}};
}

nlohmann::json headline(const StudyView& study) {
  const tune::Conclusion& found = study.conclusion;
  nlohmann::json out{{"throughput", estimate(found.best->throughput)}};
  out["default_throughput"] = found.baseline_throughput ? estimate(*found.baseline_throughput) : nlohmann::json();
  out["gain_percent"] = nullptr;
  if (found.gain) {
    out["gain_percent"] = estimate(found.gain->percent);
    out["gain_percent"]["paired"] = found.gain->paired;
  }
  return out;
}

}  // namespace

std::string to_markdown(const Recipe& recipe) {
  std::string out = fmt::format("# Recipe: {}\n\n{}\n\n", plain(recipe.name), plain(subtitle_of(recipe)));
  for (const std::string& warning : recipe.warnings) out += fmt::format("> **{}**\n\n", plain(warning));
  out += fmt::format("**{}** {} the default ({}).  \n**{}** ({}); {}.\n\n", plain(recipe.gain),
                     recipe.simulated ? "predicted gain over" : "gain over", plain(recipe.gain_detail),
                     plain(recipe.throughput), plain(recipe.throughput_detail), plain(recipe.baseline));
  if (recipe.check)
    out += fmt::format("Re-checked {}: {}\n\n", day(recipe.check->checked_at), plain(recipe.check->sentence));
  out += "## Set this\n\n" + settings_table(recipe);
  const std::string rest = rest_sentence(recipe);
  if (!rest.empty()) out += plain(rest) + "\n\n";
  out += "## Ready to paste\n\n";
  for (const Snippet& snippet : recipe.paste)
    out += fenced(snippet.text, snippet.title == "configuration" ? "json" : "sh");
  out += "## What matters most\n\n" + list(recipe.matters, true);
  out += "## What does not matter\n\n" + list(indifference(recipe), false);
  out += "## When it does not apply\n\n" + list(recipe.limits, false);
  out += "## It holds for\n\n";
  std::vector<std::string> versions;
  for (const auto& [name, value] : recipe.holds_for) versions.push_back(fmt::format("{}: {}", name, value));
  if (versions.empty()) versions.push_back("versions were not recorded");
  versions.insert(versions.end(), recipe.expiry.begin(), recipe.expiry.end());
  out += list(versions, false);
  out += fmt::format("## Re-check in ten minutes\n\n{}\n\n", plain(recheck_sentence(recipe)));
  for (const std::string& command : recipe.recheck) out += fenced(command, "sh");
  out += "## How it was found\n\n" + list(recipe.made, false);
  return out + plain(footer_of(recipe)) + "\n";
}

nlohmann::json to_json(const Recipe& recipe, const StudyView& study) {
  nlohmann::json settings = nlohmann::json::array();
  for (const RecipeSetting& row : recipe.settings)
    settings.push_back({{"knob", row.knob},
                        {"default", row.standard},
                        {"best", row.best},
                        {"changed", row.changed},
                        {"set_back", row.if_set_back}});
  nlohmann::json paste = nlohmann::json::object();
  for (const Snippet& snippet : recipe.paste) paste[snippet.title] = snippet.text;
  nlohmann::json versions = nlohmann::json::object();
  for (const auto& [name, value] : recipe.holds_for) versions[name] = value;
  nlohmann::json document{{"schema", "lockstep.recipe/1"},
                          {"study", recipe.study},
                          {"name", recipe.name},
                          {"unit", recipe.unit},
                          {"simulated", recipe.simulated},
                          {"provisional", recipe.provisional},
                          {"config", study.space.to_json(study.conclusion.best->config)},
                          {"default", study.space.to_json(study.conclusion.baseline)},
                          {"settings", settings},
                          {"paste", paste},
                          {"warnings", recipe.warnings},
                          {"top", study.conclusion.top},
                          {"tied", study.conclusion.tied},
                          {"matters", recipe.matters},
                          {"does_not_matter", recipe.does_not_matter},
                          {"does_not_apply", recipe.limits},
                          {"holds_for", versions},
                          {"made_at", utc_timestamp(recipe.made_at)},
                          {"expires_at", utc_timestamp(recipe.expires_at)},
                          {"recheck", recipe.recheck},
                          {"trials", study.conclusion.trials},
                          {"failed", study.conclusion.failed},
                          {"gpu_seconds", study.conclusion.gpu_seconds}};
  document.update(headline(study));
  document["check"] = recipe.check ? to_json(*recipe.check) : nlohmann::json();
  return document;
}

}  // namespace lockstep::report
