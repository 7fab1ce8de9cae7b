#include "lockstep/engine/calibrate/calibration.h"

#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/calibrate/device.h"
#include "lockstep/engine/calibrate/fused.h"
#include "lockstep/engine/calibrate/operators.h"
#include "lockstep/engine/calibrate/sampler.h"
#include "lockstep/engine/calibrate/steps.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {
namespace {

// Much longer than a scheduler's time slice, so that ranks that share a core are timed with their share of it.
constexpr double kQuickWindow = 0.025;
constexpr double kFullWindow = 0.06;
constexpr int kQuickWindows = 2;
constexpr int kFullWindows = 3;
// Of a whole training step: several of them.
constexpr double kQuickStepWindow = 0.25;
constexpr double kFullStepWindow = 1.0;
// Seconds after which a quick run stops adding general shapes, and then checks (three are always made). A machine that
// is busy with other things gets a coarser profile with wider intervals, not a longer wait.
constexpr double kQuickSweepBudget = 4.5;
constexpr double kQuickBudget = 7.0;
constexpr std::size_t kFewestChecks = 3;
// A GPU has no time slices: windows only need to be longer than what an event resolves.
constexpr double kDeviceWindow = 0.01;
constexpr double kDeviceStepWindow = 0.3;
constexpr int kDeviceWindows = 5;
constexpr std::int64_t kDeviceParameters = std::int64_t{1} << 28;

double resident_bytes() {
  std::istringstream words(read_file("/proc/self/statm"));
  std::int64_t virtual_pages = 0, resident_pages = 0;
  words >> virtual_pages >> resident_pages;
  return static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::string processor_name() {
  std::istringstream lines(read_file("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return std::string(trim(std::string_view(line).substr(colon + 1)));
  }
  return "unknown processor";
}

cost::Provenance provenance_of(const comm::Communicator& communicator, const CalibrationOptions& options) {
  cost::Provenance provenance;
  provenance.cores = sysconf(_SC_NPROCESSORS_ONLN);
  provenance.hardware = std::to_string(provenance.cores) + " x " + processor_name();
  provenance.software = std::string("libtorch ") + TORCH_VERSION + ", " + options.backend;
  provenance.version = options.lockstep_version;
  provenance.date = utc_timestamp(unix_seconds());
  provenance.method = options.quick       ? "lockstep calibrate --quick"
                      : options.focus > 0 ? "lockstep validate"
                                          : "lockstep calibrate";
  provenance.ranks = communicator.size();
  provenance.threads = std::max<std::int64_t>(1, options.threads > 0 ? options.threads : at::get_num_threads());
  provenance.backend = options.backend;
  return provenance;
}

// In a quick run: the products that make up most of a workload's FLOPs and, of each pointwise kernel, the largest and
// the smallest size. The rest is interpolated.
std::vector<cost::Operator> most_important(std::vector<cost::Operator> operators) {
  constexpr std::size_t kProducts = 10;
  std::vector<cost::Operator> kept;
  std::map<cost::PointwiseKernel, std::pair<cost::Operator, cost::Operator>> sizes;
  std::stable_sort(operators.begin(), operators.end(), [](const cost::Operator& a, const cost::Operator& b) {
    return static_cast<double>(a.count) * a.forward_flops() > static_cast<double>(b.count) * b.forward_flops();
  });
  for (const cost::Operator& op : operators) {
    if (op.kind != cost::OperatorKind::kPointwise) {
      if (kept.size() < kProducts) kept.push_back(op);
      continue;
    }
    const auto [entry, is_new] = sizes.try_emplace(op.kernel, op, op);
    if (is_new) continue;
    if (op.elements < entry->second.first.elements) entry->second.first = op;
    if (op.elements > entry->second.second.elements) entry->second.second = op;
  }
  for (const auto& [kernel, ends] : sizes) {
    kept.push_back(ends.first);
    kept.push_back(ends.second);
  }
  return kept;
}

std::vector<cost::Operator> operators_of(const cost::Workload& workload) {
  std::int64_t sequence = workload.batch.sequence_length;
  if (sequence == 0) sequence = workload.model.max_sequence;
  return cost::list_operators(workload.model, workload.batch.micro, sequence);
}

// The workloads' own shapes, and which families of models they belong to.
struct Request {
  SweepPlan shapes;
  bool transformers = false;
  bool images = false;
  std::int64_t parameters = 1 << 22;  // beyond the caches it makes no difference how many more there are
};

// A tensor-parallel rank's part of every layer.
cost::Workload cut(cost::Workload workload, std::int64_t ranks) {
  spec::Model& model = workload.model;
  model.heads /= ranks;
  model.kv_heads = std::max<std::int64_t>(1, model.kv_heads / ranks);
  model.ffn_hidden /= ranks;
  model.vocab /= ranks;
  return workload;
}

Request request_of(const CalibrationOptions& options) {
  Request request;
  request.transformers = (!options.quick && options.focus == 0) || options.workloads.empty();
  request.images = !options.quick && options.focus == 0;
  for (const cost::Workload& workload : options.workloads) {
    const std::vector<cost::Operator> operators = operators_of(workload);
    add_shapes(request.shapes, options.quick ? most_important(operators) : operators);
    if (options.focus > 1 && workload.model.is_language_model()) {
      add_shapes(request.shapes, operators_of(cut(workload, options.focus)));
    }
    (workload.model.is_language_model() ? request.transformers : request.images) = true;
    request.parameters = std::min(request.parameters, spec::parameter_count(workload.model));
  }
  return request;
}

void measure_operators(Sampler& sampler, const SweepPlan& plan, const CalibrationOptions& options,
                       cost::Profile& profile) {
  for (const spec::Precision precision : options.precisions) {
    measure_matmuls(sampler, plan, precision, profile);
    measure_convolutions(sampler, plan, precision, profile);
    measure_attention(sampler, plan, precision, profile);
    measure_pointwise(sampler, plan, precision, profile);
  }
}

void require_cuda(const comm::Communicator& communicator) {
  if (!nn::compat::built_with_cuda()) {
    throw environment_error(
        "this build has no CUDA: its libtorch (" + std::string(TORCH_VERSION) + ") is for CPUs only",
        "build with `make cuda` against a torch that has CUDA");
  }
  if (!nn::compat::has_cuda()) {
    throw environment_error("libtorch finds no CUDA device", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES");
  }
  if (communicator.size() != 1) {
    throw bad_input("calibration on CUDA measures one GPU", "leave --ranks away");
  }
}

cost::Profile measure_cuda(comm::Communicator& communicator, const CalibrationOptions& options) {
  require_cuda(communicator);
  const torch::Device device(torch::kCUDA, 0);
  if (options.threads > 0) nn::compat::set_compute_threads(static_cast<int>(options.threads));
  const comm::milliseconds timeout(static_cast<std::int64_t>(1000 * options.timeout_seconds));
  Sampler sampler(communicator, kDeviceWindow, kDeviceWindows, timeout, device);
  Sampler step_sampler(communicator, kDeviceStepWindow, kDeviceWindows, timeout, device);
  cost::Profile profile;
  profile.provenance = provenance_of(communicator, options);
  profile.provenance.hardware = cuda_device_name(0);
  profile.provenance.cores = 0;
  profile.provenance.method += " --device cuda";
  const auto measure_fused_step = [&] {
    profile.dense.emplace().points = measure_fused_points(fused_calibration_points(options.quick));
    profile.dense->date = profile.provenance.date;
    profile.dense->software = profile.provenance.software + ", Lockstep " + profile.provenance.version;
    if (profile.dense->points.empty()) profile.dense.reset();
  };
  if (options.fused_only) {
    measure_fused_step();
    return profile;
  }

  measure_memory(sampler, profile);
  measure_host_cost(sampler, options.precisions.front(), profile);
  measure_optimizer(sampler, kDeviceParameters, profile);
  const SweepPlan sweep = device_sweep(options.quick);
  SweepPlan few = device_sweep(true);
  few.attentions.clear();
  few.pointwise.clear();
  for (const spec::Precision precision : options.precisions) {
    const bool first = precision == options.precisions.front();
    measure_matmuls(sampler, first ? sweep : few, precision, profile);
    measure_attention(sampler, first ? sweep : few, precision, profile);
    measure_pointwise(sampler, first ? sweep : few, precision, profile);
  }
  measure_fp8_products(sampler, few, profile);
  nn::compat::release_cached_memory(device);
  for (const cost::Workload& workload : device_check_workloads(options.precisions.front(), options.quick)) {
    measure_check(step_sampler, communicator, workload, profile);
    nn::compat::release_cached_memory(device);
  }
  measure_fused_step();
  return profile;
}

}  // namespace

cost::Profile measure_profile(comm::Communicator& communicator, const CalibrationOptions& options) {
  if (options.device == CalibrationDevice::kCuda) return measure_cuda(communicator, options);
  if (options.threads > 0) nn::compat::set_compute_threads(static_cast<int>(options.threads));
  cost::Profile profile;
  profile.provenance = provenance_of(communicator, options);
  const comm::milliseconds timeout(static_cast<std::int64_t>(1000 * options.timeout_seconds));
  const int windows = options.quick ? kQuickWindows : kFullWindows;
  Sampler sampler(communicator, options.quick ? kQuickWindow : kFullWindow, windows, timeout);
  Sampler step_sampler(communicator, options.quick ? kQuickStepWindow : kFullStepWindow, windows, timeout);
  profile.framework_bytes = sampler.mean(resident_bytes());
  if (options.focus > 0) {
    sampler.discount_others();
    step_sampler.discount_others();
  }

  // What the caller asked about first and in full; the general shapes as time allows.
  const Request request = request_of(options);
  measure_memory(sampler, profile);
  measure_overhead(sampler, profile);
  measure_optimizer(sampler, request.parameters, profile);
  measure_operators(sampler, request.shapes, options, profile);
  measure_collectives(sampler, communicator, options.quick, profile);
  measure_overlap(sampler, communicator, profile);
  if (options.focus == 0) {
    SweepPlan general = general_sweep(options.quick);
    remove_shapes(general, request.shapes);
    if (options.quick && !options.workloads.empty()) sampler.set_budget(kQuickSweepBudget);
    measure_operators(sampler, general, options, profile);
  }
  if (options.quick) step_sampler.set_budget(kQuickBudget);
  const std::vector<cost::Workload> checks =
      options.focus > 0 ? related_workloads(options.workloads)
                        : check_workloads(request.transformers, request.images, options.precisions.front());
  for (const cost::Workload& workload : checks) {
    if (profile.checks.size() >= kFewestChecks && step_sampler.exhausted()) break;
    measure_check(step_sampler, communicator, workload, profile);
  }
  return profile;
}

}  // namespace lockstep::engine
