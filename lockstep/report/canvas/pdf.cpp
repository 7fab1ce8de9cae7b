#include "lockstep/report/canvas/pdf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numbers>

#include "lockstep/report/canvas/lettering.h"

namespace lockstep::report {
namespace {

constexpr const char* kFontNames[kTypefaces] = {"Helvetica", "Helvetica-Bold", "Helvetica-Oblique", "Courier"};
constexpr double kQuarterCircle = 0.5522847498;  // control points of a Bezier curve that looks like a quarter circle

std::string number(double value) { return short_number(value, 3); }

std::string colour(Tint tint, const char* operation) {
  const Rgb rgb = on_light(tint);
  return fmt::format("{} {} {} {}\n", number(rgb.red / 255.0), number(rgb.green / 255.0), number(rgb.blue / 255.0),
                     operation);
}

// A PDF string of WinAnsi bytes; what is not plain ASCII is written in octal.
std::string literal(std::string_view utf8) {
  std::string out = "(";
  for (const char c : to_win_ansi(utf8)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '(' || c == ')' || c == '\\') {
      out.append("\\").append(1, c);
    } else if (byte < 32 || byte > 126) {
      out += fmt::format("\\{:03o}", byte);
    } else {
      out += c;
    }
  }
  return out + ")";
}

std::string date(double unix_seconds) {
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("(D:{:04}{:02}{:02}{:02}{:02}{:02}Z)", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// Objects by number, and where each one begins in the file.
class Writer {
 public:
  void object(int number, const std::string& body) {
    if (static_cast<std::size_t>(number) >= offsets_.size()) offsets_.resize(number + 1, 0);
    offsets_[number] = bytes_.size();
    bytes_ += fmt::format("{} 0 obj\n{}\nendobj\n", number, body);
  }

  std::string finish(int root, int info) {
    const std::size_t table = bytes_.size();
    bytes_ += fmt::format("xref\n0 {}\n0000000000 65535 f \n", offsets_.size());
    for (std::size_t i = 1; i < offsets_.size(); ++i) bytes_ += fmt::format("{:010} 00000 n \n", offsets_[i]);
    bytes_ += fmt::format("trailer\n<< /Size {} /Root {} 0 R /Info {} 0 R >>\nstartxref\n{}\n%%EOF\n", offsets_.size(),
                          root, info, table);
    return std::move(bytes_);
  }

 private:
  std::string bytes_ = "%PDF-1.4\n%\xe2\xe3\xcf\xd3\n";  // the second line tells programs that the file is binary
  std::vector<std::size_t> offsets_{0};
};

std::string resources(const PdfPage& page, int first_font) {
  std::string fonts;
  for (int i = 0; i < kTypefaces; ++i) fonts += fmt::format(" /F{} {} 0 R", i, first_font + i);
  std::string states;
  for (std::size_t i = 0; i < page.opacities().size(); ++i)
    states += fmt::format(" /G{} << /ca {} >>", i, number(page.opacities()[i] / 100.0));
  return fmt::format("<< /Font <<{} >>{} >>", fonts, states.empty() ? "" : fmt::format(" /ExtGState <<{} >>", states));
}

}  // namespace

std::string PdfPage::at(Position position) const {
  return fmt::format("{} {}", number(position.x), number(height_ - position.y));
}

void PdfPage::set_stroke(const Stroke& stroke) {
  content_ += colour(stroke.tint, "RG");
  content_ += fmt::format("{} w {} d\n", number(stroke.width), stroke.dashed ? "[3 2] 0" : "[] 0");
}

void PdfPage::begin_shape(const Shape& shape) {
  content_ += "q\n";
  if (shape.fill) content_ += colour(*shape.fill, "rg");
  if (shape.stroke) set_stroke(*shape.stroke);
  if (!shape.fill || shape.opacity >= 1) return;
  const int percent = static_cast<int>(std::lround(std::max(0.0, shape.opacity) * 100));
  auto found = std::find(opacities_.begin(), opacities_.end(), percent);
  if (found == opacities_.end()) found = opacities_.insert(opacities_.end(), percent);
  content_ += fmt::format("/G{} gs\n", found - opacities_.begin());
}

void PdfPage::paint(const Shape& shape) {
  content_ += shape.fill && shape.stroke ? "B\nQ\n" : shape.fill ? "f\nQ\n" : shape.stroke ? "S\nQ\n" : "n\nQ\n";
}

void PdfPage::line(std::span<const Position> points, const Stroke& stroke) {
  if (points.size() < 2) return;
  content_ += "q 1 j 1 J\n";
  set_stroke(stroke);
  for (std::size_t i = 0; i < points.size(); ++i) content_ += fmt::format("{} {}\n", at(points[i]), i == 0 ? "m" : "l");
  content_ += "S\nQ\n";
}

void PdfPage::area(std::span<const Position> corners, const Shape& shape) {
  if (corners.size() < 3) return;
  begin_shape(shape);
  for (std::size_t i = 0; i < corners.size(); ++i)
    content_ += fmt::format("{} {}\n", at(corners[i]), i == 0 ? "m" : "l");
  content_ += "h\n";
  paint(shape);
}

void PdfPage::rectangle(const Box& box, const Shape& shape, double radius) {
  begin_shape(shape);
  const double r = std::min({radius, box.width / 2, box.height / 2});
  if (r <= 0) {
    content_ += fmt::format("{} {} {} re\n", at({box.x, box.bottom()}), number(box.width), number(box.height));
  } else {
    const double k = r * (1 - kQuarterCircle);
    const auto curve = [&](Position a, Position b, Position end) {
      content_ += fmt::format("{} {} {} c\n", at(a), at(b), at(end));
    };
    const double left = box.x, top = box.y, right = box.right(), bottom = box.bottom();
    content_ += fmt::format("{} m\n{} l\n", at({left + r, top}), at({right - r, top}));
    curve({right - k, top}, {right, top + k}, {right, top + r});
    content_ += fmt::format("{} l\n", at({right, bottom - r}));
    curve({right, bottom - k}, {right - k, bottom}, {right - r, bottom});
    content_ += fmt::format("{} l\n", at({left + r, bottom}));
    curve({left + k, bottom}, {left, bottom - k}, {left, bottom - r});
    content_ += fmt::format("{} l\n", at({left, top + r}));
    curve({left, top + k}, {left + k, top}, {left + r, top});
    content_ += "h\n";
  }
  paint(shape);
}

void PdfPage::circle(Position centre, double radius, const Shape& shape) {
  rectangle({centre.x - radius, centre.y - radius, 2 * radius, 2 * radius}, shape, radius);
}

void PdfPage::text(Position position, std::string_view words, const Lettering& lettering) {
  if (words.empty()) return;
  const double width = text_width(words, lettering.face, lettering.size);
  const double shift = lettering.anchor == Anchor::kStart ? 0 : lettering.anchor == Anchor::kMiddle ? width / 2 : width;
  const double angle = lettering.turn * std::numbers::pi / 180;
  const double c = std::cos(angle), s = std::sin(angle);
  content_ += "BT\n" + colour(lettering.tint, "rg");
  content_ += fmt::format("/F{} {} Tf {} {} {} {} {} Tm {} Tj\nET\n", static_cast<int>(lettering.face),
                          number(lettering.size), number(c), number(s), number(-s), number(c),
                          at({position.x - shift * c, position.y + shift * s}), literal(words));
}

std::string make_pdf(const std::vector<const PdfPage*>& pages, const PdfDescription& description) {
  constexpr int kCatalog = 1, kPages = 2, kInfo = 3, kFirstFont = 4, kFirstPage = kFirstFont + kTypefaces;
  Writer writer;
  std::string kids;
  for (std::size_t i = 0; i < pages.size(); ++i) kids += fmt::format(" {} 0 R", kFirstPage + 2 * i);
  writer.object(kCatalog, fmt::format("<< /Type /Catalog /Pages {} 0 R /Lang (en) /ViewerPreferences << "
                                      "/DisplayDocTitle true >> >>",
                                      kPages));
  writer.object(kPages, fmt::format("<< /Type /Pages /Count {} /Kids [{} ] >>", pages.size(), kids));
  std::string info = fmt::format("<< /Title {} /Subject {} /Producer (lockstep)", literal(description.title),
                                 literal(description.subject));
  if (description.created_at > 0) info += fmt::format(" /CreationDate {}", date(description.created_at));
  writer.object(kInfo, info + " >>");
  for (int i = 0; i < kTypefaces; ++i) {
    writer.object(kFirstFont + i, fmt::format("<< /Type /Font /Subtype /Type1 /BaseFont /{} /Encoding "
                                              "/WinAnsiEncoding >>",
                                              kFontNames[i]));
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const int number_of_page = kFirstPage + 2 * static_cast<int>(i);
    writer.object(number_of_page,
                  fmt::format("<< /Type /Page /Parent {} 0 R /MediaBox [0 0 {} {}] /Resources {} /Contents {} 0 R >>",
                              kPages, number(pages[i]->width()), number(pages[i]->height()),
                              resources(*pages[i], kFirstFont), number_of_page + 1));
    writer.object(number_of_page + 1, fmt::format("<< /Length {} >>\nstream\n{}endstream", pages[i]->content().size(),
                                                  pages[i]->content()));
  }
  return writer.finish(kCatalog, kInfo);
}

}  // namespace lockstep::report
