// HostImage: pieces of tensors back to back in host memory: one rank's file of a checkpoint, byte for byte, or a
// snapshot. Training stalls while live tensors are copied into it; a background thread writes or sends it. The memory
// is kept for the next one.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/pieces.h"

namespace lockstep::checkpoint {

// Where a piece lies in the image.
struct StoredPiece {
  TensorKind kind = TensorKind::kModel;
  std::string name;
  std::string dtype;  // safetensors name
  std::vector<std::int64_t> sizes;
  std::vector<Series> series;
  std::uint64_t offset = 0;  // of its first byte in the file
};

// take() and finish() alternate; they may come from different threads.
class HostImage {
 public:
  enum class Front { kSafetensors, kNone };  // what stands before the pieces: a file's header, or nothing
  explicit HostImage(Front front = Front::kSafetensors);
  ~HostImage();
  HostImage(const HostImage&) = delete;
  HostImage& operator=(const HostImage&) = delete;

  // Memory for an image of pieces of that many bytes, its pages there, so that take() need not wait for them.
  void prepare(std::uint64_t bytes);
  // Copies the pieces with this rank's compute threads. On return the tensors may change. From a device: into spare
  // device memory, which finish() brings here; without spare memory straight here. Throws UserError for a dtype that
  // safetensors lacks.
  void take(const std::vector<TensorPiece>& pieces);
  // After take(): the name of a piece in host memory that holds a value that is not finite. What a process has of its
  // own (kRank) does not count.
  std::optional<std::string> not_finite() const;
  // Until the bytes are all here. On a stream of its own.
  void finish();

  const unsigned char* data() const { return data_; }
  unsigned char* data() { return data_; }
  std::uint64_t size() const { return size_; }
  const std::vector<StoredPiece>& pieces() const { return pieces_; }

 private:
  struct DeviceCopy;
  // A stretch of the image and where its bytes are.
  struct Move {
    unsigned char* to = nullptr;
    torch::Tensor from;     // bytes, 1-D
    std::size_t piece = 0;  // of pieces_
  };
  std::vector<Move> lay_out(const std::vector<TensorPiece>& pieces);
  void make_room(std::uint64_t bytes);
  void copy_host(const std::vector<Move>& moves);
  void copy_device(std::vector<Move> moves);

  struct Mapping;
  const Front front_;
  std::unique_ptr<Mapping> mapping_;  // at least size_ bytes
  unsigned char* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::vector<StoredPiece> pieces_;
  std::optional<std::size_t> not_finite_;  // of those that were in host memory
  std::unique_ptr<DeviceCopy> device_copy_;
};

// Where pieces lie in an image of them, counted from the first. Throws UserError for a dtype that safetensors lacks.
std::vector<StoredPiece> image_places(const std::vector<TensorPiece>& pieces);
// The pieces that lie at `data`, as tensors of that memory, which `owner` keeps.
std::vector<TensorPiece> pieces_at(const std::vector<StoredPiece>& stored, unsigned char* data,
                                   const std::shared_ptr<const void>& owner);

// CRC-32C of each kDigestBlockBytes, the last one shorter.
std::vector<std::uint32_t> block_checksums(const unsigned char* data, std::uint64_t bytes);

}  // namespace lockstep::checkpoint
