#include "lockstep/schedulers/yaml_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::schedulers {
namespace {

using nlohmann::ordered_json;

// Control characters, and what some readers take for a line break or a mark, become escapes.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += '"';
  const std::pair<const char*, const char*> marks[] = {
      {"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}, {"\xef\xbb\xbf", "\\uFEFF"}};
  for (const auto& [mark, escape] : marks) {
    for (std::size_t at = out.find(mark); at != std::string::npos; at = out.find(mark, at)) {
      out.replace(at, std::string_view(mark).size(), escape);
    }
  }
  return out;
}

// Lines without anything that a block would change.
bool fits_in_block(const std::string& text) {
  if (text.find('\n') == std::string::npos || text.front() == '\n' || text.ends_with("\n\n")) return false;
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with(' ') || line.ends_with(' ')) return false;
    if (!std::all_of(line.begin(), line.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7f; })) return false;
  }
  return true;
}

std::string block(const std::string& text, int indent) {
  const bool ends = text.back() == '\n';
  std::string out = ends ? "|" : "|-";
  for (const std::string& line : split(ends ? text.substr(0, text.size() - 1) : text, '\n')) {
    out += line.empty() ? "\n" : "\n" + std::string(static_cast<std::size_t>(indent), ' ') + line;
  }
  return out;
}

void write(const ordered_json& value, int indent, std::string& out);

// After "key:" or "-".
void write_value(const ordered_json& value, int indent, std::string& out) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    out += " " + (fits_in_block(text) ? block(text, indent + 2) : quoted(text)) + "\n";
  } else if (value.is_structured() && !value.empty()) {
    out += "\n";
    write(value, indent + 2, out);
  } else {
    out += " " + value.dump() + "\n";  // a number, a boolean, null, {} or []
  }
}

void write(const ordered_json& value, int indent, std::string& out) {
  const std::string space(static_cast<std::size_t>(indent), ' ');
  for (const auto& [key, item] : value.items()) {
    out += value.is_array() ? space + "-" : space + yaml_quote(key) + ":";
    write_value(item, indent, out);
  }
}

ordered_json scalar_of(const YamlNode& node) {
  if (node.quoted) return node.scalar;
  if (node.scalar == "true" || node.scalar == "false") return node.scalar == "true";
  const ordered_json number = ordered_json::parse(node.scalar, nullptr, false);
  return number.is_number() ? number : ordered_json(node.scalar);
}

}  // namespace

std::string yaml_text(const ordered_json& value) {
  std::string out;
  if (value.is_structured() && !value.empty()) {
    write(value, 0, out);
    return out;
  }
  write_value(value, 0, out);
  return out.substr(1);
}

ordered_json json_of(const YamlNode& node) {
  if (node.is_scalar()) return scalar_of(node);
  if (node.is_map()) {
    ordered_json map = ordered_json::object();
    for (const YamlNode::Entry& entry : node.entries) map[entry.key] = json_of(entry.value);
    return map;
  }
  if (!node.is_sequence()) return nullptr;
  ordered_json list = ordered_json::array();
  for (const YamlNode& item : node.items) list.push_back(json_of(item));
  return list;
}

}  // namespace lockstep::schedulers
