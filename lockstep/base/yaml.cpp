#include "lockstep/base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep {
namespace {

// Every value weighs 1 plus a part of its length. Files people write weigh hundreds; an alias bomb weighs billions.
constexpr std::size_t kMaxWeight = 100'000;

std::size_t weight_of(const YamlNode& node) {
  std::size_t weight = 1 + node.scalar.size() / 32;
  for (const YamlNode& item : node.items) weight += weight_of(item);
  for (const YamlNode::Entry& entry : node.entries) weight += 1 + entry.key.size() / 32 + weight_of(entry.value);
  return weight;
}

int depth_of(const YamlNode& node) {
  int depth = 0;
  for (const YamlNode& item : node.items) depth = std::max(depth, depth_of(item));
  for (const YamlNode::Entry& entry : node.entries) depth = std::max(depth, depth_of(entry.value));
  return depth + 1;
}

// Builds the tree from yaml-cpp's events. The limits are checked as events arrive, before anything grows.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(std::shared_ptr<const YamlSource> source) : source_(std::move(source)) {}

  YamlNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(node_at(mark), anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) throw error(mark, "an alias that contains itself", "write the value out");
    charge(weight_of(found->second), mark);
    if (static_cast<int>(open_.size()) + depth_of(found->second) > kMaxYamlDepth) throw too_deep(mark);
    YamlNode copy = found->second;
    add(std::move(copy), 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    charge(1 + value.size() / 32, mark);
    YamlNode node = node_at(mark);
    node.kind = YamlNode::Kind::kScalar;
    node.scalar = value;
    node.quoted = tag == "!";
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // maps: a key has been read, its value comes next
    std::string key;
    SourcePlace key_place;
  };

  SourcePlace place(const YAML::Mark& mark) const { return {source_->name, mark.line + 1, mark.column + 1}; }

  UserError error(const YAML::Mark& mark, const std::string& problem, const std::string& fix) const {
    return bad_input(problem, fix, place(mark));
  }

  UserError too_deep(const YAML::Mark& mark) const {
    return error(mark, fmt::format("nested deeper than {} levels", kMaxYamlDepth), "check that this is the right file");
  }

  // Tags ask a reader to build other types; nothing here needs them.
  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw error(mark, fmt::format("the tag `{}` is not supported", printable(tag)), "remove it");
    }
  }

  void charge(std::size_t weight, const YAML::Mark& mark) {
    weight_ += weight;
    if (weight_ > kMaxWeight) {
      throw error(mark, "too many values once aliases are written out", "check that this is the right file");
    }
  }

  YamlNode node_at(const YAML::Mark& mark) const {
    YamlNode node;
    node.source = source_;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    check_tag(mark, tag);
    charge(1, mark);
    if (static_cast<int>(open_.size()) >= kMaxYamlDepth) throw too_deep(mark);
    if (!open_.empty() && open_.back().node.is_map() && !open_.back().has_key) {
      throw error(mark, "a key must be plain text", "put it in quotes, or check for a stray { or [");
    }
    Open entry;
    entry.node = node_at(mark);
    entry.node.kind = kind;
    entry.anchor = anchor;
    open_.push_back(std::move(entry));
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    add(std::move(done.node), done.anchor);
  }

  void add(YamlNode node, YAML::anchor_t anchor) {
    if (anchor != 0) {
      weight_ += weight_of(node);  // the copy kept for aliases counts too
      anchors_[anchor] = node;
    }
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.is_sequence()) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      add_key(parent, node);
    } else {
      parent.node.entries.push_back({std::move(parent.key), std::move(parent.key_place), std::move(node)});
      parent.has_key = false;
    }
  }

  void add_key(Open& parent, const YamlNode& key) const {
    if (!key.is_scalar()) throw bad_input("a key must be plain text", "write `key: value`", key.place());
    if (const YamlNode* earlier = parent.node.find(key.scalar)) {
      throw bad_input(
          fmt::format("the key `{}` is given twice (first in line {})", printable(key.scalar), earlier->line),
          "remove one of them", key.place());
    }
    parent.has_key = true;
    parent.key = key.scalar;
    parent.key_place = key.place();
  }

  std::shared_ptr<const YamlSource> source_;
  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  std::size_t weight_ = 0;
};

