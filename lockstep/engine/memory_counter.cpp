#include "lockstep/engine/memory_counter.h"

#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {

class MemoryCounter::Report : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, nn::compat::ReportedTotal, nn::compat::ReportedTotal,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    now += bytes;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t now = 0;
  std::int64_t peak = 0;
};

struct MemoryCounter::Guard {
  explicit Guard(std::shared_ptr<c10::DebugInfoBase> info)
      : guard(c10::DebugInfoKind::PROFILER_STATE, std::move(info)) {}
  c10::DebugInfoGuard guard;
};

namespace {

// libtorch warns of every thousandth block freed here that another thread allocated (a loader's batch). Where it logs
// through glog, the executable has set the level before glog was loaded.
void keep_libtorch_from_warning() {
#ifndef C10_USE_GLOG
  FLAGS_caffe2_log_level = std::max<int>(FLAGS_caffe2_log_level, c10::GLOG_ERROR);
#endif
}

}  // namespace

MemoryCounter::MemoryCounter() : report_(std::make_shared<Report>()), guard_(std::make_unique<Guard>(report_)) {
  keep_libtorch_from_warning();
}

MemoryCounter::~MemoryCounter() = default;

std::int64_t MemoryCounter::bytes() const { return report_->now; }
std::int64_t MemoryCounter::peak_bytes() const { return report_->peak; }
void MemoryCounter::reset_peak() { report_->peak = report_->now; }

}  // namespace lockstep::engine
