// Builds without CUDA: no device has a step of its own.
#include "lockstep/engine/device_step.h"

namespace lockstep::engine {

DeviceStepChoice make_device_step(const spec::Job&, const plan::Run& run, torch::Device device) {
  return {nullptr, reason_for_general_path(run, device).value_or("this build has no CUDA")};
}

}  // namespace lockstep::engine