// A second document would be ignored silently; this handler only notices that there is one.
class RefuseAnything final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { throw YAML::ParserException(mark, "a second document"); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

void check_text(std::string_view text, const YamlSource& source) {
  if (text.size() > kMaxYamlBytes) {
    throw bad_input(
        fmt::format("{} of YAML, the most that is read is {}", format_bytes(static_cast<double>(text.size())),
                    format_bytes(static_cast<double>(kMaxYamlBytes))),
        "check that this is the right file", {source.name});
  }
  int line = 1;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '\n') ++line;
    if ((byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') || byte == 0x7f) {
      throw bad_input(fmt::format("the control character 0x{:02x}", byte), "this is not a YAML text file",
                      {source.name, line});
    }
  }
  if (is_utf8(text)) return;
  line = 1;
  for (const std::string& one : split(text, '\n')) {
    if (!is_utf8(one)) throw bad_input("not UTF-8", "save the file as UTF-8", {source.name, line});
    ++line;
  }
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

YamlNode* YamlNode::find(std::string_view key) { return const_cast<YamlNode*>(std::as_const(*this).find(key)); }

void YamlNode::erase(std::string_view key) {
  std::erase_if(entries, [&](const Entry& entry) { return entry.key == key; });
}

const char* YamlNode::kind_name() const { return named<Kind::kMap>(kind, "nothing", "a value", "a list", "a map"); }

YamlNode YamlNode::make_scalar(std::string text, std::shared_ptr<const YamlSource> source) {
  YamlNode node;
  node.kind = Kind::kScalar;
  node.scalar = std::move(text);
  node.source = std::move(source);
  return node;
}

YamlNode parse_yaml(std::string_view text, std::shared_ptr<const YamlSource> source) {
  check_text(text, *source);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(source);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    RefuseAnything refuse;
    parser.HandleNextDocument(refuse);
  } catch (const UserError&) {
    throw;
  } catch (const YAML::Exception& error) {
    const bool known = !error.mark.is_null();
    throw bad_input("bad YAML: " + printable(error.msg, 200), "check the indentation, quotes and brackets there",
                    {source->name, known ? error.mark.line + 1 : 0, known ? error.mark.column + 1 : 0});
  } catch (const std::exception& error) {  // yaml-cpp lets a few standard exceptions out on malformed input
    throw bad_input("bad YAML: " + printable(error.what(), 200), "check the file", {source->name});
  }
  YamlNode root = builder.take_root();
  if (!root.source) root.source = source;
  return root;
}

YamlNode parse_yaml(std::string_view text, const std::string& name) {
  return parse_yaml(text, std::make_shared<YamlSource>(YamlSource{name, {}}));
}

YamlNode read_yaml_file(const std::filesystem::path& path) {
  const std::string text = read_file(path, kMaxYamlBytes);
  auto source = std::make_shared<YamlSource>();
  source->name = printable_path(path);
  source->directory = std::filesystem::absolute(path).parent_path().lexically_normal();
  return parse_yaml(text, source);
}

void apply_override(YamlNode& root, const std::string& assignment,
                    const std::map<std::string, std::string>& shorthand) {
  auto source = std::make_shared<YamlSource>();
  source->name = "override " + printable(assignment, 200);
  source->directory = std::filesystem::current_path();
  const SourcePlace place{source->name};
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw bad_input("an override is written key=value", "for example batch.micro=4", place);
  }
  YamlNode value = parse_yaml(assignment.substr(equals + 1), source);
  value.line = value.column = 0;
  const std::vector<std::string> path = split(std::string_view(assignment).substr(0, equals), '.');
  if (path.size() > static_cast<std::size_t>(kMaxYamlDepth)) {
    throw bad_input("the key has too many parts", "check the dots", place);
  }

  YamlNode* node = &root;
  std::string walked;
  for (const std::string& key : path) {
    if (key.empty()) throw bad_input("the key has an empty part", "write it like batch.micro=4", place);
    if (node->kind == YamlNode::Kind::kNull) {
      node->kind = YamlNode::Kind::kMap;
      node->source = source;
    }
    if (const auto expand = shorthand.find(walked); expand != shorthand.end() && node->is_scalar()) {
      YamlNode map;
      map.kind = YamlNode::Kind::kMap;
      map.source = node->source;
      map.line = node->line;
      map.column = node->column;
      const SourcePlace at = node->place();
      map.entries.push_back({expand->second, at, std::move(*node)});
      *node = std::move(map);
    }
    if (!node->is_map()) {
      throw bad_input(fmt::format("`{}` is {}, not a map, so it has no key `{}`", printable(walked), node->kind_name(),
                                  printable(key)),
                      fmt::format("set `{}` itself", printable(walked)), place);
    }
    YamlNode* next = node->find(key);
    if (next == nullptr) {
      node->entries.push_back({key, place, YamlNode{}});
      next = &node->entries.back().value;
      next->source = source;
    }
    node = next;
    walked += (walked.empty() ? "" : ".") + key;
  }
  *node = std::move(value);
}

std::string yaml_quote(std::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == '/';
  });
  const std::string lower = to_lower(text);
  if (plain && text[0] != '-' && lower != "null" && lower != "true" && lower != "false") return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace lockstep
