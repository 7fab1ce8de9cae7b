// A library with NVML's functions, for made-up GPUs.
#include "fake_nvml.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kTimeout = 10, kLost = 15;

constexpr unsigned int kFullClock = 1980;
constexpr unsigned long long kHeat = 0x40;

FakeNvml state;

void read_environment() {
  const char* const text = std::getenv("FAKE_NVML");
  unsigned int hot = 0;
  double clock = 1.0;
  if (text == nullptr || std::sscanf(text, "%u:%lf", &hot, &clock) != 2 || hot >= 4) return;
  state.count = 4;
  for (FakeGpu& gpu : state.gpus) gpu.clock_mhz = kFullClock;
  state.gpus[hot].clock_mhz = static_cast<unsigned int>(clock * kFullClock);
  state.gpus[hot].slowdowns = kHeat;
  state.gpus[hot].temperature = 91;
}

FakeGpu& gpu_of(void* device) { return *static_cast<FakeGpu*>(device); }

struct PciInfo {
  char legacy_bus_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};

}  // namespace

// The names are NVML's.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

FakeNvml* fake_nvml_state() { return &state; }

int nvmlInit_v2() {
  read_environment();
  return kSuccess;
}
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int code) { return code == kLost ? "GPU is lost" : "some error"; }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = state.count;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = &state.gpus[index];
  return kSuccess;
}
int nvmlDeviceGetName(void*, char* name, unsigned int size) {
  std::snprintf(name, size, "Made-up GPU");
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0",
                static_cast<unsigned>(0x9a + (&gpu_of(device) - state.gpus)));
  return kSuccess;
}
int nvmlDeviceGetTemperature(void* device, unsigned int, unsigned int* degrees) {
  if (gpu_of(device).lost) return kLost;
  *degrees = gpu_of(device).temperature;
  return kSuccess;
}
int nvmlDeviceGetTemperatureThreshold(void*, unsigned int, unsigned int*) { return kNotSupported; }
int nvmlDeviceGetTotalEccErrors(void* device, unsigned int kind, unsigned int counter, unsigned long long* count) {
  if (kind != 1 || counter != 0) return kNotSupported;
  *count = gpu_of(device).uncorrected;
  return kSuccess;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned int* corrected, unsigned int* uncorrected, unsigned int* pending,
                              unsigned int* failed) {
  *corrected = *uncorrected = 0;
  *pending = gpu_of(device).remap_pending;
  *failed = gpu_of(device).remap_failed;
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = gpu_of(device).slowdowns;
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void* device, unsigned int, unsigned int* mhz) {
  *mhz = gpu_of(device).clock_mhz;
  return kSuccess;
}
int nvmlDeviceGetMaxClockInfo(void*, unsigned int, unsigned int* mhz) {
  *mhz = kFullClock;
  return kSuccess;
}
int nvmlEventSetCreate(void** set) {
  *set = &state;
  return kSuccess;
}
int nvmlEventSetFree(void*) { return kSuccess; }
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) { return kSuccess; }
int nvmlEventSetWait_v2(void*, EventData* data, unsigned int) {
  for (FakeGpu& gpu : state.gpus) {
    if (gpu.xid == 0) continue;
    *data = {&gpu, 8, gpu.xid, 0, 0};
    gpu.xid = 0;
    return kSuccess;
  }
  return kTimeout;
}
}
// NOLINTEND(readability-identifier-naming)
