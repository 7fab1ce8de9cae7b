// Files that are on disk when we say so: written with checksums, fsynced, renamed, and their folders fsynced too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/checkpoint/file_layer.h"

namespace lockstep::checkpoint {

// Checksums are kept per block, so that damage is located within a file.
inline constexpr std::uint64_t kDigestBlockBytes = 4u << 20;

struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;  // of the whole file; 0 where it was not computed, as the blocks' cover it
  std::vector<std::uint32_t>
      blocks{};  // CRC-32C of each kDigestBlockBytes, the last one shorter; empty for an empty file

  bool operator==(const FileDigest&) const = default;
};

// Writes one new file front to back and computes its digest on the way. Not thread-safe.
class DurableFile {
 public:
  // Creates or empties `path`. Throws UserError (environment) as all methods do: disk full, quota, permission, I/O
  // error; the message names the file and what to do.
  explicit DurableFile(std::filesystem::path path, const FileLayer& files = system_files());

  void write(const void* data, std::size_t bytes);
  // fsync and close. Without it (an exception) the file is left behind incomplete; its folder is junk by then.
  FileDigest finish();

 private:
  void digest(const unsigned char* data, std::size_t bytes);

  std::filesystem::path path_;
  const FileLayer& files_;
  UniqueFd file_;
  FileDigest digest_;
  std::uint32_t block_crc_ = 0;
  std::uint64_t block_fill_ = 0;
};

FileDigest write_durable_file(const std::filesystem::path& path, const std::string& text,
                              const FileLayer& files = system_files());

// Opens a regular file for reading; UserError (environment) when it cannot. With `folder`, an open folder, only the
// last part of `path` is looked up there, so that a renamed folder is still the one that was opened.
UniqueFd open_for_reading(const std::filesystem::path& path, const UniqueFd* folder = nullptr);
std::uint64_t file_size(const UniqueFd& file, const std::filesystem::path& path);
// Reads exactly `bytes` at `offset`; a short file is a UserError (bad input) naming it.
void read_exactly(const UniqueFd& file, const std::filesystem::path& path, void* out, std::uint64_t bytes,
                  std::uint64_t offset);

// rename() within one folder, then fsync of the folder: after a crash either the old name or the new one is there.
void publish(const std::filesystem::path& from, const std::filesystem::path& to,
             const FileLayer& files = system_files());

}  // namespace lockstep::checkpoint
