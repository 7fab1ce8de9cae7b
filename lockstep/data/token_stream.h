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
  // Whether it is known where documents begin; and where they do among tokens first + 1 to first + count, ascending.
  virtual bool knows_documents() const { return false; }
  virtual std::vector<std::int64_t> document_starts(std::int64_t first, std::int64_t count) const {
    static_cast<void>(first);
    static_cast<void>(count);
    return {};
  }
};

// The bytes of the files one after the other; the files stay mapped, nothing is loaded.
std::shared_ptr<const TokenStream> open_byte_stream(const std::vector<std::filesystem::path>& files);

// Windows over tokens [begin, end) of the stream: sample i has input [begin + i*seq, begin + (i+1)*seq) and the same
// shifted by one as target. Samples share no input token; size() is (end - begin - 1) / seq. Throws bad_input naming
// `what` when not even one window fits. With `documents` the samples say where documents begin, a document's first
// token is nobody's target, and a stream that does not know them is bad_input.
std::shared_ptr<const Dataset> language_model_windows(std::shared_ptr<const TokenStream> stream, std::int64_t begin,
                                                      std::int64_t end, std::int64_t sequence_length,
                                                      const std::string& what, bool documents = false);

}  // namespace lockstep::data
