#include "tests/planner/golden_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::testing {
namespace {

constexpr double kTolerance = 0.01;

// A line as words and the numbers between them. Cells of bars and timelines round: a run of them is one mark.
struct Line {
  std::vector<std::string> words;
  std::vector<double> numbers;
};

Line parse(const std::string& text) {
  static const std::regex kTimeline("^(  stage +[0-9]+ )[0-9a-jw\\.\xc2\xb7]+$");
  static const std::regex kBar("(\xe2\x96\x88|\xc2\xb7|[PGOABx#.]{4,}){3,}");
  static const std::regex kNumber("[0-9]+(\\.[0-9]+)?(e[-+]?[0-9]+)?");
  std::string rest = std::regex_replace(std::regex_replace(text, kTimeline, "$1<timeline>"), kBar, "<bar>");
  rest = std::regex_replace(rest, std::regex(" +"), " ");
  Line line;
  std::smatch match;
  while (std::regex_search(rest, match, kNumber)) {
    line.words.push_back(match.prefix());
    line.numbers.push_back(std::stod(match.str()));
    rest = match.suffix();
  }
  line.words.push_back(rest);
  return line;
}

bool same(const std::string& expected, const std::string& actual) {
  const Line a = parse(expected), b = parse(actual);
  if (a.words != b.words) return false;
  for (std::size_t i = 0; i < a.numbers.size(); ++i) {
    const double larger = std::max(std::abs(a.numbers[i]), std::abs(b.numbers[i]));
    // One unit of a figure printed with one decimal ("0.4%") may be much of it.
    if (std::abs(a.numbers[i] - b.numbers[i]) > std::max(kTolerance * larger, 0.101)) return false;
  }
  return true;
}

}  // namespace

std::string first_difference(const std::string& expected, const std::string& actual) {
  const auto a = split(expected, '\n'), b = split(actual, '\n');
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string before = i < a.size() ? a[i] : "<end>", after = i < b.size() ? b[i] : "<end>";
    if (!same(before, after)) return fmt::format("line {}:\n- {}\n+ {}", i + 1, before, after);
  }
  return {};
}

::testing::AssertionResult matches_golden(const std::string& actual, const std::string& path) {
  const char* update = std::getenv("LOCKSTEP_UPDATE_GOLDEN");
  if (update != nullptr && *update == '1') {
    write_file_atomically(path, actual);
    return ::testing::AssertionSuccess();
  }
  if (!std::filesystem::exists(path)) {
    return ::testing::AssertionFailure() << path << " does not exist; run with LOCKSTEP_UPDATE_GOLDEN=1 to write it";
  }
  const std::string difference = first_difference(read_file(path), actual);
  if (difference.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << path << "\n"
                                       << difference << "\nif this is meant, run with LOCKSTEP_UPDATE_GOLDEN=1";
}

}  // namespace lockstep::testing
