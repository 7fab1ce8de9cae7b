// Board: what a search keeps of the candidates it prices. One per thread; merging them in any order gives the same
// board, because the order of entries is total (score, time, then the number of the candidate in the space).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/planner/search/space.h"

namespace lockstep::planner {

// A candidate as numbers; Space::expand() gives its layout and batch back.
struct Entry {
  double score = -std::numeric_limits<double>::infinity();
  double step_seconds = std::numeric_limits<double>::infinity();
  double memory_bytes = std::numeric_limits<double>::infinity();
  double fill = std::numeric_limits<double>::infinity();  // memory over capacity
  std::uint32_t mesh = std::numeric_limits<std::uint32_t>::max();
  Choice choice;
  bool exists() const { return mesh != std::numeric_limits<std::uint32_t>::max(); }
};

// Strict total orders over distinct candidates: by the objective, and by how little memory is lacking.
inline bool is_better(const Entry& a, const Entry& b) {
  if (a.score != b.score) return a.score > b.score;
  if (a.step_seconds != b.step_seconds) return a.step_seconds < b.step_seconds;
  if (a.memory_bytes != b.memory_bytes) return a.memory_bytes < b.memory_bytes;
  return std::pair(a.mesh, a.choice.number) < std::pair(b.mesh, b.choice.number);
}
inline bool is_nearer(const Entry& a, const Entry& b) {
  if (a.fill != b.fill) return a.fill < b.fill;
  return is_better(a, b);
}

// The `size` first in an order.
template <bool (*comes_before)(const Entry&, const Entry&)>
class TopEntries {
 public:
  explicit TopEntries(std::size_t size) : size_(size) {}
  void add(const Entry& entry) {
    if (entries_.size() < size_ || (size_ > 0 && comes_before(entry, entries_.back()))) insert(entry);
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void insert(const Entry& entry);
  std::size_t size_;
  std::vector<Entry> entries_;  // in order
};
using BestEntries = TopEntries<is_better>;
using NearestEntries = TopEntries<is_nearer>;

// Entries that no other one beats in step time and memory together.
class Front {
 public:
  void add(const Entry& entry);
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;  // step_seconds ascending, memory_bytes descending, both strictly
};

// Best candidate of each family, a family being all candidates with one value of one key; where none of it fits, the
// one nearest to fitting.
class Families {
 public:
  explicit Families(const SearchRequest& request);

  // Between begin_mesh() and end_mesh() come the candidates of one mesh.
  void begin_mesh(const plan::Layout& mesh, std::span<const plan::BatchPlan> batches);
  void add(const Entry& entry, bool fits, const plan::Layout& layout);
  void end_mesh();

  void merge(const Families& other);
  // By "key=value".
  std::map<std::string, Entry> entries() const;

 private:
  struct Slot {
    Entry best, nearest;
    void add(const Entry& entry, bool fits) {
      Entry& kept = fits ? best : nearest;
      if (fits ? is_better(entry, kept) : is_nearer(entry, kept)) kept = entry;
    }
    void merge(const Slot& other) {
      add(other.best, true);
      add(other.nearest, false);
    }
  };
  using Key = std::pair<const char*, std::int64_t>;
  std::vector<Key> axes_of(const plan::Layout& mesh) const;
  void collect(std::map<std::string, Entry>& found, const std::string& name, const Slot& slot) const;

  // Families of a choice, at fixed places; those of a mesh are few and updated once per mesh.
  static constexpr std::size_t kSchedules = 5, kRecomputes = 3, kSwitch = 2;
  std::array<Slot, kSchedules> schedules_;
  std::array<Slot, kRecomputes> recomputes_;
  std::array<Slot, kSwitch> sequence_parallel_;
  std::array<Slot, kSwitch> exchanges_;
  std::vector<Slot> virtual_stages_;        // by number
  std::vector<std::int64_t> micro_values_;  // divisors of the global batch
  std::vector<Slot> micros_;
  std::map<std::pair<std::string, std::int64_t>, Slot> axes_;

  std::vector<std::size_t> mesh_micros_;  // place in micros_ of each batch of the mesh
  plan::Layout mesh_;
  Slot mesh_slot_;
};

}  // namespace lockstep::planner
