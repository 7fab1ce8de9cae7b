#include "lockstep/data/text_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBlock = std::size_t{64} << 10;

struct Magic {
  std::string_view bytes;
  const char* what;
};
using namespace std::string_view_literals;
constexpr std::array kMagics = {Magic{"PAR1"sv, "a Parquet file"},
                                Magic{"ARROW1"sv, "an Arrow file"},
                                Magic{"\x1F\x8B"sv, "a gzip file"},
                                Magic{"\x28\xB5\x2F\xFD"sv, "a Zstandard file"},
                                Magic{"BZh"sv, "a bzip2 file"},
                                Magic{"\xFD"
                                      "7zXZ"sv,
                                      "an xz file"},
                                Magic{"PK\x03\x04"sv, "a zip file"},
                                Magic{"\x89PNG"sv, "a PNG picture"},
                                Magic{"\xFF\xD8\xFF"sv, "a JPEG picture"},
                                Magic{"%PDF-"sv, "a PDF document"},
                                Magic{"\x7F"
                                      "ELF"sv,
                                      "a program"},
                                Magic{"\x93NUMPY"sv, "a NumPy array"},
                                Magic{"SQLite format 3"sv, "an SQLite database"},
                                Magic{"LKSTTOKS"sv, "a token shard"},
                                Magic{"\xFF\xFE"sv, "UTF-16 text"},
                                Magic{"\xFE\xFF"sv, "UTF-16 text"}};
constexpr std::size_t kTarMagicAt = 257;

bool is_odd(char32_t c) { return c == 0xFFFD || (c < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f'); }

}  // namespace

std::optional<std::string> not_text(std::span<const std::uint8_t> bytes) {
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Magic& magic : kMagics) {
    if (all.starts_with(magic.bytes)) return magic.what;
  }
  if (all.size() > kTarMagicAt && all.substr(kTarMagicAt).starts_with("ustar")) return "a tar archive";
  std::size_t odd = 0;
  std::size_t characters = 0;
  for (const std::size_t begin : {std::size_t{0}, all.size() / 2, all.size() - std::min(all.size(), kBlock)}) {
    const std::string_view block = all.substr(begin, kBlock);
    if (block.find('\0') != std::string_view::npos) {
      return fmt::format("no text (a zero byte at {})", begin + block.find('\0'));
    }
    const std::u32string text = decode_utf8(block);
    characters += text.size();
    odd += static_cast<std::size_t>(std::count_if(text.begin(), text.end(), is_odd));
  }
  if (odd * 10 <= characters) return std::nullopt;
  return fmt::format("no UTF-8 text ({}% of its beginning, middle and end is control characters or invalid)",
                     odd * 100 / characters);
}

}  // namespace lockstep::data
