// JSON read strictly: errors name the file and the path inside it ("config.json: rope_scaling.factor ...").
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Throws UserError (exit 2) with line and column; nesting deeper than 100 is refused. `line` is given for a text
// that is one line of a file: its number there.
nlohmann::json parse_json(std::string_view text, const std::string& name, int line = 0);
nlohmann::json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes = 64u << 20);

// A view of one JSON object. null counts as absent. Getters throw UserError (exit 2) for a wrong type or range. Of our
// own documents every key is asked for, and finish() refuses the others. `value` must outlive this.
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
  double non_negative(const std::string& key) const;
  std::int64_t positive(const std::string& key) const { return integer(key, 1); }
  double real_or(const std::string& key, double fallback) const;
  bool boolean(const std::string& key) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  JsonReader object(const std::string& key) const;
  std::optional<JsonReader> object_or_none(const std::string& key) const;
  const nlohmann::json& array(const std::string& key) const;
  std::vector<JsonReader> objects(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<std::int64_t> integers(const std::string& key) const;
  // One of `names`, as its position.
  std::size_t choice(const std::string& key, const std::vector<std::string>& names) const;
  void require_text(const std::string& key, std::string_view expected) const;  // "schema"
  const nlohmann::json& value() const { return *value_; }

  // Refuses a key that nobody asked for. Call it last.
  void finish() const;

  // "file: `path.key` problem; fix" as an exit-2 error; key "": the object itself.
  [[noreturn]] void fail(const std::string& key, const std::string& problem, const std::string& fix = {}) const;

 private:
  const nlohmann::json* find(const std::string& key) const;
  const nlohmann::json& get(const std::string& key) const;
  template <class T>
  std::vector<T> list(const std::string& key, const char* wanted, bool (nlohmann::json::*is_one)() const) const;
  std::string full_key(const std::string& key) const {
    return path_.empty() || key.empty() ? path_ + key : path_ + "." + key;
  }

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
  mutable std::set<std::string> known_;  // that were asked for
};

}  // namespace lockstep
