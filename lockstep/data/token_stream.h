// TokenStream: one long sequence of token ids; and the language-model windows over it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// Immutable; safe from many threads.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual std::int64_t size() const = 0;
  // Every id is below it.
  virtual std::int64_t vocab_size() const = 0;
  // Copies tokens [first, first + out.size()), which must lie inside the stream.
  virtual void copy(std::int64_t first, std::span<std::int64_t> out) const = 0;
};

// The bytes of the files one after the other; the files stay mapped, nothing is loaded.
std::shared_ptr<const TokenStream> open_byte_stream(const std::vector<std::filesystem::path>& files);

// Windows over tokens [begin, end) of the stream: sample i has input [begin + i*seq, begin + (i+1)*seq) and the same
// shifted by one as target. Samples share no input token; size() is (end - begin - 1) / seq. Throws bad_input naming
// `what` when not even one window fits.
std::shared_ptr<const Dataset> language_model_windows(std::shared_ptr<const TokenStream> stream, std::int64_t begin,
                                                      std::int64_t end, std::int64_t sequence_length,
                                                      const std::string& what);

}  // namespace lockstep::data
