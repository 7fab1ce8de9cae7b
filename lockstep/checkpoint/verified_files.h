// Bytes of a checkpoint's files, read block by block and checked against the manifest before anybody sees them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/durable_file.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::checkpoint {

// Keeps the last few blocks, so that neighbouring small ranges cost one read. Not thread-safe.
class VerifiedFiles {
 public:
  // `folder` is the open folder of `checkpoint`; it must outlive this.
  VerifiedFiles(const UniqueFd& folder, std::filesystem::path checkpoint, FileEntries entries)
      : folder_(folder), checkpoint_(std::move(checkpoint)), entries_(std::move(entries)) {}

  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  const FileEntries& entries() const { return entries_; }
  // Throws UserError (bad input) naming file and region when a checksum is wrong or the file is too short.
  void read(const std::string& name, std::uint64_t offset, std::uint64_t bytes, void* out);
  std::string read_text(const std::string& name);

  std::uint64_t bytes_read() const { return bytes_read_; }
  static std::uint64_t memory_bytes() { return kBlocksKept * kDigestBlockBytes; }

 private:
  static constexpr std::size_t kBlocksKept = 16, kFilesOpen = 128;
  struct Block {
    std::string file;
    std::uint64_t index = 0;
    std::vector<char> bytes;
  };
  const Block& block(const std::string& name, std::uint64_t index);
  const UniqueFd& open(const std::string& name);

  const UniqueFd& folder_;
  std::filesystem::path checkpoint_;
  FileEntries entries_;
  std::map<std::string, UniqueFd> files_;
  std::list<Block> blocks_;  // the last used one first
  std::uint64_t bytes_read_ = 0;
};

}  // namespace lockstep::checkpoint
