#include "lockstep/data/tar_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

constexpr std::uint64_t kBlock = 512;
constexpr const char* kFix = "write the tar file again";

std::string_view field(std::string_view header, std::size_t at, std::size_t size) {
  const std::string_view text = header.substr(at, size);
  return text.substr(0, text.find('\0'));
}

// Octal digits, or (the first bit set) a binary number, as GNU tar writes sizes from 8 GiB on.
std::optional<std::uint64_t> number(std::string_view header, std::size_t at, std::size_t size) {
  if ((static_cast<unsigned char>(header[at]) & 0x80) != 0) {
    std::uint64_t value = static_cast<unsigned char>(header[at]) & 0x7F;
    for (std::size_t i = 1; i < size; ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = (value << 8) | static_cast<unsigned char>(header[at + i]);
    }
    return value;
  }
  const std::string_view digits = trim(field(header, at, size));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// The sum of all bytes of the header, with spaces in place of the checksum.
bool checksum_is_right(std::string_view header) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    sum += i >= 148 && i < 156 ? std::uint64_t{' '} : static_cast<unsigned char>(header[i]);
  }
  return number(header, 148, 8) == sum;
}

// The path in a POSIX extended header: lines "LENGTH key=value".
std::optional<std::string> extended_path(std::string_view text) {
  while (!text.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (error != std::errc() || length == 0 || length > text.size()) return std::nullopt;
    const std::string_view line = text.substr(0, length);
    if (line.back() != '\n') return std::nullopt;
    const std::size_t key = static_cast<std::size_t>(end - text.data()) + 1;
    if (key < line.size() && line.substr(key).starts_with("path=")) {
      return std::string(line.substr(key + 5, line.size() - key - 6));
    }
    text.remove_prefix(length);
  }
  return std::nullopt;
}

std::string name_in(std::string_view header) {
  const std::string name(field(header, 0, 100));
  const std::string prefix(field(header, 345, 155));
  const bool posix = header.substr(257).starts_with(std::string_view("ustar\0", 6));
  return posix && !prefix.empty() ? prefix + "/" + name : name;
}

}  // namespace

void for_each_tar_member(const MappedFile& file, const std::function<void(const TarMember&)>& take) {
  const std::string_view all = file.text();
  std::optional<std::string> long_name;
  for (std::uint64_t at = 0; at < all.size();) {
    const std::string_view header = all.substr(at, kBlock);
    if (header.find_first_not_of('\0') == std::string_view::npos) return;  // two empty blocks end an archive
    const auto bytes = header.size() == kBlock ? number(header, 124, 12) : std::nullopt;
    if (!bytes || !checksum_is_right(header)) {
      throw bad_input(fmt::format("damaged: no header of a member at byte {}", at), kFix, {file.path()});
    }
    const std::uint64_t begin = at + kBlock;
    if (*bytes > all.size() - begin) {
      throw bad_input(fmt::format("cut off: `{}` has {} bytes, the file ends after {}", printable(name_in(header)),
                                  *bytes, all.size() - begin),
                      kFix, {file.path()});
    }
    const std::string_view contents = all.substr(begin, *bytes);
    const char kind = header[156];
    if (kind == 'L') long_name = std::string(contents.substr(0, contents.find('\0')));  // GNU
    if (kind == 'x') long_name = extended_path(contents);
    if (kind == '0' || kind == '\0') take({long_name.value_or(name_in(header)), begin, *bytes});
    if (kind != 'L' && kind != 'x') long_name.reset();
    at = begin + (*bytes + kBlock - 1) / kBlock * kBlock;
  }
}

}  // namespace lockstep::data
