// Which spans a run keeps: every step of late, then fewer and fewer, within a number of bytes.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::telemetry {

// Of one rank in a run of `world` ranks.
std::int64_t span_budget_bytes(int world);

// The spans of one rank that are kept. When they are more than the budget, the oldest steps go, least round numbers
// first: the first ten steps stay, then every 1000th, every 100th, every 10th. The rule looks at the number of the step
// alone, so that all ranks keep the same ones. The newest half of the budget is never touched.
class SpanBudget {
 public:
  void add(std::int64_t step, std::int64_t bytes);
  // Steps to be deleted now, ascending; they are forgotten here. Empty as long as `budget_bytes` hold what is kept.
  std::vector<std::int64_t> take_surplus(std::int64_t budget_bytes);
  std::int64_t kept_bytes() const { return total_; }

 private:
  std::int64_t total_ = 0;
  std::map<std::int64_t, std::int64_t> steps_;  // and their bytes
};

}  // namespace lockstep::telemetry
