#include "lockstep/base/processor_share.h"

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

ProcessorTime processor_time_of(std::int64_t process) {
  ProcessorTime sum;
  std::error_code gone;
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(threads, gone)) sum += read_counts(thread.path());
  return sum;
}

double share_between(const ProcessorTime& before, const ProcessorTime& after) {
  const double ran = after.ran_seconds - before.ran_seconds;
  const double waited = after.waited_seconds - before.waited_seconds;
  return ran > 0 && waited > 0 ? ran / (ran + waited) : 1.0;
}

}  // namespace lockstep
