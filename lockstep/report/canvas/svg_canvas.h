// Canvas as SVG 1.1: no scripts, no fonts or files from elsewhere, colours by class so that the page can be dark.
#pragma once

#include <string>

#include "lockstep/report/canvas/canvas.h"

namespace lockstep::report {

// `text` safe inside elements and quoted attributes of HTML and SVG: markup characters become references; control
// characters, which XML forbids, and bytes that are not UTF-8 become U+FFFD.
std::string escape_markup(std::string_view text);

// The rules that the classes of drawings need, for one <style> of the page. Follows prefers-color-scheme; prints light.
std::string drawing_style();

class SvgCanvas : public Canvas {
 public:
  SvgCanvas(double width, double height) : width_(width), height_(height) {}

  void line(std::span<const Position> points, const Stroke& stroke) override;
  void area(std::span<const Position> corners, const Shape& shape) override;
  void rectangle(const Box& box, const Shape& shape, double radius) override;
  void circle(Position centre, double radius, const Shape& shape) override;
  void text(Position at, std::string_view words, const Lettering& lettering) override;
  void begin_group(const std::string& title) override;
  void end_group() override;

  // An <svg> element for a page that has drawing_style(). `label` is what it shows, for those who hear the page.
  std::string inline_svg(const std::string& label) const;
  // A whole file, style included.
  std::string file(const std::string& label) const;

 private:
  double width_, height_;
  std::string content_;
};

}  // namespace lockstep::report
