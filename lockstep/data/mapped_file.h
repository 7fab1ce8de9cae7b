// A file mapped read-only into memory; its size is the real one, never what a header claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// Movable, not copyable; bytes() stays valid until destruction. Safe to read from many threads. Reading a file that
// another process has shortened ends the process (SIGBUS), as with any mapping: call require_unchanged() before bytes
// of a training set are read. Replacing data files by renaming is safe.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws environment_error(fix_when_missing) when the file cannot be opened, bad_input when it is not a plain file.
  explicit MappedFile(const std::filesystem::path& path, const std::string& fix_when_missing = {});
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  std::size_t size() const { return size_; }
  const std::string& path() const { return path_; }

  // Throws environment_error when the file was rewritten in place since it was opened, going by size and time. Costs
  // one call of stat(2).
  void require_unchanged() const;

 private:
  void unmap() noexcept;

  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::string path_;
  std::uint64_t device_ = 0, inode_ = 0;
  std::int64_t changed_ns_ = 0;  // time of the last change of its bytes
};

// `path` itself when it is a file, else the plain files below that folder, sorted by path; hidden ones are omitted,
// and a file reached twice (a symbolic link beside its target) comes once. Throws environment_error when there are
// none.
std::vector<std::filesystem::path> list_data_files(const std::filesystem::path& path,
                                                   const std::string& fix_when_missing);

}  // namespace lockstep::data
