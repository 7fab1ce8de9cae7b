// Figures of plans in words, shared by the pages that show them.
#pragma once

#include <string>

#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::report {

// "4 nodes x 8 H100 (80.0 GiB), NVLink 450 GB/s, 8 x InfiniBand 50.0 GB/s, 6.88 USD per GPU-hour".
std::string describe_group(const spec::NodeGroup& group);

// "1024 sequences of 4096 (4.19 M tokens) = micro 2 x 32 accumulation x 16 data ranks".
std::string describe_batch(const plan::BatchPlan& batch, const plan::Layout& layout);

// "12.3 days, 9.45 k GPU-hours, 65.0 k USD".
std::string describe_cost(const plan::Cost& cost);

// "65.0 k", "12.40".
std::string format_dollars(double usd);

// Layout without the precision, which a table shows elsewhere or not at all.
std::string short_layout(plan::Layout layout);

}  // namespace lockstep::report
