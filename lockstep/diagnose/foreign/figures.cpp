#include "lockstep/diagnose/foreign/figures.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>

namespace lockstep::diagnose {
namespace {

constexpr double kShownAtLeast = 0.2;  // of a step of a program that computes on the CPU

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

Intervals clipped(Intervals any, const Interval& window) { return overlap(union_of(std::move(any)), {window}); }

Intervals host_times(const Trace& trace, HostWork work, const Interval& window) {
  Intervals times;
  for (const HostSlice& slice : trace.host) {
    if (slice.work == work) times.push_back(slice.time);
  }
  return clipped(std::move(times), window);
}

template <class Wanted>
Intervals device_times(std::span<const DeviceSlice> work, const Interval& window, Wanted&& wanted) {
  Intervals times;
  for (const DeviceSlice& slice : work) {
    if (wanted(slice.work)) times.push_back(slice.time);
  }
  return clipped(std::move(times), window);
}

// Which slice ends a gap, and which one began it. Slices are sorted by begin.
struct Neighbours {
  const DeviceSlice* before = nullptr;
  const DeviceSlice* after = nullptr;
};

class GapSorter {
 public:
  GapSorter(const Trace& trace, std::span<const DeviceSlice> work, Figures& figures)
      : work_(work),
        figures_(figures),
        loader_(host_times(trace, HostWork::kLoader, figures.window)),
        allocate_(host_times(trace, HostWork::kAllocate, figures.window)),
        save_(host_times(trace, HostWork::kSave, figures.window)) {}

  // `gap` is one stretch without device work.
  void sort(const Interval& gap) {
    const Neighbours beside = neighbours(gap);
    Intervals rest{gap};
    figures_.idle_loader_seconds += take(rest, loader_);
    figures_.idle_save_seconds += take(rest, save_);
    figures_.idle_allocate_seconds += take(rest, allocate_);
    const double left = seconds(total(rest));
    if (left <= 0.0) return;
    const bool asked_before = beside.after != nullptr && beside.after->launch.end != kNoTime &&
                              beside.after->launch.end <= gap.begin && beside.before != nullptr;
    if (asked_before) {
      figures_.idle_waiting_seconds += left;
    } else if (is_communication(beside.before) || is_communication(beside.after)) {
      figures_.idle_collective_seconds += left;
    } else if (gap.length() <= kShortGapNs) {
      figures_.idle_launch_seconds += left;
    } else {
      figures_.idle_host_seconds += left;
    }
  }

 private:
  static bool is_communication(const DeviceSlice* slice) {
    return slice != nullptr && slice->work == Work::kCommunication;
  }

  static double take(Intervals& rest, const Intervals& why) {
    if (why.empty()) return 0.0;
    const std::int64_t before = total(rest);
    rest = minus(rest, why);
    return seconds(before - total(rest));
  }

  Neighbours neighbours(const Interval& gap) {
    Neighbours found;
    while (next_ < work_.size() && work_[next_].time.begin < gap.end) {
      if (last_ == nullptr || work_[next_].time.end >= last_->time.end) last_ = &work_[next_];
      ++next_;
    }
    if (last_ != nullptr) found.before = last_;
    if (next_ < work_.size()) found.after = &work_[next_];
    return found;
  }

