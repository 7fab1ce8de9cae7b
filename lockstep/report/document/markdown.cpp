#include "lockstep/report/canvas/markdown.h"

#include <fmt/format.h>

#include "lockstep/report/document/document.h"

namespace lockstep::report {
namespace {

struct Marked {
  std::string operator()(const Heading& block) const { return fmt::format("## {}\n\n", markdown_text(block.text)); }
  std::string operator()(const Paragraph& block) const {
    const char* const bold = block.strong ? "**" : "";
    return block.text.empty() ? "" : fmt::format("{}{}{}\n\n", bold, markdown_text(block.text), bold);
  }
  std::string operator()(const Bullets& block) const { return markdown_list(block.items); }
  std::string operator()(const Pairs& block) const {
    std::string out;
    for (const auto& [name, value] : block.rows) {
      out += fmt::format("- **{}**: {}\n", markdown_text(name), markdown_text(value));
    }
    return out + "\n";
  }
  std::string operator()(const Table& block) const {
    return markdown_table(block.rows, block.right, block.bold_column);
  }
  std::string operator()(const Code& block) const { return markdown_code(block.text, block.shell ? "sh" : ""); }
  std::string operator()(const Pictures& block) const {
    std::string out;
    for (const Picture& picture : block.pictures) {
      if (!picture.caption.empty()) out += fmt::format("*{}*\n\n", markdown_text(picture.caption));
      if (!picture.words.empty()) out += fmt::format("*Drawn: {}*\n\n", markdown_text(picture.words));
    }
    return out;
  }
};

}  // namespace

std::string to_markdown(const Document& document) {
  const Front& front = document.front;
  std::string out = fmt::format("# {}\n\n{}: {}\n\n", markdown_text(front.title), markdown_text(front.badge),
                                markdown_text(front.subtitle));
  for (const std::string& warning : front.warnings) out += fmt::format("> **{}**\n\n", markdown_text(warning));
  for (const Card& card : front.cards) {
    out += fmt::format("- {}: **{}**", markdown_text(card.label), markdown_text(card.figure));
    for (const std::string& detail : card.details) {
      if (!detail.empty()) out += "; " + markdown_text(detail);
    }
    out += "\n";
  }
  out += "\n";
  for (const Block& block : document.blocks) out += std::visit(Marked{}, block);
  return out + markdown_text(document.footer) + "\n";
}

}  // namespace lockstep::report
