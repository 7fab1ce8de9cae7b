// The JSON header of a safetensors file as the file tells it; safetensors.cpp checks it against dtypes and sizes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

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

}  // namespace lockstep::checkpoint
