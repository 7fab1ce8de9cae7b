// A report of several pages: a front and blocks below it, rendered as one HTML file, as a PDF and as Markdown with the
// same content.
// Plain values; texts are as they came, the renderers make them safe for their medium.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/report/canvas/canvas.h"
#include "lockstep/report/canvas/front.h"

namespace lockstep::report {

struct Heading {
  std::string text;
};
struct Paragraph {
  std::string text;
  bool muted = false;
  bool strong = false;  // announces what follows, and stays on its page
};
struct Bullets {
  std::vector<std::string> items;
};
struct Pairs {
  std::vector<std::pair<std::string, std::string>> rows;
};
struct Table {
  std::vector<std::vector<std::string>> rows;  // the first is the header
  std::size_t bold_column = 100;               // none, where there is none such
  std::vector<std::size_t> right;              // flush right
};
struct Code {
  std::string text;
  bool shell = false;  // may be broken as a shell takes it
};
// Draws itself into any box of the given height; how wide it is depends on the page.
struct Picture {
  std::string title;  // also what it shows for those who hear the page
  std::string caption;
  double height = 150;
  std::function<void(Canvas& canvas, const Box& box)> draw;
  std::string words = {};  // its figures, for those who hear the page and for Markdown; "": a table beside it has them
};
// One over the whole width, or two beside each other.
struct Pictures {
  std::vector<Picture> pictures;
  bool paired = false;
};

using Block = std::variant<Heading, Paragraph, Bullets, Pairs, Table, Code, Pictures>;

struct Document {
  Front front;
  std::vector<Block> blocks;
  std::string footer;
  double made_at = 0;        // unix time; 0: not said
  double scale = 1;          // of the letters on paper: at least
  double largest_scale = 1;  // and at most: as large as fills the last page well
};

// No script, nothing from elsewhere, light or dark as the reader's, and printable.
std::string to_html(const Document& document);
// A4, broken into pages; headings stay with what they announce.
std::string to_pdf(const Document& document);
// Pictures are told by their captions and words.
std::string to_markdown(const Document& document);

}  // namespace lockstep::report
