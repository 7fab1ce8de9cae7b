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

// One write() may carry at most 2 GiB; smaller pieces also keep the checksum's data in cache.
constexpr std::size_t kPieceBytes = 1u << 20;

UserError io_error(const char* call, const std::filesystem::path& path, int error) {
  const std::string problem = std::string(call) + " failed: " + std::strerror(error);
  const SourcePlace place{path.string()};
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return environment_error("no space to write: " + std::string(std::strerror(error)),
                               "free space or set checkpoint.directory to another disk", place);
    case EACCES:
    case EPERM:
    case EROFS:
      return environment_error(problem, "make it writable for this user or choose another folder", place);
    case ENOENT:
    case ENOTDIR:
      return environment_error(problem, "check the path", place);
    default:
      return environment_error(problem, "check the disk and the kernel log", place);
  }
}

}  // namespace

DurableFile::DurableFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file_) throw io_error("open", path_, errno);
}

void DurableFile::write(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file_.get(), next, std::min(bytes, kPieceBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw io_error("write", path_, written < 0 ? errno : EIO);
    digest(next, static_cast<std::size_t>(written));
    next += written;
    bytes -= static_cast<std::size_t>(written);
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
  if (::fsync(file_.get()) != 0) throw io_error("fsync", path_, errno);
  file_ = UniqueFd();
  return std::move(digest_);
}

FileDigest write_durable_file(const std::filesystem::path& path, const std::string& text) {
  DurableFile file(path);
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

void publish(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw io_error("rename", to, errno);
  sync_folder(to.parent_path());
}

}  // namespace lockstep::checkpoint
