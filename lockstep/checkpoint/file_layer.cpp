#include "lockstep/checkpoint/file_layer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace lockstep::checkpoint {
namespace {

// One write() may carry at most 2 GiB.
constexpr std::size_t kMostBytesAtOnce = 1u << 30;

bool is_direct(const UniqueFd& file) { return (::fcntl(file.get(), F_GETFL) & O_DIRECT) != 0; }

}  // namespace

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

UniqueFd FileLayer::create(const std::filesystem::path& path) const {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) throw io_error("open", path, errno);
  return file;
}

void FileLayer::reserve(const UniqueFd& file, const std::filesystem::path& path, std::uint64_t bytes) const {
  // Not posix_fallocate(): where the file system cannot, that writes every block.
  if (bytes == 0 || ::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw io_error("fallocate", path, errno);
}

bool FileLayer::bypass_cache(const UniqueFd& file, bool bypass) const {
  const int flags = ::fcntl(file.get(), F_GETFL);
  return flags >= 0 && ::fcntl(file.get(), F_SETFL, bypass ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void FileLayer::write(const UniqueFd& file, const std::filesystem::path& path, const void* data,
                      std::size_t bytes) const {
  const auto* next = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file.get(), next, std::min(bytes, kMostBytesAtOnce));
    if (written < 0 && errno == EINTR) continue;
    // A disk of larger blocks: through the cache, then.
    if (written < 0 && errno == EINVAL && is_direct(file) && bypass_cache(file, false)) continue;
    if (written <= 0) throw io_error("write", path, written < 0 ? errno : EIO);
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void FileLayer::start_writeback(const UniqueFd& file, std::uint64_t offset, std::uint64_t bytes) const {
  ::sync_file_range(file.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
}

void FileLayer::sync(const UniqueFd& file, const std::filesystem::path& path) const {
  if (::fsync(file.get()) != 0) throw io_error("fsync", path, errno);
}

void FileLayer::rename(const std::filesystem::path& from, const std::filesystem::path& to) const {
  if (::rename(from.c_str(), to.c_str()) != 0) throw io_error("rename", to, errno);
}

bool FileLayer::exchange(const std::filesystem::path& a, const std::filesystem::path& b) const {
#ifdef RENAME_EXCHANGE
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
  return false;
#endif
}

void FileLayer::sync_folder(const std::filesystem::path& folder) const { lockstep::sync_folder(folder); }

bool FileLayer::make_folder(const std::filesystem::path& folder) const {
  if (::mkdir(folder.c_str(), 0755) == 0) return true;
  struct stat status {};
  const int error = errno;
  if (error == EEXIST && ::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return false;
  throw io_error("mkdir", folder, error);
}

void FileLayer::remove_all(const std::filesystem::path& path) const {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

const FileLayer& system_files() {
  static const FileLayer files;
  return files;
}

void make_durable_folders(const std::filesystem::path& folder, const FileLayer& files) {
  std::vector<std::filesystem::path> missing;
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code ignored;
  for (; !std::filesystem::exists(path, ignored) && path.has_relative_path(); path = path.parent_path()) {
    missing.push_back(path);
  }
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    files.make_folder(*it);
    files.sync_folder(it->parent_path());
  }
}

}  // namespace lockstep::checkpoint
