// Token shards: token ids in a file that is memory-mapped, never loaded.
//
// Format (docs/reference/token-shards.md), little-endian, 64 bytes of header and then the ids:
//   offset  size  field
//        0     8  magic "LKSTTOKS"
//        8     4  version: 1, or 2 where documents are known
//       12     4  bytes per token: 2 (u16) or 4 (u32)
//       16     8  number of tokens
//       24     8  vocabulary size: every id is below it
//       32     4  CRC-32C of the ids as stored
//       36     4  version 2: CRC-32C of the ends of documents as stored; version 1: 0
//       40     8  version 2: number of documents that end in this shard; version 1: 0
//       48    12  zero
//       60     4  CRC-32C of bytes 0..59
// Version 1 ends with the last id: its size is 64 + tokens x bytes per token, exactly. In version 2 zeros fill up to
// the next multiple of 8, and the ends of documents follow as u64: how many tokens of the shard come before the end of
// each, ascending. Tokens behind the last end belong to a document that goes on in the next shard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/mapped_file.h"
#include "lockstep/data/token_stream.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

// Writes `ids` to `path` atomically (a temporary file beside it, then a rename), as u16 where vocab_size allows;
// version 2 where `document_ends` are given. Throws bad_input when an id is not in [0, vocab_size), environment_error
// when the file cannot be written.
void write_token_shard(const std::filesystem::path& path, std::span<const TokenId> ids, std::int64_t vocab_size,
                       std::span<const std::uint64_t> document_ends = {});

// One mapped shard. Opening checks the header against the file's size; verify() reads everything and checks the CRC.
class TokenShard {
 public:
  explicit TokenShard(const std::filesystem::path& path);

  std::int64_t size() const { return count_; }
  std::int64_t vocab_size() const { return vocab_size_; }
  const std::string& path() const { return file_.path(); }

  // Copies tokens [first, first + out.size()); throws bad_input when one is not below vocab_size().
  void copy(std::int64_t first, std::span<std::int64_t> out) const;

  // Ends of the documents, as in the file; none in version 1.
  std::span<const std::uint64_t> document_ends() const { return document_ends_; }
  std::uint32_t crc() const { return crc_; }

  // Throws bad_input when ids or ends of documents do not have the CRC of the header, or the ends do not ascend.
  void verify() const;

 private:
  MappedFile file_;
  std::int64_t count_ = 0;
  std::int64_t vocab_size_ = 0;
  std::uint32_t bytes_per_token_ = 2;
  std::uint32_t crc_ = 0;
  std::uint32_t documents_crc_ = 0;
  std::span<const std::uint64_t> document_ends_;
};

// The shards one after the other, as one stream. All must have the same vocabulary size.
// Sets up to `verify_up_to_bytes` in all are verified when they are opened.
std::shared_ptr<const TokenStream> open_token_shards(const std::vector<std::filesystem::path>& paths,
                                                     std::int64_t verify_up_to_bytes = 256 << 20);

}  // namespace lockstep::data
