#include "lockstep/checkpoint/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

// Keeps the checksum's data in cache.
constexpr std::size_t kPieceBytes = 1u << 20;

}  // namespace

DurableFile::DurableFile(std::filesystem::path path, const FileLayer& files)
    : path_(std::move(path)), files_(files), file_(files.create(path_)) {}

void DurableFile::write(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, kPieceBytes);
    files_.write(file_, path_, next, piece);
    digest(next, piece);
    next += piece;
    bytes -= piece;
  }
}

void DurableFile::digest(const unsigned char* data, std::size_t bytes) {
  digest_.bytes += bytes;
  digest_.crc32c = crc32c(data, bytes, digest_.crc32c);
  while (bytes > 0) {
    const std::size_t part = std::min<std::size_t>(bytes, kDigestBlockBytes - block_fill_);
    block_crc_ = crc32c(data, part, block_crc_);
    block_fill_ += part;
    data += part;
    bytes -= part;
    if (block_fill_ == kDigestBlockBytes) {
      digest_.blocks.push_back(std::exchange(block_crc_, 0));
      block_fill_ = 0;
    }
  }
}

FileDigest DurableFile::finish() {
  if (block_fill_ > 0) {
    digest_.blocks.push_back(std::exchange(block_crc_, 0));
    block_fill_ = 0;
  }
  files_.sync(file_, path_);
  file_ = UniqueFd();
  return std::move(digest_);
}

FileDigest write_durable_file(const std::filesystem::path& path, const std::string& text, const FileLayer& files) {
  DurableFile file(path, files);
  file.write(text.data(), text.size());
  return file.finish();
}

UniqueFd open_for_reading(const std::filesystem::path& path, const UniqueFd* folder) {
  // O_NONBLOCK: a FIFO in its place must not make us wait for a writer.
  const std::filesystem::path name = folder ? path.filename() : path;
  UniqueFd file(::openat(folder ? folder->get() : AT_FDCWD, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw io_error("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw io_error("stat", path, errno);
  if (!S_ISREG(status.st_mode)) throw bad_input("not a regular file", "give the path of a file", {path.string()});
  return file;
}

std::uint64_t file_size(const UniqueFd& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw io_error("stat", path, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void read_exactly(const UniqueFd& file, const std::filesystem::path& path, void* out, std::uint64_t bytes,
                  std::uint64_t offset) {
  auto* next = static_cast<unsigned char*>(out);
  while (bytes > 0) {
    const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, 256u << 20));
    const ssize_t got = ::pread(file.get(), next, piece, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw io_error("read", path, errno);
    if (got == 0) {
      throw bad_input("the file ends at byte " + std::to_string(offset) + ", " + std::to_string(bytes) + " bytes early",
                      "copy it again; it was cut short", {path.string()});
    }
    next += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
}

void publish(const std::filesystem::path& from, const std::filesystem::path& to, const FileLayer& files) {
  files.rename(from, to);
  files.sync_folder(to.parent_path());
}

}  // namespace lockstep::checkpoint
