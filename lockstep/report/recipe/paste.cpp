#include "lockstep/report/recipe/paste.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/spec/job.h"
#include "lockstep/tune/evaluators/template.h"
#include "lockstep/tune/job/knobs.h"
#include "lockstep/tune/job/space.h"

namespace lockstep::report {
namespace {

// `NAME=value` before a command; names that no shell takes go through env(1), which takes any.
std::string with_environment(const std::map<std::string, std::string>& environment, const std::string& command) {
  std::string words;
  bool through_env = false;
  for (const auto& [name, value] : environment) {
    through_env = through_env || !is_variable_name(name);
    words += is_variable_name(name) ? fmt::format("{}={} ", name, shell_quoted(value))
                                    : fmt::format("{} ", shell_quoted(fmt::format("{}={}", name, value)));
  }
  return fmt::format("{}{}{}", through_env ? "env " : "", words, command);
}

std::string exports(const std::map<std::string, std::string>& environment) {
  std::string lines;
  for (const auto& [name, value] : environment)
    if (is_variable_name(name)) lines += fmt::format("export {}={}\n", name, shell_quoted(value));
  return lines;
}

std::string quoted_words(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  quoted.reserve(words.size());
  for (const std::string& word : words) quoted.push_back(shell_quoted(word));
  return join(quoted, " ");
}

std::map<std::string, std::string> environment_of(const StudyView& study, const tune::Config& config) {
  std::map<std::string, std::string> environment;
  for (std::size_t i = 0; i < study.space.size(); ++i) {
    const tune::Knob& knob = study.space.knobs()[i];
    const std::string value = tune::to_text(config.values[i]);
    if (tune::job_target(knob) == "env" && tune::is_active(config.values[i]) && value != "auto")
      environment[knob.name] = value;
  }
  return environment;
}

// Variables that the setting leaves alone must not come from elsewhere either.
std::string unsets(const StudyView& study, const tune::Config& config) {
  std::string lines;
  for (std::size_t i = 0; i < study.space.size(); ++i) {
    const tune::Knob& knob = study.space.knobs()[i];
    const bool left = !tune::is_active(config.values[i]) || tune::to_text(config.values[i]) == "auto";
    if (left && tune::job_target(knob) == "env" && is_variable_name(knob.name))
      lines += fmt::format("unset {}\n", knob.name);
  }
  return lines;
}

// What the program of a command study gets, less what only a study needs.
std::vector<Snippet> command_lines(const StudyView& study, const tune::Config& config, const std::string& command) {
  const tune::CommandTemplate program(command, study.space);
  tune::CommandTemplate::Filled filled = program.fill(config, 0, study.trial_seconds);
  std::map<std::string, std::string> wanted = filled.environment;
  wanted.erase("LOCKSTEP_TRIAL");
  wanted.erase("LOCKSTEP_BUDGET_SECONDS");
  for (std::size_t i = 0; i < study.space.size(); ++i) {
    const std::string place = program.place_of(i);
    if (place.starts_with("only ")) continue;  // the program has no other way to see it
    std::string name = "LOCKSTEP_KNOB_";
    for (const char c : study.space.knobs()[i].name)
      name += std::isalnum(static_cast<unsigned char>(c))
                  ? static_cast<char>(std::toupper(static_cast<unsigned char>(c)))
                  : '_';
    wanted.erase(name);
  }
  std::vector<Snippet> snippets{{"command", with_environment(wanted, quoted_words(filled.argv)) + "\n"}};
  std::map<std::string, std::string> knobs = wanted;
  std::erase_if(knobs, [&](const auto& entry) { return !study.space.find(entry.first); });
  const std::string variables = unsets(study, config) + exports(knobs);
  if (!variables.empty()) snippets.push_back({"environment", variables});
  return snippets;
}

// As the engine's trials are launched. Where the job is gone, or no longer takes these knobs, by the knobs' own
// targets.
std::vector<std::string> overrides_of(const StudyView& study, const tune::Config& config, const std::string& job,
                                      const std::vector<std::string>& given) {
  try {
    return tune::JobKnobs(study.space, tune::job_to_tune(spec::load_job(job, given))).overrides(config);
  } catch (const UserError&) {
    std::vector<std::string> words;
    for (std::size_t i = 0; i < study.space.size(); ++i) {
      const tune::Knob& knob = study.space.knobs()[i];
      const std::string target = tune::job_target(knob);
      if (target == "env" || !tune::is_active(config.values[i])) continue;
      words.push_back(fmt::format("{}={}", target.empty() ? knob.name : target, tune::to_text(config.values[i])));
    }
    return words;
  }
}

std::vector<Snippet> job_overrides(const StudyView& study, const tune::Config& config, const std::string& job) {
  std::vector<std::string> given;
  if (study.evaluator.contains("overrides") && study.evaluator["overrides"].is_array()) {
    for (const auto& word : study.evaluator["overrides"])
      if (word.is_string()) given.push_back(word.get<std::string>());
  }
  std::vector<std::string> words{"lockstep", "train", job};
  words.insert(words.end(), given.begin(), given.end());
  for (std::string& word : overrides_of(study, config, job, given)) words.push_back(std::move(word));
  return {{"command", with_environment(environment_of(study, config), quoted_words(words)) + "\n"}};
}

// With spaces where a page may break it.
std::string spaced_json(const nlohmann::json& object) {
  std::vector<std::string> members;
  for (const auto& [name, value] : object.items())
    members.push_back(fmt::format("{}: {}", nlohmann::json(name).dump(), value.dump()));
  return fmt::format("{{{}}}", join(members, ", "));
}

std::string text_in(const nlohmann::json& document, const char* key) {
  if (!document.is_object() || !document.contains(key)) return "";
  const nlohmann::json& value = document.at(key);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

bool is_variable_name(std::string_view name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

std::vector<Snippet> ready_to_paste(const StudyView& study, const tune::Config& config) {
  std::vector<Snippet> snippets;
  const std::string kind = text_in(study.evaluator, "kind");
  const std::string command = text_in(study.evaluator, "command"), job = text_in(study.evaluator, "job");
  if (kind == "command" && !command.empty()) {
    snippets = command_lines(study, config, command);
  } else {
    if (!job.empty()) snippets = job_overrides(study, config, job);
    const std::string variables = unsets(study, config) + exports(environment_of(study, config));
    if (!variables.empty()) snippets.push_back({"environment", variables});
  }
  snippets.push_back({"configuration", spaced_json(study.space.to_json(config)) + "\n"});
  return snippets;
}

}  // namespace lockstep::report
