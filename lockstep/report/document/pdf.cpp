#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/lettering.h"
#include "lockstep/report/canvas/pdf.h"
#include "lockstep/report/canvas/sheet.h"
#include "lockstep/report/document/document.h"

namespace lockstep::report {
namespace {

constexpr double kMargin = 34, kWidth = kA4Width - 2 * kMargin;
constexpr double kBottom = kA4Height - kMargin - 9;  // a line of footer is below
constexpr double kGap = 6, kBetweenPictures = 14;
constexpr double kCaptionSize = 7.2;

// Draws one block downwards and returns where it ends.
struct Drawing {
  Canvas& canvas;
  double y;
  double scale;

  double operator()(const Heading& block) const {
    Sheet sheet = at(y + 5 * scale);
    sheet.heading(block.text);
    return sheet.y() + 2;
  }
  double operator()(const Paragraph& block) const {
    Sheet sheet = at(y);
    sheet.paragraph(block.text, {block.strong ? Typeface::kBold : Typeface::kRegular, kTextSize,
                                 block.muted ? Tint::kMuted : Tint::kText});
    return sheet.y() + (block.strong ? 3 : kGap);
  }
  double operator()(const Bullets& block) const {
    Sheet sheet = at(y);
    sheet.bullets(block.items);
    return sheet.y() + kGap;
  }
  double operator()(const Pairs& block) const {
    Sheet sheet = at(y);
    sheet.pairs(block.rows);
    return sheet.y() + kGap;
  }
  double operator()(const Table& block) const {
    Sheet sheet = at(y);
    sheet.table(block.rows, block.bold_column, block.right);
    return sheet.y() + kGap;
  }
  double operator()(const Code& block) const {
    Sheet sheet = at(y);
    sheet.code(block.text, block.shell);
    return sheet.y() + kGap;
  }
  double operator()(const Pictures& block) const {
    double x = kMargin, top = y + 2, bottom = top;
    const double width = block.paired ? (kWidth - kBetweenPictures) / 2 : kWidth;
    for (const Picture& picture : block.pictures) {
      if (x + width > kMargin + kWidth + 1) x = kMargin, top = bottom;
      picture.draw(canvas, {x, top, width, picture.height});
      Sheet sheet(canvas, {x, top + picture.height}, width, scale);
      if (!picture.caption.empty()) sheet.paragraph(picture.caption, {Typeface::kRegular, kCaptionSize, Tint::kMuted});
      bottom = std::max(bottom, sheet.y() + kGap);
      x += width + kBetweenPictures;
    }
    return bottom;
  }

