#include "lockstep/data/json_lines.h"

#include <fmt/format.h>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::data {

void for_each_json_line(const MappedFile& file,
                        const std::function<void(const nlohmann::json& record, const SourcePlace& place)>& take) {
  std::string_view rest = file.text();
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const SourcePlace place{file.path(), number};
    if (!trim(line).empty()) take(parse_json_line(line, place), place);
  }
}

nlohmann::json parse_json_line(std::string_view line, const SourcePlace& place) {
  if (line.size() > kLongestJsonLine) {
    throw bad_input(
        fmt::format("a line of {}, the longest that is read is {}", format_bytes(static_cast<double>(line.size())),
                    format_bytes(static_cast<double>(kLongestJsonLine))),
        "write one record per line", place);
  }
  if (trim(line).front() == '[') {
    throw bad_input("the line begins a JSON list", "write one record per line, without the brackets around them",
                    place);
  }
  nlohmann::json record = parse_json(line, place.file, place.line);
  if (!record.is_object()) {
    throw bad_input(fmt::format("the line is a JSON {}, not an object", record.type_name()),
                    "write one record {...} per line", place);
  }
  return record;
}

}  // namespace lockstep::data
