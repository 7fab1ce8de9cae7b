#include "lockstep/planner/explain/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "lockstep/planner/explain/terms.h"
#include "lockstep/planner/resize.h"
#include "lockstep/planner/search/request.h"
#include "lockstep/planner/selection.h"

namespace lockstep::planner {
namespace {

constexpr std::int64_t kMoreDevices = 16;

class WhatIfs {
 public:
  WhatIfs(const SearchRequest& request, const SearchResult& result)
      : request_(request), result_(result), plan_(result.best.front()), now_(per_second(plan_)) {}

  std::vector<WhatIf> collect() {
    network();
    memory();
    more_devices();
    precision();
    choices();
    std::stable_sort(found_.begin(), found_.end(), [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; });
    return std::move(found_);
  }

  WhatIf only_memory() {
    memory();
    return std::move(found_.front());
  }

 private:
  double per_second(const Ranked& ranked) const {
    const double samples = static_cast<double>(ranked.batch.global_sequences) / ranked.price.step_seconds();
    return samples * static_cast<double>(std::max<std::int64_t>(1, ranked.batch.sequence_length));
  }

  void add(const std::string& change, const Ranked* best, const spec::Cluster& cluster) {
    WhatIf what_if{.change = change, .layout = std::nullopt, .per_second = 0, .gain = -1};
    if (best != nullptr) {
      what_if.layout = best->layout;
      what_if.per_second = per_second(*best) * std::exp(-selection_bias(request_));  // as the plan's own figure
      what_if.gain = is_about_money(request_.objective)
                         ? 1 - step_cost(*best, cluster) / step_cost(plan_, request_.cluster)
                         : per_second(*best) / now_ - 1;
      what_if.idle_devices = cluster.devices() - best->layout.world();
    }
    found_.push_back(std::move(what_if));
  }

  void try_change(const std::string& change, const SearchRequest& request) {
    const std::optional<Ranked> best = best_near_plan(request);
    add(change, best ? &*best : nullptr, request.cluster);
  }

  std::optional<Ranked> best_near_plan(SearchRequest request) const {
    keep_kind(request.constraints);
    request.constraints.at_most.try_emplace("tp", plan_.layout.tp);
    request.constraints.at_most.try_emplace("pp", plan_.layout.pp);
    if (plan_.layout.pp > 1) request.constraints.schedule = plan_.layout.schedule;
    return find_best(std::move(request));
  }

  void keep_kind(Constraints& constraints) const {
    constraints.fixed.try_emplace("cp", plan_.layout.cp);
    constraints.fixed.try_emplace("ep", plan_.layout.ep);
    constraints.at_most.try_emplace("zero", plan_.layout.zero);
  }

  SearchRequest with_cluster(const std::function<void(spec::NodeGroup&)>& change) const {
    SearchRequest request = request_;
    for (spec::NodeGroup& group : request.cluster.groups) change(group);
    return request;
  }

  void network() {
    const spec::NodeGroup& first = request_.cluster.groups.front();
    if (first.nodes == 1 && request_.cluster.groups.size() == 1) return;
    const bool fewer = first.nics_per_node >= first.devices_per_node;
    if (!fewer || first.nics_per_node > 1) {
      const auto changed = [&](std::int64_t nics) { return fewer ? std::max<std::int64_t>(1, nics / 2) : nics * 2; };
      try_change(fmt::format("{} NICs a node instead of {}", changed(first.nics_per_node), first.nics_per_node),
                 with_cluster([&](spec::NodeGroup& group) { group.nics_per_node = changed(group.nics_per_node); }));
    }
    other_fabric(first.nic.kind);
  }

  void other_fabric(spec::LinkKind now) {
    const char* change = now == spec::LinkKind::kInfiniband ? "RoCE behind plain ECMP instead of InfiniBand"
                         : now == spec::LinkKind::kRoce     ? "InfiniBand instead of RoCE behind plain ECMP"
                                                            : nullptr;
    if (change == nullptr) return;
    try_change(change, with_cluster([](spec::NodeGroup& group) { group.nic = with_other_protocol(group.nic); }));
  }

  void memory() {
    try_change(kTwiceTheMemory, with_cluster([](spec::NodeGroup& group) { group.device.memory_bytes *= 2; }));
  }

  void more_devices() {
    if (is_wholly_fixed(request_.constraints)) return;  // the layout would have to change with it
    const std::int64_t all = request_.cluster.devices();
    for (const std::int64_t wanted : {kMoreDevices, all}) {
      SearchRequest request = request_;
      const std::int64_t added = add_devices(request.cluster, wanted);
      keep_kind(request.constraints);  // any tp, pp and schedule: the larger number has other divisors
      std::optional<Ranked> best = find_best(request);
      if (!best || per_second(*best) < now_) {  // the batch need not divide by the larger number
        request.constraints.allow_idle_devices = true;
        best = find_best(request);
      }
      add(fmt::format("{} more GPUs (same batch)", added), best ? &*best : nullptr, request.cluster);
      if (added >= all) break;  // 16 were twice as many already
    }
  }

  void precision() {
    const bool has_fp8 = std::all_of(request_.cluster.groups.begin(), request_.cluster.groups.end(),
                                     [](const spec::NodeGroup& group) { return group.device.peak_fp8_flops > 0; });
    const auto& tried = request_.precisions;
    if (!has_fp8 || std::count(tried.begin(), tried.end(), spec::Precision::kFp8) > 0) return;
    if (!request_.model.is_language_model()) return;
    SearchRequest request = request_;
    request.precisions = {spec::Precision::kFp8};
    if (request.cluster.devices() == 1 || request.is_job) {  // the fused step's alone there
      plan::Layout layout = plan_.layout;
      layout.precision = spec::Precision::kFp8;
      if (find_untrained(request, layout, plan_.batch)) return;
    }
    try_change(fmt::format("fp8 instead of {}", spec::to_string(plan_.layout.precision)), request);
  }

  // These were searched already: the best of their family is the answer.
  void choices() {
    for (const plan::Recompute recompute :
         {plan::Recompute::kNone, plan::Recompute::kSelective, plan::Recompute::kFull}) {
      const std::string name = plan::to_string(recompute);
      add_family("recompute=" + name, name == "none" ? "no recompute" : name + " recompute");
    }
    if (plan_.layout.zero < 3) {
      add_family(fmt::format("zero={}", plan_.layout.zero + 1), fmt::format("ZeRO stage {}", plan_.layout.zero + 1));
    }
  }

  void add_family(const std::string& family, const std::string& change) {
    const auto found = result_.best_of_family.find(family);
    if (found == result_.best_of_family.end()) return;
    add(change, is_feasible(found->second.price, request_.constraints) ? &found->second : nullptr, request_.cluster);
  }

  const SearchRequest& request_;
  const SearchResult& result_;
  const Ranked& plan_;
  double now_;
  std::vector<WhatIf> found_;
};

}  // namespace

std::vector<WhatIf> what_ifs(const SearchRequest& request, const SearchResult& result) {
  return WhatIfs(request, result).collect();
}

WhatIf twice_the_memory(const SearchRequest& request, const SearchResult& result) {
  return WhatIfs(request, result).only_memory();
}

}  // namespace lockstep::planner
