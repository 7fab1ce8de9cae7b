// Whole files: reading with a cap, writing so that a crash leaves the old file or the new one, never half of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::uint64_t kDefaultReadCap = std::uint64_t{1} << 30;

// The whole file. Throws environment_error when it cannot be opened or read (also for folders), bad_input when it is
// larger than `max_bytes`; the size is checked before anything is allocated. Reads special files (pipes, /proc) too.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes = kDefaultReadCap);

// Writes to a temporary file beside `path`, fsyncs it, renames it over `path`, fsyncs the folder. Existing permission
// bits are kept. Throws environment_error; the temporary file is removed then.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

// The same without fsync, for what is told again when it is lost: a reader sees the old file or the new one, but after
// a power cut it may be either, or empty. Never waits for a slow disk's cache.
void replace_file(const std::filesystem::path& path, std::string_view bytes);

// Makes renames and new names inside `folder` durable. Throws environment_error.
void sync_folder(const std::filesystem::path& folder);

// Creates the folder and its parents; no error when it exists. Throws environment_error.
void make_folders(const std::filesystem::path& folder);

// A path made fit for one line of a message (text.h: printable).
std::string printable_path(const std::filesystem::path& path);

// A file descriptor that is closed exactly once. -1 is "none".
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// A new empty folder under $TMPDIR (or /tmp), removed with everything in it by the destructor.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& prefix = "lockstep");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