  std::span<const DeviceSlice> work_;
  Figures& figures_;
  Intervals loader_, allocate_, save_;
  std::size_t next_ = 0;
  const DeviceSlice* last_ = nullptr;
};

void add_communication(const Trace& trace, std::span<const DeviceSlice> work, Figures& figures) {
  std::map<std::uint32_t, std::int64_t> by_name;
  double sum = 0.0, bytes = 0.0;
  for (const DeviceSlice& slice : work) {
    if (slice.work != Work::kCommunication) continue;
    ++figures.communication_kernels;
    sum += seconds(slice.time.length());
    by_name[slice.name] += slice.time.length();
    if (slice.collective != kNone && trace.collectives[slice.collective].bytes > 0.0) {
      bytes += trace.collectives[slice.collective].bytes;
      ++figures.messages_told;
    }
  }
  if (figures.communication_kernels == 0) return;
  figures.mean_communication_seconds = sum / static_cast<double>(figures.communication_kernels);
  const auto longest = std::ranges::max_element(by_name, {}, [](const auto& entry) { return entry.second; });
  figures.longest_communication = trace.name_of(longest->first);
  if (figures.messages_told == 0) {  // the program's own record of them
    bool from_parameters = false;
    for (const HostSlice& slice : trace.host) {
      if (slice.work != HostWork::kCollective || slice.collective == kNone) continue;
      const bool parameters = trace.name_of(slice.name) == "record_param_comms";
      if (parameters && !from_parameters) figures.messages_told = 0, bytes = 0.0, from_parameters = true;
      if (parameters != from_parameters || trace.collectives[slice.collective].bytes <= 0.0) continue;
      bytes += trace.collectives[slice.collective].bytes;
      ++figures.messages_told;
    }
  }
  if (figures.messages_told > 0) figures.mean_message_bytes = bytes / static_cast<double>(figures.messages_told);
}

void add_kernels(std::span<const DeviceSlice> work, Figures& figures) {
  std::vector<std::int64_t> lengths;
  for (const DeviceSlice& slice : work) {
    if (slice.work == Work::kCompute) lengths.push_back(slice.time.length());
  }
  figures.kernels = static_cast<std::int64_t>(lengths.size());
  if (lengths.empty()) return;
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::ranges::nth_element(lengths, middle);
  figures.median_kernel_seconds = seconds(*middle);
}

void add_program(const Trace& trace, Figures& figures) {
  for (const HostSlice& slice : trace.host) {
    if (slice.time.end <= figures.window.begin || slice.time.begin >= figures.window.end) continue;
    if (slice.work == HostWork::kSynchronize) {
      ++figures.synchronizations;
      figures.synchronize_seconds += seconds(slice.time.length());
    } else if (slice.work == HostWork::kAllocate) {
      ++figures.allocations;
    }
  }
  figures.loader_seconds = seconds(total(host_times(trace, HostWork::kLoader, figures.window)));
}

Figures figures_of_device(const Trace& trace, std::span<const DeviceSlice> work, const Interval& window) {
  Figures figures;
  figures.device = work.front().device;
  figures.window = window;
  figures.steps = static_cast<int>(marked_steps(trace).size());
  const Intervals compute = device_times(work, window, [](Work kind) { return kind == Work::kCompute; });
  const Intervals talk = device_times(work, window, [](Work kind) { return kind == Work::kCommunication; });
  const Intervals copies =
      device_times(work, window, [](Work kind) { return kind == Work::kCopyIn || kind == Work::kCopyOut; });
  Intervals busy = device_times(work, window, [](Work) { return true; });
  // What the profiler takes for itself is not the job's idle time: the window is without it.
  const Intervals profiler = minus(host_times(trace, HostWork::kProfiler, window), busy);
  figures.window_seconds = seconds(window.length() - total(profiler));
  figures.busy_seconds = seconds(total(busy));
  figures.compute_seconds = seconds(total(compute));
  figures.communication_seconds = seconds(total(talk));
  figures.exposed_seconds = seconds(total(minus(talk, compute)));
  figures.exposed_copy_seconds = seconds(total(minus(minus(copies, compute), talk)));
  const Intervals gaps = minus(gaps_in(busy, window), profiler);
  figures.idle_seconds = seconds(total(gaps));
  figures.idle_is_known = trace.calls_seen < kThinTrace ? 0.0 : 1.0;
  GapSorter sorter(trace, work, figures);
  for (const Interval& gap : gaps) sorter.sort(gap);
  add_communication(trace, work, figures);
  add_kernels(work, figures);
  add_program(trace, figures);
  return figures;
}

// Without a device the program's own operators are the work, and what waits is the program itself.
Figures figures_of_program(const Trace& trace, const Interval& window) {
  Figures figures;
  figures.device = -1;
  figures.window = window;
  figures.steps = static_cast<int>(marked_steps(trace).size());
  figures.window_seconds = seconds(window.length());
  const Intervals compute = host_times(trace, HostWork::kCompute, window);
  const Intervals talk = host_times(trace, HostWork::kCollective, window);
  const Intervals loader = minus(host_times(trace, HostWork::kLoader, window), talk);
  figures.compute_seconds = seconds(total(minus(compute, loader)));
  figures.communication_seconds = seconds(total(talk));
  figures.exposed_seconds = seconds(total(minus(talk, compute)));
  figures.loader_seconds = seconds(total(loader));
  figures.idle_loader_seconds = figures.loader_seconds;
  figures.idle_seconds = figures.loader_seconds;
  figures.busy_seconds = figures.window_seconds - figures.idle_seconds;
  figures.communication_kernels = std::ranges::count(trace.host, HostWork::kCollective, &HostSlice::work);
  if (figures.communication_kernels > 0) {
    figures.mean_communication_seconds =
        figures.communication_seconds / static_cast<double>(figures.communication_kernels);
  }
  // A trace that shows hardly any operator was thinned out, or its program computes elsewhere.
  const bool shows_work = figures.compute_seconds > kShownAtLeast * figures.window_seconds;
  figures.idle_is_known = figures.steps > 0 && shows_work ? 1.0 : 0.0;
  return figures;
}

}  // namespace

std::vector<MarkedStep> marked_steps(const Trace& trace) {
  std::vector<MarkedStep> steps;
  for (const HostSlice& slice : trace.host) {
    if (slice.work != HostWork::kStep || slice.time.length() <= 0) continue;
    const std::string& name = trace.name_of(slice.name);
    MarkedStep step{static_cast<std::int64_t>(steps.size()), slice.time};
    if (const std::size_t mark = name.find('#'); mark != std::string::npos) {
      std::from_chars(name.data() + mark + 1, name.data() + name.size(), step.number);
    }
    if (!steps.empty() && slice.time.begin < steps.back().time.end) {  // the same one, seen by another thread
      steps.back().time.end = std::max(steps.back().time.end, slice.time.end);
      continue;
    }
    steps.push_back(step);
  }
  return steps;
}

Interval window_of(const Trace& trace) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = kNoTime;
  for (const DeviceSlice& slice : trace.work) {
    first = std::min(first, slice.time.begin);
    last = std::max(last, slice.time.end);
  }
  const std::vector<MarkedStep> steps = marked_steps(trace);
  if (steps.empty()) {
    if (trace.work.empty()) {
      for (const HostSlice& slice : trace.host) {
        first = std::min(first, slice.time.begin);
        last = std::max(last, slice.time.end);
      }
    }
    return last > first ? Interval{first, last} : Interval{};
  }
  Interval window{steps.front().time.begin, steps.back().time.end};
  // The device runs behind the program: the last step's work ends after its mark, by a step at most.
  const std::int64_t step = window.length() / static_cast<std::int64_t>(steps.size());
  if (last > window.end && last <= window.end + step) window.end = last;
  // Before the first work that was recorded the device may have been busy with work that was not.
  std::int64_t first_inside = window.end;
  for (const DeviceSlice& slice : trace.work) {
    if (slice.time.end > window.begin) first_inside = std::min(first_inside, slice.time.begin);
  }
  if (steps.size() > 1 && first_inside < window.end) window.begin = std::max(window.begin, first_inside);
  return window;
}

std::vector<Figures> figures_of(const Trace& trace) {
  const Interval window = window_of(trace);
  std::vector<Figures> all;
  if (window.length() <= 0) return all;
  const std::span<const DeviceSlice> work(trace.work);
  for (std::size_t begin = 0; begin < work.size();) {
    std::size_t end = begin;
    while (end < work.size() && work[end].device == work[begin].device) ++end;
    all.push_back(figures_of_device(trace, work.subspan(begin, end - begin), window));
    begin = end;
  }
  if (all.empty() && !trace.host.empty()) all.push_back(figures_of_program(trace, window));
  return all;
}

}  // namespace lockstep::diagnose
