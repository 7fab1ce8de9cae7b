#include "lockstep/planner/explain/reasons.h"

#include "lockstep/planner/capabilities.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/explain/terms.h"

namespace lockstep::planner {
namespace {

constexpr const char* kGenericStack = "generic";
constexpr std::size_t kMostProfiles = 3;
constexpr double kClearlyTighter = 0.9;  // of the plan's own sigma
constexpr double kWellKnownMemory = 0.05;
constexpr double kWorthADoubt = 0.5;  // of the memory is used

constexpr double kWorthSaying = 0.05;

std::string share_of_runs(double probability) {
  if (probability > 0.9) return "nearly all runs";
  if (probability > 0.6) return fmt::format("{:.0f} runs in ten", 10 * probability);
  static constexpr std::array kNumbers{"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"};
  const auto one_in = static_cast<std::size_t>(std::lround(1 / probability));
  return one_in - 2 < kNumbers.size() ? fmt::format("one run in {}", kNumbers[one_in - 2])
                                      : fmt::format("one run in {}", one_in);
}

// The best candidates that have another value on one axis, by that value.
struct Neighbours {
  std::optional<std::pair<std::int64_t, Ranked>> below;
  std::optional<std::pair<std::int64_t, Ranked>> above;
};

Neighbours neighbours_of(const SearchResult& result, const std::string& axis, std::int64_t chosen) {
  Neighbours found;
  for (const auto& [family, ranked] : result.best_of_family) {
    const std::size_t equals = family.find('=');
    if (family.substr(0, equals) != axis) continue;
    const std::int64_t value = parse_integer(family.substr(equals + 1));
    if (value < chosen && (!found.below || value > found.below->first)) found.below = {value, ranked};
    if (value > chosen && (!found.above || value < found.above->first)) found.above = {value, ranked};
  }
  return found;
}

class Reasons {
 public:
  Reasons(const SearchRequest& request, const cost::Pricer& pricer, const SearchResult& result)
      : request_(request), pricer_(pricer), result_(result), plan_(result.best.front()), layout_(plan_.layout) {}

  std::vector<std::string> collect() {
    if (result_.best_of_family.empty())
      reasons_.emplace_back("the layout was given, nothing was searched but the micro-batch");
    one_device();
    axis("tp", layout_.tp, tensor_text());
    if (layout_.cp > 1) axis("cp", layout_.cp, fmt::format("cp={}: the sequence is split", layout_.cp));
    if (layout_.ep > 1 || request_.model.experts > 0) {
      axis("ep", layout_.ep, fmt::format("ep={} of {} experts", layout_.ep, request_.model.experts));
    }
    axis("pp", layout_.pp, pipeline_text());
    if (layout_.pp > 1) choice("schedule", plan::to_string(layout_.schedule));
    axis("zero", layout_.zero, sharding_text());
    choice("recompute", plan::to_string(layout_.recompute));
    axis("micro", plan_.batch.micro,
         fmt::format("micro-batch {} x {} a step", plan_.batch.micro, plan_.batch.accumulation));
    stall();
    idle_devices();
    memory_doubt();
    interval();
    return std::move(reasons_);
  }

 private:
  // "tp=4 with recompute=full: 6% slower, ...": the family, what else its best has to change, and what it loses.
  std::string loss(const std::string& family, const Ranked& other) const {
    std::vector<std::string> also;
    for (const std::string& part : split(layout_difference(layout_, other.layout), ',')) {
      const std::string key = part.substr(0, part.find('='));
      const bool main_axis = key == "tp" || key == "pp" || key == "cp" || key == "zero" || key == "recompute";
      if (main_axis && part != family) also.push_back(part);
    }
    return fmt::format("{}{}: {}", family, also.empty() ? "" : " with " + join(also, ","),
                       describe_loss(plan_, other, request_));
  }

  // "<chosen>: tp=1 needs 84 GiB of 80 GiB ...; tp=4 is 6% slower ..."
  void axis(const std::string& key, std::int64_t value, const std::string& chosen) {
    const Neighbours near = neighbours_of(result_, key, value);
    std::vector<std::string> others;
    for (const auto& neighbour : {near.below, near.above}) {
      if (neighbour) others.push_back(loss(fmt::format("{}={}", key, neighbour->first), neighbour->second));
    }
    if (!others.empty()) reasons_.push_back(fmt::format("{} [{}]", chosen, join(others, "; ")));
  }

  void choice(const std::string& key, const std::string& chosen) {
    std::vector<std::string> others;
    for (const auto& [family, ranked] : result_.best_of_family) {
      if (family.starts_with(key + "=")) others.push_back(loss(family, ranked));
    }
    if (!others.empty()) reasons_.push_back(fmt::format("{} {} [{}]", key, chosen, join(others, "; ")));
  }

