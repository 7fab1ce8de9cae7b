#include "lockstep/tune/space/expression.h"

#include <gtest/gtest.h>

#include <random>

#include "../base/expect_user_error.h"

namespace lockstep::tune {
namespace {

using lockstep::testing::user_error;

// Knobs: a, b numbers; word a text (red, Blue); flag a boolean; mixed 1, 2 or auto; name-with-dash a number.
class Expressions : public ::testing::Test {
 protected:
  Expressions() {
    symbols_ = {{"a", ExpressionType::kNumber, {}},
                {"b", ExpressionType::kNumber, {}},
                {"word", ExpressionType::kText, {"red", "Blue"}},
                {"flag", ExpressionType::kBoolean, {}},
                {"mixed", ExpressionType::kMixed, {"auto"}},
                {"name-with-dash", ExpressionType::kNumber, {}}};
    codes_ = {6, 4, texts_.code("red"), kTrueCode, 2, 9};
  }

  Expression parse(const std::string& text) {
    return Expression::parse(text, symbols_, texts_, SourcePlace{"space.yaml", 7, 11});
  }
  Truth truth(const std::string& text) { return parse(text).truth(codes_); }
  void expect(const std::string& text, bool wanted) {
    EXPECT_EQ(truth(text), wanted ? Truth::kTrue : Truth::kFalse) << text;
    EXPECT_EQ(truth("not (" + text + ")"), wanted ? Truth::kFalse : Truth::kTrue) << text;
  }
  std::string error(const std::string& text) {
    return user_error([&] { parse(text); });
  }

