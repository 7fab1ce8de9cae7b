#include "lockstep/diagnose/foreign/trace_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"

namespace lockstep::diagnose {
namespace {

// From how many percent of the step on a rule speaks.
constexpr double kLoaderPercent = 5.0;
constexpr double kDriverPercent = 4.0;  // cudaMalloc, checkpoints
constexpr double kTalkPercent = 4.0;
// Eager programs leave a GPU idle for some percent, and a profiler adds to it: every call is slower while it is traced.
constexpr double kIdlePercent = 10.0;
// Communication that is hidden to this share is as good as tuned jobs get: the last gradients and the first weights
// of a step have nothing to hide behind.
constexpr double kHiddenAtBest = 0.7;
// A collective under this size, or this time, is all latency: tens of microseconds per hop against 10 to 400 GB/s.
constexpr double kSmallMessageBytes = 2.0 * 1024 * 1024;
constexpr double kSmallMessageSeconds = 300e-6;
constexpr double kManyMessages = 50.0;  // a step; a bucket of 25 MB takes a model of a billion parameters there

// Averages over devices and ranks that took part.
struct Job {
  Figures mean;
  std::size_t devices = 0;
  std::string where;  // "rank 1 of 2, Tesla V100"
  bool on_device = true;
  const Trace* trace = nullptr;
};

void add(Figures& sum, const Figures& one) {
  for (double Figures::*const field : {&Figures::window_seconds,
                                       &Figures::busy_seconds,
                                       &Figures::compute_seconds,
                                       &Figures::communication_seconds,
                                       &Figures::exposed_seconds,
                                       &Figures::exposed_copy_seconds,
                                       &Figures::idle_seconds,
                                       &Figures::idle_loader_seconds,
                                       &Figures::idle_allocate_seconds,
                                       &Figures::idle_save_seconds,
                                       &Figures::idle_collective_seconds,
                                       &Figures::idle_launch_seconds,
                                       &Figures::idle_host_seconds,
                                       &Figures::idle_waiting_seconds,
                                       &Figures::loader_seconds,
                                       &Figures::median_kernel_seconds,
                                       &Figures::mean_communication_seconds,
                                       &Figures::mean_message_bytes,
                                       &Figures::synchronize_seconds,
                                       &Figures::idle_is_known}) {
    sum.*field += one.*field;
  }
  for (std::int64_t Figures::*const field :
       {&Figures::kernels, &Figures::communication_kernels, &Figures::messages_told, &Figures::synchronizations,
        &Figures::allocations}) {
    sum.*field += one.*field;
  }
  sum.steps += one.steps;
  if (sum.longest_communication.empty()) sum.longest_communication = one.longest_communication;
}

void divide(Figures& sum, double count) {
  for (double Figures::*const field : {&Figures::median_kernel_seconds, &Figures::mean_communication_seconds,
                                       &Figures::mean_message_bytes, &Figures::idle_is_known}) {
    sum.*field /= count;  // the others are used as shares of sums, or per step of all of them
  }
}

std::string place_of(const std::vector<Trace>& traces, std::size_t devices) {
  if (traces.size() > 1) return fmt::format("{} {}", traces.size(), traces.front().kind == "nsight" ? "GPUs" : "ranks");
  const Trace& trace = traces.front();
  std::string text =
      trace.rank >= 0 ? fmt::format("rank {}{}", trace.rank, trace.world > 0 ? fmt::format(" of {}", trace.world) : "")
                      : "";
  if (devices > 1) text += fmt::format("{}{} GPUs", text.empty() ? "" : ", ", devices);
  return text;
}

// Devices that did next to nothing are not part of the job: a context, a stray copy.
std::vector<Figures> working(const std::vector<Trace>& traces) {
  std::vector<Figures> all;
  for (const Trace& trace : traces) {
    std::vector<Figures> figures = figures_of(trace);
    double most = 0.0;
    for (const Figures& one : figures) most = std::max(most, one.busy_seconds);
    std::erase_if(figures, [&](const Figures& one) { return one.busy_seconds < 0.1 * most; });
    all.insert(all.end(), figures.begin(), figures.end());
  }
  return all;
}

Job job_of(const std::vector<Trace>& traces) {
  Job job;
  job.mean.idle_is_known = 0.0;
  for (const Figures& one : working(traces)) {
    add(job.mean, one);
    job.on_device = one.device >= 0;
    ++job.devices;
  }
  if (job.devices == 0) return job;
  divide(job.mean, static_cast<double>(job.devices));
  job.where = place_of(traces, job.devices);
  job.trace = &traces.front();
  return job;
}

std::string per_step(const Job& job, double value) {
  if (job.mean.steps > 0) return fmt::format("{:.1f} ms a step", 1e3 * value / job.mean.steps);
  const double devices = static_cast<double>(job.devices);
  return fmt::format("{:.1f} of {:.1f} ms", 1e3 * value / devices, 1e3 * job.mean.window_seconds / devices);
}

// "404 collectives a step".
std::string count_per_step(const Job& job, std::int64_t count, const char* what) {
  if (job.mean.steps > 0) return fmt::format("{:.0f} {} a step", static_cast<double>(count) / job.mean.steps, what);
  const double devices = static_cast<double>(job.devices);
  return fmt::format("{:.0f} {} in {:.0f} ms", static_cast<double>(count) / devices, what,
                     1e3 * job.mean.window_seconds / devices);
}

std::string prefix(const Job& job) { return job.where.empty() ? "" : job.where + ": "; }

std::string busy_text(const Job& job) {
  return fmt::format("GPU busy {:.1f}%", job.mean.percent(job.mean.busy_seconds));
}

Finding finding(Cause cause, double cost, double confidence, std::string evidence, std::string fix, double gain) {
  Finding result;
  result.cause = cause;
  result.cost_percent = cost;
  result.confidence = confidence;
  result.evidence = std::move(evidence);
  result.fix = std::move(fix);
  result.gain_percent = gain;
  return result;
}

bool uses_loader_in_process(const Trace& trace) {
  return std::ranges::any_of(trace.host, [&](const HostSlice& slice) {
    return slice.work == HostWork::kLoader && trace.name_of(slice.name).find("SingleProcess") != std::string::npos;
  });
}

void add_loader(const Job& job, std::vector<Finding>& found) {
  const Figures& f = job.mean;
  const double cost = f.percent(f.idle_loader_seconds);
  if (cost < kLoaderPercent || f.idle_is_known < 0.5) return;
  // Enough workers to make a batch while the device computes one, and one more.
  const double rest = std::max(f.window_seconds - f.idle_loader_seconds, 1e-9);
  const int workers = std::clamp(static_cast<int>(std::ceil(f.loader_seconds / rest)) + 1, 2, 16);
  const bool in_process = uses_loader_in_process(*job.trace);
  const std::string fix =
      in_process ? fmt::format(
                       "DataLoader(num_workers={}, pin_memory=True, persistent_workers=True, prefetch_factor=4): "
                       "batches are made by the training process itself (num_workers=0)",
                       std::max(workers, 4))
                 : fmt::format(
                       "raise num_workers (at least {} more), with pin_memory=True, persistent_workers=True, "
                       "prefetch_factor=4: batches come later than they are used",
                       workers);
  found.push_back(finding(
      Cause::kLoader, cost, cost >= 15.0 ? 0.95 : 0.8,
      fmt::format("{}the device waits for data {} ({:.1f}% of the time the program is in its loader), {}", prefix(job),
                  per_step(job, f.idle_loader_seconds), f.percent(f.loader_seconds), busy_text(job)),
      fix, gain_of(0.9 * cost)));
}

void add_driver(const Job& job, std::vector<Finding>& found) {
  const Figures& f = job.mean;
  if (f.idle_is_known < 0.5) return;
  if (const double cost = f.percent(f.idle_allocate_seconds); cost >= kDriverPercent) {
    found.push_back(finding(
        Cause::kMemoryPressure, cost, 0.85,
        fmt::format("{}the device waits {} for cudaMalloc and cudaFree ({})", prefix(job),
                    per_step(job, f.idle_allocate_seconds), count_per_step(job, f.allocations, "calls")),
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a smaller batch: the allocator gives memory back to the "
        "driver and takes it again in every step because it does not find room",
        gain_of(cost)));
  }
  if (const double cost = f.percent(f.idle_save_seconds); cost >= kDriverPercent) {
    found.push_back(finding(Cause::kCheckpointStall, cost, 0.85,
                            fmt::format("{}the device waits {} while a checkpoint is written", prefix(job),
                                        per_step(job, f.idle_save_seconds)),
                            "torch.distributed.checkpoint.async_save, or save less often", gain_of(0.9 * cost)));
  }
}

// All-to-all and point-to-point run as the same kernel.
std::string overlap_fix(const std::string& kernel) {
  const std::string name = to_lower(kernel);
  if (name.find("allgather") != std::string::npos || name.find("reducescatter") != std::string::npos) {
    return "FSDP: backward_prefetch=BACKWARD_PRE, forward_prefetch=True, larger wrapped units (or a larger "
           "reshard group): gather the next layer's weights while this one computes";
  }
  if (name.find("sendrecv") != std::string::npos || name.find("alltoall") != std::string::npos) {
    return "split the exchange into chunks and compute on one while the next is under way (expert or sequence "
           "parallel: overlap with the dense part; pipeline: asynchronous send and receive, more micro-batches)";
  }
  return "DDP(bucket_cap_mb=25 to 100, gradient_as_bucket_view=True, static_graph=True) so that buckets are reduced "
         "during "
         "backward; a communication hook with bf16 (bf16_compress_hook) halves what is sent";
}

double messages_per_step(const Job& job) {
  const double steps = std::max(job.mean.steps, static_cast<int>(job.devices));
  return static_cast<double>(job.mean.communication_kernels) / steps;
}

bool small_messages(const Job& job) {
  const Figures& f = job.mean;
  if (messages_per_step(job) < kManyMessages) return false;
  if (f.mean_message_bytes > 0.0) return f.mean_message_bytes < kSmallMessageBytes;
  return f.mean_communication_seconds < kSmallMessageSeconds;
}

// True when it says that messages are too small: then the pauses around them are theirs.
bool add_communication(const Job& job, double waited_percent, std::vector<Finding>& found) {
  const Figures& f = job.mean;
  if (!job.on_device && f.idle_is_known < 0.5) return false;
  const double exposed = std::max(0.0, f.percent(f.exposed_seconds) - waited_percent);
  const double talk = f.percent(f.communication_seconds);
  const std::string numbers =
      fmt::format("{} of {:.0f} us{}, {:.0f}% hidden behind compute",
                  count_per_step(job, f.communication_kernels, "collectives"), 1e6 * f.mean_communication_seconds,
                  f.mean_message_bytes > 0.0 ? fmt::format(" and {:.2f} MB", f.mean_message_bytes / 1e6) : "",
                  100.0 * f.overlap_share());
  if (small_messages(job)) {
    const double pauses = f.idle_is_known < 0.5 ? 0.0 : f.percent(f.idle_collective_seconds);
    const double cost = exposed + pauses;
    if (cost < kTalkPercent) return false;
    found.push_back(
        finding(Cause::kSmallMessages, cost, f.mean_message_bytes > 0.0 ? 0.95 : 0.85,
                fmt::format("{}{}: {:.1f}% of the time they are all that runs, {:.1f}% the device pauses around them",
                            prefix(job), numbers, exposed, pauses),
                "put gradients together: DDP(bucket_cap_mb=25, gradient_as_bucket_view=True), or torch.distributed."
                "all_reduce_coalesced; each collective pays its latency, and few of them can run behind compute",
                gain_of(0.8 * cost)));
    return true;
  }
  const double recoverable = exposed - (1.0 - kHiddenAtBest) * talk;
  if (exposed < kTalkPercent || recoverable < 0.5 * kTalkPercent) return false;
  found.push_back(
      finding(Cause::kExposedCommunication, exposed, f.idle_is_known < 0.5 ? 0.7 : 0.9,
              fmt::format("{}{:.1f}% of the time nothing but communication runs ({}), most of it {}; {}", prefix(job),
                          exposed, numbers, printable(f.longest_communication, 60), busy_text(job)),
              overlap_fix(f.longest_communication), gain_of(recoverable)));
  return false;
}

// Weights, activations or batches that are brought over the bus while nothing is computed.
void add_copies(const Job& job, std::vector<Finding>& found) {
  const Figures& f = job.mean;
  const double cost = f.percent(f.exposed_copy_seconds);
  if (cost < kIdlePercent || !job.on_device) return;
  found.push_back(finding(
      Cause::kHostBound, cost, 0.85,
      fmt::format("{}the device computes nothing {} while it copies from and to the memory of the host; kernels run "
                  "{:.1f}% of the time",
                  prefix(job), per_step(job, f.exposed_copy_seconds), f.percent(f.compute_seconds)),
      "keep weights and optimizer state on the device (no CPU offload), or copy from pinned memory on a stream of its "
      "own, a layer ahead: pin_memory=True, non_blocking=True",
      gain_of(std::min(0.7 * cost, 80.0))));
}

void add_idle(const Job& job, bool collectives_explained, std::vector<Finding>& found) {
  const Figures& f = job.mean;
  if (f.idle_is_known < 0.5 || !job.on_device) return;
  const double around = collectives_explained ? 0.0 : f.idle_collective_seconds;
  const double slow = f.idle_host_seconds + around, launching = f.idle_launch_seconds;
  const double cost = f.percent(slow + launching);
  if (cost < kIdlePercent) return;
  std::string syncs;
  if (f.synchronizations > 0) syncs = fmt::format(", {}", count_per_step(job, f.synchronizations, "synchronizations"));
  if (launching > slow) {
    found.push_back(finding(
        Cause::kLaunchBound, cost, 0.85,
        fmt::format("{}the device pauses {} between kernels because they are asked for too late: {}, half of "
                    "them shorter than {:.0f} us, {}{}",
                    prefix(job), per_step(job, slow + launching), count_per_step(job, f.kernels, "kernels"),
                    1e6 * f.median_kernel_seconds, busy_text(job), syncs),
        "torch.compile(model, mode=\"reduce-overhead\") or CUDA graphs, a fused optimizer (AdamW(fused=True)), a "
        "larger "
        "batch: fewer and longer kernels",
        gain_of(0.7 * cost)));
    return;
  }
  found.push_back(finding(
      Cause::kHostBound, cost, f.busy_seconds < 0.5 * f.window_seconds ? 0.9 : 0.8,
      fmt::format("{}the device has nothing to do {} while the program is elsewhere, {}{}", prefix(job),
                  per_step(job, slow + launching), busy_text(job), syncs),
      "profile the Python side (py-spy, torch.profiler with_stack=True); take .item(), .cpu() and print out of the "
      "step, move preprocessing to the loader's workers, then torch.compile",
      gain_of(std::min(0.7 * cost, 80.0))));
}

// What is found twice, for two reasons, is one finding.
std::vector<Finding> one_of_each(std::vector<Finding> found) {
  std::vector<Finding> merged;
  for (Finding& one : found) {
    const auto same = std::ranges::find(merged, one.cause, &Finding::cause);
    if (same == merged.end()) {
      merged.push_back(std::move(one));
      continue;
    }
    if (one.cost_percent > same->cost_percent) std::swap(one, *same);
    same->cost_percent += one.cost_percent;
    same->gain_percent += one.gain_percent;
    same->evidence += "; " + one.evidence;
  }
  return merged;
}

}  // namespace

double gain_of(double percent) {
  const double share = std::clamp(percent, 0.0, 90.0) / 100.0;
  return 100.0 * share / (1.0 - share);
}

std::vector<Finding> trace_findings(const std::vector<Trace>& traces) {
  double waited = 0.0;
  std::vector<Finding> found = late_rank_findings(traces, waited);
  const Job job = job_of(traces);
  if (job.devices == 0) return found;
  add_loader(job, found);
  add_driver(job, found);
  const bool small = add_communication(job, waited, found);
  add_copies(job, found);
  add_idle(job, small, found);
  return one_of_each(std::move(found));
}

}  // namespace lockstep::diagnose
