// Pieces of Markdown. Every text is made plain here; what comes back is markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::report {

// Text that Markdown shows as it is, also inside tables.
std::string markdown_text(std::string_view text);
// Between fences longer than any run of backticks inside.
std::string markdown_code(const std::string& text, const char* language);
std::string markdown_list(const std::vector<std::string>& items, bool numbered = false);
// First row as header; columns in `right` are flush right, `bold_column` stands out.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows,
                           const std::vector<std::size_t>& right = {}, std::size_t bold_column = 100);

}  // namespace lockstep::report
