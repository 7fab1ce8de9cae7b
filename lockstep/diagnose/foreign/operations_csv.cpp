#include "lockstep/diagnose/foreign/operations_csv.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::diagnose {
namespace {

enum Column { kDataRank, kStage, kRank, kStep, kKind, kBegin, kSeconds, kSequence, kChunk, kGlobalChunk, kColumns };
constexpr std::array<const char*, kColumns> kNames = {"dp_rank",  "stage",    "rank",   "step", "optype",
                                                      "start_ts", "duration", "seq_id", "mc",   "gmc"};
constexpr int kNeeded = kChunk;  // the last two may be absent
constexpr std::int64_t kMost = 1'000'000;

[[noreturn]] void fail(const std::string& name, int line, const std::string& problem) {
  throw bad_input(problem, "", {printable(name), line});
}

template <class Number>
Number number_of(std::string_view text, const std::string& name, int line, Column column) {
  text = trim(text);
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) {
    fail(name, line, fmt::format("`{}` must be a number, not `{}`", kNames[column], printable(text, 40)));
  }
  return value;
}

class Rows {
 public:
  Rows(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::vector<sim::Operation> read() {
    read_header();
    std::vector<sim::Operation> operations;
    while (!text_.empty()) {
      const std::string_view line = next_line();
      if (trim(line).empty()) continue;
      if (auto operation = operation_of(line)) operations.push_back(*operation);
    }
    if (operations.empty()) fail(name_, 1, "no operation of a known kind (optype forward-compute, forward-send, ...)");
    return operations;
  }

 private:
  std::string_view next_line() {
    ++line_;
    const std::size_t end = text_.find('\n');
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    return line;
  }

  void cut(std::string_view line) {
    fields_.clear();
    while (true) {
      const std::size_t comma = line.find(',');
      fields_.push_back(trim(line.substr(0, comma)));
      if (comma == std::string_view::npos) return;
      line.remove_prefix(comma + 1);
    }
  }

  void read_header() {
    cut(next_line());
    places_.fill(-1);
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      for (std::size_t c = 0; c < kNames.size(); ++c) {
        if (fields_[i] == kNames[c]) places_[c] = static_cast<int>(i);
      }
    }
    for (int c = 0; c < kNeeded; ++c) {
      if (places_[static_cast<std::size_t>(c)] < 0) {
        fail(name_, 1, fmt::format("column `{}` is missing", kNames[static_cast<std::size_t>(c)]));
      }
    }
    columns_ = fields_.size();
  }

  std::string_view field(Column column) const { return fields_[static_cast<std::size_t>(places_[column])]; }

  template <class Number>
  Number number(Column column) const {
    return number_of<Number>(field(column), name_, line_, column);
  }

  int place(Column column, int least) const {
    const auto value = number<std::int64_t>(column);
    if (value < least || value > kMost) {
      fail(name_, line_, fmt::format("`{}` must be between {} and {}, not {}", kNames[column], least, kMost, value));
    }
    return static_cast<int>(value);
  }

  std::optional<sim::Operation> operation_of(std::string_view line) {
    cut(line);
    if (fields_.size() != columns_) {
      fail(name_, line_, fmt::format("{} fields, where the first line has {}", fields_.size(), columns_));
    }
    const auto kind = value_named<sim::OperationKind>(field(kKind));
    if (!kind) return std::nullopt;
    sim::Operation operation;
    operation.kind = *kind;
    operation.data_rank = place(kDataRank, 0);
    operation.stage = place(kStage, 0);
    operation.rank = place(kRank, 0);
    operation.step = number<std::int64_t>(kStep);
    operation.sequence = place(kSequence, 0);
    operation.begin = number<double>(kBegin);
    operation.seconds = number<double>(kSeconds);
    if (!(operation.seconds >= 0.0) || !std::isfinite(operation.seconds) || !std::isfinite(operation.begin)) {
      fail(name_, line_, "`start_ts` and `duration` must be finite, `duration` not negative");
    }
    operation.chunk = places_[kChunk] >= 0 ? place(kChunk, -1) : 0;
    operation.global_chunk = places_[kGlobalChunk] >= 0 ? place(kGlobalChunk, -1) : operation.stage;
    return operation;
  }

  std::string_view text_;
  const std::string& name_;
  int line_ = 0;
  std::size_t columns_ = 0;
  std::array<int, kColumns> places_{};
  std::vector<std::string_view> fields_;
};

}  // namespace

std::vector<sim::Operation> read_operations(std::string_view text, const std::string& name) {
  return Rows(text, name).read();
}

}  // namespace lockstep::diagnose
