// A scanner over JSON in memory that takes only what is asked for: values that nobody wants are stepped over by their
// brackets. Made for traces, where a document tree costs ten times the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::diagnose {

// The text ended inside a value: more of it is needed, or it is cut off.
struct JsonIncomplete {};
// The text is not JSON; `at` points into it.
struct JsonDamaged {
  const char* at = nullptr;
  const char* problem = "";
};

// A cursor. Members throw JsonIncomplete or JsonDamaged. Views point into the text.
class JsonScan {
 public:
  explicit JsonScan(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}
  JsonScan(const char* at, const char* end) : at_(at), end_(end) {}

  const char* at() const { return at_; }
  // The next character that is not white space.
  char peek() {
    skip_space();
    if (at_ == end_) throw JsonIncomplete{};
    return *at_;
  }
  void expect(char wanted);   // takes it, after white space
  bool take_if(char wanted);  // takes it if it is the next
  std::string_view string();  // the inside, escapes as written
  std::string_view value();   // any value, as written
  bool finished();            // only white space is left

  // Calls member(key, *this) for each member of an object; it must take the value.
  template <class Member>
  void object(Member&& member) {
    expect('{');
    if (take_if('}')) return;
    while (true) {
      if (peek() != '"') throw JsonDamaged{at_, "a key in quotes was expected"};
      const std::string_view key = string();
      expect(':');
      member(key, *this);
      if (take_if('}')) return;
      expect(',');
    }
  }

  // Calls element(*this) for each element of an array; it must take the value.
  template <class Element>
  void array(Element&& element) {
    expect('[');
    if (take_if(']')) return;
    while (true) {
      element(*this);
      if (take_if(']')) return;
      expect(',');
    }
  }

 private:
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  void skip_nested();

  const char* at_;
  const char* end_;
};

// What a value as written says; nothing where it is of another type. Numbers in quotes count as numbers.
std::optional<std::int64_t> json_integer(std::string_view value);
std::optional<double> json_real(std::string_view value);
std::string json_text(std::string_view value_or_inside);  // quotes removed, escapes resolved
std::string_view json_inside(std::string_view value);     // of a string as written: without its quotes

// Microseconds, with decimals, as nanoseconds: exact where a double would lose the last three digits. Nothing for what
// is not a number or lies outside of 292 years.
std::optional<std::int64_t> json_microseconds(std::string_view value);

}  // namespace lockstep::diagnose
