// YAML as a plain tree in which every value knows where it was written.
//
// Parsing is yaml-cpp's; the tree is ours so that duplicate keys, deep nesting, alias bombs and huge files are refused
// while reading, and so that `key=value` overrides can be put into a file's tree with a place of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

// Where a piece of YAML came from: the name shown in errors and the folder that relative paths in it start from.
struct YamlSource {
  std::string name;                 // "jobs/demo.yaml", "override batch.micro=4"
  std::filesystem::path directory;  // "": relative paths are kept as written
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  std::string scalar;           // kScalar
  bool quoted = false;          // kScalar: written in quotes, so "true" is text
  std::vector<YamlNode> items;  // kSequence
  std::vector<Entry> entries;   // kMap, in the order of the file; keys are unique
  std::shared_ptr<const YamlSource> source;
  int line = 0;  // from 1; 0: unknown
  int column = 0;

  SourcePlace place() const { return {source ? source->name : std::string(), line, column}; }
  bool is_map() const { return kind == Kind::kMap; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_sequence() const { return kind == Kind::kSequence; }
  const YamlNode* find(std::string_view key) const;  // nullptr unless this is a map that has it
  YamlNode* find(std::string_view key);
  void erase(std::string_view key);
  const char* kind_name() const;  // "a map", "a list", "a value", "nothing"

  static YamlNode make_scalar(std::string text, std::shared_ptr<const YamlSource> source);
};

struct YamlNode::Entry {
  std::string key;
  SourcePlace key_place;
  YamlNode value;
};

inline constexpr std::size_t kMaxYamlBytes = 1u << 20;
inline constexpr int kMaxYamlDepth = 32;

// One document. Throws UserError (exit 2) with line and column for bad syntax, duplicate keys, keys that are not plain
// text, more than one document, more than kMaxYamlBytes, kMaxYamlDepth or a few thousand values once aliases are
// counted.
YamlNode parse_yaml(std::string_view text, std::shared_ptr<const YamlSource> source);
YamlNode parse_yaml(std::string_view text, const std::string& name);

// Relative paths in the result start from the file's folder. Throws environment_error when it cannot be read.
YamlNode read_yaml_file(const std::filesystem::path& path);

// Puts "a.b.c=value" into the tree, creating maps on the way; the value is YAML ("[0.9, 0.95]" is a list). Relative
// paths in it start from the working directory. `shorthand` names keys whose plain value v stands for {key: v}:
// with {"model", "preset"} the override model.layers=2 turns `model: gpt2-124m` into {preset: gpt2-124m, layers: 2}.
void apply_override(YamlNode& root, const std::string& assignment,
                    const std::map<std::string, std::string>& shorthand = {});

// The text as a YAML scalar that reads back as exactly this text; quoted when it has to be.
std::string yaml_quote(std::string_view text);

}  // namespace lockstep
