#include "lockstep/tune/study/failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

// Memory first: a rank that ran out of it makes the others report lost peers and timeouts.
constexpr std::array kMemory{
    "out of memory",     // CUDA, HIP, the kernel, NCCL's "cuda failure 2"
    "outofmemoryerror",  // torch.cuda., torch.
    "cudaerrormemoryallocation",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "not enough memory: you tried to allocate",  // DefaultCPUAllocator
    "can't allocate memory",
    "cannot allocate memory",
    "unable to allocate",
    "std::bad_alloc",
    "memoryerror",
    "resource_exhausted",
    "is killed by signal: killed",  // a loader's worker
    "out of shared memory",
    "insufficient shared memory",
    "signal 9 (sigkill)",
    "exitcode: -9",
    "exitcode  : -9",
    "does not fit",  // lockstep
};
constexpr std::array kRefused{
    "ncclinvalidusage",
    "ncclinvalidargument",
    "invalid usage",
    "no algorithm/protocol available",
    "unsupported algorithm",
    "unsupported protocol",
    "unsupported nccl",
    "error: argument ",
    "unrecognized arguments",
    "the following arguments are required",
    "invalid choice:",
    "invalid value for",
    "must be divisible by",
    "is not divisible by",
    "not evenly divisible",
    "should be divisible",
    "prefetch_factor option could only be specified",  // DataLoader without workers
};
constexpr std::array kDeviceMemory{"cuda", "hip ", "gpu", "cublas", "cudnn", "hbm", "device memory", "vram"};
constexpr std::array kHostMemory{"host",
                                 "cgroup",
                                 "killed",
                                 "sigkill",
                                 "-9",
                                 "defaultcpuallocator",
                                 "memoryerror",
                                 "can't allocate",
                                 "cannot allocate memory",
                                 "bad_alloc",
                                 "shared memory",
                                 "shm",
                                 "cpu memory",
                                 "dataloader"};
constexpr std::array kStuck{"watchdog caught collective operation timeout", "timed out after", "timeout error",
                            "socket timeout", "timed out waiting"};

template <std::size_t N>
std::optional<std::string> find_line(const std::deque<std::string>& output, const std::array<const char*, N>& texts) {
  for (const std::string& line : output) {
    const std::string lower = to_lower(line);
    for (const char* text : texts)
      if (lower.find(text) != std::string::npos) return printable(trim(line), 200);
  }
  return std::nullopt;
}

std::string last_line(const std::deque<std::string>& output) {
  for (auto line = output.rbegin(); line != output.rend(); ++line)
    if (!trim(*line).empty()) return printable(trim(*line), 200);
  return "";
}

template <std::size_t N>
bool says_any(const std::string& text, const std::array<const char*, N>& pieces) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const char* piece) { return text.find(piece) != std::string::npos; });
}

}  // namespace

MemoryKind memory_kind(const std::string& message) {
  const std::string text = to_lower(message);
  if (text.find("out of host memory") != std::string::npos) return MemoryKind::kHost;
  if (says_any(text, kDeviceMemory)) return MemoryKind::kDevice;
  return says_any(text, kHostMemory) ? MemoryKind::kHost : MemoryKind::kUnknown;
}

Failure classify_failure(const ExitStatus& status, const std::deque<std::string>& output) {
  if (const auto line = find_line(output, kMemory)) return {Outcome::kOutOfMemory, *line};
  if (const auto line = find_line(output, kRefused)) return {Outcome::kInvalid, *line};
  if (const auto line = find_line(output, kStuck)) return {Outcome::kHang, *line};
  const std::string last = last_line(output);
  const std::string told = last.empty() ? status.to_string() : fmt::format("{}: {}", status.to_string(), last);
  if (status.signal == SIGKILL) return {Outcome::kOutOfMemory, fmt::format("killed by the kernel, {}", told)};
  if (status.signal == 0 && status.code == 137) return {Outcome::kOutOfMemory, told};  // a shell's or container's 9
  if (status.signal == 0 && status.code == 2) return {Outcome::kInvalid, told};
  if (status.signal == 0 && status.code == 3) return {Outcome::kOutOfMemory, told};
  return {Outcome::kCrash, told};
}

}  // namespace lockstep::tune
