#include "lockstep/report/canvas/pdf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "lockstep/report/canvas/lettering.h"
#include "lockstep/report/canvas/svg_canvas.h"
#include "lockstep/report/recipe/recipe.h"
#include "made_up_study.h"

namespace lockstep::report {
namespace {

// Reads a file the way a reader does: from the end, by offsets.
struct ReadPdf {
  explicit ReadPdf(const std::string& file) : bytes(file) {
    const std::size_t start = bytes.rfind("startxref\n");
    table = std::stoul(bytes.substr(start + 10));
    EXPECT_EQ(bytes.substr(table, 5), "xref\n");
    std::size_t at = bytes.find('\n', table + 5) + 1;
    const int count = std::stoi(bytes.substr(bytes.find(' ', table) + 1));
    for (int i = 0; i < count; ++i, at += 20) {
      EXPECT_EQ(bytes.substr(at + 18, 2), " \n");  // entries are exactly 20 bytes
      offsets.push_back(std::stoul(bytes.substr(at, 10)));
    }
    EXPECT_EQ(bytes.substr(at, 7), "trailer");
  }
  std::string object(std::size_t number) const {
    const std::size_t end = bytes.find("endobj", offsets[number]);
    return bytes.substr(offsets[number], end - offsets[number]);
  }
  int pages() const {
    int count = 0;
    for (std::size_t i = 1; i < offsets.size(); ++i)
      count += object(i).find("/Type /Page ") != std::string::npos ? 1 : 0;
    return count;
  }
  std::string bytes;
  std::size_t table = 0;
  std::vector<std::size_t> offsets;
};

TEST(Pdf, EveryObjectIsWhereTheTableSays) {
  PdfPage first(200, 100), second(200, 100);
  first.text({10, 20}, "Hello (world) \\ ü → ∞", {});
  first.rectangle({10, 30, 50, 20}, {Tint::kAccent, Stroke{}, 0.5}, 4);
  second.circle({50, 50}, 10, {Tint::kSecond, {}, 1});
  const ReadPdf pdf(make_pdf({&first, &second}, {"Title (1)", "subject", 1794710000}));
  EXPECT_TRUE(pdf.bytes.starts_with("%PDF-1.4\n"));
  EXPECT_TRUE(pdf.bytes.ends_with("%%EOF\n"));
  for (std::size_t i = 1; i < pdf.offsets.size(); ++i)
    EXPECT_TRUE(pdf.object(i).starts_with(fmt::format("{} 0 obj\n", i))) << i;
  EXPECT_EQ(pdf.pages(), 2);
  EXPECT_NE(pdf.bytes.find("(Hello \\(world\\) \\\\ \\374 -> ?)"), std::string::npos);
  EXPECT_NE(pdf.bytes.find("/Title (Title \\(1\\))"), std::string::npos);
}

TEST(Pdf, StreamsAreAsLongAsTheySay) {
  PdfPage page(200, 100);
  page.text({10, 20}, "x", {});
  const std::string bytes = make_pdf({&page}, {});
  std::smatch match;
  ASSERT_TRUE(std::regex_search(bytes, match, std::regex("/Length (\\d+) >>\nstream\n")));
  const std::size_t begin = static_cast<std::size_t>(match.position() + match.length());
  EXPECT_EQ(bytes.substr(begin + std::stoul(match[1]), 9), "endstream");
}

TEST(Pdf, SamePagesGiveSameBytes) {
  const MadeUpStudy study = usual_study();
  EXPECT_EQ(to_pdf(make_recipe(study.view()), study.view()), to_pdf(make_recipe(study.view()), study.view()));
}

// Base lines of all words on the page, from the bottom.
std::vector<double> base_lines(const std::string& pdf) {
  std::vector<double> lines;
  const std::regex text_matrix("Tf -?[0-9.]+ -?[0-9.]+ -?[0-9.]+ -?[0-9.]+ -?[0-9.]+ (-?[0-9.]+) Tm");
  for (auto it = std::sregex_iterator(pdf.begin(), pdf.end(), text_matrix); it != std::sregex_iterator(); ++it)
    lines.push_back(std::stod((*it)[1]));
  return lines;
}

class OnePage : public ::testing::TestWithParam<int> {};

TEST_P(OnePage, HoldsTheRecipeWhateverTheNumberOfKnobs) {
  const MadeUpStudy study = large_study(GetParam());
  const std::string bytes = to_pdf(make_recipe(study.view()), study.view());
  EXPECT_EQ(ReadPdf(bytes).pages(), 1);
  for (int i = 0; i < std::min(GetParam(), 12); ++i)
    EXPECT_NE(bytes.find(fmt::format("(some_long_knob_name_{})", i)), std::string::npos) << i;
  // Up to 20 knobs nothing is left out; beyond, the page says how much.
  EXPECT_EQ(bytes.find(" more)") == std::string::npos, GetParam() <= 20);
  const std::vector<double> lines = base_lines(bytes);
  ASSERT_GT(lines.size(), 30u);
  for (const double y : lines) {
    EXPECT_GT(y, 20) << "below the page";
    EXPECT_LT(y, kA4Height - 20);
  }
  // Nothing but the footer stands in the bottom margin.
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](double y) { return y < 40; }), 1);
}
INSTANTIATE_TEST_SUITE_P(Knobs, OnePage, ::testing::Values(1, 6, 12, 20, 45));

TEST(Lettering, WidthsAreHelveticas) {
  EXPECT_DOUBLE_EQ(text_width("A", Typeface::kRegular, 1000), 667);
  EXPECT_DOUBLE_EQ(text_width("Hello", Typeface::kRegular, 1000), 722 + 556 + 222 + 222 + 556);
  EXPECT_DOUBLE_EQ(text_width("Hello", Typeface::kBold, 1000), 722 + 556 + 278 + 278 + 611);
  EXPECT_DOUBLE_EQ(text_width("Hello", Typeface::kMono, 10), 30);
  EXPECT_DOUBLE_EQ(text_width("é", Typeface::kRegular, 1000), 556);
}

TEST(Lettering, BrokenLinesFitAndLoseNothing) {
  const std::string text = "some words and one_very_long_word_that_is_wider_than_the_column_itself and more";
  std::string back;
  for (const std::string& line : broken(text, Typeface::kRegular, 10, 80)) {
    EXPECT_LE(text_width(line, Typeface::kRegular, 10), 80) << line;
    back += line;
  }
  std::string wanted = text;
  std::erase(wanted, ' '), std::erase(back, ' ');
  EXPECT_EQ(back, wanted);
  EXPECT_EQ(broken("", Typeface::kRegular, 10, 80).size(), 1u);
}

TEST(Lettering, BadUtf8DoesNoHarm) {
  EXPECT_EQ(to_win_ansi("a\xff\xc3"), "a??");
  EXPECT_EQ(to_win_ansi("\xe2\x82\xac"), "\x80");
  EXPECT_EQ(fitted("abcdefghij", Typeface::kMono, 10, 36), "abc...");
}

TEST(Svg, TextIsEscapedAndControlCharactersAreReplaced) {
  EXPECT_EQ(escape_markup("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
  EXPECT_EQ(escape_markup("\x1b\xff"), "\xef\xbf\xbd\xef\xbf\xbd");
  SvgCanvas canvas(10, 10);
  canvas.begin_group("</title><script>");
  canvas.text({1, 1}, "</text>", {});
  canvas.end_group();
  const std::string svg = canvas.file("a \"label\"");
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_NE(svg.find("&lt;/text&gt;"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::report
