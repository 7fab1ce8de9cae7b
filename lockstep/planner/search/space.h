// Space: every candidate of a search, enumerated without pricing any. A candidate is a *mesh* (axes, precision,
// offload: what the memory of weights and optimizer depends on) and a *choice* (pipeline schedule and split, sequence
// parallelism, context exchange, recompute, micro-batch).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// Divisors in ascending order; `number` is positive.
std::vector<std::int64_t> divisors(std::int64_t number);

// The numeric constraints, checked once: unknown keys and values that cannot be are UserErrors (exit code 2).
class Bounds {
 public:
  enum Key { kPp, kDp, kShard, kZero, kCp, kTp, kEp, kVirtualStages, kMicro, kAccumulation, kKeys };
  explicit Bounds(const Constraints& constraints);
  bool allow(Key key, std::int64_t value) const {
    return (fixed_[key] < 0 || fixed_[key] == value) && value <= at_most_[key];
  }
  std::optional<std::int64_t> fixed(Key key) const;
  static std::string_view name(Key key);

 private:
  std::array<std::int64_t, kKeys> fixed_;
  std::array<std::int64_t, kKeys> at_most_;
};

struct Pipeline {
  plan::Schedule schedule = plan::Schedule::kNone;
  std::int64_t virtual_stages = 1;
  std::vector<std::int64_t> stage_layers;  // empty: even
};

struct Choice {
  std::uint16_t pipeline = 0;  // of Space::pipelines(world, pp)
  bool sequence_parallel = false;
  plan::ContextExchange context_exchange = plan::ContextExchange::kRing;
  plan::Recompute recompute = plan::Recompute::kNone;
  std::uint16_t batch = 0;   // index into Space::batches(data ranks)
  std::uint32_t number = 0;  // among the choices of the mesh: simpler ones first
};

// Pure after construction; may be read by any number of threads.
class Space {
 public:
  // `request` is complete().
  explicit Space(const SearchRequest& request);

  // Device counts that layouts may use, largest first: all of them, or with idle devices also the divisors of that and
  // the whole nodes in powers of two.
  const std::vector<std::int64_t>& worlds() const { return worlds_; }

  // Every mesh of every world whose axes divide model, batch and sequence, each by itself; simpler ones first. Choices
  // are at their defaults.
  std::vector<plan::Layout> meshes(std::span<const plan::Offload> offloads) const;
  // The first rule or constraint that every candidate of the mesh breaks; nothing when it has at least one candidate.
  std::optional<std::string> find_problem(const plan::Layout& mesh) const;

  // The ways to cut the global batch for so many data ranks, micro-batch ascending; empty: there is none.
  std::span<const plan::BatchPlan> batches(std::int64_t data_ranks) const;
  std::span<const Pipeline> pipelines(std::int64_t world, std::int64_t pp) const;

  // Number of candidates of a mesh without problems.
  std::int64_t count(const plan::Layout& mesh) const;

  // Calls visit(layout, batch, choice) for each candidate; the references stay valid during the call. Micro-batches
  // come in ascending order for otherwise equal choices; where visit returns false the larger ones are left out.
  // Returns how many were left out. `layout` is scratch and must start as the mesh.
  template <class Visit>
  std::int64_t for_each(plan::Layout& layout, Visit&& visit) const;

  // The choice that is likely to need the least memory; the mesh has no problems.
  Choice leanest(const plan::Layout& mesh) const;

  std::pair<plan::Layout, plan::BatchPlan> expand(const plan::Layout& mesh, const Choice& choice) const;

 private:
  std::vector<std::int64_t> find_worlds() const;
  std::vector<plan::Recompute> find_recomputes() const;  // what the model can have
  std::vector<Pipeline> find_pipelines(std::int64_t world, std::int64_t pp) const;
  std::vector<std::int64_t> virtual_stages_of(std::int64_t pp) const;
  void append_meshes(std::int64_t world, plan::Offload offload, spec::Precision precision,
                     std::vector<plan::Layout>& meshes) const;
  bool divides_model(std::int64_t tp) const;
  std::optional<std::string> find_bound_problem(const plan::Layout& mesh) const;
  std::optional<std::string> find_batch_problem(const plan::Layout& mesh) const;

  std::int64_t sequence_cuts(const plan::Layout& mesh) const;
  void choose_lean_cut(plan::Layout mesh, Choice& choice) const;
  std::span<const bool> sequence_parallels(const plan::Layout& mesh) const;
  std::span<const plan::ContextExchange> context_exchanges(const plan::Layout& mesh) const;
  std::span<const plan::Recompute> recomputes() const { return recomputes_; }
  std::vector<plan::BatchPlan> find_batches(std::int64_t data_ranks) const;
  // Interleaving is proposed with whole rounds of pp micro-batches (Narayanan et al. 2021, section 2.2), where the last
  // round leaves no rank idle. Who names that schedule gets it with any number.
  bool agree(const Pipeline& pipeline, const plan::Layout& layout, const plan::BatchPlan& batch) const {
    const bool whole = pipeline.schedule != plan::Schedule::kInterleaved || batch.accumulation % layout.pp == 0;
    const bool rows = batch.micro * batch.sequence_length % row_unit(layout.precision) == 0;
    return rows && (whole || request_.constraints.schedule == plan::Schedule::kInterleaved);
  }
  // Tokens of a micro-batch are a multiple of it: of what one device trains by the fused step alone.
  std::int64_t row_unit(spec::Precision precision) const;
  bool cuts_sequence(const plan::Layout& layout) const {
    return request_.sequence_length % plan::sequence_pieces(layout, request_.model) == 0;
  }

  const SearchRequest& request_;
  Bounds bounds_;
  std::vector<std::int64_t> worlds_;
  std::vector<plan::Recompute> recomputes_;
  std::map<std::int64_t, std::vector<plan::BatchPlan>> batches_;                      // by data ranks
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Pipeline>> pipelines_;  // by world, pp
};

template <class Visit>
std::int64_t Space::for_each(plan::Layout& layout, Visit&& visit) const {
  std::int64_t left_out = 0;
  Choice choice;
  const std::span<const Pipeline> pipelines = this->pipelines(layout.world(), layout.pp);
  const std::span<const plan::BatchPlan> batches = this->batches(layout.data_ranks());
  for (std::size_t p = 0; p < pipelines.size(); ++p) {
    const Pipeline& pipeline = pipelines[p];
    choice.pipeline = static_cast<std::uint16_t>(p);
    layout.schedule = pipeline.schedule;
    layout.virtual_stages = pipeline.virtual_stages;
    layout.stage_layers = pipeline.stage_layers;  // keeps the capacity: no allocation once warm
    for (const bool sequence_parallel : sequence_parallels(layout)) {
      choice.sequence_parallel = layout.sequence_parallel = sequence_parallel;
      for (const plan::ContextExchange exchange : context_exchanges(layout)) {
        choice.context_exchange = layout.context_exchange = exchange;
        if (!cuts_sequence(layout)) continue;
        for (const plan::Recompute recompute : recomputes()) {
          choice.recompute = layout.recompute = recompute;
          bool fits = true;
          for (std::size_t b = 0; b < batches.size(); ++b) {
            if (!agree(pipeline, layout, batches[b])) continue;
            choice.batch = static_cast<std::uint16_t>(b);
            if (fits) {
              fits = visit(std::as_const(layout), batches[b], std::as_const(choice));
            } else {
              ++left_out;
            }
            ++choice.number;
          }
        }
      }
    }
  }
  return left_out;
}

}  // namespace lockstep::planner
