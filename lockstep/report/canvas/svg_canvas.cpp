#include "lockstep/report/canvas/svg_canvas.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "lockstep/report/canvas/lettering.h"

namespace lockstep::report {
namespace {

// Two decimals at most, no trailing zeros: pages have thousands of these.
std::string number(double value) { return short_number(value, 2); }

std::string path_of(std::span<const Position> points) {
  std::string path;
  for (const Position& point : points) {
    if (!path.empty()) path += ' ';
    path.append(number(point.x)).append(",").append(number(point.y));
  }
  return path;
}

std::string stroke_attributes(const Stroke& stroke) {
  return fmt::format(R"( class="s-{}" stroke-width="{}"{})", css_name(stroke.tint), number(stroke.width),
                     stroke.dashed ? R"( stroke-dasharray="3 2")" : "");
}

std::string shape_attributes(const Shape& shape) {
  std::string classes = shape.fill ? fmt::format("f-{}", css_name(*shape.fill)) : "f-none";
  std::string rest;
  if (shape.stroke) {
    classes += fmt::format(" s-{}", css_name(shape.stroke->tint));
    rest += fmt::format(R"( stroke-width="{}")", number(shape.stroke->width));
    if (shape.stroke->dashed) rest += R"( stroke-dasharray="3 2")";
  }
  if (shape.opacity < 1) rest += fmt::format(R"( fill-opacity="{}")", number(shape.opacity));
  return fmt::format(R"( class="{}"{})", classes, rest);
}

std::string hex(Rgb colour) { return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue); }

std::string rules(Rgb (*colour_of)(Tint)) {
  std::string css;
  for (int i = 0; i < kTints; ++i) {
    const Tint tint = static_cast<Tint>(i);
    const std::string colour = hex(colour_of(tint));
    css += fmt::format(".f-{0}{{fill:{1}}}.s-{0}{{stroke:{1}}}", css_name(tint), colour);
  }
  return css;
}

// Length of the UTF-8 sequence at the start of `text`, 0 when it is none.
std::size_t sequence_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0u) != 0x80u) return 0;
  return length;
}

std::string opening(double width, double height, const std::string& label) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" class="ls" viewBox="0 0 {0} {1}" width="{0}pt" height="{1}pt" role="img" aria-label="{2}">)",
      number(width), number(height), escape_markup(label));
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text.substr(i));
    const char c = text[i];
    if (length == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
      out += "\xef\xbf\xbd";
    } else if (length > 1) {
      out += text.substr(i, length);
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string drawing_style() {
  return fmt::format(
      "svg.ls{{font-family:Helvetica,Arial,'Liberation Sans','Nimbus Sans',sans-serif;max-width:100%;height:auto}}"
      "svg.ls polyline,.f-none{{fill:none}}svg.ls .m{{font-family:'Courier New',Courier,'Liberation Mono',monospace}}"
      "{}@media screen and (prefers-color-scheme:dark){{{}}}",
      rules(on_light), rules(on_dark));
}

void SvgCanvas::line(std::span<const Position> points, const Stroke& stroke) {
  if (points.size() < 2) return;
  content_ += fmt::format("<polyline points=\"{}\"{}/>\n", path_of(points), stroke_attributes(stroke));
}

void SvgCanvas::area(std::span<const Position> corners, const Shape& shape) {
  if (corners.size() < 3) return;
  content_ += fmt::format("<polygon points=\"{}\"{}/>\n", path_of(corners), shape_attributes(shape));
}

void SvgCanvas::rectangle(const Box& box, const Shape& shape, double radius) {
  content_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}{}/>\n", number(box.x), number(box.y),
                          number(std::max(0.0, box.width)), number(std::max(0.0, box.height)),
                          radius > 0 ? fmt::format(" rx=\"{}\"", number(radius)) : "", shape_attributes(shape));
}

void SvgCanvas::circle(Position centre, double radius, const Shape& shape) {
  content_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"{}/>\n", number(centre.x), number(centre.y),
                          number(radius), shape_attributes(shape));
}

void SvgCanvas::text(Position at, std::string_view words, const Lettering& lettering) {
  std::string attributes = fmt::format(R"( class="f-{}{}" font-size="{}")", css_name(lettering.tint),
                                       lettering.face == Typeface::kMono ? " m" : "", number(lettering.size));
  if (lettering.face == Typeface::kBold) attributes += R"( font-weight="bold")";
  if (lettering.face == Typeface::kItalic) attributes += R"( font-style="italic")";
  if (lettering.anchor == Anchor::kMiddle) attributes += R"( text-anchor="middle")";
  if (lettering.anchor == Anchor::kEnd) attributes += R"( text-anchor="end")";
  if (lettering.turn != 0) {
    attributes += fmt::format(" transform=\"rotate({} {} {})\"", number(-lettering.turn), number(at.x), number(at.y));
  }
  content_ += fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", number(at.x), number(at.y), attributes,
                          escape_markup(words));
}

void SvgCanvas::begin_group(const std::string& title) {
  content_ += title.empty() ? "<g>" : fmt::format("<g><title>{}</title>", escape_markup(title));
}

void SvgCanvas::end_group() { content_ += "</g>\n"; }

std::string SvgCanvas::inline_svg(const std::string& label) const {
  return fmt::format("{}\n{}</svg>", opening(width_, height_, label), content_);
}

std::string SvgCanvas::file(const std::string& label) const {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}<style>{}</style>\n"
      "<rect class=\"f-paper\" width=\"{}\" height=\"{}\"/>\n{}</svg>\n",
      opening(width_, height_, label), drawing_style(), number(width_), number(height_), content_);
}

}  // namespace lockstep::report