  // Whether one device could train the model at all, at a micro-batch of one.
  void one_device() {
    plan::Layout alone;
    alone.precision = layout_.precision;
    plan::BatchPlan batch = plan_.batch;
    batch.micro = 1;
    batch.accumulation = batch.global_sequences;
    cost::Price price = pricer_.price(alone, batch);
    std::string recompute;
    if (!price.fits() && request_.model.is_language_model()) {
      alone.recompute = plan::Recompute::kFull;
      price = pricer_.price(alone, batch);
      recompute = " and full recompute";
    }
    const std::string need = fmt::format("{} of {} at micro-batch 1{}", format_bytes(price.memory.total()),
                                         format_bytes(price.memory.capacity), recompute);
    if (price.fits()) {
      reasons_.push_back(
          fmt::format("the model fits one GPU ({}): splitting it is a matter of speed, not of need", need));
    } else {
      const Term term = largest_memory_term(price.memory);
      reasons_.push_back(
          fmt::format("one GPU cannot hold the model (it needs {}, most of it {}), so it is split", need, term.name));
    }
  }

  std::string tensor_text() const {
    if (layout_.tp == 1) return "no tensor parallelism";
    const std::int64_t node =
        std::min_element(request_.cluster.groups.begin(), request_.cluster.groups.end(),
                         [](const auto& a, const auto& b) { return a.devices_per_node < b.devices_per_node; })
            ->devices_per_node;
    return fmt::format("tp={} {}{}", layout_.tp, layout_.tp <= node ? "inside a node" : "across nodes",
                       layout_.sequence_parallel ? ", with sequence parallelism" : "");
  }

  std::string pipeline_text() const {
    if (layout_.pp == 1) return "no pipeline";
    const double share = plan_.price.time.bubble / plan_.price.step_seconds();
    return fmt::format("pp={}, bubble {:.1f}% of the step", layout_.pp, 100 * share);
  }

  std::string sharding_text() const {
    if (layout_.zero == 0) return fmt::format("dp={} without sharding", layout_.dp);
    static constexpr const char* kWhat[] = {"", "optimizer state", "optimizer state and gradients",
                                            "parameters, gradients and optimizer state"};
    return fmt::format("zero={}: {} sharded over {} ranks{}", layout_.zero, kWhat[layout_.zero],
                       layout_.sharding_ranks(),
                       layout_.dp > 1 ? fmt::format(", {} replicas", layout_.dp) : std::string());
  }

  // How often runs like the plan, and like the one that is fastest where nothing stalls, were hit.
  void stall() {
    const std::string said = stall_text(plan_);
    if (!said.empty()) reasons_.push_back(fmt::format("{}; what is expected counts it", said));
    const Ranked* tempting = nullptr;
    for (const auto& [family, ranked] : result_.best_of_family) {
      if (!is_feasible(ranked.price, request_.constraints) || stall_text(ranked).empty()) continue;
      if (ordinary_seconds(ranked) >= ordinary_seconds(tempting != nullptr ? *tempting : plan_)) continue;
      tempting = &ranked;
    }
    if (tempting == nullptr) return;
    reasons_.push_back(fmt::format("{} would take {} of {} where it does not stall, but {}",
                                   layout_difference(layout_, tempting->layout),
                                   format_seconds(ordinary_seconds(*tempting)),
                                   format_seconds(plan_.price.step_seconds()), stall_text(*tempting)));
  }

  static double ordinary_seconds(const Ranked& ranked) {
    return ranked.price.step_seconds() - ranked.price.stall_seconds;
  }

  std::string stall_text(const Ranked& ranked) const {
    const cost::Stall& stall = ranked.price.stall;
    if (stall.probability < kWorthSaying) return "";
    return fmt::format(
        "{} like this one stalled ({}): a step then takes {} more", share_of_runs(stall.probability),
        cost::stall_mechanism(ranked.layout, request_.cluster.groups.front().devices_per_node, ranked.price.fill),
        format_seconds(stall.seconds));
  }

  void idle_devices() {
    const std::int64_t idle = request_.cluster.devices() - layout_.world();
    if (idle > 0) reasons_.push_back(fmt::format("{} of {} devices stay idle", idle, request_.cluster.devices()));
  }

  // Why a plan leaves room: memory is known to so much only.
  void memory_doubt() {
    const plan::MemoryBreakdown& memory = plan_.price.memory;
    const double room = memory.capacity - memory.total();
    if (plan_.price.memory_sigma < kWellKnownMemory || memory.fill() < kWorthADoubt || room <= 0) return;
    reasons_.push_back(
        fmt::format("{} of {} stay free: memory is known to {:.0f}% (one sigma), and runs out with a "
                    "probability of {:.2g}%",
                    format_bytes(room), format_bytes(memory.capacity), 100 * plan_.price.memory_sigma,
                    100 * plan_.price.out_of_memory_probability()));
  }

