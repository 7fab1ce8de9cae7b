// Strict reading of our own JSON documents: every key is asked for by name and type, what was not asked for is an
// error, and every error names the document and the path ("plan.json: best.layout.dp: expected an integer, found a
// string").
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::plan {

// View of one JSON object; the document must outlive it. All methods throw UserError (exit code 2).
class StrictReader {
 public:
  // Throws when `value` is no object.
  StrictReader(const nlohmann::json& value, std::string document, std::string path = {});

  // Whether the key is there and not null. Marks it as known either way.
  bool has(const char* key);

  double number(const char* key);          // finite
  double non_negative(const char* key);    // finite and >= 0
  std::int64_t integer(const char* key);   // whole number
  std::int64_t positive(const char* key);  // whole number >= 1
  bool boolean(const char* key);
  std::string text(const char* key);
  StrictReader object(const char* key);
  std::vector<StrictReader> objects(const char* key);   // array of objects
  std::vector<std::string> texts(const char* key);      // array of strings
  std::vector<std::int64_t> integers(const char* key);  // array of whole numbers

  // One of `names`, as its position.
  std::size_t choice(const char* key, const std::vector<std::string>& names);

  // Requires text(key) == expected ("schema").
  void require_text(const char* key, std::string_view expected);

  // Throws when the object has a key that was never asked for. Call it last.
  void finish() const;

  // The error that `problem` at `key` is (key "" : the object itself).
  [[noreturn]] void fail(std::string_view key, const std::string& problem, const std::string& fix = {}) const;

 private:
  const nlohmann::json& at(const char* key);
  std::string path_of(std::string_view key) const;

  const nlohmann::json* value_;
  std::string document_;
  std::string path_;
  std::set<std::string> known_;
};

}  // namespace lockstep::plan
