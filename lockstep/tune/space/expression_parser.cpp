#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/tune/space/expression.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kMostCharacters = 4096;
constexpr int kMostNesting = 64;

struct Token {
  enum class Kind { kEnd, kNumber, kText, kName, kSymbol };
  Kind kind = Kind::kEnd;
  std::string text;
  bool back_quoted = false;  // a name that is never a word of the language
  std::size_t at = 0;
};

bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool continues_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

// Recursive descent; each level handles one precedence: or, and, not, comparison, sum, product, sign, primary.
class ExpressionParser {
 public:
  ExpressionParser(const std::string& text, std::span<const ExpressionSymbol> symbols, Texts& texts,
                   const SourcePlace& place)
      : text_(text), symbols_(symbols), texts_(texts), place_(place) {
    if (text.size() > kMostCharacters) {
      throw bad_input(fmt::format("the expression has {} characters", text.size()),
                      fmt::format("at most {} are allowed", kMostCharacters), place);
    }
    advance();
  }

  Expression parse() {
    if (token_.kind == Token::Kind::kEnd) throw error(token_.at, "the expression is empty", "write a condition");
    const Operand root = disjunction();
    if (token_.kind != Token::Kind::kEnd) {
      if (is_comparison()) {
        throw error(token_.at, "comparisons cannot be chained", "write `a < b and b < c`");
      }
      throw error(token_.at, fmt::format("`{}` was not expected here", printable(token_.text)),
                  "join conditions with and, or; quote texts");
    }
    result_.root_ = condition(root);
    result_.text_ = text_;
    std::sort(result_.knobs_.begin(), result_.knobs_.end());
    result_.knobs_.erase(std::unique(result_.knobs_.begin(), result_.knobs_.end()), result_.knobs_.end());
    return std::move(result_);
  }

 private:
  using Op = Expression::Op;
  using Type = ExpressionType;

  // A node with what is known of it. Booleans are either values (a knob, true) or conditions (a comparison).
  struct Operand {
    std::int32_t node = -1;
    Type type = Type::kNumber;
    bool condition = false;
    std::size_t at = 0;
    std::string shown;  // for messages
  };

  UserError error(std::size_t at, const std::string& problem, const std::string& fix) const {
    SourcePlace place = place_;
    // In a text of several lines the column of a word is not known.
    if (place.column > 0 && text_.find('\n') == std::string::npos) place.column += static_cast<int>(at);
    return bad_input(fmt::format("in `{}`: {}", printable(text_, 80), problem), fix, place);
  }

  void advance() {
    std::size_t i = next_;
    while (i < text_.size() && std::isspace(static_cast<unsigned char>(text_[i]))) ++i;
    token_ = Token{};
    token_.at = i;
    if (i >= text_.size()) {
      next_ = i;
    } else if (is_digit(text_[i]) || (text_[i] == '.' && i + 1 < text_.size() && is_digit(text_[i + 1]))) {
      next_ = read_number(i);
    } else if (starts_name(text_[i])) {
      next_ = i;
      while (next_ < text_.size() && continues_name(text_[next_])) ++next_;
      token_.kind = Token::Kind::kName;
      token_.text = text_.substr(i, next_ - i);
    } else if (text_[i] == '"' || text_[i] == '\'' || text_[i] == '`') {
      next_ = read_quoted(i);
    } else {
      next_ = read_symbol(i);
    }
  }

  std::size_t read_number(std::size_t i) {
    std::size_t end = i;
    while (end < text_.size()) {
      const char c = text_[end];
      const bool exponent_sign = (c == '+' || c == '-') && (text_[end - 1] == 'e' || text_[end - 1] == 'E');
      if (!is_digit(c) && c != '.' && c != 'e' && c != 'E' && !(exponent_sign && end > i)) break;
      ++end;
    }
    token_.kind = Token::Kind::kNumber;
    token_.text = text_.substr(i, end - i);
    return end;
  }

  std::size_t read_quoted(std::size_t i) {
    const std::size_t end = text_.find(text_[i], i + 1);
    if (end == std::string::npos) throw error(i, "a quote is not closed", fmt::format("add a {} at its end", text_[i]));
    token_.back_quoted = text_[i] == '`';
    token_.kind = token_.back_quoted ? Token::Kind::kName : Token::Kind::kText;
    token_.text = text_.substr(i + 1, end - i - 1);
    return end + 1;
  }

