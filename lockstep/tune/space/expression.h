// Expression: the conditions of a space file (`when`, `constraints`), resolved once and evaluated on plain numbers.
//
//   micro_batch * accumulation == 32
//   NCCL_ALGO in ["Ring", "Tree"] or NCCL_PROTO == "Simple"
//   not pin_memory and min(num_workers, 8) * prefetch_factor <= 64
//
// Every value is a double, its *code*: numbers stand for themselves, booleans and texts for codes far above any number
// (Texts), NaN for a knob that is inactive. Conditions have three truths: one that needs a missing value is unknown,
// and and/or/not follow Kleene. A comparison with an undefined number (x / 0) is false. docs/reference/tuning-spaces.md
// has the grammar.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::tune {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kFirstCode = 288230376151711744.0;  // 2^58: everything from here on is a boolean or a text
inline constexpr double kFalseCode = 2 * kFirstCode;
inline constexpr double kTrueCode = 2 * kFirstCode + 1024;
inline constexpr double kMostNumber = 9007199254740992.0;  // 2^53: whole numbers up to it are exact

inline double code_of(bool value) { return value ? kTrueCode : kFalseCode; }

// Codes of texts: equal texts have equal codes.
class Texts {
 public:
  double code(const std::string& text);

 private:
  std::map<std::string, double> codes_;
};

enum class ExpressionType { kNumber, kBoolean, kText, kMixed };

// What an expression may name; the index is the knob's.
struct ExpressionSymbol {
  std::string name;
  ExpressionType type = ExpressionType::kNumber;  // kMixed: numbers and texts, like 1, 2, auto
  std::vector<std::string> texts;                 // its texts, for messages
};

enum class Truth : std::uint8_t { kFalse, kTrue, kUnknown };

// Bits of a set of truths.
inline constexpr unsigned kCanBeFalse = 1;
inline constexpr unsigned kCanBeTrue = 2;
inline constexpr unsigned kCanBeUnknown = 4;

// The codes a knob may still have: all of [low, high] (none when low > high), and perhaps none at all.
struct CodeRange {
  double low = 0;
  double high = 0;
  bool can_miss = false;
  bool can_be_undefined = false;  // results only: x / 0, overflow
};

class Expression {
 public:
  // Throws UserError (exit 2) with the place of the wrong word: bad syntax, unknown knobs (with the nearest name), text
  // compared with a number, a number where a condition is needed. `place` is where the text begins.
  static Expression parse(const std::string& text, std::span<const ExpressionSymbol> symbols, Texts& texts,
                          const SourcePlace& place);

  const std::string& text() const { return text_; }
  const std::vector<std::size_t>& knobs() const { return knobs_; }  // that it names, ascending
  std::size_t nodes() const { return nodes_.size(); }

  // `codes` by knob. Allocates nothing.
  Truth truth(std::span<const double> codes) const { return truth_of(root_, codes.data()); }

  // The truths that codes within `ranges` (by knob) can lead to; may name too many, never too few.
  unsigned possible_truths(std::span<const CodeRange> ranges) const { return truths_of(root_, ranges.data()); }

 private:
  friend class ExpressionParser;
  enum class Op : std::uint8_t {
    kNumber,
    kKnob,
    kNumericKnob,  // leaves; kNumericKnob: a text counts as missing
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kFloor,
    kModulo,
    kNegate,
    kMin,
    kMax,
    kEqual,
    kNotEqual,
    kLess,
    kLessEqual,  // > and >= are these with the sides swapped
    kAnd,
    kOr,
    kNot,
    kKnobIsTrue,
    kTrue,
    kFalse
  };
  struct Node {
    Op op = Op::kNumber;
    std::int32_t a = -1;
    std::int32_t b = -1;
    double value = 0;      // kNumber
    std::size_t knob = 0;  // kKnob, kNumericKnob, kKnobIsTrue
  };

  double number_of(std::int32_t node, const double* codes) const;
  Truth truth_of(std::int32_t node, const double* codes) const;
  CodeRange range_of(std::int32_t node, const CodeRange* ranges) const;
  unsigned truths_of(std::int32_t node, const CodeRange* ranges) const;
  static double apply(Op op, double a, double b);
  static CodeRange apply(Op op, const CodeRange& a, const CodeRange& b);
  static bool holds(Op op, double a, double b);
  static unsigned compare(Op op, const CodeRange& a, const CodeRange& b);

  std::string text_;
  std::vector<Node> nodes_;
  std::int32_t root_ = 0;
  std::vector<std::size_t> knobs_;
};

}  // namespace lockstep::tune
