#include "lockstep/elastic/gpu_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::elastic {
namespace {

std::string name_of(const GpuState& gpu) { return fmt::format("GPU {} ({}, {})", gpu.index, gpu.name, gpu.pci); }

Finding about(const GpuState& gpu, Severity severity, const std::string& topic, const std::string& what,
              std::string fix) {
  return {severity, "gpu", topic + " " + gpu.pci, name_of(gpu) + " " + what, std::move(fix), 0};
}

Finding lost(const GpuState& gpu, const std::string& why) {
  return about(gpu, Severity::kFatal, "lost", "does not answer: " + why,
               "reboot the node; when it comes again, have the GPU or its slot replaced");
}

void judge_memory(const GpuState* before, const GpuState& now, std::vector<Finding>& findings) {
  if (now.remap_failed) {
    findings.push_back(
        about(now, Severity::kFatal, "memory", "has bad memory that it could not replace", "have the GPU replaced"));
  } else if (now.remap_pending || now.retirement_pending) {
    findings.push_back(about(now, Severity::kWarning, "memory", "has bad memory that it replaces at the next reset",
                             "reset the GPU (nvidia-smi --gpu-reset) when no process uses it"));
  }
  const std::uint64_t errors = now.uncorrected_errors.value_or(0);
  const std::uint64_t known = before == nullptr ? 0 : before->uncorrected_errors.value_or(0);
  if (errors <= known) return;
  findings.push_back(about(now, Severity::kWarning, "ecc",
                           before == nullptr ? fmt::format("has had {} uncorrectable memory errors", errors)
                                             : fmt::format("had {} new uncorrectable memory errors", errors - known),
                           "reset the GPU when no process uses it; when they come again, have it replaced"));
}

void judge_speed(const GpuState& now, std::vector<Finding>& findings) {
  std::vector<std::string> reasons;
  if ((now.slowdowns & (kSlowHeatHardware | kSlowHeatSoftware)) != 0) reasons.emplace_back("heat");
  if ((now.slowdowns & kSlowPowerBrake) != 0) reasons.emplace_back("the power supply's brake");
  if (reasons.empty() && (now.slowdowns & kSlowHardware) != 0) reasons.emplace_back("its hardware's protection");
  if (reasons.empty()) return;
  std::string what = "is slowed down by " + join(reasons, " and ");
  if (now.clock_mhz && now.full_clock_mhz) what += fmt::format(", {} of {} MHz", *now.clock_mhz, *now.full_clock_mhz);
  if (now.temperature) what += fmt::format(", {} degrees", *now.temperature);
  findings.push_back(about(now, Severity::kWarning, "slow", what, "look at the cooling and the power of the node"));
}

}  // namespace

std::vector<Finding> judge_gpus(const std::vector<GpuState>& before, const std::vector<GpuState>& now) {
  std::vector<Finding> findings;
  for (const GpuState& gpu : now) {
    if (!gpu.lost.empty()) {
      findings.push_back(lost(gpu, gpu.lost));
      continue;
    }
    const std::size_t already = findings.size();
    const auto known = std::ranges::find(before, gpu.pci, &GpuState::pci);
    judge_memory(known == before.end() ? nullptr : &*known, gpu, findings);
    judge_speed(gpu, findings);
    if (findings.size() > already) continue;
    std::string what = "is well";
    if (gpu.temperature) what += fmt::format(", {} degrees", *gpu.temperature);
    findings.push_back(about(gpu, Severity::kOk, "state", what, ""));
  }
  for (const GpuState& gpu : before) {
    if (std::ranges::find(now, gpu.pci, &GpuState::pci) != now.end()) continue;
    findings.push_back(lost(gpu, "the driver does not list it any more"));
  }
  return findings;
}

}  // namespace lockstep::elastic
