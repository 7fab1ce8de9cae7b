#include "lockstep/schedulers/yaml_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::schedulers {
namespace {

// Words that some reader takes for something else than text.
constexpr const char* kWords[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};

bool is_plain(const std::string& text) {
  if (text.empty() || (!std::isalpha(static_cast<unsigned char>(text.front())) && text.front() != '/')) return false;
  const bool harmless = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/');
  });
  const std::string lower = to_lower(text);
  return harmless && std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

// Readers differ in what they do with these when they stand for themselves: line separators of YAML 1.1, the byte
// order mark, controls beyond ASCII.
bool is_dangerous(std::uint32_t point) {
  return (point >= 0x80 && point < 0xa0) || point == 0x2028 || point == 0x2029 || point == 0xfeff ||
         (point & 0xfffeu) == 0xfffeu;
}

std::uint32_t next_point(const std::string& text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  std::uint32_t point = lead & (0x3fu >> more);
  for (int i = 0; i < more; ++i) point = (point << 6) | (static_cast<unsigned char>(text[at++]) & 0x3fu);
  return point;
}

std::string escaped(std::uint32_t point) {
  if (point == '\n') return "\\n";
  if (point < 0x80) return fmt::format("\\x{:02x}", point);
  return point > 0xffff ? fmt::format("\\U{:08x}", point) : fmt::format("\\u{:04x}", point);
}

std::string scalar(const std::string& text) {
  if (!is_utf8(text)) throw bad_input(fmt::format("`{}` is not UTF-8", printable(text)), "use other characters");
  if (is_plain(text)) return text;
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const std::uint32_t point = next_point(text, at);
    if (point == '"' || point == '\\') out += '\\';
    if (point < 0x20 || point == 0x7f || is_dangerous(point)) {
      out += escaped(point);
    } else {
      out.append(text, begin, at - begin);
    }
  }
  return out + "\"";
}

// Several lines that may stand as they are below `key: |`.
bool is_block(const std::string& text) {
  if (text.find('\n') == std::string::npos || text.find('\n') == text.size() - 1) return false;
  if (text.front() == ' ' || text.front() == '\n' || text.ends_with("\n\n") || !is_utf8(text)) return false;
  const std::vector<std::string> lines = split(text, '\n');
  return std::all_of(lines.begin(), lines.end(), [](const std::string& line) {
    for (std::size_t at = 0; at < line.size();) {
      if (is_dangerous(next_point(line, at))) return false;
    }
    return is_printable(line);
  });
}

std::string block(const std::string& text, std::size_t indent) {
  const bool ends = text.back() == '\n';
  std::string out = ends ? "|" : "|-";
  for (const std::string& line : split(ends ? text.substr(0, text.size() - 1) : text, '\n')) {
    out += '\n';
    if (!line.empty()) out.append(indent, ' ').append(line);
  }
  return out;
}

class Writer {
 public:
  std::string text;

  void value(const Tree& tree, std::size_t indent) {
    if (tree.is_object() && !tree.empty()) {
      for (const auto& [key, child] : tree.items()) {
        margin(indent);
        text += scalar(key) + ":";
        below(child, indent + (child.is_array() ? 0 : 2));
      }
    } else if (tree.is_array() && !tree.empty()) {
      for (const Tree& child : tree) item(child, indent);
    } else {
      text += leaf(tree, indent + 2) + "\n";
    }
  }

 private:
  void margin(std::size_t indent) {
    if (at_item_) {
      at_item_ = false;  // behind "- " already
    } else {
      text.append(indent, ' ');
    }
  }

  void item(const Tree& child, std::size_t indent) {
    margin(indent);
    text += "- ";
    at_item_ = child.is_structured() && !child.empty();
    if (at_item_) {
      value(child, indent + 2);
    } else {
      text += leaf(child, indent + 2) + "\n";
    }
  }

  void below(const Tree& child, std::size_t indent) {
    if (child.is_structured() && !child.empty()) {
      text += "\n";
      value(child, indent);
    } else {
      text += fmt::format(" {}\n", leaf(child, indent));
    }
  }

  static std::string leaf(const Tree& tree, std::size_t indent) {
    if (!tree.is_string()) return tree.dump();  // a number, a boolean, null, {} or []
    const std::string content = tree.get<std::string>();
    return is_block(content) ? block(content, indent) : scalar(content);
  }

  bool at_item_ = false;
};

Tree scalar_of(const YamlNode& node) {
  if (node.quoted) return node.scalar;
  if (node.scalar == "true" || node.scalar == "false") return node.scalar == "true";
  const Tree number = Tree::parse(node.scalar, nullptr, false);
  return number.is_number() ? number : Tree(node.scalar);
}

}  // namespace

std::string yaml_text(const Tree& tree) {
  Writer writer;
  writer.value(tree, 0);
  return writer.text;
}

std::string yaml_documents(const std::vector<Tree>& documents) {
  std::string text;
  for (const Tree& document : documents) text += (text.empty() ? "" : "---\n") + yaml_text(document);
  return text;
}

Tree json_of(const YamlNode& node) {
  if (node.is_scalar()) return scalar_of(node);
  if (node.is_map()) {
    Tree map = Tree::object();
    for (const YamlNode::Entry& entry : node.entries) map[entry.key] = json_of(entry.value);
    return map;
  }
  if (!node.is_sequence()) return nullptr;
  Tree list = Tree::array();
  for (const YamlNode& item : node.items) list.push_back(json_of(item));
  return list;
}

}  // namespace lockstep::schedulers
