// Strict reading of a YAML map: every key that is asked for becomes known, everything else is an error.
//
//   MapReader reader(node, "batch");
//   reader.count("micro", batch.micro, 1);          // absent: the default in batch.micro stays
//   reader.finish();                                // "job.yaml:4:3: unknown key `mciro` in batch; did you mean
//   `micro`?"
//
// All failures are UserError with exit code 2 and file:line:column. A key without a value is an error too.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/yaml.h"

namespace lockstep {

class MapReader {
 public:
  // `path` is the dotted place in the file shown in errors ("optimizer", "" for the top). `node` must outlive this.
  // Throws when `node` is not a map.
  MapReader(const YamlNode& node, std::string path);

  // The value of `key`, or nullptr; the key is known and read from now on. Throws when it has no value.
  const YamlNode* find(const std::string& key);
  bool has(const std::string& key) { return find(key) != nullptr; }

  // Each returns whether the key is there, and writes `out` only then. `bool required(key)` see below.
  bool text(const std::string& key, std::string& out);
  // Text that may be shown as it is (text.h: is_printable).
  bool name(const std::string& key, std::string& out);
  // A path; a relative one starts from the folder of the file it was written in (see YamlSource).
  bool path(const std::string& key, std::string& out);
  bool boolean(const std::string& key, bool& out);
  // Whole, >= 0, suffixes k M B T allowed.
  bool count(const std::string& key, std::int64_t& out, std::int64_t min = 0,
             std::int64_t max = std::numeric_limits<std::int64_t>::max());
  bool integer(const std::string& key, std::int64_t& out);
  bool real(const std::string& key, double& out, double min = 0.0, double max = std::numeric_limits<double>::max());
  bool bytes(const std::string& key, double& out);
  bool bytes_per_second(const std::string& key, double& out);
  bool flops_per_second(const std::string& key, double& out);
  bool seconds(const std::string& key, double& out);
  bool counts(const std::string& key, std::vector<std::int64_t>& out, std::int64_t min = 0);
  bool reals(const std::string& key, std::vector<double>& out, double min, double max, std::size_t length);
  bool texts(const std::string& key, std::vector<std::string>& out);

  template <class E>
  bool choice(const std::string& key, E& out, std::initializer_list<std::pair<const char*, E>> choices) {
    const YamlNode* node = find(key);
    if (node == nullptr) return false;
    const std::string value = scalar_of(*node, key);
    std::vector<std::string> names;
    for (const auto& [name, choice] : choices) {
      if (value == name) {
        out = choice;
        return true;
      }
      names.emplace_back(name);
    }
    throw unknown_choice(*node, key, names);
  }

  // One of the enumeration's names (enum_names.h).
  template <NamedEnum E>
  bool choice(const std::string& key, E& out) {
    const YamlNode* node = find(key);
    if (node == nullptr) return false;
    const std::optional<E> value = value_named<E>(scalar_of(*node, key));
    constexpr auto kNames = names_of(E{});
    if (!value) throw unknown_choice(*node, key, {kNames.begin(), kNames.end()});
    out = *value;
    return true;
  }

  // The same for one of these words itself.
  bool word(const std::string& key, std::string& out, std::span<const char* const> choices);

  // A map below this one; nullopt when absent. The caller calls its finish().
  std::optional<MapReader> map(const std::string& key);

  // finish() reports `key` when it is absent, after the unknown keys (which are the likelier cause).
  void require(const std::string& key);

  // Throws for the first unknown key, then for the first required key that is missing.
  void finish() const;

  // An error at the value of `key` (or at the map when absent).
  UserError error_at(const std::string& key, const std::string& problem, const std::string& fix) const;
  const YamlNode& node() const { return *node_; }
  std::string full_key(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

 private:
  using QuantityParser = double (*)(std::string_view, const SourcePlace&);
  bool quantity(const std::string& key, double& out, QuantityParser parse);
  std::string scalar_of(const YamlNode& node, const std::string& key) const;
  UserError unknown_choice(const YamlNode& node, const std::string& key, const std::vector<std::string>& names) const;
  UserError wrong_kind(const YamlNode& node, const std::string& key, const char* wanted) const;
  template <class Parse>
  auto parsed(const YamlNode& node, const std::string& key, Parse parse) const;

  const YamlNode* node_;
  std::string path_;
  std::vector<std::string> known_;
  std::vector<std::string> required_;
};

}  // namespace lockstep
