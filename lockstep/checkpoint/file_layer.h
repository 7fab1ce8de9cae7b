// What saving does to the file system, call by call, so that tests can make any call fail or be the last one before a
// crash. Everything in this folder that writes goes through a FileLayer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {

inline constexpr std::size_t kDirectBytes = 4096;

// Stateless; safe from several threads. Methods throw UserError (environment) naming the file and what to do.
class FileLayer {
 public:
  virtual ~FileLayer() = default;

  // Creates or empties the file.
  virtual UniqueFd create(const std::filesystem::path& path) const;
  // Reserves the space; nothing where the file system cannot.
  virtual void reserve(const UniqueFd& file, const std::filesystem::path& path, std::uint64_t bytes) const;
  // From now on what is written goes to the disk without a copy in the page cache, or through it again; false where the
  // file system cannot. Past the cache, addresses and sizes must be multiples of kDirectBytes.
  virtual bool bypass_cache(const UniqueFd& file, bool bypass) const;
  // Writes all of it at the end of what was written before.
  virtual void write(const UniqueFd& file, const std::filesystem::path& path, const void* data,
                     std::size_t bytes) const;
  // Starts writing [offset, offset + bytes) to the disk and returns at once.
  virtual void start_writeback(const UniqueFd& file, std::uint64_t offset, std::uint64_t bytes) const;
  virtual void sync(const UniqueFd& file, const std::filesystem::path& path) const;
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  // Swaps two names in one call; false where the file system cannot.
  virtual bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) const;
  virtual void sync_folder(const std::filesystem::path& folder) const;
  // False when it is there already.
  virtual bool make_folder(const std::filesystem::path& folder) const;
  // Never throws: what remains is tried again later.
  virtual void remove_all(const std::filesystem::path& path) const;
};

const FileLayer& system_files();

// `error` is an errno of `call`.
UserError io_error(const char* call, const std::filesystem::path& path, int error);

// The folder and its parents, durable: the folders that hold new names are fsynced.
void make_durable_folders(const std::filesystem::path& folder, const FileLayer& files);

}  // namespace lockstep::checkpoint
