// A column of a printed page: headings, text, lists, tables and code, one below the other, broken to its width.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/canvas/canvas.h"

namespace lockstep::report {

// Draws downwards from the top of `place`. `scale` multiplies every size; nothing stops it at the bottom: ask y().
class Sheet {
 public:
  Sheet(Canvas& canvas, Position top_left, double width, double scale)
      : canvas_(canvas), x_(top_left.x), width_(width), y_(top_left.y), scale_(scale) {}

  double x() const { return x_; }
  double y() const { return y_; }
  double width() const { return width_; }
  double scaled(double points) const { return points * scale_; }

  void space(double points) { y_ += scaled(points); }
  void heading(const std::string& text);
  void paragraph(const std::string& text, const Lettering& lettering);
  void bullets(const std::vector<std::string>& items, bool numbered = false);
  // Name and value in two columns.
  void pairs(const std::vector<std::pair<std::string, std::string>>& rows);
  // First row as header. Columns are as wide as they need to be; where there is no room for that the widest shrink
  // and their cells are broken. One column is bold; columns in `right` are flush right.
  void table(const std::vector<std::vector<std::string>>& rows, std::size_t bold_column = 2,
             const std::vector<std::size_t>& right = {});
  // On a grey ground, in Courier. Lines too long are broken at spaces outside quotes with a backslash at the end, as a
  // shell takes them (`shell`), else anywhere.
  void code(const std::string& text, bool shell);

 private:
  Canvas& canvas_;
  double x_, width_, y_, scale_;
};

// `line` in pieces of at most `columns` characters; all but the last end with " \". Breaks only between words of a
// shell, so that a quoted text stays whole however long it is.
std::vector<std::string> shell_lines(const std::string& line, std::size_t columns);

}  // namespace lockstep::report
