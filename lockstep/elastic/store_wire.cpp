#include "lockstep/elastic/store_wire.h"

#include <unistd.h>

namespace lockstep::elastic::wire {

Writer& Writer::u8(std::uint8_t value) {
  bytes_.push_back(static_cast<char>(value));
  return *this;
}

Writer& Writer::u32(std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) u8(static_cast<std::uint8_t>(value >> shift));
  return *this;
}

Writer& Writer::i64(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  for (int shift = 0; shift < 64; shift += 8) u8(static_cast<std::uint8_t>(bits >> shift));
  return *this;
}

Writer& Writer::text(std::string_view value) {
  u32(static_cast<std::uint32_t>(value.size()));
  bytes_.append(value);
  return *this;
}

std::string Writer::finish() {
  const auto length = static_cast<std::uint32_t>(bytes_.size() - 4);
  for (int i = 0; i < 4; ++i) bytes_[i] = static_cast<char>(length >> (8 * i));
  return std::move(bytes_);
}

std::string_view Reader::take(std::size_t count) {
  if (count > bytes_.size()) throw MalformedFrame{};
  const std::string_view taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

std::uint8_t Reader::u8() { return static_cast<std::uint8_t>(take(1)[0]); }

std::uint32_t Reader::u32() { return frame_length(take(4).data()); }

std::int64_t Reader::i64() {
  const std::string_view raw = take(8);
  std::uint64_t bits = 0;
  for (int i = 7; i >= 0; --i) bits = (bits << 8) | static_cast<std::uint8_t>(raw[i]);
  return static_cast<std::int64_t>(bits);
}

std::string Reader::text(std::size_t limit) {
  const std::uint32_t length = u32();
  if (length > limit) throw MalformedFrame{};
  return std::string(take(length));
}

void Reader::end() const {
  if (!bytes_.empty()) throw MalformedFrame{};
}

std::uint32_t frame_length(const char* four_bytes) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = (value << 8) | static_cast<std::uint8_t>(four_bytes[i]);
  return value;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace lockstep::elastic::wire
