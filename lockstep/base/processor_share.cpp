#include "lockstep/base/processor_share.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace lockstep {
namespace {

// Of a folder of /proc: nanoseconds on a core, nanoseconds waiting for one.
ProcessorTime read_counts(const std::filesystem::path& task) {
  constexpr double kNanosecond = 1e-9;
  std::ifstream file(task / "schedstat");
  double ran = 0, waited = 0;
  if (!(file >> ran >> waited)) return {};
  return {kNanosecond * ran, kNanosecond * waited};
}

}  // namespace

ProcessorTime& ProcessorTime::operator+=(const ProcessorTime& other) {
  ran_seconds += other.ran_seconds;
  waited_seconds += other.waited_seconds;
  return *this;
}

ProcessorTime processor_time() { return read_counts("/proc/thread-self"); }

ThreadTimes thread_times_of(std::int64_t process) {
  ThreadTimes times;
  std::error_code gone;
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(threads, gone)) {
    times[std::strtoll(thread.path().filename().c_str(), nullptr, 10)] = read_counts(thread.path());
  }
  return times;
}

ProcessorTime busiest_between(const ThreadTimes& before, const ThreadTimes& after) {
  ProcessorTime busiest;
  for (const auto& [thread, end] : after) {
    const auto start = before.find(thread);
    if (start == before.end()) continue;
    const double ran = end.ran_seconds - start->second.ran_seconds;
    if (ran > busiest.ran_seconds) busiest = {ran, end.waited_seconds - start->second.waited_seconds};
  }
  return busiest;
}

double share_between(const ProcessorTime& before, const ProcessorTime& after) {
  const double ran = after.ran_seconds - before.ran_seconds;
  const double waited = after.waited_seconds - before.waited_seconds;
  return ran > 0 && waited > 0 ? ran / (ran + waited) : 1.0;
}

}  // namespace lockstep
