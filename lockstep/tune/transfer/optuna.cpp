#include <fmt/format.h>

#include <cmath>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/sqlite.h"
#include "lockstep/tune/transfer/earlier.h"

namespace lockstep::tune {
namespace {

using nlohmann::json;
using telemetry::Database;
using telemetry::Statement;

struct StoredName {
  std::int64_t id;
  std::string name;
};

StoredName find_study(const Database& database, const std::string& wanted, const std::string& file) {
  std::vector<StoredName> studies;
  Statement list(database, "SELECT study_id, study_name FROM studies ORDER BY study_id");
  while (list.step()) studies.push_back({list.integer(0), list.text(1)});
  if (wanted.empty() && studies.size() == 1) return studies.front();
  std::vector<std::string> names;
  for (const StoredName& study : studies) {
    if (study.name == wanted) return study;
    names.push_back(printable(study.name, 60));
  }
  if (names.empty()) throw bad_input("holds no study", "name another storage", {.file = file});
  throw bad_input(wanted.empty() ? fmt::format("holds {} studies", names.size())
                                 : fmt::format("has no study `{}`", printable(wanted)),
                  fmt::format("write {}#NAME with one of: {}", file, join(names, ", ")), {.file = file});
}

// What Optuna keeps is the index of a categorical's choice, and the number itself of the others.
json parameter(double stored, const std::string& distribution, const std::string& file) {
  const json document = parse_json(distribution, file);
  const json attributes = document.value("attributes", json::object());
  if (document.value("name", "") == "CategoricalDistribution") {
    const json choices = attributes.value("choices", json::array());
    const auto index = static_cast<std::size_t>(std::max(0.0, stored));
    return index < choices.size() ? choices.at(index) : json();
  }
  if (document.value("name", "").starts_with("Int")) return std::llround(stored);
  return stored;
}

std::map<std::int64_t, json> read_parameters(const Database& database, std::int64_t study, const std::string& file) {
  std::map<std::int64_t, json> by_trial;
  Statement rows(database,
                 "SELECT p.trial_id, p.param_name, p.param_value, p.distribution_json FROM trial_params p "
                 "JOIN trials t ON t.trial_id = p.trial_id WHERE t.study_id = ?");
  rows.bind(0, study);
  while (rows.step()) {
    json& config = by_trial.try_emplace(rows.integer(0), json::object()).first->second;
    config[rows.text(1)] = parameter(rows.real(2), rows.text(3), file);
  }
  return by_trial;
}

// By trial: of `sql`, which takes the study and gives trial and value; the last row of a trial counts.
std::map<std::int64_t, double> read_values(const Database& database, std::int64_t study, const char* sql) {
  std::map<std::int64_t, double> by_trial;
  Statement rows(database, sql);
  rows.bind(0, study);
  while (rows.step()) by_trial[rows.integer(0)] = rows.real(1);
  return by_trial;
}

// What our own export wrote beside a failure.
std::map<std::int64_t, std::string> read_attribute(const Database& database, std::int64_t study,
                                                   const std::string& key) {
  std::map<std::int64_t, std::string> by_trial;
  Statement rows(database,
                 "SELECT a.trial_id, a.value_json FROM trial_user_attributes a "
                 "JOIN trials t ON t.trial_id = a.trial_id WHERE t.study_id = ? AND a.\"key\" = ?");
  rows.bind(0, study).bind(1, key);
  while (rows.step()) {
    const json value = json::parse(rows.text(1), nullptr, false);
    if (value.is_string()) by_trial[rows.integer(0)] = value.get<std::string>();
  }
  return by_trial;
}

bool is_minimized(const Database& database, std::int64_t study) {
  Statement rows(database, "SELECT direction FROM study_directions WHERE study_id = ? ORDER BY objective");
  rows.bind(0, study);
  return rows.step() && rows.text(0) == "MINIMIZE";
}

template <class T>
T value_or(const std::map<std::int64_t, T>& values, std::int64_t key, T otherwise) {
  const auto found = values.find(key);
  return found != values.end() ? found->second : otherwise;
}

}  // namespace

EarlierStudy read_optuna_storage(const std::filesystem::path& file, const std::string& study_name) {
  const std::string shown = printable_path(file);
  if (!std::filesystem::is_regular_file(file))
    throw bad_input("there is no such file", "check its name", {.file = shown});
  const Database database(file, false, 5.0);
  const bool known = Statement(database, "SELECT 1 FROM sqlite_master WHERE name = 'trial_params'").step();
  if (!known) throw bad_input("is not a storage of Optuna's", "export a data frame as CSV instead", {.file = shown});
  const auto [id, name] = find_study(database, study_name, shown);
  const bool minimized = is_minimized(database, id);
  const auto parameters = read_parameters(database, id, shown);
  const auto finals = read_values(database, id,
                                  "SELECT v.trial_id, v.value FROM trial_values v JOIN trials t ON t.trial_id = "
                                  "v.trial_id WHERE t.study_id = ? AND v.objective = 0");
  const auto lasts = read_values(database, id,
                                 "SELECT v.trial_id, v.intermediate_value FROM trial_intermediate_values v JOIN trials "
                                 "t ON t.trial_id = v.trial_id WHERE t.study_id = ? ORDER BY v.trial_id, v.step");
  const auto outcomes = read_attribute(database, id, "outcome"), messages = read_attribute(database, id, "message");
  EarlierStudy study;
  study.name = fmt::format("{}#{}", shown, printable(name, 60));
  Statement rows(database, "SELECT trial_id, state FROM trials WHERE study_id = ? ORDER BY number");
  rows.bind(0, id);
  while (rows.step()) {
    const std::int64_t trial = rows.integer(0);
    const std::string state = rows.text(1);
    if (state == "RUNNING" || state == "WAITING") continue;
    EarlierTrial told{value_or(parameters, trial, json(json::object())), Outcome::kMeasured, 0,
                      value_or(messages, trial, std::string())};
    const double value = value_or(state == "PRUNED" ? lasts : finals, trial, std::nan(""));
    if (state != "FAIL" && std::isfinite(value) && value > 0) {
      told.throughput = minimized ? 1 / value : value;
    } else {
      told.outcome = value_named<Outcome>(value_or(outcomes, trial, std::string())).value_or(Outcome::kCrash);
      if (told.outcome == Outcome::kMeasured) told.outcome = Outcome::kCrash;
    }
    study.trials.push_back(std::move(told));
  }
  return study;
}

}  // namespace lockstep::tune
