#include "lockstep/report/document/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kLineWidth = 110;

// Bytes that continue a character take no column.
std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xC0U) != 0x80U; }));
}

// Whole words on lines of the width; every line after the first is indented.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out;
  std::size_t used = 0;
  for (const std::string& word : split(text, ' ')) {
    const std::size_t width = columns_of(word);
    if (used > 0 && used + 1 + width + indent > kLineWidth) {
      out += "\n" + std::string(indent, ' ');
      used = 0;
    } else if (used > 0) {
      out += ' ';
      ++used;
    }
    out += word;
    used += width;
  }
  return out;
}

struct Lines {
  std::string operator()(const Heading& block) const { return fmt::format("\n{}\n", block.text); }
  std::string operator()(const Paragraph& block) const {
    return block.text.empty() ? "" : fmt::format("{}  {}\n", block.strong ? "\n" : "", wrapped(block.text, 2));
  }
  std::string operator()(const Bullets& block) const {
    std::string out;
    for (const std::string& item : block.items) out += fmt::format("  - {}\n", wrapped(item, 4));
    return out;
  }
  std::string operator()(const Pairs& block) const {
    std::size_t widest = 0;
    for (const auto& [name, value] : block.rows) widest = std::max(widest, columns_of(name));
    std::string out;
    for (const auto& [name, value] : block.rows) {
      out += fmt::format("  {}{}  {}\n", name, std::string(widest - columns_of(name), ' '), wrapped(value, widest + 4));
    }
    return out;
  }
  std::string operator()(const Table& block) const {
    std::vector<std::size_t> widths;
    for (const auto& row : block.rows) {
      widths.resize(std::max(widths.size(), row.size()));
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
    }
    std::string out;
    for (const auto& row : block.rows) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string room(widths[i] - columns_of(row[i]), ' ');
        const bool right = std::find(block.right.begin(), block.right.end(), i) != block.right.end();
        line += "  " + (right ? room + row[i] : row[i] + room);
      }
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
  }
  std::string operator()(const Code& block) const {
    std::string out;
    for (const std::string& line : split(block.text, '\n')) out += fmt::format("    {}\n", line);
    return out;
  }
  std::string operator()(const Pictures& block) const {
    std::string out;
    for (const Picture& picture : block.pictures) {
      if (!picture.words.empty()) out += fmt::format("  {}\n", wrapped(picture.words, 2));
    }
    return out;
  }
};

}  // namespace

std::string to_text(const Document& document) {
  const Front& front = document.front;
  std::string out = fmt::format("{}\n{}\n\n", front.title, front.subtitle);
  for (const std::string& warning : front.warnings) out += fmt::format("  {}\n", wrapped(warning, 2));
  for (const Card& card : front.cards) {
    out += fmt::format("  {}: {}", card.label, card.figure);
    for (const std::string& detail : card.details) {
      if (!detail.empty()) out += "; " + detail;
    }
    out += "\n";
  }
  out += "\n";
  for (const Block& block : document.blocks) out += std::visit(Lines{}, block);
  return document.footer.empty() ? out : out + "\n" + document.footer + "\n";
}

}  // namespace lockstep::report
