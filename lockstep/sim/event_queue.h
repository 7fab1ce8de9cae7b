// The events of a simulation in the order of their time; equal times in the order they were added, so that a simulation
// depends on its inputs and its seed alone.
//
//   EventQueue queue;
//   queue.add(now + 3.0, kRepaired | node << 4);
//   while (!queue.empty()) { const auto [time, what] = queue.pop(); ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::sim {

// A heap whose nodes have four children: those are one cache line, so that a pop costs half the misses of a binary one
// (LaMarca and Ladner 1996, "The influence of caches on the performance of heaps").
class EventQueue {
 public:
  struct Event {
    double time = 0.0;
    std::uint32_t what = 0;  // the caller's own: a kind and a number
  };

  void reserve(std::size_t events) { heap_.reserve(events); }
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  double next_time() const { return heap_.front().time; }
  void clear() {
    heap_.clear();
    added_ = 0;
  }

  // `time` is not NaN. At most 2^32 events may be added before clear().
  void add(double time, std::uint32_t what) {
    const Entry entry{time, static_cast<std::uint64_t>(added_++) << 32 | what};
    std::size_t place = heap_.size();
    heap_.push_back(entry);
    while (place > 0) {
      const std::size_t parent = (place - 1) / kChildren;
      if (!before(entry, heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = entry;
  }

  // Not when empty.
  Event pop() {
    const Entry first = heap_.front(), last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    return {first.time, static_cast<std::uint32_t>(first.order)};
  }

 private:
  static constexpr std::size_t kChildren = 4;
  struct Entry {
    double time;
    std::uint64_t order;  // when it was added, then `what`
  };

  static bool before(const Entry& a, const Entry& b) {
    return a.time < b.time || (a.time == b.time && a.order < b.order);
  }

  void sink(const Entry& entry) {
    const std::size_t size = heap_.size();
    std::size_t place = 0;
    for (std::size_t child = 1; child < size; child = kChildren * place + 1) {
      std::size_t best = child;
      const std::size_t end = child + kChildren < size ? child + kChildren : size;
      for (std::size_t other = child + 1; other < end; ++other) {
        if (before(heap_[other], heap_[best])) best = other;
      }
      if (!before(heap_[best], entry)) break;
      heap_[place] = heap_[best];
      place = best;
    }
    heap_[place] = entry;
  }

  std::vector<Entry> heap_;
  std::uint32_t added_ = 0;
};

}  // namespace lockstep::sim