  Texts texts_;
  std::vector<ExpressionSymbol> symbols_;
  std::vector<double> codes_;
};

TEST_F(Expressions, compare_numbers) {
  expect("a == 6", true);
  expect("a != 6", false);
  expect("a < b", false);
  expect("b < a", true);
  expect("a <= 6", true);
  expect("a >= 6", true);
  expect("a > 6", false);
  expect("a == 6.5", false);
  expect("-a < -5.5", true);
}

TEST_F(Expressions, calculate_with_the_usual_precedence) {
  expect("a + b * 2 == 14", true);
  expect("(a + b) * 2 == 20", true);
  expect("a - b - 1 == 1", true);
  expect("24 / a / b == 1", true);
  expect("a % b == 2", true);
  expect("-7 % 4 == 1", true);
  expect("a // b == 1", true);
  expect("-7 // 4 == -2", true);
  expect("a / b == 1.5", true);  // division is exact; // is the whole part
  expect("min(a, b, 5) == 4 and max(a, b) == 6", true);
  expect("2e3 == 2000 and .5 + .5 == 1", true);
  expect("0.1 + 0.2 == 0.3", true);
  expect("9007199254740991 == 9007199254740990", false);
}

TEST_F(Expressions, join_conditions) {
  expect("a == 6 and b == 4", true);
  expect("a == 6 && b == 5", false);
  expect("a == 5 or b == 4", true);
  expect("a == 5 || b == 5", false);
  expect("a == 6 or b == 5 and b == 6", true);  // `and` binds closer
  expect("not a == 5 and b == 4", true);
  expect("!(a == 5)", true);
  expect("!flag or a == 6", true);
  expect("not not flag", true);
}

TEST_F(Expressions, know_texts_booleans_and_lists) {
  expect("word == \"red\"", true);
  expect("word == 'Blue'", false);
  expect("word != 'green'", true);
  expect("word in ['Blue', 'red']", true);
  expect("word not in ['Blue']", true);
  expect("a in [1, b + 2]", true);
  expect("flag", true);
  expect("flag == false", false);
  expect("true", true);
  expect("`name-with-dash` == 9 and `a` == 6", true);
}

TEST_F(Expressions, mixed_knobs_are_numbers_where_they_can_be) {
  expect("mixed == 2", true);
  expect("mixed == 'auto'", false);
  expect("mixed * 2 <= 4", true);
  codes_[4] = texts_.code("auto");
  expect("mixed == 'auto'", true);
  expect("mixed == 2", false);
  EXPECT_EQ(truth("mixed <= 1"), Truth::kUnknown);
}

TEST_F(Expressions, what_is_missing_is_unknown_unless_the_rest_decides) {
  codes_[0] = kMissing;
  EXPECT_EQ(truth("a == 6"), Truth::kUnknown);
  EXPECT_EQ(truth("a != 6"), Truth::kUnknown);
  EXPECT_EQ(truth("not a == 6"), Truth::kUnknown);
  EXPECT_EQ(truth("min(a, 1) == 1"), Truth::kUnknown);
  EXPECT_EQ(truth("a == 6 and b == 5"), Truth::kFalse);
  EXPECT_EQ(truth("b == 5 and a == 6"), Truth::kFalse);
  EXPECT_EQ(truth("a == 6 and b == 4"), Truth::kUnknown);
  EXPECT_EQ(truth("a == 6 or b == 4"), Truth::kTrue);
  EXPECT_EQ(truth("a == 6 or b == 5"), Truth::kUnknown);
  EXPECT_EQ(truth("b == 5 or a == 6"), Truth::kUnknown);
}

TEST_F(Expressions, division_by_zero_makes_comparisons_false) {
  for (const char* text :
       {"a / 0 == 1", "a / 0 != 1", "a % 0 == 0", "a // 0 < 5", "a / 0 - a / 0 == 0", "0 * (a / 0) == 0"}) {
    EXPECT_EQ(truth(text), Truth::kFalse) << text;
  }
  expect("b == 4 or a % (b - 4) == 0", true);
}

TEST_F(Expressions, name_the_knobs_they_depend_on_once) {
  EXPECT_EQ(parse("b * b + a > 3 or flag").knobs(), (std::vector<std::size_t>{0, 1, 3}));
  EXPECT_TRUE(parse("1 < 2").knobs().empty());
}

TEST_F(Expressions, errors_point_at_the_wrong_word) {
  EXPECT_HAS(error("a == bb"), "space.yaml:7:16: in `a == bb`: there is no knob `bb`");
  EXPECT_HAS(error("flga and a == 1"), "did you mean `flag`?");
  EXPECT_HAS(error("word == red"), "7:19");
  EXPECT_HAS(error("word == red"), "it is a choice of `word`: write it in quotes");
  EXPECT_HAS(error("word == 'blue'"), "did you mean \"Blue\"?");
  EXPECT_HAS(error("a = 3"), "write ==");
  EXPECT_HAS(error("a == 3 $"), "`$` is not part");
  EXPECT_HAS(error("(a == 3"), "`)` was expected, not the end");
  EXPECT_HAS(error("a =="), "ends too early");
  EXPECT_HAS(error(""), "empty");
  EXPECT_HAS(error("   "), "empty");
  EXPECT_HAS(error("a == 'x"), "a quote is not closed");
  EXPECT_HAS(error("1 <= a <= 3"), "comparisons cannot be chained");
  EXPECT_HAS(error("a == 1.2.3"), "`1.2.3` is not a number");
  EXPECT_HAS(error("a b"), "`b` was not expected here");
  EXPECT_HAS(error("a == 99999999999999999999"), "too large");
  EXPECT_HAS(error("a in []"), "was not expected");
  EXPECT_HAS(error("a in 3"), "`[` was expected");
  EXPECT_HAS(error("a not 3"), "`in` was expected");
}

TEST_F(Expressions, errors_name_the_kinds_that_do_not_fit) {
  EXPECT_HAS(error("a"), "`a` is a number, a condition was expected");
  EXPECT_HAS(error("word"), "`word` is a text, a condition was expected");
  EXPECT_HAS(error("a and flag"), "a condition was expected");
  EXPECT_HAS(error("word == 3"), "`word` is a text and 3 is a number");
  EXPECT_HAS(error("word < 'x'"), "a number was expected");
  EXPECT_HAS(error("flag + 1 == 2"), "true or false, a number was expected");
  EXPECT_HAS(error("(a == 1) == (b == 1)"), "a condition cannot be compared");
  EXPECT_HAS(error("-word == 3"), "a number was expected");
}

TEST_F(Expressions, hostile_lengths_and_depths_are_refused) {
  EXPECT_HAS(error(std::string(100, '(') + "a" + std::string(100, ')')), "nested too deeply");
  EXPECT_HAS(error(std::string(200, '-') + "a == 1"), "nested too deeply");
  EXPECT_HAS(error(std::string(5000, ' ')), "characters");
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "not ";
  EXPECT_HAS(error(deep + "flag"), "nested too deeply");
}

// The bounds that the search relies on: whatever values within the ranges give is among the possible truths.
TEST_F(Expressions, possible_truths_hold_every_truth) {
  const std::vector<std::string> texts = {"a * b == 12",
                                          "a + b <= 3",
                                          "a % b == 0",
                                          "a / b > 1",
                                          "a // b == 2",
                                          "min(a, b) == 2",
                                          "max(a, -b) < 2",
                                          "a - b != 0",
                                          "a in [1, 3, b]",
                                          "not (a < b and b < 4)",
                                          "a == 2 or b / a == 1",
                                          "flag and a > 2",
                                          "word == 'red' or a > b",
                                          "mixed <= a",
                                          "mixed == 'auto' or flag",
                                          "a * a - 2 * a * b + b * b > 4"};
  std::mt19937_64 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int decided = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<CodeRange> ranges(symbols_.size());
    for (std::size_t knob : {0u, 1u}) {
      ranges[knob].low = draw(-3, 5);
      ranges[knob].high = ranges[knob].low + draw(0, 3);
      ranges[knob].can_miss = draw(0, 3) == 0;
    }
    ranges[2] = {texts_.code("red"), draw(0, 1) == 0 ? texts_.code("red") : texts_.code("Blue")};
    ranges[3] = {kFalseCode, draw(0, 1) == 0 ? kFalseCode : kTrueCode};
    ranges[4] = {1, draw(0, 1) == 0 ? 2 : texts_.code("auto")};
    for (const std::string& text : texts) {
      const Expression expression = parse(text);
      const unsigned possible = expression.possible_truths(ranges);
      if (possible == kCanBeFalse || possible == kCanBeTrue) ++decided;
      for (int draws = 0; draws < 40; ++draws) {
        for (std::size_t knob : {0u, 1u}) {
          codes_[knob] = draw(static_cast<int>(ranges[knob].low), static_cast<int>(ranges[knob].high));
          if (ranges[knob].can_miss && draw(0, 2) == 0) codes_[knob] = kMissing;
        }
        codes_[2] = draw(0, 1) == 0 ? ranges[2].low : ranges[2].high;
        codes_[3] = draw(0, 1) == 0 ? ranges[3].low : ranges[3].high;
        codes_[4] = draw(0, 1) == 0 ? ranges[4].low : ranges[4].high;
        const unsigned found = 1u << static_cast<unsigned>(expression.truth(codes_));
        ASSERT_TRUE((possible & found) != 0)
            << text << ": truth " << found << " not in " << possible << " for a=" << codes_[0] << " b=" << codes_[1];
      }
    }
  }
  EXPECT_GT(decided, 400) << "bounds that never decide anything are of no use";
}

TEST_F(Expressions, ranges_of_one_value_decide_exactly) {
  std::vector<CodeRange> ranges;
  for (const double code : codes_) ranges.push_back({code, code});
  for (const char* text : {"a * b == 24", "a % b == 2", "word == 'red'", "flag", "a / b == 1.5", "mixed * 3 == 6"}) {
    EXPECT_EQ(parse(text).possible_truths(ranges), kCanBeTrue) << text;
  }
}

}  // namespace
}  // namespace lockstep::tune