  void interval() {
    const double sigma = plan_.price.time_sigma;
    const auto& fitted = request_.profile.fitted;
    if (plan_.price.fused) {
      reasons_.push_back(
          fmt::format("90% interval: priced as the engine's fused step of one GPU ({}, {} measured steps), predictions "
                      "off by {:.0f}% "
                      "(one sigma)",
                      request_.profile.provenance.hardware, request_.profile.dense->points.size(), 100 * sigma));
      return;
    }
    const auto& groups = request_.cluster.groups;
    const bool borrowed = fitted && std::none_of(groups.begin(), groups.end(), [&](const spec::NodeGroup& group) {
                            return group.device.kind == fitted->hardware;
                          });
    const bool calibrated = request_.profile.provenance.method.starts_with("lockstep calibrate");
    const std::string source =
        !fitted ? "calibrated on this machine"
        : calibrated
            ? fmt::format("{} / {} (calibrated, {} whole steps)", fitted->hardware, fitted->stack, fitted->runs)
        : fitted->runs == 0 ? fmt::format("{} / {} (no published runs, wide defaults)", fitted->hardware, fitted->stack)
                            : fmt::format("{} / {} ({} published runs)", fitted->hardware, fitted->stack, fitted->runs);
    const std::string relative =
        borrowed ? fmt::format(", borrowed from {} for {}", fitted->hardware, groups.front().device.kind) : "";
    reasons_.push_back(fmt::format("90% interval: profile {}{}, predictions off by {:.0f}% (one sigma)", source,
                                   relative, 100 * sigma));
    // Published runs are of language models: no stack's are evidence of a network of images.
    const bool says_nothing = !request_.model.is_language_model();
    if (!fitted || borrowed || says_nothing || fitted->stack != kGenericStack) return;
    const std::vector<std::string> tighter = tighter_profiles(fitted->hardware);
    if (!tighter.empty()) {
      reasons_.push_back("name your stack for a tighter interval: --profile " + join(tighter, ", "));
    }
  }

  // "H100-nemo-25.02 (3%)": the profiles of stacks on `hardware` that price this plan with less doubt, best first.
  std::vector<std::string> tighter_profiles(const std::string& hardware) const {
    std::vector<std::pair<double, std::string>> found;
    for (const std::string& name : cost::profile_names()) {
      if (!name.starts_with(hardware + "-")) continue;
      const cost::Profile profile = cost::find_profile(name);
      if (!profile.fitted || profile.fitted->hardware != hardware) continue;
      // Evidence of a framework that cannot run this says nothing about it.
      const Capabilities* framework = framework_of(*profile.fitted);
      if (framework == nullptr || framework->find_problem(layout_, request_.model)) continue;
      const cost::Pricer pricer(request_.model, request_.cluster, profile, pricer_options(request_));
      const double sigma = pricer.price(layout_, plan_.batch).time_sigma;
      if (sigma < kClearlyTighter * plan_.price.time_sigma) found.emplace_back(sigma, name);
    }
    std::sort(found.begin(), found.end());
    found.resize(std::min(found.size(), kMostProfiles));
    std::vector<std::string> texts;
    for (const auto& [sigma, name] : found) texts.push_back(fmt::format("{} ({:.0f}%)", name, 100 * sigma));
    return texts;
  }

  const SearchRequest& request_;
  const cost::Pricer& pricer_;
  const SearchResult& result_;
  const Ranked& plan_;
  const plan::Layout& layout_;
  std::vector<std::string> reasons_;
};

// Axes that a reader thinks of as one decision; "" for those too small to be another kind of plan.
std::string kind_of(const std::string& family) {
  std::string axis = family.substr(0, family.find('='));
  if (axis == "pp" || axis == "schedule") return "pipeline";
  for (const char* known : {"tp", "cp", "ep", "zero", "recompute", "precision"}) {
    if (axis == known) return axis;
  }
  return {};
}

}  // namespace

std::vector<std::string> reasons_for(const SearchRequest& request, const cost::Pricer& pricer,
                                     const SearchResult& result) {
  return Reasons(request, pricer, result).collect();
}

std::vector<Loser> best_losers(const SearchRequest& request, const SearchResult& result, std::size_t count) {
  std::vector<Loser> all;
  for (const auto& [family, ranked] : result.best_of_family) all.push_back({family, ranked});
  const auto order = [&](const Loser& loser) {
    const cost::Price& price = loser.candidate.price;
    const bool feasible = is_feasible(price, request.constraints);
    return std::tuple(!feasible, kind_of(loser.family).empty(),
                      feasible ? -loser.candidate.score : price.memory.total());
  };
  std::stable_sort(all.begin(), all.end(), [&](const Loser& a, const Loser& b) { return order(a) < order(b); });
  std::vector<Loser> chosen;
  std::vector<std::string> kinds;
  for (Loser& loser : all) {
    if (chosen.size() == count) break;
    const std::string kind = kind_of(loser.family);
    const bool seen = (!kind.empty() && std::count(kinds.begin(), kinds.end(), kind) > 0) ||
                      std::any_of(chosen.begin(), chosen.end(),
                                  [&](const Loser& other) { return other.candidate.layout == loser.candidate.layout; });
    if (seen) continue;
    kinds.push_back(kind);
    chosen.push_back(std::move(loser));
  }
  return chosen;
}

}  // namespace lockstep::planner
