// The bytes of a file somebody else wrote, plain or gzip, piece by piece: a trace of gigabytes is never held whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::diagnose {

// More than this out of one compressed file is refused: a few kilobytes can be made to unpack to anything.
inline constexpr std::uint64_t kMostUnpackedBytes = std::uint64_t{16} << 30;

// Reads from the beginning to the end, once. Not thread-safe.
class Source {
 public:
  virtual ~Source() = default;
  // Up to `size` bytes into `to`; 0 only at the end. Throws UserError (exit 2 for damaged data).
  virtual std::size_t read(char* to, std::size_t size) = 0;
};

// Recognises gzip by its first bytes. Throws environment_error when it cannot be opened.
std::unique_ptr<Source> open_source(const std::filesystem::path& path);

// Bytes in memory, which must outlive the source: tests and fuzzing.
std::unique_ptr<Source> memory_source(std::string_view bytes);

// The whole of it, which must fit into `max_bytes`.
std::string read_all(Source& source, const std::string& name, std::uint64_t max_bytes);

// The first `size` bytes, or fewer.
std::string read_beginning(const std::filesystem::path& path, std::size_t size);

// "name: problem at byte 123"; exit 2. `name` goes through printable().
UserError damaged(const std::string& name, std::uint64_t offset, const std::string& problem, std::string fix = {});

}  // namespace lockstep::diagnose
