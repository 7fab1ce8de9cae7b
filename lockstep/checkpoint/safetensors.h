// safetensors files: named tensors in one flat file (https://github.com/huggingface/safetensors), read and written.
//
//   u64 little-endian header length | JSON header, padded with spaces | tensor bytes, back to back
//
// Reading treats the file as hostile: the header length, the JSON, every dtype, shape and offset are checked against
// each other and against the real file size before anything of that size is allocated. Nothing is executed or mapped;
// bytes are read with pread, so that a file cut short under our hands is an error and not a signal.
// Tensors are CPU tensors; writing takes tensors of any device and layout, copied one at a time.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/durable_file.h"

namespace lockstep::checkpoint {

// Ordered by name, so that files and manifests do not depend on the order of insertion.
using TensorMap = std::map<std::string, torch::Tensor>;

// Where one tensor lies. `offset` counts from the start of the file.
struct TensorEntry {
  std::string name;
  torch::ScalarType dtype = torch::kFloat32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// An open file whose header has been checked. Movable; reading is const and safe from several threads.
class SafetensorsFile {
 public:
  // Throws UserError: environment when the file is missing or unreadable, bad input when it is malformed.
  static SafetensorsFile open(const std::filesystem::path& path);
  // The same for a file that is open already; `path` is for messages only.
  static SafetensorsFile open(UniqueFd file, const std::filesystem::path& path);

  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;

  const std::filesystem::path& path() const { return path_; }
  // Sorted by name.
  const std::map<std::string, TensorEntry>& entries() const { return entries_; }
  // The "__metadata__" strings of the header.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  // Throws UserError (bad input) naming the file when there is no such tensor.
  const TensorEntry& entry(const std::string& name) const;

  // A new CPU tensor that owns its memory.
  torch::Tensor read(const std::string& name) const;
  // Fills `target` (any device, any layout; shape must be equal, the dtype is converted when it differs).
  void read_into(const std::string& name, torch::Tensor& target) const;
  // Elements [first, first + out.numel()) of the tensor in row-major order, into `out`: one-dimensional and contiguous,
  // any device, the dtype is converted when it differs. Reads those bytes only, in pieces of a bounded size.
  // Throws UserError (bad input) when the tensor has fewer elements.
  void read_range(const std::string& name, std::int64_t first, torch::Tensor out) const;
  TensorMap read_all() const;

 private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  UniqueFd file_;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Writes `tensors` to `path` (created or replaced), durable on return. The bytes depend on names, dtypes, shapes,
// values and metadata only. Data starts at a multiple of 64 bytes and every tensor is aligned to its element size.
// Throws UserError (environment) on a full disk or an unwritable folder, bad input for a dtype the format lacks.
FileDigest write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                             const std::map<std::string, std::string>& metadata = {});

// "F32", "BF16", ...; throws UserError (bad input) for a dtype the format (or this libtorch) does not have.
std::string safetensors_dtype(torch::ScalarType dtype);
// And back; bad input names `path`.
torch::ScalarType torch_dtype(const std::string& name, const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
