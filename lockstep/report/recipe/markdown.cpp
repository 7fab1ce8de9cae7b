// The recipe as Markdown and as JSON.
#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/report/canvas/markdown.h"
#include "lockstep/report/recipe/page.h"
#include "lockstep/report/recipe/recipe.h"
#include "lockstep/report/recipe/words.h"

namespace lockstep::report {
namespace {

nlohmann::json estimate(const tune::Estimate& value) {
  return {{"estimate", value.value}, {"low", value.low}, {"high", value.high}, {"launches", value.launches}};
}

nlohmann::json headline(const StudyView& study) {
  const tune::Conclusion& found = study.conclusion;
  nlohmann::json out{{"throughput", estimate(found.best->throughput)},
                     {"devices", found.best->devices},
                     {"throughput_per_device", found.best->throughput.value / found.best->devices}};
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
  std::string out =
      fmt::format("# Recipe: {}\n\n{}\n\n", markdown_text(recipe.name), markdown_text(subtitle_of(recipe)));
  for (const std::string& warning : recipe.warnings) out += fmt::format("> **{}**\n\n", markdown_text(warning));
  out += fmt::format("**{}**{} ({}).  \n**{}** ({}); {}.\n\n", markdown_text(recipe.gain),
                     recipe.keep_default ? ""
                                         : fmt::format(" {}gain over {}", recipe.simulated ? "predicted " : "",
                                                       recipe.no_default ? "the median tried" : "the default"),
                     markdown_text(recipe.gain_detail), markdown_text(recipe.throughput),
                     markdown_text(recipe.throughput_detail), markdown_text(recipe.baseline));
  if (recipe.check)
    out += fmt::format("Re-checked {}: {}\n\n", day(recipe.check->checked_at), markdown_text(recipe.check->sentence));
  out += "## Set this\n\n" + markdown_table(setting_rows(recipe, recipe.settings.size() + 1));
  const std::string rest = rest_sentence(recipe);
  if (!rest.empty()) out += markdown_text(rest) + "\n\n";
  if (!recipe.paste.empty()) out += "## Ready to paste\n\n";
  for (const Snippet& snippet : recipe.paste)
    out += markdown_code(snippet.text, snippet.title == "configuration" ? "json" : "sh");
  out += "## What matters most\n\n" + markdown_list(recipe.matters, true);
  out += "## What does not matter\n\n" + markdown_list(indifference(recipe), false);
  out += "## When it does not apply\n\n" + markdown_list(recipe.limits, false);
  out += "## It holds for\n\n";
  std::vector<std::string> versions;
  for (const auto& [name, value] : recipe.holds_for) versions.push_back(fmt::format("{}: {}", name, value));
  if (versions.empty()) versions.push_back("versions were not recorded");
  versions.insert(versions.end(), recipe.expiry.begin(), recipe.expiry.end());
  out += markdown_list(versions, false);
  out += fmt::format("## Re-check in ten minutes\n\n{}\n\n", markdown_text(recheck_sentence(recipe)));
  for (const std::string& command : recipe.recheck) out += markdown_code(command, "sh");
  out += "## How it was found\n\n" + markdown_list(recipe.made, false);
  return out + markdown_text(footer_of(recipe)) + "\n";
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
  nlohmann::json document{
      {"schema", "lockstep.recipe/1"},
      {"study", recipe.study},
      {"name", recipe.name},
      {"unit", recipe.unit},
      {"simulated", recipe.simulated},
      {"provisional", recipe.provisional},
      {"config", study.space.to_json(study.conclusion.best->config)},
      {"default", recipe.no_default ? nlohmann::json() : study.space.to_json(study.conclusion.baseline)},
      {"keep_default", recipe.keep_default},
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
