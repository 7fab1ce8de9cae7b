#include <fmt/format.h>

#include "lockstep/report/canvas/html.h"
#include "lockstep/report/canvas/markup.h"
#include "lockstep/report/canvas/svg_canvas.h"
#include "lockstep/report/document/document.h"

namespace lockstep::report {
namespace {

constexpr double kPageWidth = 640, kPairedWidth = 312;
constexpr std::size_t kShellColumns = 96;

std::string figure(const Picture& picture, double width) {
  SvgCanvas canvas(width, picture.height);
  picture.draw(canvas, {0, 0, width, picture.height});
  std::string out = fmt::format(
      "<figure>{}\n", canvas.inline_svg(picture.words.empty() ? picture.title : picture.title + ": " + picture.words));
  if (!picture.caption.empty()) out += fmt::format("<figcaption>{}</figcaption>", escape_markup(picture.caption));
  return out + "</figure>\n";
}

struct Markup {
  std::string operator()(const Heading& block) const { return fmt::format("<h2>{}</h2>\n", escape_markup(block.text)); }
  std::string operator()(const Paragraph& block) const {
    return markup_paragraph(block.text, block.strong ? "strong" : block.muted ? "muted" : "");
  }
  std::string operator()(const Bullets& block) const { return markup_list(block.items, "ul"); }
  std::string operator()(const Pairs& block) const { return markup_pairs(block.rows); }
  std::string operator()(const Table& block) const {
    return "<div class=\"wide\">" + markup_table(block.rows, block.bold_column, block.right) + "</div>\n";
  }
  std::string operator()(const Code& block) const { return markup_code(block.text, block.shell, kShellColumns); }
  std::string operator()(const Pictures& block) const {
    std::string out;
    for (const Picture& picture : block.pictures) out += figure(picture, block.paired ? kPairedWidth : kPageWidth);
    return block.paired ? "<div class=\"pair\">" + out + "</div>\n" : out;
  }
};

}  // namespace

std::string to_html(const Document& document) {
  std::string body = markup_front(document.front);
  bool open = false;  // a section runs from its heading to the next
  for (const Block& block : document.blocks) {
    if (std::holds_alternative<Heading>(block)) {
      body += open ? "</section>\n<section>\n" : "<section>\n";
      open = true;
    }
    body += std::visit(Markup{}, block);
  }
  if (open) body += "</section>\n";
  body += fmt::format("<footer>{}</footer>\n", escape_markup(document.footer));
  return html_page(document.front.title, body, 1.0);
}

}  // namespace lockstep::report
