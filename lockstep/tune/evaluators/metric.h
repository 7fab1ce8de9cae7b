// Throughputs in what a program prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tune {

// A value that a throughput can have: above 0, and not so large that sums of squares overflow.
bool is_throughput(double value);

// Finds `name: value`, `name=value` (also quoted, as in Python dictionaries) and JSON lines with the key. The first
// metric that appears is the one that counts from then on, so that a program that prints tokens_per_second and
// samples_per_second is not read twice.
class MetricReader {
 public:
  // "": tokens_per_second, samples_per_second or throughput, the earlier ones preferred within a line.
  explicit MetricReader(const std::string& name = "");

  // Values above 0 in this line, in their order. Others (0, negative, nan) are counted but not handed out.
  std::vector<double> read(std::string_view line);

  const std::string& metric() const { return metric_; }  // "" until one appeared
  int refused() const { return refused_; }               // values that are not a throughput
  std::string unit() const;                              // "tokens/s", "samples/s", else the name
  std::string wanted() const;                            // the names looked for, for messages

 private:
  bool take(double value, std::vector<double>& values);

  std::vector<std::string> names_;
  std::string metric_;
  int refused_ = 0;
};

}  // namespace lockstep::tune
