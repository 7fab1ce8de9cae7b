// CSV as RFC 4180 has it: comma separated, a header line, fields quoted where they hold commas, quotes or line breaks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::planner {

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as `columns`
  std::vector<int> lines;                      // of the file, where each row begins; counts from 1
};

// Strict: a quote inside an unquoted field, text after a closing quote, an open quote at the end, a row with another
// number of fields than the header, a column named twice and an empty header are UserErrors (exit code 2) with
// file:line. LF and CRLF both end a line; empty lines are skipped; a byte-order mark is dropped.
CsvTable parse_csv(std::string_view text, const std::string& name_for_errors);

// One line with its line feed; fields quoted only where they must be.
std::string csv_line(const std::vector<std::string>& fields);

// `text` from outside as a field that a spreadsheet shows and never executes: a first character that would begin a
// formula gets an apostrophe before it, NUL is dropped. Not for numbers: -1 would become a text.
std::string spreadsheet_text(std::string_view text);

}  // namespace lockstep::planner
