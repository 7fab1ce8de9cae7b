#include "lockstep/elastic/abortable_store.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::elastic {
namespace {

constexpr milliseconds kSlice{100};

}  // namespace

template <typename Call>
auto AbortableStore::in_slices(milliseconds timeout, const Call& call) -> decltype(call(timeout)) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (const auto reason = aborted_()) throw Fault(FaultKind::kAborted, -1, *reason);
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      return call(std::clamp(left, milliseconds(0), kSlice));
    } catch (const Fault& fault) {
      if (fault.kind() != FaultKind::kTimeout || left <= kSlice) throw;
    }
  }
}

std::string AbortableStore::get(const std::string& key, milliseconds timeout) {
  return in_slices(timeout, [&](milliseconds slice) { return store_->get(key, slice); });
}

void AbortableStore::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  in_slices(timeout, [&](milliseconds slice) { store_->wait(keys, slice); });
}

}  // namespace lockstep::elastic
