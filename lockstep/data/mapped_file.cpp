#include "lockstep/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::data {
namespace {

std::int64_t changed_ns(const struct stat& status) {
  return static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& fix_when_missing) : path_(path.string()) {
  const SourcePlace place{path_};
  // O_NONBLOCK: opening a pipe without a writer must not block.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd)
    throw environment_error(std::string("cannot open the file: ") + std::strerror(errno), fix_when_missing, place);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    throw environment_error(std::string("fstat: ") + std::strerror(errno), fix_when_missing, place);
  }
  if (!S_ISREG(status.st_mode)) throw bad_input("not a plain file", "name a file", place);
  size_ = static_cast<std::size_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  changed_ns_ = changed_ns(status);
  if (size_ == 0) return;  // an empty file cannot be mapped, and need not be
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    throw environment_error(std::string("cannot map the file: mmap: ") + std::strerror(errno),
                            "put it on a file system that can be mapped", place);
  }
  data_ = static_cast<const std::uint8_t*>(address);
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      changed_ns_(other.changed_ns_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    path_ = std::move(other.path_);
    device_ = other.device_;
    inode_ = other.inode_;
    changed_ns_ = other.changed_ns_;
  }
  return *this;
}

void MappedFile::require_unchanged() const {
  struct stat now {};
  // Deleted or replaced by another file: the mapping keeps the bytes that were there.
  if (::stat(path_.c_str(), &now) != 0 || now.st_ino != inode_ || now.st_dev != device_) return;
  const auto size = static_cast<std::size_t>(now.st_size);
  if (size == size_ && changed_ns(now) == changed_ns_) return;
  throw environment_error(
      "the data file was changed while the run reads it" +
          (size == size_ ? std::string() : " (" + std::to_string(size_) + " bytes, now " + std::to_string(size) + ")"),
      "put it back and resume; replace data files by renaming, never in place", {path_});
}

void MappedFile::unmap() noexcept {
  if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
  data_ = nullptr;
}

namespace {

bool is_hidden(const std::filesystem::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> found;
  // Links to folders are not followed: they may lead in circles.
  for (fs::recursive_directory_iterator entry(folder), end; entry != end; ++entry) {
    if (is_hidden(entry->path())) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<std::filesystem::path> list_data_files(const std::filesystem::path& path,
                                                   const std::string& fix_when_missing) {
  namespace fs = std::filesystem;
  const SourcePlace place{path.string()};
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw environment_error("no such file or folder", fix_when_missing, place);
  if (!fs::is_directory(status)) return {path};
  std::vector<fs::path> files;
  try {
    std::set<fs::path> seen;
    for (const fs::path& file : files_below(path)) {
      if (seen.insert(fs::canonical(file)).second) files.push_back(file);
    }
  } catch (const fs::filesystem_error& failure) {
    throw environment_error(std::string("cannot read the folder: ") + failure.code().message(), fix_when_missing,
                            place);
  }
  if (files.empty()) throw environment_error("the folder holds no files", fix_when_missing, place);
  return files;
}

}  // namespace lockstep::data
