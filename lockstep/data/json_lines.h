// JSON lines: one JSON value per line of a text file.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {

// A longer line is refused: no example is, and parsing it takes many times its size in memory.
inline constexpr std::size_t kLongestJsonLine = std::size_t{16} << 20;

// Calls `take` with the object of every line that is not blank, in order, and where it stands. Throws UserError with
// file:line for a line that is too long, not JSON or not an object; what `take` throws passes through.
void for_each_json_line(const MappedFile& file,
                        const std::function<void(const nlohmann::json& record, const SourcePlace& place)>& take);

// The object of one line that is not blank. Throws as for_each_json_line() does.
nlohmann::json parse_json_line(std::string_view line, const SourcePlace& place);

}  // namespace lockstep::data
