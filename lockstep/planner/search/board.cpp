#include "lockstep/planner/search/board.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::planner {

template <bool (*comes_before)(const Entry&, const Entry&)>
void TopEntries<comes_before>::insert(const Entry& entry) {
  entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry, comes_before), entry);
  if (entries_.size() > size_) entries_.pop_back();
}
template class TopEntries<is_better>;
template class TopEntries<is_nearer>;

void Front::add(const Entry& entry) {
  // First kept entry that is not faster; the one before it is the leanest of the faster ones.
  const auto slower =
      std::lower_bound(entries_.begin(), entries_.end(), entry,
                       [](const Entry& kept, const Entry& added) { return kept.step_seconds < added.step_seconds; });
  if (slower != entries_.begin() && std::prev(slower)->memory_bytes <= entry.memory_bytes) return;
  if (slower != entries_.end() && slower->step_seconds == entry.step_seconds) {
    if (slower->memory_bytes < entry.memory_bytes) return;
    if (slower->memory_bytes == entry.memory_bytes && is_better(*slower, entry)) return;
  }
  const auto leaner =
      std::find_if(slower, entries_.end(), [&](const Entry& kept) { return kept.memory_bytes < entry.memory_bytes; });
  entries_.insert(entries_.erase(slower, leaner), entry);
}

Families::Families(const SearchRequest& request)
    : virtual_stages_(static_cast<std::size_t>(request.model.layers) + 2),
      micro_values_(divisors(request.global_sequences)),
      micros_(micro_values_.size()) {}

void Families::begin_mesh(const plan::Layout& mesh, std::span<const plan::BatchPlan> batches) {
  mesh_ = mesh;
  mesh_slot_ = Slot();
  mesh_micros_.clear();
  for (const plan::BatchPlan& batch : batches) {
    const auto place = std::lower_bound(micro_values_.begin(), micro_values_.end(), batch.micro);
    mesh_micros_.push_back(static_cast<std::size_t>(place - micro_values_.begin()));
  }
}

void Families::add(const Entry& entry, bool fits, const plan::Layout& layout) {
  mesh_slot_.add(entry, fits);
  recomputes_[static_cast<std::size_t>(layout.recompute)].add(entry, fits);
  micros_[mesh_micros_[entry.choice.batch]].add(entry, fits);
  if (layout.pp > 1) {
    schedules_[static_cast<std::size_t>(layout.schedule)].add(entry, fits);
    virtual_stages_[static_cast<std::size_t>(layout.virtual_stages)].add(entry, fits);
  }
  if (layout.tp > 1) sequence_parallel_[layout.sequence_parallel ? 1 : 0].add(entry, fits);
  if (layout.cp > 1) exchanges_[static_cast<std::size_t>(layout.context_exchange)].add(entry, fits);
}

std::vector<Families::Key> Families::axes_of(const plan::Layout& mesh) const {
  return {{"devices", mesh.world()},
          {"pp", mesh.pp},
          {"dp", mesh.dp},
          {"shard", mesh.shard},
          {"zero", mesh.zero},
          {"cp", mesh.cp},
          {"tp", mesh.tp},
          {"ep", mesh.ep},
          {"offload", static_cast<std::int64_t>(mesh.offload)},
          {"precision", static_cast<std::int64_t>(mesh.precision)}};
}

void Families::end_mesh() {
  for (const Key& axis : axes_of(mesh_)) axes_[{axis.first, axis.second}].merge(mesh_slot_);
}

void Families::merge(const Families& other) {
  const auto merge_all = [](auto& ours, const auto& theirs) {
    for (std::size_t i = 0; i < ours.size(); ++i) ours[i].merge(theirs[i]);
  };
  merge_all(schedules_, other.schedules_);
  merge_all(recomputes_, other.recomputes_);
  merge_all(sequence_parallel_, other.sequence_parallel_);
  merge_all(exchanges_, other.exchanges_);
  merge_all(virtual_stages_, other.virtual_stages_);
  merge_all(micros_, other.micros_);
  for (const auto& [axis, slot] : other.axes_) axes_[axis].merge(slot);
}

void Families::collect(std::map<std::string, Entry>& found, const std::string& name, const Slot& slot) const {
  const Entry& entry = slot.best.exists() ? slot.best : slot.nearest;
  if (entry.exists()) found.emplace(name, entry);
}

std::map<std::string, Entry> Families::entries() const {
  std::map<std::string, Entry> found;
  for (std::size_t i = 0; i < kSchedules; ++i) {
    collect(found, fmt::format("schedule={}", plan::to_string(static_cast<plan::Schedule>(i))), schedules_[i]);
  }
  for (std::size_t i = 0; i < kRecomputes; ++i) {
    collect(found, fmt::format("recompute={}", plan::to_string(static_cast<plan::Recompute>(i))), recomputes_[i]);
  }
  for (std::size_t i = 0; i < kSwitch; ++i) {
    collect(found, fmt::format("sequence_parallel={}", i == 1), sequence_parallel_[i]);
    collect(found, fmt::format("context_exchange={}", plan::to_string(static_cast<plan::ContextExchange>(i))),
            exchanges_[i]);
  }
  for (std::size_t i = 0; i < virtual_stages_.size(); ++i) {
    collect(found, fmt::format("virtual_stages={}", i), virtual_stages_[i]);
  }
  for (std::size_t i = 0; i < micros_.size(); ++i) {
    collect(found, fmt::format("micro={}", micro_values_[i]), micros_[i]);
  }
  for (const auto& [axis, slot] : axes_) {
    std::string value = std::to_string(axis.second);
    if (axis.first == "offload") value = plan::to_string(static_cast<plan::Offload>(axis.second));
    if (axis.first == "precision") value = spec::to_string(static_cast<spec::Precision>(axis.second));
    collect(found, fmt::format("{}={}", axis.first, value), slot);
  }
  return found;
}

}  // namespace lockstep::planner
