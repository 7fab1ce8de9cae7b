// Pieces of HTML. Every text is escaped here; what comes back is markup.
#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

std::string markup_list(const std::vector<std::string>& items, const char* tag);  // ul or ol
std::string markup_section(const std::string& heading, const std::string& markup);
std::string markup_paragraph(const std::string& text, const char* style = "");  // "" for ""
// `shell`: broken as a shell takes it, because browsers would break inside of --flags.
std::string markup_code(const std::string& text, bool shell, std::size_t columns);
// First row as header; `bold_column` stands out, columns in `right` are flush right.
std::string markup_table(const std::vector<std::vector<std::string>>& rows, std::size_t bold_column,
                         const std::vector<std::size_t>& right = {});
std::string markup_pairs(const std::vector<std::pair<std::string, std::string>>& rows);

}  // namespace lockstep::report
