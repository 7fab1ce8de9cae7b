// A file mapped read-only into memory; its size is the real one, never what a header claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

// Movable, not copyable; bytes() stays valid until destruction. Safe to read from many threads. A file that another
// process shortens while it is mapped ends the process (SIGBUS), as with any mapping: replace data files by renaming.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws environment_error(fix_when_missing) when the file cannot be opened, bad_input when it is not a plain file.
  explicit MappedFile(const std::filesystem::path& path, const std::string& fix_when_missing = {});
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  std::size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  void unmap() noexcept;

  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::string path_;
};

// `path` itself when it is a file, else the plain files below that folder, sorted by path; hidden ones are omitted,
// and a file reached twice (a symbolic link beside its target) comes once. Throws environment_error when there are
// none.
std::vector<std::filesystem::path> list_data_files(const std::filesystem::path& path,
                                                   const std::string& fix_when_missing);

}  // namespace lockstep::data
