#include "lockstep/data/table_reader.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::data {

TableReader::TableReader(std::string_view text, int line) : rest_(text), line_(line) {
  if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
}

TableFields TableReader::next_tabbed(std::size_t limit) {
  const std::string_view line = take_line();
  if (trim(line).empty()) return {};
  TableFields fields;
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

TableFields TableReader::next_quoted(const SourcePlace& place) {
  TableFields fields;
  while (true) {
    bool more = false;
    fields.push_back(rest_.starts_with('"') ? quoted_field(place, more) : plain_field(more));
    if (!more) break;
  }
  const bool blank = fields.size() == 1 && trim(fields.front()).empty();
  return blank ? TableFields{} : fields;
}

std::string_view TableReader::take_line() {
  const std::size_t end = std::min(rest_.find('\n'), rest_.size());
  std::string_view line = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  ++line_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Up to the comma (then `more` fields follow) or the end of the line.
std::string TableReader::plain_field(bool& more) {
  const std::size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
  more = end < rest_.size() && rest_[end] == ',';
  if (!more) return std::string(take_line());
  std::string field(rest_.substr(0, end));
  rest_.remove_prefix(end + 1);
  return field;
}

std::string TableReader::quoted_field(const SourcePlace& place, bool& more) {
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

std::size_t csv_record_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    if (text[at] == '"') {
      ++at;
      while (at < text.size()) {
        at = std::min(text.find('"', at), text.size());
        if (at + 1 >= text.size() || text[at + 1] != '"') break;
        at += 2;
      }
      at = std::min(at + 1, text.size());
    }
    at = std::min(text.find_first_of(",\n", at), text.size());
    if (at < text.size() && text[at++] == '\n') return at;
  }
  return text.size();
}

}  // namespace lockstep::data
