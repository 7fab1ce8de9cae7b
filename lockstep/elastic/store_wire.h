// Framing of the rendezvous store, shared by server and client.
//
// A frame is a 32-bit little-endian length and that many bytes. A request is an operation byte and its fields, a reply
// a status byte and its fields. Strings are a 32-bit length and bytes. The first request on a connection must be
// kHello.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/elastic/store.h"

namespace lockstep::elastic::wire {

inline constexpr std::uint32_t kMagic = 0x4c4b5331;  // "LKS1"
inline constexpr std::size_t kMaxFrameBytes = 3 * kMaxValueBytes;
inline constexpr std::size_t kMaxHelloBytes = 1024;
inline constexpr std::size_t kMaxTokenBytes = 512;

enum class Op : std::uint8_t { kHello = 1, kSet, kGet, kTryGet, kAdd, kCompareSet, kWait, kRemove };
enum class Status : std::uint8_t { kOk = 0, kTimeout, kRejected, kBadToken };

// Builds one frame.
class Writer {
 public:
  explicit Writer(std::uint8_t first) : bytes_(4, '\0') { u8(first); }
  Writer& u8(std::uint8_t value);
  Writer& u32(std::uint32_t value);
  Writer& i64(std::int64_t value);
  Writer& text(std::string_view value);
  std::string finish();  // fills in the length

 private:
  std::string bytes_;
};

// Reads the fields of one frame; every read is checked. Throws MalformedFrame.
struct MalformedFrame {};
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  std::uint8_t u8();
  std::uint32_t u32();
  std::int64_t i64();
  std::string text(std::size_t limit);
  void end() const;  // nothing may be left

 private:
  std::string_view take(std::size_t count);
  std::string_view bytes_;
};

std::uint32_t frame_length(const char* four_bytes);

// Owner of a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace lockstep::elastic::wire

namespace lockstep::elastic {

// The map and its limits, without locks. A change that would break a limit throws bad_input and changes nothing.
class StoreTable {
 public:
  void set(const std::string& key, std::string_view value);
  const std::string* find(const std::string& key) const;
  std::int64_t add(const std::string& key, std::int64_t delta);
  bool compare_set(const std::string& key, const std::optional<std::string>& expected, std::string_view desired);
  bool remove(const std::string& key);

 private:
  std::map<std::string, std::string> entries_;
  std::size_t bytes_ = 0;
};

// Throws bad_input for a key that is empty or too long, or too many of them.
void check_key(const std::string& key);
void check_keys(const std::vector<std::string>& keys);

}  // namespace lockstep::elastic
