#include "lockstep/data/labelled_sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/json_lines.h"

namespace lockstep::data {
namespace {

using Take = std::function<void(std::int64_t, std::string_view, const SourcePlace&)>;
using Fields = std::vector<std::string>;

constexpr std::array kSentenceNames = {"sentence", "text", "content"};
constexpr const char* kNumberFix = "number the classes from 0";

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

// Records of a table one after the other; `fields()` of at most `limit` fields.
class TableReader {
 public:
  explicit TableReader(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
  }

  bool done() const { return rest_.empty(); }
  int line() const { return line_; }

  // The fields between tabs of the next line; the last of `limit` takes the rest. A blank line has none.
  Fields next_tabbed(std::size_t limit) {
    const std::string_view line = take_line();
    if (trim(line).empty()) return {};
    Fields fields;
    std::size_t begin = 0;
    while (fields.size() + 1 < limit) {
      const std::size_t tab = line.find('\t', begin);
      if (tab == std::string_view::npos) break;
      fields.emplace_back(line.substr(begin, tab - begin));
      begin = tab + 1;
    }
    fields.emplace_back(line.substr(begin));
    return fields;
  }

  // The fields of the next CSV record, which may go over several lines. Throws at `place` for an open quote.
  Fields next_quoted(const SourcePlace& place) {
    Fields fields;
    while (true) {
      bool more = false;
      fields.push_back(rest_.starts_with('"') ? quoted_field(place, more) : plain_field(more));
      if (!more) break;
    }
    const bool blank = fields.size() == 1 && trim(fields.front()).empty();
    return blank ? Fields{} : fields;
  }

 private:
  std::string_view take_line() {
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  // Up to the comma (then `more` fields follow) or the end of the line.
  std::string plain_field(bool& more) {
    const std::size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
    more = end < rest_.size() && rest_[end] == ',';
    if (!more) return std::string(take_line());
    std::string field(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return field;
  }

  std::string quoted_field(const SourcePlace& place, bool& more) {
    std::string field;
    std::size_t at = 1;
    for (; at < rest_.size(); ++at) {
      if (rest_[at] == '"') {
        const bool doubled = at + 1 < rest_.size() && rest_[at + 1] == '"';
        if (!doubled) break;
        ++at;
      }
      if (rest_[at] == '\n') ++line_;
      field.push_back(rest_[at]);
    }
    if (at >= rest_.size()) throw bad_input("a quote that is never closed", "close it, or double it", place);
    rest_.remove_prefix(at + 1);
    field += plain_field(more);  // what follows the closing quote: nothing, in a proper file
    return field;
  }

  std::string_view rest_;
  int line_ = 1;
};

void read_table(const MappedFile& file, bool quoted, const Take& take) {
  TableReader reader({reinterpret_cast<const char*>(file.bytes().data()), file.size()});
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
    const auto label = parse_label(fields[columns.label]);
    if (!label)
      throw bad_input(fmt::format("label `{}` is not a whole number", printable(fields[columns.label])), kNumberFix,
                      place);
    take(*label, fields[columns.sentence], place);
  }
}

void read_records(const MappedFile& file, const Take& take) {
  for_each_json_line(file, [&](const nlohmann::json& record, const SourcePlace& place) {
    const auto found = record.find("label");
    std::optional<std::int64_t> label;
    if (found != record.end() && found->is_string()) label = parse_label(found->get_ref<const std::string&>());
    if (found != record.end() && found->is_number_integer()) label = found->get<std::int64_t>();
    if (!label) throw bad_input("the record has no `label` that is a whole number", kNumberFix, place);
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

}  // namespace

void for_each_labelled_sentence(const MappedFile& file, const Take& take) {
  const std::string extension = lockstep::to_lower(std::filesystem::path(file.path()).extension().string());
  if (extension == ".jsonl" || extension == ".json") {
    read_records(file, take);
  } else {
    read_table(file, extension == ".csv", take);
  }
}

}  // namespace lockstep::data
