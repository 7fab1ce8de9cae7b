// HostImage: one rank's file of a checkpoint, byte for byte, in host memory. Training stalls while live tensors are
// copied into it; a background thread writes it. The memory is kept for the next save.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/pieces.h"

namespace lockstep::checkpoint {

// Where a piece lies in the file.
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
  HostImage();
  ~HostImage();
  HostImage(const HostImage&) = delete;
  HostImage& operator=(const HostImage&) = delete;

  // Copies the pieces with this rank's compute threads. On return the tensors may change. From a device: into spare
  // device memory, which finish() brings here; without spare memory straight here. Throws UserError for a dtype that
  // safetensors lacks.
  void take(const std::vector<TensorPiece>& pieces);
  // Until the bytes are all here. On a stream of its own.
  void finish();

  const unsigned char* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  const std::vector<StoredPiece>& pieces() const { return pieces_; }

 private:
  struct DeviceCopy;
  // A stretch of the image and where its bytes are.
  struct Move {
    unsigned char* to = nullptr;
    torch::Tensor from;  // bytes, 1-D
  };
  std::vector<Move> lay_out(const std::vector<TensorPiece>& pieces);
  void make_room(std::uint64_t bytes);
  void copy_host(const std::vector<Move>& moves);
  void copy_device(std::vector<Move> moves);

  struct Mapping;
  std::unique_ptr<Mapping> mapping_;  // at least size_ bytes
  unsigned char* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::vector<StoredPiece> pieces_;
  std::unique_ptr<DeviceCopy> device_copy_;
};

// CRC-32C of each kDigestBlockBytes, the last one shorter.
std::vector<std::uint32_t> block_checksums(const unsigned char* data, std::uint64_t bytes);

}  // namespace lockstep::checkpoint
