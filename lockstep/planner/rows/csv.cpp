#include "lockstep/planner/rows/csv.h"

#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::planner {
namespace {

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  bool at_end() const { return position_ == text_.size(); }
  int line() const { return line_; }

  std::vector<std::string> record() {
    std::vector<std::string> fields;
    while (true) {
      fields.push_back(at('"') ? quoted() : plain());
      if (at_end()) return fields;
      if (at(',')) {
        ++position_;
        continue;
      }
      end_line();
      return fields;
    }
  }

  [[noreturn]] void refuse(const std::string& problem, int line) const {
    throw bad_input(problem, "write the file as RFC 4180 CSV", {.file = name_, .line = line});
  }

 private:
  bool at(char wanted) const { return position_ < text_.size() && text_[position_] == wanted; }
  bool at_line_end() const { return at('\n') || (at('\r') && text_.substr(position_).starts_with("\r\n")); }

  void end_line() {
    position_ += at('\r') ? 2 : 1;
    ++line_;
  }

  std::string plain() {
    const std::size_t begin = position_;
    while (!at_end() && !at(',') && !at_line_end()) {
      if (at('"')) refuse("a quote inside a field that does not begin with one", line_);
      ++position_;
    }
    return std::string(text_.substr(begin, position_ - begin));
  }

  std::string quoted() {
    const int opened = line_;
    std::string field;
    for (++position_; !at_end(); ++position_) {
      if (at('"')) {
        ++position_;
        if (!at('"')) {
          if (!at_end() && !at(',') && !at_line_end()) refuse("text after a closing quote", line_);
          return field;
        }
      }
      if (at('\n')) ++line_;
      field.push_back(text_[position_]);
    }
    refuse("a quoted field has no closing quote", opened);
  }

  std::string_view text_;
  std::string name_;
  std::size_t position_ = 0;
  int line_ = 1;
};

bool is_blank(const std::vector<std::string>& record) { return record.size() == 1 && trim(record[0]).empty(); }

bool needs_quotes(const std::string& field) { return field.find_first_of(",\"\r\n") != std::string::npos; }

}  // namespace

CsvTable parse_csv(std::string_view text, const std::string& name_for_errors) {
  CsvReader reader(text, name_for_errors);
  CsvTable table;
  while (!reader.at_end()) {
    const int line = reader.line();
    std::vector<std::string> record = reader.record();
    if (is_blank(record)) continue;
    if (table.columns.empty()) {
      std::set<std::string> seen;
      for (std::string& column : record) {
        column = std::string(trim(column));
        if (column.empty()) reader.refuse("a column of the header has no name", line);
        if (!seen.insert(column).second) reader.refuse(fmt::format("column {} stands twice", printable(column)), line);
      }
      table.columns = std::move(record);
      continue;
    }
    if (record.size() != table.columns.size()) {
      reader.refuse(fmt::format("{} fields under {} columns", record.size(), table.columns.size()), line);
    }
    table.rows.push_back(std::move(record));
    table.lines.push_back(line);
  }
  if (table.columns.empty()) reader.refuse("no header line", 1);
  return table;
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += ',';
    if (!needs_quotes(fields[i])) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (const char c : fields[i]) line.append(c == '"' ? 2 : 1, c);
    line += '"';
  }
  return line + '\n';
}

std::string spreadsheet_text(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c != '\0') safe += c;
  }
  // OWASP's list; a tab or line break before one of them would be skipped by some programs.
  if (!safe.empty() && std::string_view("=+-@\t\r\n|%").find(safe.front()) != std::string_view::npos)
    safe.insert(safe.begin(), '\'');
  return safe;
}

}  // namespace lockstep::planner
