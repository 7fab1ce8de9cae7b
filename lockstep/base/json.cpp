#include "lockstep/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr int kMaxDepth = 100;

SourcePlace place_of_byte(std::string_view text, std::size_t byte, const std::string& name, int line_in_file) {
  const std::string_view before = text.substr(0, std::min(byte > 0 ? byte - 1 : 0, text.size()));
  const auto line = std::max(line_in_file, 1) + std::count(before.begin(), before.end(), '\n');
  const std::size_t last = before.rfind('\n');
  const std::size_t column = last == std::string_view::npos ? before.size() + 1 : before.size() - last;
  return {name, static_cast<int>(line), static_cast<int>(column)};
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& name, int line) {
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMaxDepth) throw bad_input("JSON nested too deeply", "check that this is the right file", {name, line});
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check_depth);
  } catch (const nlohmann::json::parse_error& error) {
    // nlohmann's text repeats its own position and may quote raw bytes; keep what follows the last ": ".
    const std::string what = error.what();
    const std::size_t detail = what.find("syntax error");
    throw bad_input("bad JSON: " + printable(detail == std::string::npos ? what : what.substr(detail), 160),
                    "check the file there", place_of_byte(text, error.byte, name, line));
  } catch (const nlohmann::json::exception& error) {
    throw bad_input("bad JSON: " + printable(error.what(), 160), "check the file", {name, line});
  }
}

nlohmann::json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return parse_json(read_file(path, max_bytes), printable_path(path));
}

JsonReader::JsonReader(const nlohmann::json& value, std::string file, std::string path)
    : value_(&value), file_(std::move(file)), path_(std::move(path)) {
  if (!value.is_object()) {
    throw bad_input(fmt::format("{} is not a JSON object", path_.empty() ? "the top level" : path_), "check the file",
                    {file_});
  }
}

const nlohmann::json* JsonReader::find(const std::string& key) const {
  known_.insert(key);
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& JsonReader::get(const std::string& key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) fail(key, "is missing", "add it");
  return *value;
}

void JsonReader::fail(const std::string& key, const std::string& problem, const std::string& fix) const {
  throw bad_input(fmt::format("`{}` {}", printable(full_key(key)), problem), fix, {file_});
}

std::string JsonReader::text(const std::string& key) const {
  const nlohmann::json& value = get(key);
  if (!value.is_string()) fail(key, "is not text", "put it in quotes");
  return value.get<std::string>();
}

std::string JsonReader::text(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::int64_t JsonReader::integer(const std::string& key, std::int64_t min, std::int64_t max) const {
  const nlohmann::json& value = get(key);
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX));
  if (!fits) fail(key, "is not a whole number of 64 bits", "write a whole number");
  const auto number = value.get<std::int64_t>();
  if (number < min || number > max)
    fail(key, fmt::format("is {}", number), fmt::format("{} to {} is allowed", min, max));
  return number;
}

std::int64_t JsonReader::integer_or(const std::string& key, std::int64_t fallback, std::int64_t min,
                                    std::int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double JsonReader::real(const std::string& key) const {
  const nlohmann::json& value = get(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) fail(key, "is not a number", "write a plain number");
  return value.get<double>();
}

double JsonReader::non_negative(const std::string& key) const {
  const double number = real(key);
  if (number < 0) fail(key, fmt::format("is {}", number), "at least 0 is allowed");
  return number;
}

double JsonReader::real_or(const std::string& key, double fallback) const { return has(key) ? real(key) : fallback; }

bool JsonReader::boolean(const std::string& key) const {
  const nlohmann::json& value = get(key);
  if (!value.is_boolean()) fail(key, "is not true or false", "write true or false");
  return value.get<bool>();
}

bool JsonReader::boolean_or(const std::string& key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

JsonReader JsonReader::object(const std::string& key) const { return JsonReader(get(key), file_, full_key(key)); }

std::optional<JsonReader> JsonReader::object_or_none(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  return object(key);
}

const nlohmann::json& JsonReader::array(const std::string& key) const {
  const nlohmann::json& value = get(key);
  if (!value.is_array()) fail(key, "is not a list", "write a list in [ ]");
  return value;
}

std::vector<JsonReader> JsonReader::objects(const std::string& key) const {
  std::vector<JsonReader> readers;
  for (const nlohmann::json& item : array(key)) {
    readers.emplace_back(item, file_, fmt::format("{}[{}]", full_key(key), readers.size()));
  }
  return readers;
}

template <class T>
std::vector<T> JsonReader::list(const std::string& key, const char* wanted,
                                bool (nlohmann::json::*is_one)() const) const {
  std::vector<T> values;
  for (const nlohmann::json& item : array(key)) {
    if (!(item.*is_one)()) fail(key, fmt::format("is not a list of {}", wanted), "check the file");
    values.push_back(item.get<T>());
  }
  return values;
}

std::vector<std::string> JsonReader::texts(const std::string& key) const {
  return list<std::string>(key, "texts", &nlohmann::json::is_string);
}

std::vector<std::int64_t> JsonReader::integers(const std::string& key) const {
  return list<std::int64_t>(key, "whole numbers", &nlohmann::json::is_number_integer);
}

std::size_t JsonReader::choice(const std::string& key, const std::vector<std::string>& names) const {
  const std::string value = text(key);
  const auto found = std::find(names.begin(), names.end(), value);
  if (found == names.end()) fail(key, fmt::format("cannot be `{}`", printable(value)), did_you_mean(value, names));
  return static_cast<std::size_t>(found - names.begin());
}

void JsonReader::require_text(const std::string& key, std::string_view expected) const {
  const std::string value = text(key);
  if (value != expected) fail(key, fmt::format("is `{}`, not `{}`", printable(value), expected), "check the file");
}

void JsonReader::finish() const {
  for (const auto& [key, unused] : value_->items()) {
    if (!known_.contains(key)) fail(key, "is an unknown key", did_you_mean(key, {known_.begin(), known_.end()}));
  }
}

}  // namespace lockstep
