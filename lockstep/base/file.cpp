#include "lockstep/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

UserError system_error(const std::string& action, const fs::path& path, int error) {
  std::string fix = "check the path and the free space";
  if (error == ENOENT) fix = "check the path";
  if (error == EACCES || error == EPERM) fix = "check the permissions";
  if (error == ENOSPC) fix = "free some space there or choose another folder";
  return environment_error(fmt::format("cannot {} {}: {}", action, printable_path(path), std::strerror(error)), fix);
}

UniqueFd open_or_throw(const char* action, const fs::path& path, int flags, mode_t mode = 0) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) throw system_error(action, path, errno);
  return UniqueFd(fd);
}

UserError too_large(const fs::path& path, std::uint64_t max_bytes) {
  return bad_input(fmt::format("{} is larger than {}, the most that is read here", printable_path(path),
                               format_bytes(static_cast<double>(max_bytes))),
                   "check that this is the file you mean");
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void write_all(int fd, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw system_error("write", path, errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void sync_fd(int fd, const fs::path& path) {
  while (::fsync(fd) != 0) {
    if (errno != EINTR) throw system_error("fsync", path, errno);
  }
}

enum class Sync { kNone, kDisk };

void replace(const fs::path& path, std::string_view bytes, Sync sync) {
  static std::atomic<unsigned> counter{0};  // two threads may write the same path; each needs its own temporary name
  const fs::path temporary =
      folder_of(path) / fmt::format(".{}.{}.{}.tmp", path.filename().string(), ::getpid(), counter.fetch_add(1));
  struct stat old {};
  const bool existed = ::stat(path.c_str(), &old) == 0 && S_ISREG(old.st_mode);
  try {
    UniqueFd fd = open_or_throw("create", temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (existed) (void)::fchmod(fd.get(), old.st_mode & 07777);
    write_all(fd.get(), bytes, temporary);
    if (sync == Sync::kDisk) sync_fd(fd.get(), temporary);
    if (::close(fd.release()) != 0) throw system_error("close", temporary, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw system_error("rename a new file to", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  if (sync == Sync::kDisk) sync_folder(folder_of(path));
}

}  // namespace

std::string printable_path(const fs::path& path) { return printable(path.string(), 1000); }

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

std::string read_file(const fs::path& path, std::uint64_t max_bytes) {
  // O_NONBLOCK so that a FIFO without a writer is an empty read, not a hang; it has no effect on regular files.
  const UniqueFd fd = open_or_throw("open", path, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error("inspect", path, errno);
  if (S_ISDIR(status.st_mode))
    throw environment_error(printable_path(path) + " is a folder, not a file", "name a file in it");
  const auto known_size = static_cast<std::uint64_t>(std::max<off_t>(0, status.st_size));
  if (known_size > max_bytes) throw too_large(path, max_bytes);

  std::string bytes;
  std::uint64_t used = 0;
  bytes.resize(S_ISREG(status.st_mode) && known_size > 0 ? known_size + 1 : 4096);  // + 1: see the end in one read
  while (true) {
    if (used == bytes.size()) bytes.resize(bytes.size() * 2);
    const ssize_t got = ::read(fd.get(), bytes.data() + used, bytes.size() - used);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw system_error("read", path, errno);
    }
    if (got == 0) break;
    used += static_cast<std::uint64_t>(got);
    if (used > max_bytes) throw too_large(path, max_bytes);
  }
  bytes.resize(used);
  return bytes;
}

void write_file_atomically(const fs::path& path, std::string_view bytes) { replace(path, bytes, Sync::kDisk); }

void replace_file(const fs::path& path, std::string_view bytes) { replace(path, bytes, Sync::kNone); }

void sync_folder(const fs::path& folder) {
  const UniqueFd fd = open_or_throw("open", folder, O_RDONLY | O_DIRECTORY);
  sync_fd(fd.get(), folder);
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw system_error("create the folder", folder, error.value());
}

TemporaryFolder::TemporaryFolder(const std::string& prefix) {
  const char* root = std::getenv("TMPDIR");
  std::string pattern = fmt::format("{}/{}-XXXXXX", root != nullptr && *root != '\0' ? root : "/tmp", prefix);
  if (::mkdtemp(pattern.data()) == nullptr) throw system_error("create a temporary folder like", pattern, errno);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace lockstep
