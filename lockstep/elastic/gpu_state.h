// The state of this node's GPUs as NVIDIA's management library (NVML) tells it. The library is opened when it is asked
// for: nothing is needed to build, and a machine without GPUs needs nothing to run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/finding.h"

namespace lockstep::elastic {

struct GpuState {
  int index = 0;
  std::string name;
  std::string pci;   // as pci_place() writes it
  std::string lost;  // the library's words when the GPU does not answer any more; "": it does
  // What a GPU does not have or tell is absent.
  std::optional<std::uint64_t> uncorrected_errors;  // of its memory, since the driver was loaded
  bool remap_pending = false;                       // a bad row is replaced at the next reset
  bool remap_failed = false;                        // there was no spare row left
  bool retirement_pending = false;                  // the same as remap_pending, of GPUs before Ampere
  std::uint64_t slowdowns = 0;                      // reasons for lower clocks that are faults (kSlow...)
  std::optional<int> temperature, hottest;          // degrees; where it slows down
  std::optional<int> clock_mhz, full_clock_mhz;
  std::optional<int> busy_percent;          // of the last moment
  std::optional<std::uint64_t> used_bytes;  // of its memory
};

// Bits of GpuState::slowdowns, as NVML numbers them.
inline constexpr std::uint64_t kSlowHardware = 0x08;
inline constexpr std::uint64_t kSlowHeatSoftware = 0x20;
inline constexpr std::uint64_t kSlowHeatHardware = 0x40;
inline constexpr std::uint64_t kSlowPowerBrake = 0x80;

struct GpuXid {
  int code = 0;
  std::string pci;
};

class Gpus {
 public:
  virtual ~Gpus() = default;
  // May take seconds, or hang with a driver that does.
  virtual std::vector<GpuState> look() = 0;
  // Xid events since the last call; also where the kernel log cannot be read.
  virtual std::vector<GpuXid> xids() = 0;
};

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// Null where there is no such library or no driver.
std::unique_ptr<Gpus> open_nvml(const std::string& library = kNvmlLibrary);

// What is wrong with each GPU now, compared with how it was (`before` is empty at first: then counters may be old and
// are told as warnings). A GPU that was there and is not is lost.
std::vector<Finding> judge_gpus(const std::vector<GpuState>& before, const std::vector<GpuState>& now);

}  // namespace lockstep::elastic
