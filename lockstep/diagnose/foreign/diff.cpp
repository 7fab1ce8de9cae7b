#include "lockstep/diagnose/foreign/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/figures.h"

namespace lockstep::diagnose {
namespace {

constexpr std::size_t kMostKernels = 20;
constexpr double kNoticeable = 0.002;  // of the step: smaller changes of a kernel are not listed

// Sums over devices and steps, divided by them.
struct Side {
  Figures sum;
  double count = 0.0;  // devices x steps
  int steps = 0;
  std::map<std::string, std::pair<double, double>> kernels;  // seconds, calls
};

// Kernels without their arguments: template instances of one kernel stay apart, signatures do not matter.
std::string kernel_name(const std::string& name) {
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth <= 0 && i > 0 && name.compare(i, 11, "(anonymous ") != 0) return name.substr(0, i);
  }
  return name;
}

Side side_of(const std::vector<Trace>& traces) {
  Side side;
  for (const Trace& trace : traces) {
    const std::vector<Figures> figures = figures_of(trace);
    double most = 0.0;
    for (const Figures& one : figures) most = std::max(most, one.busy_seconds);
    for (const Figures& one : figures) {
      if (one.busy_seconds < 0.1 * most) continue;
      side.steps = std::max(side.steps, one.steps);
      side.count += std::max(1, one.steps);
      for (double Figures::*const field :
           {&Figures::window_seconds, &Figures::busy_seconds, &Figures::compute_seconds,
            &Figures::communication_seconds, &Figures::exposed_seconds, &Figures::exposed_copy_seconds,
            &Figures::idle_seconds, &Figures::idle_loader_seconds, &Figures::idle_allocate_seconds,
            &Figures::idle_save_seconds, &Figures::idle_collective_seconds, &Figures::idle_launch_seconds,
            &Figures::idle_host_seconds, &Figures::idle_waiting_seconds, &Figures::loader_seconds}) {
        side.sum.*field += one.*field;
      }
    }
    const Interval window = window_of(trace);
    for (const DeviceSlice& slice : trace.work) {
      if (slice.time.end <= window.begin || slice.time.begin >= window.end) continue;
      auto& [seconds, calls] = side.kernels[kernel_name(trace.name_of(slice.name))];
      seconds += static_cast<double>(slice.time.length()) * 1e-9;
      calls += 1.0;
    }
  }
  return side;
}

void add_parts(const Side& before, const Side& after, DiagnosisDiff& diff) {
  const auto line = [&](const char* what, auto&& of) {
    return ChangedTime{what, of(before.sum) / before.count, of(after.sum) / after.count};
  };
  diff.step = line("step", [](const Figures& f) { return f.window_seconds; });
  diff.parts = {
      line("computing", [](const Figures& f) { return f.compute_seconds; }),
      line("exposed communication", [](const Figures& f) { return f.exposed_seconds; }),
      line("exposed copies", [](const Figures& f) { return f.exposed_copy_seconds; }),
      line("idle: loader", [](const Figures& f) { return f.idle_loader_seconds; }),
      line("idle: memory of the driver", [](const Figures& f) { return f.idle_allocate_seconds; }),
      line("idle: checkpoint", [](const Figures& f) { return f.idle_save_seconds; }),
      line("idle: around collectives", [](const Figures& f) { return f.idle_collective_seconds; }),
      line("idle: launches", [](const Figures& f) { return f.idle_launch_seconds; }),
      line("idle: program", [](const Figures& f) { return f.idle_host_seconds; }),
      line("idle: dependencies", [](const Figures& f) { return f.idle_waiting_seconds; }),
  };
  const auto other = [](const Figures& f) {
    return f.busy_seconds - f.compute_seconds - f.exposed_seconds - f.exposed_copy_seconds;
  };
  diff.parts.push_back(line("other work of the device", other));
  diff.more = {line("communication, hidden or not", [](const Figures& f) { return f.communication_seconds; }),
               line("program in its loader", [](const Figures& f) { return f.loader_seconds; })};
}

void add_kernels(const Side& before, const Side& after, DiagnosisDiff& diff) {
  std::map<std::string, ChangedKernel> all;
  for (const auto& [name, sums] : before.kernels) {
    all[name].before_seconds = sums.first / before.count;
    all[name].before_count = sums.second / before.count;
  }
  for (const auto& [name, sums] : after.kernels) {
    all[name].after_seconds = sums.first / after.count;
    all[name].after_count = sums.second / after.count;
  }
  const double least = kNoticeable * std::max(diff.step.before, diff.step.after);
  for (auto& [name, kernel] : all) {
    if (std::abs(kernel.change()) < least) continue;
    kernel.name = name;
    diff.kernels.push_back(kernel);
  }
  std::ranges::stable_sort(diff.kernels, std::greater<>(), [](const ChangedKernel& k) { return std::abs(k.change()); });
  if (diff.kernels.size() > kMostKernels) diff.kernels.resize(kMostKernels);
}

