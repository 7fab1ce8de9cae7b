// What calibration measures differently on an accelerator: larger shapes, the host's cost beside the device's, products
// in fp8, and check models worth its while.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/cost/step_time.h"
#include "lockstep/engine/calibrate/operators.h"
#include "lockstep/engine/calibrate/sampler.h"

namespace lockstep::engine {

// "NVIDIA H200", as the driver calls it; "unknown" where there is none. `index` counts visible devices.
std::string cuda_device_name(int index);

// Products, attention and kernels of transformers from 768 to 8192 wide: fewer of them when `quick`.
SweepPlan device_sweep(bool quick);

// Forward products of the sweep in fp8 where the device and libtorch have them; otherwise nothing.
void measure_fp8_products(Sampler& sampler, const SweepPlan& plan, cost::Profile& profile);

// operator_seconds, backward_operator_seconds: what the host takes to issue a layer, from models of different depth
// that compute next to nothing. `precision` decides how many casts there are to issue.
void measure_host_cost(Sampler& sampler, spec::Precision precision, cost::Profile& profile);

// Models of some hundred million parameters, two architectures, three widths.
std::vector<cost::Workload> device_check_workloads(spec::Precision precision, bool quick);

}  // namespace lockstep::engine