 private:
  Sheet at(double top) const { return {canvas, {kMargin, top}, kWidth, scale}; }
};

double height_of(const Block& block, double scale) {
  PdfPage scratch(kA4Width, kA4Height);
  return std::visit(Drawing{scratch, 0.0, scale}, block);
}

// The first `count` parts of a block that can be divided, and the rest.
std::pair<Block, Block> divided(const Block& block, std::size_t count) {
  const auto part = [count](auto first, auto& list_of) {
    auto second = first;
    list_of(first).resize(count);
    list_of(second).erase(list_of(second).begin(), list_of(second).begin() + static_cast<std::ptrdiff_t>(count));
    return std::pair<Block, Block>(first, second);
  };
  if (const auto* table = std::get_if<Table>(&block)) {
    Table first = *table, second = *table;
    first.rows.resize(count + 1);
    second.rows.erase(second.rows.begin() + 1, second.rows.begin() + 1 + static_cast<std::ptrdiff_t>(count));
    return {first, second};
  }
  if (const auto* code = std::get_if<Code>(&block)) {
    const std::vector<std::string> lines = split(trim(code->text), '\n');
    const auto middle = lines.begin() + static_cast<std::ptrdiff_t>(count);
    return {Code{join({lines.begin(), middle}, "\n"), code->shell},
            Code{join({middle, lines.end()}, "\n"), code->shell}};
  }
  if (const auto* pictures = std::get_if<Pictures>(&block)) {
    auto list_of = [](Pictures & each) -> auto& { return each.pictures; };
    return part(*pictures, list_of);
  }
  if (const auto* pairs = std::get_if<Pairs>(&block)) {
    auto list_of = [](Pairs & each) -> auto& { return each.rows; };
    return part(*pairs, list_of);
  }
  auto list_of = [](Bullets & each) -> auto& { return each.items; };
  return part(std::get<Bullets>(block), list_of);
}

std::size_t parts_of(const Block& block) {
  if (const auto* table = std::get_if<Table>(&block)) return table->rows.empty() ? 0 : table->rows.size() - 1;
  if (const auto* code = std::get_if<Code>(&block)) return split(trim(code->text), '\n').size();
  if (const auto* pictures = std::get_if<Pictures>(&block)) return pictures->pictures.size();
  if (const auto* pairs = std::get_if<Pairs>(&block)) return pairs->rows.size();
  if (const auto* bullets = std::get_if<Bullets>(&block)) return bullets->items.size();
  return 1;
}

// A short table or list is not divided.
bool stays_whole(const Block& block, double scale) {
  constexpr double kShort = kA4Height / 5;
  const bool divisible = std::holds_alternative<Table>(block) || std::holds_alternative<Pairs>(block);
  return divisible && height_of(block, scale) < kShort;
}

// How many parts of it fit into `room`.
std::size_t fitting(const Block& block, double room, double scale) {
  std::size_t low = 0, high = parts_of(block);
  while (low < high) {
    const std::size_t middle = (low + high + 1) / 2;
    const double height = height_of(middle == parts_of(block) ? block : divided(block, middle).first, scale);
    if (height <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const auto* pictures = std::get_if<Pictures>(&block);
  return pictures != nullptr && pictures->paired && low < parts_of(block) ? low - low % 2 : low;
}

class Pages {
 public:
  Pages(const Document& document, double scale) : document_(document), scale_(scale) { turn(); }

  // How much of the last page is used.
  double last_page() const { return (y_ - kMargin) / (kBottom - kMargin); }

  void front() { y_ = draw_front(*pages_.back(), document_.front, {kMargin, kMargin}, kWidth); }

  void add(Block block, double room_after) {
    if (y_ + height_of(block, scale_) + room_after <= kBottom) return draw(block);
    const std::size_t parts = parts_of(block);
    std::size_t here = fitting(block, kBottom - y_, scale_);
    // Two rows at the end of a page, or one left for the next, are worse than a page that is not full.
    if (!std::holds_alternative<Pictures>(block)) {
      if (here + 1 == parts && here > 3) --here;
      if ((here < 3 && parts > 1) || stays_whole(block, scale_)) here = 0;
    }
    if (std::holds_alternative<Heading>(block) || std::holds_alternative<Paragraph>(block)) here = 0;
    if (here == 0) {
      if (y_ > kMargin + 1) return turn(), add(std::move(block), room_after);
      here = 1;  // larger than a page: it is drawn over the end
    }
    if (here >= parts) return draw(block);
    auto [first, rest] = divided(block, here);
    draw(first);
    turn();
    add(std::move(rest), room_after);
  }

  std::string take() {
    std::vector<const PdfPage*> all;
    for (std::size_t i = 0; i < pages_.size(); ++i) {
      const double y = kA4Height - kMargin + 6;
      draw_line(*pages_[i], {kMargin, y - 9}, {kA4Width - kMargin, y - 9}, {Tint::kGrid, 0.5});
      pages_[i]->text({kMargin, y}, fitted(document_.footer, Typeface::kRegular, 6.8, kWidth - 60),
                      {Typeface::kRegular, 6.8, Tint::kMuted});
      pages_[i]->text({kA4Width - kMargin, y}, fmt::format("{} of {}", i + 1, pages_.size()),
                      {Typeface::kRegular, 6.8, Tint::kMuted, Anchor::kEnd});
      all.push_back(pages_[i].get());
    }
    return make_pdf(all, {document_.front.title, document_.front.subtitle, document_.made_at});
  }

 private:
  void turn() {
    pages_.push_back(std::make_unique<PdfPage>(kA4Width, kA4Height));
    y_ = kMargin;
  }
  void draw(const Block& block) { y_ = std::visit(Drawing{*pages_.back(), y_, scale_}, block); }

  const Document& document_;
  const double scale_;
  std::vector<std::unique_ptr<PdfPage>> pages_;
  double y_ = kMargin;
};

bool announces(const Block& block) {
  const auto* paragraph = std::get_if<Paragraph>(&block);
  return std::holds_alternative<Heading>(block) || (paragraph != nullptr && paragraph->strong);
}

// What must come on the same page after a heading: the beginning of what it announces, behind a paragraph too.
double announced(const std::vector<Block>& blocks, std::size_t heading, double scale) {
  if (!announces(blocks[heading])) return 0.0;
  double height = 0;
  for (std::size_t next = heading + 1; next < blocks.size(); ++next) {
    const Block& block = blocks[next];
    const std::size_t parts = parts_of(block);
    const std::size_t least = std::holds_alternative<Pictures>(block) ? (std::get<Pictures>(block).paired ? 2 : 1)
                              : stays_whole(block, scale)             ? parts
                                                                      : 4;
    height += height_of(parts > least ? divided(block, least).first : block, scale);
    if (!announces(block) && !std::holds_alternative<Paragraph>(block)) break;
  }
  return height;
}

}  // namespace

std::string to_pdf(const Document& document) {
  constexpr double kStep = 0.02, kWellFilled = 0.5;
  std::unique_ptr<Pages> best;
  for (double scale = std::max(document.scale, document.largest_scale); scale > document.scale - kStep / 2;
       scale -= kStep) {
    auto pages = std::make_unique<Pages>(document, scale);
    pages->front();
    for (std::size_t i = 0; i < document.blocks.size(); ++i) {
      pages->add(document.blocks[i], announced(document.blocks, i, scale));
    }
    if (!best || pages->last_page() > best->last_page()) best = std::move(pages);
    if (best->last_page() > kWellFilled) break;
  }
  return best->take();
}

}  // namespace lockstep::report
