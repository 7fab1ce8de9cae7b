#include "lockstep/telemetry/last_lines.h"

#include <algorithm>
#include <fstream>
#include <string_view>
#include <vector>

namespace lockstep::telemetry {
namespace {

constexpr std::int64_t kReadBytes = 64 << 20;  // looked at, from the end

// Texts inside a line have their quotes escaped.
bool is_of_spans(std::string_view line) { return line.find(R"("type":"spans")") != std::string_view::npos; }

}  // namespace

LastLines last_lines(const std::filesystem::path& path, std::int64_t most_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::int64_t size = file.tellg();
  std::string text(static_cast<std::size_t>(std::min(size, kReadBytes)), '\0');
  file.seekg(size - static_cast<std::int64_t>(text.size()));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (size > kReadBytes) text.erase(0, text.find('\n') + 1);
  if (size <= most_bytes) return {std::move(text), false};
  std::vector<std::string_view> kept;
  std::int64_t spans = 0, others = 0;
  for (std::string_view rest = text; !rest.empty();) {  // from the end
    const std::size_t before = rest.size() < 2 ? std::string_view::npos : rest.rfind('\n', rest.size() - 2);
    const std::string_view line = before == std::string_view::npos ? rest : rest.substr(before + 1);
    rest.remove_suffix(line.size());
    const bool is_span = is_of_spans(line);
    const auto bytes = static_cast<std::int64_t>(line.size());
    if (spans + others + bytes > most_bytes || (is_span && spans + bytes > most_bytes / 2)) continue;
    (is_span ? spans : others) += bytes;
    kept.push_back(line);
  }
  LastLines records{"", true};
  for (auto line = kept.rbegin(); line != kept.rend(); ++line) records.text += *line;
  return records;
}

}  // namespace lockstep::telemetry
