// Objective: one figure that a study wants large or small. A study has one (throughput) or two to four.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

struct Objective {
  enum class Source {
    kThroughput,  // the trial's own
    kPrinted,     // a figure beside it: Trial::values
    kDollars      // price of the devices that the trial held, per million units of throughput
  };
  std::string name;   // as people wrote it, without min: or max:
  std::string value;  // kPrinted: the key of Trial::values
  Source source = Source::kThroughput;
  bool largest = true;  // better when larger
  bool operator==(const Objective&) const = default;
};

inline constexpr std::size_t kMostObjectives = 4;
inline constexpr const char* kDeviceMemoryValue = "memory_bytes";     // what a program prints or answers
inline constexpr const char* kHostMemoryValue = "host_memory_bytes";  // what we see its processes hold

// "tokens_per_second,memory": throughput (under any of its names) first, added where it is missing; then `memory`,
// `host_memory`, `dollars`, and min:NAME or max:NAME for any other figure. UserError (exit 2) for others, for doubles
// and for more than four.
std::vector<Objective> parse_objectives(const std::string& text);
// What parse_objectives() reads back.
std::string to_text(std::span<const Objective> objectives);

// The keys of Trial::values that the objectives need.
std::vector<std::string> printed_values(std::span<const Objective> objectives);

// Above 0; nullopt: the trial was not measured, or lacks the figure. `usd_per_device_hour` is for kDollars.
std::optional<double> value_of(const Objective& objective, const Trial& trial, double usd_per_device_hour);

// The trials as a study of that objective alone: `throughput` is the figure, or one over it where less is better, so
// that models of throughput fit it. Trials without the figure are left out, but for failures.
std::vector<Trial> as_throughput(const Objective& objective, std::span<const Trial> trials, double usd_per_device_hour);

}  // namespace lockstep::tune
