#include "lockstep/engine/fused/device_arena.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/kernels/cuda/check.h"

namespace lockstep::engine::cuda {
namespace {
std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
}  // namespace

DeviceArena::~DeviceArena() {
  if (memory_ != nullptr) cudaFree(memory_);  // at the end of a process the driver may be gone: no check
}

void DeviceArena::allocate() {
  for (const Want& want : wants_) bytes_ += aligned(want.bytes);
  const cudaError_t status = cudaMalloc(&memory_, bytes_);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    LOCKSTEP_CUDA(cudaMemGetInfo(&free, &total));
    throw UserError(ExitCode::kAnswerIsNo,
                    fmt::format("the training step needs {:.1f} GiB of device memory and {:.1f} of {:.1f} GiB are free",
                                static_cast<double>(bytes_) / (1 << 30), static_cast<double>(free) / (1 << 30),
                                static_cast<double>(total) / (1 << 30)),
                    "use a smaller micro-batch, recompute: full or bf16 optimizer states");
  }
  LOCKSTEP_CUDA(status);
  auto* next = static_cast<char*>(memory_);
  for (const Want& want : wants_) {
    *want.pointer = next;
    next += aligned(want.bytes);
  }
  wants_.clear();
}

}  // namespace lockstep::engine::cuda
