// PDF 1.4 files with words in the standard fonts and vector drawings. No compression, so that a file can be read and
// compared; the same pages give the same bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/report/canvas/canvas.h"

namespace lockstep::report {

inline constexpr double kA4Width = 595.28;
inline constexpr double kA4Height = 841.89;

class PdfPage : public Canvas {
 public:
  PdfPage(double width, double height) : width_(width), height_(height) {}

  void line(std::span<const Position> points, const Stroke& stroke) override;
  void area(std::span<const Position> corners, const Shape& shape) override;
  void rectangle(const Box& box, const Shape& shape, double radius) override;
  void circle(Position centre, double radius, const Shape& shape) override;
  void text(Position at, std::string_view words, const Lettering& lettering) override;
  void begin_group(const std::string&) override {}
  void end_group() override {}

  double width() const { return width_; }
  double height() const { return height_; }
  const std::string& content() const { return content_; }
  const std::vector<int>& opacities() const { return opacities_; }  // in percent, as /G0, /G1, ...

 private:
  void begin_shape(const Shape& shape);
  void paint(const Shape& shape);
  void set_stroke(const Stroke& stroke);
  std::string at(Position position) const;

  double width_, height_;
  std::string content_;
  std::vector<int> opacities_;
};

struct PdfDescription {
  std::string title;
  std::string subject;
  double created_at = 0;  // unix time; 0: not said
};

// The bytes of a file with these pages.
std::string make_pdf(const std::vector<const PdfPage*>& pages, const PdfDescription& description);

}  // namespace lockstep::report
