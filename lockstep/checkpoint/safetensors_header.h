// The JSON header of a safetensors file as the file tells it; safetensors.cpp checks it against dtypes and sizes.
// And the way back: the bytes in front of the data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// The file begins with the length of the header, little-endian.
inline constexpr std::uint64_t kHeaderLengthBytes = 8;

struct HeaderTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;  // each >= 0
  std::uint64_t begin = 0;          // from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderTensor> tensors;  // names are unique
  std::map<std::string, std::string> metadata;
};

// Parses without building a document, so that nesting and junk cost no memory. Returns what is wrong, or nothing.
std::optional<std::string> parse_header(const std::string& text, SafetensorsHeader& header);

// Length and header, padded with spaces so that the data behind them starts at a multiple of 64 bytes.
std::string header_bytes(const SafetensorsHeader& header);

}  // namespace lockstep::checkpoint
