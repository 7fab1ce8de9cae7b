#include "lockstep/data/labelled_sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/json_lines.h"
#include "lockstep/data/table_reader.h"

namespace lockstep::data {
namespace {

// Gets labels as they are written.
using Take = std::function<void(std::string_view, std::string_view, const SourcePlace&)>;
using Fields = TableFields;

constexpr std::array kSentenceNames = {"sentence", "text", "content"};
constexpr const char* kNumberFix = "number the classes from 0, or name all of them and the columns";

std::optional<std::int64_t> parse_label(std::string_view text) {
  text = trim(text);
  std::int64_t label = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return label;
}

// Which column is what; `count` is how many a record has.
struct Columns {
  std::size_t label = 0;
  std::size_t sentence = 1;
  std::size_t count = 2;
};

Columns read_header(const Fields& names, const SourcePlace& place) {
  Columns columns{names.size(), names.size(), names.size()};
  for (std::size_t i = names.size(); i-- > 0;) {
    const std::string name = lockstep::to_lower(trim(names[i]));
    if (name == "label") columns.label = i;
    if (std::find(kSentenceNames.begin(), kSentenceNames.end(), name) != kSentenceNames.end()) columns.sentence = i;
  }
  if (columns.label == names.size() || columns.sentence == names.size()) {
    throw bad_input(
        "the first line begins with no label and names no columns `label` and `sentence`, `text` or `content`",
        "begin every line with the number of the class, or name the columns", place);
  }
  return columns;
}

void read_table(const MappedFile& file, bool quoted, const Take& take) {
  TableReader reader(file.text());
  Columns columns;
  bool first = true;
  while (!reader.done()) {
    const SourcePlace place{file.path(), reader.line()};
    const std::size_t limit = first ? static_cast<std::size_t>(-1) : columns.count;
    Fields fields = quoted ? reader.next_quoted(place) : reader.next_tabbed(limit);
    if (fields.empty()) continue;
    if (first) {
      first = false;
      if (!parse_label(fields.front())) {
        columns = read_header(fields, place);
        continue;
      }
      // Without a header a tab inside the sentence belongs to it.
      for (; !quoted && fields.size() > columns.count; fields.pop_back()) {
        fields[fields.size() - 2] += '\t' + fields.back();
      }
    }
    if (fields.size() != columns.count) {
      throw bad_input(fields.size() == 1 ? fmt::format("no {} between label and sentence", quoted ? "comma" : "tab")
                                         : fmt::format("{} columns instead of {}", fields.size(), columns.count),
                      quoted ? "put sentences with commas in quotes" : "write label<TAB>sentence", place);
    }
    take(trim(fields[columns.label]), fields[columns.sentence], place);
  }
}

void read_records(const MappedFile& file, const Take& take) {
  for_each_json_line(file, [&](const nlohmann::json& record, const SourcePlace& place) {
    const auto found = record.find("label");
    std::optional<std::string> label;
    if (found != record.end() && found->is_string()) label = std::string(trim(found->get_ref<const std::string&>()));
    if (found != record.end() && found->is_number_integer()) label = std::to_string(found->get<std::int64_t>());
    if (!label) throw bad_input("the record has no `label` that is a whole number or a name", kNumberFix, place);
    for (const char* name : kSentenceNames) {
      const auto sentence = record.find(name);
      if (sentence == record.end()) continue;
      if (!sentence->is_string()) {
        throw bad_input(fmt::format("`{}` is a JSON {}, a text was expected", name, sentence->type_name()),
                        "correct the record", place);
      }
      take(*label, sentence->get_ref<const std::string&>(), place);
      return;
    }
    throw bad_input("the record has no `sentence`, `text` or `content`", "correct the record", place);
  });
}

void for_each_record(const MappedFile& file, const Take& take) {
  const std::string extension = lockstep::to_lower(std::filesystem::path(file.path()).extension().string());
  if (extension == ".jsonl" || extension == ".json") {
    read_records(file, take);
  } else {
    read_table(file, extension == ".csv", take);
  }
}

}  // namespace

void for_each_labelled_sentence(
    const MappedFile& file,
    const std::function<void(std::int64_t label, std::string_view sentence, const SourcePlace& place)>& take,
    const std::vector<std::string>& names) {
  for_each_record(file, [&](std::string_view written, std::string_view sentence, const SourcePlace& place) {
    if (!names.empty()) {
      const auto found = std::lower_bound(names.begin(), names.end(), written);
      if (found == names.end() || *found != written) {
        throw bad_input(fmt::format("label `{}` is not in the training set", printable(written)),
                        did_you_mean(written, names), place);
      }
      return take(found - names.begin(), sentence, place);
    }
    const auto label = parse_label(written);
    if (!label) throw bad_input(fmt::format("label `{}` is not a whole number", printable(written)), kNumberFix, place);
    take(*label, sentence, place);
  });
}

std::vector<std::string> label_names_of(const MappedFile& file) {
  std::set<std::string, std::less<>> names;
  bool numbers = false;
  for_each_record(file, [&](std::string_view written, std::string_view, const SourcePlace&) {
    numbers = numbers || (names.empty() && parse_label(written).has_value());
    if (!numbers && !names.contains(written)) names.emplace(written);
  });
  return {names.begin(), names.end()};
}

}  // namespace lockstep::data
