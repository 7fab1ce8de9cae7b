#include "lockstep/parallel/offload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

std::string reason() { return std::strerror(errno); }

}  // namespace

struct OffloadArena::Mapping {
  Mapping(const std::filesystem::path& folder, std::size_t size) : bytes(size) {
    std::string path = (folder / "lockstep-offload-XXXXXX").string();
    const int file = mkostemp(path.data(), O_CLOEXEC);
    if (file < 0) {
      throw environment_error(
          fmt::format("cannot make a file for offloaded state in {}: {}", folder.string(), reason()),
          "set TMPDIR to a folder on a disk with room");
    }
    unlink(path.c_str());
    // Reserved now: a disk that fills up later would kill the process with SIGBUS.
    const int full = posix_fallocate(file, 0, static_cast<off_t>(bytes));
    if (full == 0) data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (full != 0 || data == MAP_FAILED) {
      data = MAP_FAILED;
      throw environment_error(fmt::format("{} has no room for {} MiB of offloaded state: {}", folder.string(),
                                          bytes >> 20, full != 0 ? std::strerror(full) : reason()),
                              "free some space, or set TMPDIR to another disk");
    }
  }
  ~Mapping() {
    if (data != MAP_FAILED) munmap(data, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* data = MAP_FAILED;
  std::size_t bytes = 0;
};

OffloadArena::OffloadArena(torch::Device device, std::filesystem::path folder)
    : device_(device), folder_(folder.empty() ? std::filesystem::temp_directory_path() : std::move(folder)) {}

OffloadArena::~OffloadArena() = default;

torch::Tensor OffloadArena::zeros(std::int64_t count, torch::ScalarType dtype) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(c10::elementSize(dtype));
  bytes_ += bytes;
  if (!device_.is_cpu()) return torch::zeros({count}, torch::TensorOptions().dtype(dtype).pinned_memory(true));
  if (count == 0) return torch::zeros({0}, torch::TensorOptions().dtype(dtype));
  mappings_.push_back(std::make_unique<Mapping>(folder_, static_cast<std::size_t>(bytes)));
  return torch::from_blob(mappings_.back()->data, {count}, torch::TensorOptions().dtype(dtype));
}

torch::Tensor OffloadArena::put(const torch::Tensor& activation) {
  const torch::NoGradGuard no_grad;
  auto& reusable = free_[{activation.numel(), activation.scalar_type()}];
  torch::Tensor far;
  if (reusable.empty()) {
    far = zeros(activation.numel(), activation.scalar_type());
  } else {
    far = reusable.back();
    reusable.pop_back();
  }
  far = far.view(activation.sizes());
  far.copy_(activation);
  rest(far);
  return far;
}

torch::Tensor OffloadArena::take(const torch::Tensor& far) {
  const torch::NoGradGuard no_grad;
  torch::Tensor near = torch::empty(far.sizes(), far.options().device(device_).pinned_memory(false));
  near.copy_(far);
  rest(far);
  free_[{far.numel(), far.scalar_type()}].push_back(far.view({-1}));
  return near;
}

void OffloadArena::rest(const torch::Tensor& tensor) const {
  if (!device_.is_cpu() || tensor.numel() == 0) return;
  // A shared mapping: dirty pages stay in the page cache until the kernel has written them, and are no longer ours.
  madvise(tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()) * tensor.element_size(), MADV_DONTNEED);
}

}  // namespace lockstep::parallel