std::string time_line(const ChangedTime& line, const ChangedTime& step) {
  const double percent = step.before > 0.0 ? 100.0 * line.change() / step.before : 0.0;
  return fmt::format("  {:<28}{:>12.3f}{:>12.3f}{:>+12.3f}{:>+9.1f}%\n", line.what, 1e3 * line.before, 1e3 * line.after,
                     1e3 * line.change(), percent);
}

std::string kernel_change(const ChangedKernel& kernel) {
  if (kernel.before_count == 0.0) return "new";
  if (kernel.after_count == 0.0) return "gone";
  const double each_before = kernel.before_seconds / kernel.before_count,
               each_after = kernel.after_seconds / kernel.after_count;
  return fmt::format("{:+.0f}% each, {:.0f} -> {:.0f} calls", 100.0 * (each_after / std::max(each_before, 1e-12) - 1.0),
                     kernel.before_count, kernel.after_count);
}

nlohmann::json time_json(const ChangedTime& line) {
  return {{"what", line.what},
          {"before_seconds", line.before},
          {"after_seconds", line.after},
          {"change_seconds", line.change()}};
}

}  // namespace

DiagnosisDiff diff_traces(const std::vector<Trace>& before, const std::vector<Trace>& after) {
  DiagnosisDiff diff;
  const Side first = side_of(before), second = side_of(after);
  diff.before_steps = first.steps;
  diff.after_steps = second.steps;
  if (first.count <= 0.0 || second.count <= 0.0) return diff;
  add_parts(first, second, diff);
  add_kernels(first, second, diff);
  return diff;
}

std::string to_text(const DiagnosisDiff& diff) {
  const bool steps = diff.before_steps > 0 && diff.after_steps > 0;
  std::string page = fmt::format("before  {}\nafter   {}\n", printable(diff.before, 200), printable(diff.after, 200));
  const double ratio = diff.step.after > 0.0 ? diff.step.before / diff.step.after : 0.0;
  page += fmt::format("{} takes {:.3f} ms instead of {:.3f} ms: {}\n\n", steps ? "a step" : "the recording",
                      1e3 * diff.step.after, 1e3 * diff.step.before,
                      ratio >= 1.0 ? fmt::format("{:.2f} times as fast", ratio)
                                   : fmt::format("{:.2f} times as long", ratio > 0.0 ? 1.0 / ratio : 0.0));
  page += fmt::format("  {:<28}{:>12}{:>12}{:>12}{:>10}\n", steps ? "ms a step" : "ms", "before", "after", "change",
                      "of before");
  for (const ChangedTime& line : diff.parts) {
    if (line.before > 0.0 || line.after > 0.0) page += time_line(line, diff.step);
  }
  page += time_line(diff.step, diff.step) + "\n";
  for (const ChangedTime& line : diff.more) {
    if (line.before > 0.0 || line.after > 0.0) page += time_line(line, diff.step);
  }
  if (!diff.kernels.empty()) page += "\nkernels, ms by how much they changed\n";
  for (const ChangedKernel& kernel : diff.kernels) {
    page +=
        fmt::format("{:>+12.3f}  {}  ({})\n", 1e3 * kernel.change(), printable(kernel.name, 70), kernel_change(kernel));
  }
  return page;
}

nlohmann::json to_json(const DiagnosisDiff& diff) {
  nlohmann::json parts = nlohmann::json::array(), more = nlohmann::json::array(), kernels = nlohmann::json::array();
  for (const ChangedTime& line : diff.parts) parts.push_back(time_json(line));
  for (const ChangedTime& line : diff.more) more.push_back(time_json(line));
  for (const ChangedKernel& kernel : diff.kernels) {
    kernels.push_back({{"name", printable(kernel.name, 300)},
                       {"before_seconds", kernel.before_seconds},
                       {"after_seconds", kernel.after_seconds},
                       {"before_count", kernel.before_count},
                       {"after_count", kernel.after_count}});
  }
  return {{"schema", "lockstep.diagnosis_diff/1"},
          {"before", printable(diff.before, 2000)},
          {"after", printable(diff.after, 2000)},
          {"per_step", diff.before_steps > 0 && diff.after_steps > 0},
          {"step", time_json(diff.step)},
          {"parts", parts},
          {"more", more},
          {"kernels", kernels}};
}

}  // namespace lockstep::diagnose