  std::size_t read_symbol(std::size_t i) {
    static constexpr std::array<std::string_view, 20> kSymbols = {
        "==", "!=", "<=", ">=", "&&", "||", "//", "<", ">", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",", "!"};
    for (const std::string_view symbol : kSymbols) {
      if (std::string_view(text_).substr(i, symbol.size()) != symbol) continue;
      token_.kind = Token::Kind::kSymbol;
      token_.text = symbol;
      return i + symbol.size();
    }
    if (text_[i] == '=') throw error(i, "`=` is not a comparison", "write ==");
    throw error(i, fmt::format("`{}` is not part of an expression", printable(text_.substr(i, 1))),
                "use knob names, numbers, quoted texts, + - * / // % == != < <= > >= and or not in ( )");
  }

  bool at_symbol(std::string_view symbol) const { return token_.kind == Token::Kind::kSymbol && token_.text == symbol; }
  bool at_word(std::string_view word) const {
    return token_.kind == Token::Kind::kName && !token_.back_quoted && token_.text == word;
  }
  bool is_comparison() const {
    return at_symbol("==") || at_symbol("!=") || at_symbol("<") || at_symbol("<=") || at_symbol(">") ||
           at_symbol(">=") || at_word("in");
  }

  bool take_symbol(std::string_view symbol) {
    if (!at_symbol(symbol)) return false;
    advance();
    return true;
  }
  bool take_word(std::string_view word) {
    if (!at_word(word)) return false;
    advance();
    return true;
  }
  void expect(std::string_view symbol) {
    if (take_symbol(symbol)) return;
    const std::string found =
        token_.kind == Token::Kind::kEnd ? "the end" : fmt::format("`{}`", printable(token_.text));
    throw error(token_.at, fmt::format("`{}` was expected, not {}", symbol, found), fmt::format("add `{}`", symbol));
  }

  std::int32_t add(Op op, std::int32_t a = -1, std::int32_t b = -1, double value = 0, std::size_t knob = 0) {
    result_.nodes_.push_back({op, a, b, value, knob});
    return static_cast<std::int32_t>(result_.nodes_.size() - 1);
  }

  Operand disjunction() { return chain(Op::kOr, "or", "||", &ExpressionParser::conjunction); }
  Operand conjunction() { return chain(Op::kAnd, "and", "&&", &ExpressionParser::negation); }

  Operand chain(Op op, const char* word, const char* symbol, Operand (ExpressionParser::*next)()) {
    Operand left = (this->*next)();
    while (at_word(word) || at_symbol(symbol)) {
      advance();
      const Operand right = (this->*next)();
      left = logical(op, left, right);
    }
    return left;
  }

  Operand logical(Op op, const Operand& left, const Operand& right) {
    const std::int32_t a = condition(left);
    return {add(op, a, condition(right)), Type::kBoolean, true, left.at, "a condition"};
  }

  Operand negation() {
    const std::size_t at = token_.at;
    if (!take_word("not")) return comparison();
    const Nested guard(*this, at);
    const Operand inner = negation();
    return {add(Op::kNot, condition(inner)), Type::kBoolean, true, at, "a condition"};
  }

  Operand comparison() {
    const Operand left = sum();
    for (const auto& [symbol, op, swapped] : {std::tuple{"==", Op::kEqual, false},
                                              {"!=", Op::kNotEqual, false},
                                              {"<=", Op::kLessEqual, false},
                                              {">=", Op::kLessEqual, true},
                                              {"<", Op::kLess, false},
                                              {">", Op::kLess, true}}) {
      if (!take_symbol(symbol)) continue;
      const Operand right = sum();
      return swapped ? compare(op, right, left) : compare(op, left, right);
    }
    const bool outside = at_word("not");
    if (!outside && !at_word("in")) return left;
    advance();
    if (outside && !at_word("in")) throw error(token_.at, "`in` was expected after `not`", "write `x not in [a, b]`");
    if (outside) advance();
    if (!outside) return membership(left);
    const Operand inside = membership(left);
    return {add(Op::kNot, inside.node), Type::kBoolean, true, left.at, "a condition"};
  }

