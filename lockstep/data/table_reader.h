// Tables as text: records of fields between commas (RFC 4180) or tabs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::data {

using TableFields = std::vector<std::string>;

// Records one after the other. A byte order mark at the start is skipped.
class TableReader {
 public:
  // `line` is the number of the text's first line in its file.
  explicit TableReader(std::string_view text, int line = 1);

  bool done() const { return rest_.empty(); }
  int line() const { return line_; }
  std::string_view rest() const { return rest_; }  // what is not yet read

  // The fields between tabs of the next line; the last of `limit` takes the rest. A blank line has none.
  TableFields next_tabbed(std::size_t limit);

  // The fields of the next CSV record, which may go over several lines. Throws at `place` for an open quote.
  TableFields next_quoted(const SourcePlace& place);

 private:
  std::string_view take_line();
  std::string plain_field(bool& more);
  std::string quoted_field(const SourcePlace& place, bool& more);

  std::string_view rest_;
  int line_;
};

// Where the CSV record that begins at `at` ends: behind its line break, or at the end of the text.
std::size_t csv_record_end(std::string_view text, std::size_t at);

}  // namespace lockstep::data
