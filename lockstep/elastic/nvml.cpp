// NVML through its C functions, looked up by name. Types and numbers are those of its documentation.
#include <dlfcn.h>
#include <fmt/format.h>

#include <map>

#include "lockstep/base/text.h"
#include "lockstep/elastic/gpu_state.h"
#include "lockstep/telemetry/xid.h"

namespace lockstep::elastic {
namespace {

using Device = void*;
using EventSet = void*;

constexpr int kSuccess = 0;
constexpr int kGpuIsLost = 15;
constexpr unsigned long long kXidEvent = 8;

struct PciInfo {
  char legacy_bus_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};

class Nvml final : public Gpus {
 public:
  explicit Nvml(void* library) : library_(library) {}
  ~Nvml() override {
    if (events_ != nullptr) call<EventSet>("nvmlEventSetFree", events_);
    if (begun_) call("nvmlShutdown");
  }

  bool begin() {
    begun_ = call("nvmlInit_v2") == kSuccess;
    return begun_;
  }
  std::vector<GpuState> look() override;
  std::vector<GpuXid> xids() override;

 private:
  // The result of the function of that name; -1 where the library has none.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    void* const symbol = dlsym(library_.get(), name);
    if (symbol == nullptr) return -1;
    return reinterpret_cast<int (*)(Arguments...)>(symbol)(arguments...);
  }
  // The number that the function writes, where it succeeds.
  template <class Value, class... Arguments>
  std::optional<Value> ask(const char* name, Arguments... arguments) const {
    Value value{};
    if (call(name, arguments..., &value) != kSuccess) return std::nullopt;
    return value;
  }
  std::string words(int code) const;
  GpuState look_at(unsigned int index);
  void read_memory(Device device, GpuState& gpu) const;
  void read_speed(Device device, GpuState& gpu) const;
  void register_events(Device device, const std::string& pci);

  std::unique_ptr<void, CloseLibrary> library_;
  bool begun_ = false;
  EventSet events_ = nullptr;
  std::map<Device, std::string> places_;  // of devices whose events are listened to
};

std::string Nvml::words(int code) const {
  void* const symbol = dlsym(library_.get(), "nvmlErrorString");
  const char* const text = symbol == nullptr ? nullptr : reinterpret_cast<const char* (*)(int)>(symbol)(code);
  return text == nullptr ? fmt::format("error {}", code) : printable(text);
}

void Nvml::read_memory(Device device, GpuState& gpu) const {
  constexpr unsigned int kUncorrected = 1, kSinceDriverLoaded = 0;
  if (const auto errors =
          ask<unsigned long long>("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kSinceDriverLoaded)) {
    gpu.uncorrected_errors = *errors;
  }
  unsigned int corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
    gpu.remap_pending = pending != 0;
    gpu.remap_failed = failed != 0;
  }
  gpu.retirement_pending = ask<unsigned int>("nvmlDeviceGetRetiredPagesPendingStatus", device).value_or(0) != 0;
}

void Nvml::read_speed(Device device, GpuState& gpu) const {
  constexpr unsigned int kSensor = 0, kSlowdownLimit = 1, kComputeClock = 1;
  const auto whole = [&](const char* name, unsigned int what) -> std::optional<int> {
    const auto value = ask<unsigned int>(name, device, what);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  };
  gpu.slowdowns = ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", device).value_or(0) &
                  (kSlowHardware | kSlowHeatSoftware | kSlowHeatHardware | kSlowPowerBrake);
  gpu.temperature = whole("nvmlDeviceGetTemperature", kSensor);
  gpu.hottest = whole("nvmlDeviceGetTemperatureThreshold", kSlowdownLimit);
  gpu.clock_mhz = whole("nvmlDeviceGetClockInfo", kComputeClock);
  struct Utilization {
    unsigned int gpu, memory;
  };
  if (const auto rates = ask<Utilization>("nvmlDeviceGetUtilizationRates", device)) {
    gpu.busy_percent = static_cast<int>(rates->gpu);
  }
  struct Memory {
    unsigned long long total, free, used;
  };
  if (const auto memory = ask<Memory>("nvmlDeviceGetMemoryInfo", device)) gpu.used_bytes = memory->used;
  gpu.full_clock_mhz = whole("nvmlDeviceGetMaxClockInfo", kComputeClock);
}

void Nvml::register_events(Device device, const std::string& pci) {
  if (!places_.emplace(device, pci).second) return;
  if (events_ == nullptr && call("nvmlEventSetCreate", &events_) != kSuccess) events_ = nullptr;
  if (events_ != nullptr) call("nvmlDeviceRegisterEvents", device, kXidEvent, events_);
}

GpuState Nvml::look_at(unsigned int index) {
  GpuState gpu;
  gpu.index = static_cast<int>(index);
  Device device = nullptr;
  if (const int code = call("nvmlDeviceGetHandleByIndex_v2", index, &device); code != kSuccess) {
    gpu.name = gpu.pci = "?";
    gpu.lost = words(code);
    return gpu;
  }
  char name[96] = {};
  const int named = call("nvmlDeviceGetName", device, static_cast<char*>(name), 96U);
  PciInfo pci{};
  const int placed = call("nvmlDeviceGetPciInfo_v3", device, &pci);
  gpu.name = named == kSuccess ? printable(name) : "GPU";
  pci.bus_id[sizeof(pci.bus_id) - 1] = 0;
  gpu.pci = placed == kSuccess ? telemetry::pci_place(printable(pci.bus_id)) : fmt::format("index {}", index);
  // A GPU that is gone still has a handle; asking it anything says so.
  unsigned int degrees = 0;
  const int alive = call("nvmlDeviceGetTemperature", device, 0U, &degrees);
  if (alive == kGpuIsLost || named == kGpuIsLost) {
    gpu.lost = words(kGpuIsLost);
    return gpu;
  }
  read_memory(device, gpu);
  read_speed(device, gpu);
  register_events(device, gpu.pci);
  return gpu;
}

std::vector<GpuState> Nvml::look() {
  std::vector<GpuState> gpus;
  const unsigned int count = ask<unsigned int>("nvmlDeviceGetCount_v2").value_or(0);
  for (unsigned int index = 0; index < count; ++index) gpus.push_back(look_at(index));
  return gpus;
}

std::vector<GpuXid> Nvml::xids() {
  std::vector<GpuXid> found;
  if (events_ == nullptr) return found;
  constexpr int kMostEvents = 1000;
  EventData event{};
  while (found.size() < kMostEvents && call("nvmlEventSetWait_v2", events_, &event, 0U) == kSuccess) {
    const auto place = places_.find(event.device);
    if (event.type != kXidEvent || place == places_.end()) continue;
    found.push_back({static_cast<int>(event.data), place->second});
  }
  return found;
}

}  // namespace

std::unique_ptr<Gpus> open_nvml(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  auto nvml = std::make_unique<Nvml>(handle);
  if (!nvml->begin()) return nullptr;
  return nvml;
}

}  // namespace lockstep::elastic