  // The word `in` has been read; `x in [a, b]` is x == a or x == b.
  Operand membership(const Operand& left) {
    expect("[");
    Operand result;
    do {
      const Operand equal = compare(Op::kEqual, left, sum());
      result = result.node < 0 ? equal : logical(Op::kOr, result, equal);
    } while (take_symbol(","));
    expect("]");
    return result;
  }

  Operand compare(Op op, Operand left, Operand right) {
    for (const Operand* side : {&left, &right}) {
      if (side->condition) throw error(side->at, "a condition cannot be compared", "use and, or, not");
    }
    const bool ordering = op == Op::kLess || op == Op::kLessEqual;
    if (ordering) {
      left = numeric(left);
      right = numeric(right);
    } else if (left.type != right.type && left.type != Type::kMixed && right.type != Type::kMixed) {
      throw error(
          right.at,
          fmt::format("{} is {} and {} is {}", left.shown, name_of(left.type), right.shown, name_of(right.type)),
          "compare values of one kind");
    } else {
      check_spelling(left, right);
      check_spelling(right, left);
    }
    return {add(op, left.node, right.node), Type::kBoolean, true, left.at, "a condition"};
  }

  // "ring" where the choice is called "Ring" would never match.
  void check_spelling(const Operand& knob_side, const Operand& text_side) const {
    const auto& knob = result_.nodes_[static_cast<std::size_t>(knob_side.node)];
    const auto& text = result_.nodes_[static_cast<std::size_t>(text_side.node)];
    if (knob.op != Op::kKnob || text.op != Op::kNumber || text_side.type != Type::kText) return;
    const std::string written = text_side.shown.substr(1, text_side.shown.size() - 2);
    const std::vector<std::string>& texts = symbols_[knob.knob].texts;
    if (std::find(texts.begin(), texts.end(), written) != texts.end()) return;
    for (const std::string& candidate : texts) {
      if (to_lower(candidate) != to_lower(written)) continue;
      throw error(text_side.at, fmt::format("`{}` has no choice \"{}\"", symbols_[knob.knob].name, printable(written)),
                  fmt::format("did you mean \"{}\"?", printable(candidate)));
    }
  }

  Operand sum() {
    Operand left = product();
    while (at_symbol("+") || at_symbol("-")) {
      const Op op = at_symbol("+") ? Op::kAdd : Op::kSubtract;
      advance();
      left = arithmetic(op, left, product());
    }
    return left;
  }

  Operand product() {
    Operand left = sign();
    while (at_symbol("*") || at_symbol("/") || at_symbol("//") || at_symbol("%")) {
      const std::string symbol = token_.text;
      advance();
      const Op op = symbol == "*" ? Op::kMultiply : symbol == "%" ? Op::kModulo : Op::kDivide;
      left = arithmetic(op, left, sign());
      if (symbol == "//") left.node = add(Op::kFloor, left.node);
    }
    return left;
  }

  Operand arithmetic(Op op, const Operand& left, const Operand& right) {
    const std::int32_t a = numeric(left).node;
    return {add(op, a, numeric(right).node), Type::kNumber, false, left.at, "a sum or product"};
  }

  Operand sign() {
    const std::size_t at = token_.at;
    const Nested guard(*this, at);
    if (take_symbol("-")) return {add(Op::kNegate, numeric(sign()).node), Type::kNumber, false, at, "a number"};
    if (take_symbol("!")) return {add(Op::kNot, condition(sign())), Type::kBoolean, true, at, "a condition"};
    return primary();
  }

  Operand primary() {
    const Token token = token_;
    if (take_symbol("(")) {
      Operand inner = disjunction();
      expect(")");
      return inner;
    }
    switch (token.kind) {
      case Token::Kind::kNumber:
        advance();
        return number(token);
      case Token::Kind::kText:
        advance();
        return {add(Op::kNumber, -1, -1, texts_.code(token.text)), Type::kText, false, token.at,
                fmt::format("\"{}\"", token.text)};
      case Token::Kind::kName:
        advance();
        return name(token);
      case Token::Kind::kEnd:
        throw error(token.at, "the expression ends too early", "add what is missing");
      default:
        throw error(token.at, fmt::format("`{}` was not expected here", printable(token.text)),
                    "a knob, a number or a quoted text belongs here");
    }
  }

