#include "lockstep/plan/strict_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

// Values come from anywhere: only printable text goes into messages.
std::string quoted(const std::string& text) { return fmt::format("\"{}\"", printable(text)); }

}  // namespace

StrictReader::StrictReader(const nlohmann::json& value, std::string document, std::string path)
    : value_(&value), document_(std::move(document)), path_(std::move(path)) {
  if (!value.is_object()) fail("", std::string("expected an object, found ") + value.type_name());
}

bool StrictReader::has(const char* key) {
  known_.insert(key);
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

const nlohmann::json& StrictReader::at(const char* key) {
  known_.insert(key);
  const auto found = value_->find(key);
  if (found == value_->end()) fail(key, "is missing", "write the file with this version of lockstep");
  return *found;
}

double StrictReader::number(const char* key) {
  const nlohmann::json& value = at(key);
  if (!value.is_number()) fail(key, std::string("expected a number, found ") + value.type_name());
  const double number = value.get<double>();
  if (!std::isfinite(number)) fail(key, "expected a finite number");
  return number;
}

double StrictReader::non_negative(const char* key) {
  const double value = number(key);
  if (value < 0) fail(key, "expected a number of at least 0, found " + std::to_string(value));
  return value;
}

std::int64_t StrictReader::integer(const char* key) {
  const nlohmann::json& value = at(key);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    fail(key, "is too large");
  }
  if (!value.is_number_integer()) fail(key, std::string("expected an integer, found ") + value.type_name());
  return value.get<std::int64_t>();
}

std::int64_t StrictReader::positive(const char* key) {
  const std::int64_t value = integer(key);
  if (value < 1) fail(key, "expected an integer of at least 1, found " + std::to_string(value));
  return value;
}

bool StrictReader::boolean(const char* key) {
  const nlohmann::json& value = at(key);
  if (!value.is_boolean()) fail(key, std::string("expected true or false, found ") + value.type_name());
  return value.get<bool>();
}

std::string StrictReader::text(const char* key) {
  const nlohmann::json& value = at(key);
  if (!value.is_string()) fail(key, std::string("expected a string, found ") + value.type_name());
  return value.get<std::string>();
}

StrictReader StrictReader::object(const char* key) { return StrictReader(at(key), document_, path_of(key)); }

std::vector<StrictReader> StrictReader::objects(const char* key) {
  const nlohmann::json& value = at(key);
  if (!value.is_array()) fail(key, std::string("expected an array, found ") + value.type_name());
  std::vector<StrictReader> readers;
  readers.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    readers.emplace_back(value[i], document_, path_of(key) + "[" + std::to_string(i) + "]");
  }
  return readers;
}

std::vector<std::string> StrictReader::texts(const char* key) {
  const nlohmann::json& value = at(key);
  if (!value.is_array()) fail(key, std::string("expected an array, found ") + value.type_name());
  std::vector<std::string> list;
  for (const nlohmann::json& item : value) {
    if (!item.is_string()) fail(key, std::string("expected strings, found ") + item.type_name());
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::vector<std::int64_t> StrictReader::integers(const char* key) {
  const nlohmann::json& value = at(key);
  if (!value.is_array()) fail(key, std::string("expected an array, found ") + value.type_name());
  std::vector<std::int64_t> list;
  for (const nlohmann::json& item : value) {
    if (!item.is_number_integer()) fail(key, std::string("expected integers, found ") + item.type_name());
    list.push_back(item.get<std::int64_t>());
  }
  return list;
}

std::size_t StrictReader::choice(const char* key, const std::vector<std::string>& names) {
  const std::string value = text(key);
  const auto found = std::find(names.begin(), names.end(), value);
  if (found == names.end()) fail(key, "unknown value " + quoted(value), did_you_mean(value, names));
  return static_cast<std::size_t>(found - names.begin());
}

void StrictReader::require_text(const char* key, std::string_view expected) {
  const std::string value = text(key);
  if (value != expected) fail(key, "is " + quoted(value) + ", expected " + quoted(std::string(expected)));
}

void StrictReader::finish() const {
  for (const auto& [key, unused] : value_->items()) {
    if (known_.count(key) != 0) continue;
    fail(printable(key), "unknown key", did_you_mean(key, {known_.begin(), known_.end()}));
  }
}

void StrictReader::fail(std::string_view key, const std::string& problem, const std::string& fix) const {
  const std::string path = path_of(key);
  throw bad_input((path.empty() ? "" : path + ": ") + problem, fix, {document_});
}

std::string StrictReader::path_of(std::string_view key) const {
  if (key.empty()) return path_;
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

}  // namespace lockstep::plan
