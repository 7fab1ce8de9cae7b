// JSON read strictly: errors name the file and the path inside it ("config.json: rope_scaling.factor ...").
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// Throws UserError (exit 2) with line and column; nesting deeper than 100 is refused. `line` is given for a text
// that is one line of a file: its number there.
nlohmann::json parse_json(std::string_view text, const std::string& name, int line = 0);
nlohmann::json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes = 64u << 20);

// A view of one JSON object. null counts as absent. Getters throw UserError (exit 2) for a wrong type or range.
// `value` must outlive this.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& value, std::string file, std::string path = {});

  bool has(const std::string& key) const { return find(key) != nullptr; }

  // Required ones throw when the key is absent; the others return the fallback.
  std::string text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::int64_t integer(const std::string& key, std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  std::int64_t integer_or(const std::string& key, std::int64_t fallback,
                          std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                          std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  double real(const std::string& key) const;
  double real_or(const std::string& key, double fallback) const;
  bool boolean(const std::string& key) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  JsonReader object(const std::string& key) const;
  std::optional<JsonReader> object_or_none(const std::string& key) const;
  const nlohmann::json& array(const std::string& key) const;
  const nlohmann::json& value() const { return *value_; }

  // "file: path.key: problem; fix" as an exit-2 error.
  [[noreturn]] void fail(const std::string& key, const std::string& problem, const std::string& fix) const;

 private:
  const nlohmann::json* find(const std::string& key) const;
  const nlohmann::json& get(const std::string& key) const;
  std::string full_key(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace lockstep
