// Every scheduler there is. Each reads its own section of the settings (LaunchSettings::section) and throws UserError
// for what it does not understand.
#pragma once

#include <memory>

#include "lockstep/schedulers/scheduler.h"

namespace lockstep::schedulers {

std::unique_ptr<Scheduler> make_kubeflow(const LaunchSettings& settings);
std::unique_ptr<Scheduler> make_kubernetes(const LaunchSettings& settings);
std::unique_ptr<Scheduler> make_mpi(const LaunchSettings& settings);
std::unique_ptr<Scheduler> make_ray(const LaunchSettings& settings);
std::unique_ptr<Scheduler> make_skypilot(const LaunchSettings& settings);
std::unique_ptr<Scheduler> make_slurm(const LaunchSettings& settings);
std::unique_ptr<Scheduler> make_ssh(const LaunchSettings& settings);

}  // namespace lockstep::schedulers
