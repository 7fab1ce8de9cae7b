// The fitted part of a Profile in files, and the profiles that are compiled in.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/cost/profile/fitted_json.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/spec/presets.h"

namespace lockstep::cost {
namespace {

// Kinds without runs of their own take the constants of a relative: the same chip with another memory or package, or
// the nearest one whose runs were fitted. Shares of another datasheet are known less well.
struct Relative {
  std::string_view kind;
  std::string_view fitted;
  double widening;
};
constexpr std::array<Relative, 12> kRelatives{{{"A100-40", "A100", 1.0},
                                               {"V100-16", "V100", 1.0},
                                               {"H800", "H100", 1.2},
                                               {"H200", "H100", 1.2},
                                               {"H100-PCIe", "H100", 1.5},
                                               {"GB200", "B200", 1.0},
                                               {"B300", "B200", 1.2},
                                               {"GB300", "B200", 1.2},
                                               {"A10G", "A100", 1.5},
                                               {"L4", "A100", 1.5},
                                               {"L40S", "H100", 1.5},
                                               {"RTX4090", "H100", 1.5}}};
constexpr std::string_view kOwnStack = "lockstep";
// Of kinds without runs, over the widest of those with some.
constexpr double kUnknownWidening = 1.2;

// What few stacks do otherwise: files say it where it is not the default.
struct RareFact {
  const char* name;
  bool StackFacts::*member;
};
constexpr std::array<RareFact, 11> kRareFacts{
    {{"scatters_boundaries", &StackFacts::scatters_boundaries},
     {"gathers_before_dispatch", &StackFacts::gathers_before_dispatch},
     {"scatters_experts", &StackFacts::scatters_experts},
     {"recomputes_attention_block", &StackFacts::recomputes_attention_block},
     {"keeps_gathered_until_backward", &StackFacts::keeps_gathered_until_backward},
     {"reshards_after_forward", &StackFacts::reshards_after_forward},
     {"copies_shared_keys", &StackFacts::copies_shared_keys},
     {"whole_state_exchanges", &StackFacts::whole_state_exchanges},
     {"small_exchanges", &StackFacts::small_exchanges},
     {"recomputes_every_second_product", &StackFacts::recomputes_every_second_product},
     {"keeps_narrow_weights", &StackFacts::keeps_narrow_weights}}};

struct RareAmount {
  const char* name;
  double StackFacts::*member;
};
constexpr std::array<RareAmount, 4> kRareAmounts{{{"logits_share", &StackFacts::logits_share},
                                                  {"bucket_gradient_bytes", &StackFacts::bucket_gradient_bytes},
                                                  {"fp8_copy_bytes", &StackFacts::fp8_copy_bytes},
                                                  {"frozen_weight_bytes", &StackFacts::frozen_weight_bytes}}};

nlohmann::json facts_to_json(const StackFacts& facts) {
  nlohmann::json json = {{"flash_attention", facts.flash_attention},
                         {"fused_pointwise", facts.fused_pointwise},
                         {"reduced_gradient_bytes", facts.reduced_gradient_bytes},
                         {"kept_gradient_bytes", facts.kept_gradient_bytes},
                         {"master_copy", facts.master_copy},
                         {"dp_overlaps", facts.dp_overlaps},
                         {"zero_overlaps", facts.zero_overlaps},
                         {"keeps_gathered_inputs", facts.keeps_gathered_inputs},
                         {"reduces_each_micro_batch", facts.reduces_each_micro_batch},
                         {"sequence_parallel", facts.sequence_parallel},
                         {"stage_split", facts.stage_split == StageSplit::kEven ? "even" : "by_cost"}};
  for (const auto& [name, member] : kRareFacts) {
    if (facts.*member != StackFacts{}.*member) json[name] = facts.*member;
  }
  for (const auto& [name, member] : kRareAmounts) {
    if (facts.*member != StackFacts{}.*member) json[name] = facts.*member;
  }
  return json;
}

StackFacts read_facts(const JsonReader& reader) {
  StackFacts facts;
  facts.flash_attention = reader.boolean("flash_attention");
  facts.fused_pointwise = reader.boolean("fused_pointwise");
  facts.reduced_gradient_bytes = reader.non_negative("reduced_gradient_bytes");
  facts.kept_gradient_bytes = reader.non_negative("kept_gradient_bytes");
  facts.master_copy = reader.boolean("master_copy");
  facts.dp_overlaps = reader.boolean("dp_overlaps");
  facts.zero_overlaps = reader.boolean("zero_overlaps");
  facts.keeps_gathered_inputs = reader.boolean("keeps_gathered_inputs");
  facts.reduces_each_micro_batch = reader.boolean("reduces_each_micro_batch");
  facts.sequence_parallel = reader.boolean("sequence_parallel");
  facts.stage_split = static_cast<StageSplit>(reader.choice("stage_split", {"even", "by_cost"}));
  for (const auto& [name, member] : kRareFacts) {
    if (reader.has(name)) facts.*member = reader.boolean(name);
  }
  for (const auto& [name, member] : kRareAmounts) {
    if (reader.has(name)) facts.*member = reader.non_negative(name);
  }
  reader.finish();
  return facts;
}

nlohmann::json stalls_to_json(const Stalls& stalls) {
  nlohmann::json odds = nlohmann::json::object(), seconds = nlohmann::json::object();
  for (std::size_t i = 0; i < kStallTerms.size(); ++i) {
    odds[kStallTerms[i]] = stalls.odds[i];
    seconds[kStallTerms[i]] = stalls.seconds[i];
  }
  return {{"runs", stalls.runs}, {"stalled", stalls.stalled}, {"odds", odds}, {"seconds", seconds}};
}

Stalls read_stalls(const JsonReader& reader) {
  Stalls stalls;
  stalls.runs = reader.integer("runs");
  stalls.stalled = reader.integer("stalled");
  const auto read = [&](const char* name, StallTerms& terms) {
    const JsonReader coefficients = reader.object(name);
    for (std::size_t i = 0; i < terms.size(); ++i) terms[i] = coefficients.real(kStallTerms[i]);
    coefficients.finish();
  };
  read("odds", stalls.odds);
  read("seconds", stalls.seconds);
  reader.finish();
  return stalls;
}

Profile read_as_fitted(const spec::EmbeddedSpec& embedded) {
  const std::string name = fmt::format("profile {}", embedded.name);
  return read_profile(parse_json(std::string(embedded.text), name), name);
}

// The variance of a few runs says little: that of the hardware, of any stack, counts as kPriorRuns runs beside it.
constexpr double kPriorRuns = 2;

Profile read_embedded(const spec::EmbeddedSpec& embedded) {
  Profile profile = read_as_fitted(embedded);
  if (!profile.fitted || profile.fitted->stack == "generic" || profile.fitted->stack == kOwnStack) return profile;
  const spec::EmbeddedSpec* generic = spec::find_embedded(spec::embedded_profiles(), profile.fitted->hardware);
  if (generic == nullptr) return profile;
  const Residuals prior = read_as_fitted(*generic).fitted->residuals;
  const double runs = static_cast<double>(profile.fitted->runs);
  for (double Residuals::*sigma : {&Residuals::time, &Residuals::memory}) {
    double& own = profile.fitted->residuals.*sigma;
    const double pooled =
        std::sqrt((runs * own * own + kPriorRuns * prior.*sigma * prior.*sigma) / (runs + kPriorRuns));
    own = std::max(own, pooled);
  }
  return profile;
}

// Nothing is known better than what was measured.
Residuals unknown_residuals() {
  Residuals widest;
  for (const spec::EmbeddedSpec& embedded : spec::embedded_profiles()) {
    const Profile profile = read_as_fitted(embedded);
    if (!profile.fitted || profile.fitted->stack != "generic") continue;
    widest.time = std::max(widest.time, profile.fitted->residuals.time);
    widest.time_exposed = std::max(widest.time_exposed, profile.fitted->residuals.time_exposed);
    widest.memory = std::max(widest.memory, profile.fitted->residuals.memory);
  }
  return {.time = kUnknownWidening * widest.time,
          .time_exposed = kUnknownWidening * widest.time_exposed,
          .memory = kUnknownWidening * widest.memory};
}

const spec::EmbeddedSpec* find_by_parts(std::string_view kind, std::string_view stack) {
  const std::string name = stack.empty() ? std::string(kind) : fmt::format("{}-{}", kind, stack);
  return spec::find_embedded(spec::embedded_profiles(), name);
}

}  // namespace

nlohmann::json fitted_to_json(const Fitted& fitted) {
  nlohmann::json constants = nlohmann::json::object();
  for (const ConstantInfo& info : constant_table()) constants[info.name] = fitted.constants.*info.member;
  constants["communicator_bytes"] = fitted.constants.communicator_bytes;
  constants["reserve_factor"] = fitted.constants.reserve_factor;
  nlohmann::json json = {{"hardware", fitted.hardware},
                         {"stack", fitted.stack},
                         {"runs", fitted.runs},
                         {"constants", std::move(constants)},
                         {"facts", facts_to_json(fitted.facts)},
                         {"residuals",
                          {{"time", fitted.residuals.time},
                           {"time_exposed", fitted.residuals.time_exposed},
                           {"memory", fitted.residuals.memory}}}};
  if (fitted.stalls.runs > 0) json["stalls"] = stalls_to_json(fitted.stalls);
  return json;
}

Fitted read_fitted(const JsonReader& reader) {
  Fitted fitted;
  fitted.hardware = reader.text("hardware");
  fitted.stack = reader.text("stack");
  fitted.runs = reader.integer("runs");
  JsonReader constants = reader.object("constants");
  const auto positive = [&](const char* name) {
    const double value = constants.real(name);
    if (value <= 0) constants.fail(name, "expected a number above 0");
    return value;
  };
  for (const ConstantInfo& info : constant_table()) {
    if (std::string_view(info.name) == "warm_up_ahead" && !constants.has(info.name)) continue;  // older files
    fitted.constants.*info.member = positive(info.name);
  }
  fitted.constants.communicator_bytes = positive("communicator_bytes");
  fitted.constants.reserve_factor = positive("reserve_factor");
  if (constants.has("state_factor")) positive("state_factor");  // older files; bytes of states are counted
  constants.finish();
  fitted.facts = read_facts(reader.object("facts"));
  JsonReader residuals = reader.object("residuals");
  fitted.residuals = {.time = residuals.non_negative("time"),
                      .time_exposed = residuals.non_negative("time_exposed"),
                      .memory = residuals.non_negative("memory")};
  residuals.finish();
  if (reader.has("stalls")) fitted.stalls = read_stalls(reader.object("stalls"));
  reader.finish();
  return fitted;
}

std::string peers_of(const std::string& stack) {
  struct Peers {
    std::string_view begins, peers;
  };
  constexpr std::array<Peers, 14> kPeers{{{"llm-foundry", "peers-fsdp"},
                                          {"fsdp", "peers-fsdp"},
                                          {"torchtitan", "peers-fsdp"},
                                          {"deepspeed", "peers-fsdp"},
                                          {"transformers", "peers-fsdp"},
                                          {"nanogpt", "peers-fsdp"},
                                          {"pytorch", "peers-fsdp"},
                                          {"nanotron", "peers-fsdp"},
                                          {"megatron-bridge", "peers-te"},
                                          {"megatron-core", "peers-te"},
                                          {"nemo", "peers-te"},
                                          {"megatron", "peers-megatron"},
                                          {"maxtext", "peers-jax"},
                                          {"pax", "peers-jax"}}};
  if (stack.starts_with("peers-")) return stack;
  for (const auto& [begins, peers] : kPeers) {
    if (stack.starts_with(begins)) return std::string(peers);
  }
  return "";
}

std::vector<std::string> profile_names() { return spec::embedded_names(spec::embedded_profiles()); }

Profile find_profile(const std::string& name) {
  if (const spec::EmbeddedSpec* embedded = spec::find_embedded(spec::embedded_profiles(), name)) {
    return read_embedded(*embedded);
  }
  if (name.find('/') == std::string::npos && !name.ends_with(".json")) {
    throw bad_input(fmt::format("no profile is called \"{}\"", printable(name)), did_you_mean(name, profile_names()));
  }
  return load_profile(name);
}

Profile profile_for(const std::string& device_kind, const std::string& stack) {
  if (!stack.empty()) {
    if (const spec::EmbeddedSpec* exact = find_by_parts(device_kind, stack)) return read_embedded(*exact);
    if (const spec::EmbeddedSpec* peers = find_by_parts(device_kind, peers_of(stack))) return read_embedded(*peers);
  }
  if (const spec::EmbeddedSpec* generic = find_by_parts(device_kind, "")) return read_embedded(*generic);
  for (const auto& [kind, relative, widening] : kRelatives) {
    if (kind != device_kind) continue;
    const std::string peers = peers_of(stack);
    for (const std::string_view wanted : {std::string_view(stack), std::string_view(peers), std::string_view()}) {
      const spec::EmbeddedSpec* found = find_by_parts(relative, wanted);
      if (found == nullptr) continue;
      Profile profile = read_embedded(*found);
      profile.fitted->residuals.time *= widening;
      profile.fitted->residuals.memory *= widening;
      profile.fitted->residuals.time_exposed *= widening;
      return profile;
    }
  }
  Profile profile;
  profile.provenance.hardware = device_kind;
  profile.provenance.software = "unknown";
  profile.provenance.method = "defaults: no run of this hardware has been fitted";
  profile.fitted = Fitted{.hardware = device_kind, .stack = "generic"};
  static const Residuals unknown = unknown_residuals();  // of what is compiled in
  profile.fitted->residuals = unknown;
  return profile;
}

Profile profile_for(const spec::Cluster& cluster) {
  LOCKSTEP_ASSERT(!cluster.groups.empty(), "a cluster without node groups");
  // Of as many devices the slower ones: they set the pace. Never the order of the groups.
  const auto weight = [](const spec::NodeGroup& group) {
    return std::tuple(group.nodes * group.devices_per_node, -group.device.peak_bf16_flops, group.device.kind);
  };
  const auto most =
      std::max_element(cluster.groups.begin(), cluster.groups.end(),
                       [&](const spec::NodeGroup& a, const spec::NodeGroup& b) { return weight(a) < weight(b); });
  return profile_for(most->device.kind);
}

std::vector<Fitted> fitted_by_group(const Fitted& fitted, const spec::Cluster& cluster) {
  std::vector<Fitted> all(cluster.groups.size(), fitted);
  if (cluster.groups.size() < 2) return all;
  bool of_some = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string& kind = cluster.groups[i].device.kind;
    of_some |= kind == fitted.hardware;
    if (kind == fitted.hardware) continue;
    all[i] = *profile_for(kind, fitted.stack == "generic" ? "" : fitted.stack).fitted;
    if (all[i].hardware != fitted.hardware) continue;
    of_some = true;  // a relative: the same constants, known less well
    all[i].constants = fitted.constants;
  }
  if (!of_some) all.assign(all.size(), fitted);
  return all;
}

Profile engine_profile_for(const spec::Cluster& cluster) {
  LOCKSTEP_ASSERT(!cluster.groups.empty(), "a cluster without node groups");
  const spec::EmbeddedSpec* own = find_by_parts(cluster.groups.front().device.kind, kOwnStack);
  return cluster.devices() == 1 && own != nullptr ? read_embedded(*own) : profile_for(cluster);
}

}  // namespace lockstep::cost
