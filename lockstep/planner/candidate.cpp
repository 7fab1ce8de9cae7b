#include "lockstep/planner/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/price.h"
#include "lockstep/cost/snapshots.h"
#include "lockstep/cost/step_time.h"
#include "lockstep/planner/search/objective.h"

namespace lockstep::planner {
namespace {

struct Term {
  const char* name;
  double bytes;
  const char* fix;
};

Term largest_term(const plan::MemoryBreakdown& memory) {
  const std::array<Term, 6> terms{
      {{"parameters", memory.parameters, "use a smaller model or more memory per device"},
       {"gradients", memory.gradients, "use a smaller model or more memory per device"},
       {"optimizer state", memory.optimizer, "use optimizer.kind=sgd, a smaller model or more memory per device"},
       {"activations", memory.activations, "lower batch.micro and raise batch.accumulation"},
       {"buffers", memory.buffers, "lower communication.bucket_mib"},
       {"framework overhead", memory.overhead, "run fewer ranks on the node"}}};
  return *std::max_element(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.bytes < b.bytes; });
}

void require_fit(const plan::MemoryBreakdown& memory, const plan::Layout& layout, const spec::Device& device) {
  if (memory.capacity <= 0 || memory.total() <= memory.capacity) return;
  const Term term = largest_term(memory);
  throw does_not_fit(
      fmt::format("plan {} needs {} per rank and {} has {}: {} too much, most of it {} ({})", plan::to_string(layout),
                  format_bytes(memory.total()), device.kind, format_bytes(memory.capacity),
                  format_bytes(memory.total() - memory.capacity), term.name, format_bytes(term.bytes)),
      term.fix);
}

// The memory with its sentence; throws where it does not fit.
void judge_memory(const plan::Run& run, plan::Candidate& candidate) {
  const spec::Device& device = smallest_device(run.cluster);
  if (candidate.memory.capacity <= 0) candidate.memory.capacity = device.memory_bytes;
  require_fit(candidate.memory, run.layout, device);
  const Term term = largest_term(candidate.memory);
  candidate.reasons.push_back(
      fmt::format("memory {} of {} per rank, most of it {} ({})", format_bytes(candidate.memory.total()),
                  format_bytes(candidate.memory.capacity), term.name, format_bytes(term.bytes)));
  add_snapshots(run, candidate);
}

void append_time_reasons(const cost::Profile& profile, const spec::Model& model, const plan::Candidate& candidate,
                         std::vector<std::string>& reasons) {
  const plan::TimeBreakdown& time = *candidate.breakdown;
  const double total = time.total();
  reasons.push_back(fmt::format("step {}: {:.0f}% compute, {:.0f}% gradient all-reduce, {:.0f}% optimizer",
                                format_seconds(total), 100 * time.compute / total, 100 * time.dp_comm / total,
                                100 * time.optimizer / total));
  const cost::Correction correction = cost::correction_of(profile, model);
  if (correction.checks == 0) {
    reasons.emplace_back("interval: spread of the repetitions only; the profile has no check models of this family");
  } else {
    reasons.push_back(
        fmt::format("interval: {} check models of the profile took {:.2f} times the tables' sum, +-{:.0f}%",
                    correction.checks, correction.factor, 100 * correction.half_width));
  }
  const cost::Provenance& measured = profile.provenance;
  if (measured.ranks != candidate.layout.world()) {
    reasons.push_back(
        fmt::format("the profile was measured on {} ranks, the plan has {}", measured.ranks, candidate.layout.world()));
  }
}

void append_interval_reason(const cost::Profile& profile, const cost::Price& price, std::vector<std::string>& reasons) {
  const char* what = price.fused ? "the engine's fused step of one GPU" : "the general formulas";
  const std::size_t steps = price.fused ? profile.dense->points.size() : 0;
  reasons.push_back(fmt::format("step priced by {} ({}{}), off by {:.0f}% (one sigma)", what,
                                profile.provenance.hardware, steps > 0 ? fmt::format(", {} measured steps", steps) : "",
                                100 * price.time_sigma));
}

}  // namespace

void add_snapshots(const plan::Run& run, plan::Candidate& candidate) {
  const cost::SnapshotMemory memory = cost::snapshot_memory(run);
  const std::int64_t every = run.snapshots.every;
  if (!memory.needed || every == 0) return;
  if (!memory.fits && every != spec::Snapshots::kAuto) {
    throw does_not_fit(
        fmt::format("snapshots (recovery.snapshots.every {}) need {} per rank beside the {} of a step, and {} are left",
                    every, format_bytes(memory.total()), format_bytes(candidate.memory.total()),
                    format_bytes(memory.room)),
        "set recovery.snapshots.every to auto or 0, or use a layout with smaller shards");
  }
  candidate.memory.snapshots = cost::snapshot_bytes(run);
  candidate.reasons.push_back(
      memory.fits ? fmt::format("snapshots {} of host memory per rank: {} of its own state and {} of peers', twice",
                                format_bytes(memory.total()), format_bytes(memory.own), format_bytes(memory.peers))
                  : cost::why_no_snapshots(memory));
}

const spec::Device& smallest_device(const spec::Cluster& cluster) {
  LOCKSTEP_ASSERT(!cluster.groups.empty(), "a cluster without node groups");
  const auto smallest =
      std::min_element(cluster.groups.begin(), cluster.groups.end(),
                       [](const auto& a, const auto& b) { return a.device.memory_bytes < b.device.memory_bytes; });
  return smallest->device;
}

std::string layout_reason(const plan::Layout& layout, bool given) {
  if (given) return fmt::format("layout {}: given by the job", plan::to_string(layout));
  return fmt::format(
      "layout {}: the model's state fits on every rank, so each holds a replica and only gradients travel",
      plan::to_string(layout));
}

plan::Candidate candidate_of(const SearchRequest& request, const plan::Run& run) {
  const cost::RunPrice price = cost::price(run, request.profile);
  plan::Candidate candidate;
  candidate.layout = run.layout;
  candidate.batch = run.batch;
  candidate.memory = price.memory;
  judge_memory(run, candidate);
  candidate.prediction = price.prediction;
  candidate.breakdown = price.time;
  if (price.by == cost::PricedBy::kTables) {
    append_time_reasons(request.profile, run.model, candidate, candidate.reasons);
  } else {
    candidate.out_of_memory_probability = price.out_of_memory_probability();
    if (!run.cluster.is_cpu()) append_interval_reason(request.profile, price, candidate.reasons);
  }
  add_money(request, candidate, price.step_seconds());
  return candidate;
}

plan::Candidate counted_candidate(const plan::Run& run, const cost::Profile* profile) {
  plan::Candidate candidate;
  candidate.layout = run.layout;
  candidate.batch = run.batch;
  candidate.memory = cost::memory_of(run, profile);
  judge_memory(run, candidate);
  if (profile != nullptr) return candidate;
  candidate.reasons.emplace_back("no time prediction without a profile; run `lockstep calibrate` on this machine");
  return candidate;
}

}  // namespace lockstep::planner