  Operand number(const Token& token) {
    double value = 0;
    try {
      value = parse_real(token.text);
    } catch (const UserError&) {
      throw error(token.at, fmt::format("`{}` is not a number", printable(token.text)), "write for example 8 or 0.5");
    }
    if (value > kMostNumber) throw error(token.at, fmt::format("{} is too large", token.text), "stay below 2^53");
    return {add(Op::kNumber, -1, -1, value), Type::kNumber, false, token.at, token.text};
  }

  Operand name(const Token& token) {
    if (!token.back_quoted) {
      if (token.text == "true" || token.text == "false") {
        return {add(Op::kNumber, -1, -1, code_of(token.text == "true")), Type::kBoolean, false, token.at, token.text};
      }
      if ((token.text == "min" || token.text == "max") && at_symbol("(")) return extreme(token);
    }
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      if (symbols_[i].name != token.text) continue;
      result_.knobs_.push_back(i);
      return {add(Op::kKnob, -1, -1, 0, i), symbols_[i].type, false, token.at, fmt::format("`{}`", token.text)};
    }
    throw unknown_name(token);
  }

  UserError unknown_name(const Token& token) const {
    std::vector<std::string> names;
    for (const ExpressionSymbol& symbol : symbols_) {
      for (const std::string& text : symbol.texts) {
        if (text != token.text) continue;
        return error(token.at, fmt::format("`{}` is not a knob", printable(token.text)),
                     fmt::format("it is a choice of `{}`: write it in quotes", printable(symbol.name)));
      }
      names.push_back(symbol.name);
    }
    return error(token.at, fmt::format("there is no knob `{}`", printable(token.text)),
                 did_you_mean(token.text, names));
  }

  Operand extreme(const Token& token) {
    expect("(");
    const Nested guard(*this, token.at);
    Operand result = numeric(sum());
    while (take_symbol(",")) {
      result = arithmetic(token.text == "min" ? Op::kMin : Op::kMax, result, sum());
    }
    expect(")");
    result.shown = token.text;
    return result;
  }

  std::int32_t condition(const Operand& operand) {
    if (operand.condition) return operand.node;
    if (operand.type != Type::kBoolean) {
      throw error(operand.at, fmt::format("{} is {}, a condition was expected", operand.shown, name_of(operand.type)),
                  "compare it with something");
    }
    const Expression::Node node = result_.nodes_[static_cast<std::size_t>(operand.node)];
    if (node.op == Op::kKnob) return add(Op::kKnobIsTrue, -1, -1, 0, node.knob);
    return add(node.value == kTrueCode ? Op::kTrue : Op::kFalse);
  }

  Operand numeric(Operand operand) {
    if (operand.condition || operand.type == Type::kBoolean || operand.type == Type::kText) {
      throw error(operand.at, fmt::format("{} is {}, a number was expected", operand.shown, name_of(operand.type)),
                  "only numbers can be added, multiplied and ordered");
    }
    if (operand.type == Type::kMixed) {
      const std::size_t knob = result_.nodes_[static_cast<std::size_t>(operand.node)].knob;
      operand.node = add(Op::kNumericKnob, -1, -1, 0, knob);
      operand.type = Type::kNumber;
    }
    return operand;
  }

  static const char* name_of(Type type) {
    return named<Type::kMixed>(type, "a number", "true or false", "a text", "numbers and texts");
  }

  // Every way into recursion passes sign(), negation() or extreme().
  class Nested {
   public:
    Nested(ExpressionParser& parser, std::size_t at) : parser_(parser) {
      if (++parser_.nesting_ > kMostNesting)
        throw parser_.error(at, "the expression is nested too deeply", "simplify it");
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const std::string& text_;
  std::span<const ExpressionSymbol> symbols_;
  Texts& texts_;
  SourcePlace place_;
  Token token_;
  std::size_t next_ = 0;
  int nesting_ = 0;
  Expression result_;
};

Expression Expression::parse(const std::string& text, std::span<const ExpressionSymbol> symbols, Texts& texts,
                             const SourcePlace& place) {
  return ExpressionParser(text, symbols, texts, place).parse();
}

}  // namespace lockstep::tune
