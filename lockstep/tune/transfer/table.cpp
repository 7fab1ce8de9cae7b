#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/tune/transfer/earlier.h"

namespace lockstep::tune {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargest = 256u << 20;
constexpr const char* kPrefix = "params_";

// One cell of CSV.
json cell(const std::string& text) {
  if (text.empty()) return nullptr;
  const std::string lower = to_lower(text);
  if (lower == "nan" || lower == "none") return nullptr;
  if (lower == "true" || lower == "false") return lower == "true";
  try {
    const double number = parse_real(text);
    if (number == std::floor(number) && std::abs(number) < 1e15) return static_cast<std::int64_t>(number);
    return number;
  } catch (const UserError&) {
    return text.front() == '\'' ? text.substr(1) : text;  // as our export guards it from spreadsheets
  }
}

json rows_of_csv(const std::filesystem::path& file) {
  const planner::CsvTable table = planner::parse_csv(read_file(file, kLargest), printable_path(file));
  json rows = json::array();
  for (const auto& row : table.rows) {
    json object = json::object();
    for (std::size_t i = 0; i < row.size(); ++i) object[table.columns[i]] = cell(row[i]);
    rows.push_back(std::move(object));
  }
  return rows;
}

double number_of(const json& row, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto entry = row.find(key);
    if (entry == row.end()) continue;
    if (entry->is_number()) return entry->get<double>();
    if (entry->is_array() && !entry->empty() && entry->front().is_number()) return entry->front().get<double>();
  }
  return NAN;
}

std::string word_of(const json& row, const char* key) {
  const auto entry = row.find(key);
  return entry != row.end() && entry->is_string() ? entry->get<std::string>() : "";
}

// Our own columns (tune/study/export_csv.h), for rows that are not a data frame of Optuna's.
bool is_ours(const std::string& column) {
  static const std::vector<std::string> kOurs{
      "trial",   "purpose",       "set_back", "outcome",     "throughput",     "unit",       "relative_error",
      "samples", "stopped_early", "seconds",  "gpu_seconds", "budget_seconds", "started_at", "message"};
  return std::find(kOurs.begin(), kOurs.end(), column) != kOurs.end();
}

json config_of(const json& row) {
  for (const char* key : {"config", "params"})
    if (const auto entry = row.find(key); entry != row.end() && entry->is_object()) return *entry;
  json prefixed = json::object(), plain = json::object();
  for (const auto& [column, value] : row.items()) {
    if (value.is_null()) continue;
    if (column.starts_with(kPrefix)) {
      prefixed[column.substr(std::string(kPrefix).size())] = value;
    } else if (!is_ours(column)) {
      plain[column.starts_with("knob.") ? column.substr(5) : column] = value;
    }
  }
  return prefixed.empty() ? plain : prefixed;
}

// nullopt: it did not end.
std::optional<EarlierTrial> trial_of(const json& row) {
  EarlierTrial trial;
  trial.config = config_of(row);
  trial.throughput = number_of(row, {"throughput", "value", "values", "values_0"});
  trial.message = word_of(row, "message");
  const std::string state = word_of(row, "state");
  if (state.ends_with("RUNNING") || state.ends_with("WAITING")) return std::nullopt;
  if (const auto outcome = value_named<Outcome>(word_of(row, "outcome"))) trial.outcome = *outcome;
  const bool ran = trial.throughput > 0 && !state.ends_with("FAIL");
  if (!ran && trial.outcome == Outcome::kMeasured) trial.outcome = Outcome::kCrash;
  return trial;
}

}  // namespace

EarlierStudy read_trial_table(const std::filesystem::path& file) {
  const bool csv = to_lower(file.extension().string()) == ".csv";
  const json document = csv ? rows_of_csv(file) : read_json_file(file, kLargest);
  const json* rows = &document;
  for (const char* key : {"history", "trials"})
    if (document.is_object() && document.contains(key)) rows = &document.at(key);
  if (!rows->is_array())
    throw bad_input("has no list of trials", "give a list of {\"params\": {...}, \"value\": 51200}",
                    {.file = printable_path(file)});
  EarlierStudy study;
  study.name = printable_path(file);
  for (const json& row : *rows)
    if (row.is_object())
      if (auto trial = trial_of(row)) study.trials.push_back(std::move(*trial));
  return study;
}

}  // namespace lockstep::tune
