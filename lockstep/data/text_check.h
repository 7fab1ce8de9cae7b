// Whether a file is text at all: Parquet, archives and pictures read as bytes train a model on noise without a word.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lockstep::data {

// What the file is instead of text, e.g. "a Parquet file", going by its first bytes and by blocks of 64 KiB at its
// beginning, middle and end: text has no zero bytes, and at most a tenth of it is control characters or not UTF-8.
std::optional<std::string> not_text(std::span<const std::uint8_t> bytes);

}  // namespace lockstep::data
