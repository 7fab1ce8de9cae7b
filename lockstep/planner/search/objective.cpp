#include "lockstep/planner/search/objective.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/planner/money.h"

namespace lockstep::planner {
namespace {

// Work that dollars are counted for where the length of the job is not given; the order does not depend on it.
constexpr double kUnitOfWork = 1e9;

void require_sense(const SearchRequest& request) {
  const bool dollars = request.objective == Objective::kDollars || request.objective == Objective::kDeadline;
  const auto has_price = [](const spec::NodeGroup& group) { return group.price_per_device_hour_usd > 0; };
  if (dollars && std::none_of(request.cluster.groups.begin(), request.cluster.groups.end(), has_price)) {
    throw bad_input(fmt::format("cluster {} has no price, so dollars cannot be compared", request.cluster.name),
                    "give price_per_device_hour in the cluster file");
  }
  if (request.objective != Objective::kDeadline) return;
  if (request.deadline_seconds <= 0) throw bad_input("the deadline objective needs a deadline", "for instance 30d");
  if (request.tokens <= 0) throw bad_input("a deadline needs the length of the job", "give the tokens to train on");
}

// Failures and copies to host memory come with the devices in use; storage serves whoever writes.
WorldTerms terms_of(const SearchRequest& request, std::int64_t devices) {
  const double share = static_cast<double>(devices) / static_cast<double>(request.cluster.devices());
  WorldTerms terms{.devices = devices, .usd_per_hour = hourly_price(request.cluster, devices).usd};
  terms.cadence = cadence_question(request.model, request.cluster, 0, request.max_lost_seconds, request.lora);
  terms.cadence.failures_per_second *= share;
  terms.cadence.host_copy_bytes_per_second *= share;
  return terms;
}

}  // namespace

double considered_seconds(const plan::Layout& layout, const cost::Price& price, std::int64_t devices_per_node) {
  double stretch = 1;
  // Replicas are the simplest: sharded state must earn more than its own trouble, in some of the data ranks more still.
  stretch += layout.zero > 0 ? 0.015 + 0.002 * static_cast<double>(layout.zero - 1) : 0.0;
  if (layout.dp > 1 && layout.shard > 1) stretch += 0.01;
  if (layout.cp > 1) stretch += 0.01;
  if (layout.pp > 1) stretch += 0.015;  // as sharded state: stages to balance, a schedule to run
  stretch += 0.0005 * static_cast<double>(layout.virtual_stages - 1);
  if (!layout.stage_layers.empty()) stretch += 0.002;
  if (layout.schedule == plan::Schedule::kInterleaved) stretch += 0.003;
  if (layout.schedule == plan::Schedule::kZeroBubble) stretch += 0.01;
  if (layout.tp > devices_per_node) stretch += 0.03;
  if (layout.tp > 1 && !layout.sequence_parallel) stretch += 0.001;
  return price.step_seconds() * stretch / std::max(1e-3, 1 - price.out_of_memory_probability());
}

Scorer::Scorer(const SearchRequest& request, const std::vector<std::int64_t>& worlds)
    : objective_(request.objective),
      work_per_step_(static_cast<double>(request.global_sequences) *
                     static_cast<double>(std::max<std::int64_t>(1, request.sequence_length))),
      work_(request.tokens > 0 ? request.tokens : kUnitOfWork),
      deadline_seconds_(request.deadline_seconds) {
  require_sense(request);
  for (const std::int64_t devices : worlds) worlds_.push_back(terms_of(request, devices));
}

const WorldTerms& Scorer::world(std::int64_t devices) const {
  const auto found = std::find_if(worlds_.begin(), worlds_.end(),
                                  [devices](const WorldTerms& terms) { return terms.devices == devices; });
  LOCKSTEP_ASSERT(found != worlds_.end(), "a world that the search does not have");
  return *found;
}

plan::CheckpointCadence Scorer::cadence(const WorldTerms& world, double step_seconds) const {
  CadenceQuestion question = world.cadence;
  question.step_seconds = step_seconds;
  return choose_cadence(question);
}

double Scorer::job_seconds(const WorldTerms& world, double step_seconds) const {
  return work_ / (per_second(step_seconds) * cadence(world, step_seconds).goodput);
}

double Scorer::usd(const WorldTerms& world, double step_seconds) const {
  return job_seconds(world, step_seconds) / 3600 * world.usd_per_hour;
}

double Scorer::score(const WorldTerms& world, double step_seconds) const {
  switch (objective_) {
    case Objective::kThroughput:
      return per_second(step_seconds);
    case Objective::kGoodput:
      return per_second(step_seconds) * cadence(world, step_seconds).goodput;
    case Objective::kDollars:
      return -usd(world, step_seconds);
    case Objective::kDeadline:
      if (job_seconds(world, step_seconds) > deadline_seconds_) return -std::numeric_limits<double>::infinity();
      return -usd(world, step_seconds);
  }
  return 0;
}

void add_money(const SearchRequest& request, plan::Candidate& candidate, double step_seconds) {
  const std::int64_t devices = candidate.layout.world();
  const Scorer scorer(request, {devices});
  candidate.checkpoint = scorer.cadence(scorer.world(devices), step_seconds);
  if (request.tokens <= 0) return;
  candidate.cost =
      cost_of(request.cluster, devices, request.tokens, scorer.per_second(step_seconds), candidate.checkpoint->goodput);
}

}  // namespace lockstep::planner
