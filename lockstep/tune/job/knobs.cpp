#include "lockstep/tune/job/knobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/yaml.h"
#include "lockstep/spec/job_reader.h"
#include "lockstep/tune/job/fields.h"

namespace lockstep::tune {
namespace {

constexpr std::string_view kLayoutPrefix = "layout.";

struct UsualName {
  std::string_view name, target;
};
constexpr std::array<UsualName, 48> kUsualNames{{
    {"micro_batch", "batch.micro"},
    {"micro_batch_size", "batch.micro"},
    {"per_device_train_batch_size", "batch.micro"},
    {"accumulation", "batch.accumulation"},
    {"gradient_accumulation", "batch.accumulation"},
    {"gradient_accumulation_steps", "batch.accumulation"},
    {"num_workers", "loader.num_workers"},
    {"loader_threads", "loader.num_workers"},
    {"prefetch_factor", "loader.prefetch_factor"},
    {"prefetch", "loader.prefetch_factor"},
    {"pin_memory", "loader.pin_memory"},
    {"bucket_mib", "communication.bucket_mib"},
    {"bucket_cap_mb", "communication.bucket_mib"},
    {"compression", "communication.compression"},
    {"backend", "communication.backend"},
    {"reduce_each_micro_step", "communication.reduce_each_micro_step"},
    {"reshard_after_forward", "communication.reshard_after_forward"},
    {"activation_offload", "activation_offload"},
    {"precision", "precision"},
    {"ranks", "ranks"},
    {"devices", "ranks"},
    {"gpus", "ranks"},
    {"threads", "threads_per_rank"},
    {"omp_threads", "threads_per_rank"},
    {"threads_per_rank", "threads_per_rank"},
    {"OMP_NUM_THREADS", "threads_per_rank"},
    {"zero", "layout.zero"},
    {"zero_stage", "layout.zero"},
    {"pp", "layout.pp"},
    {"pipeline_parallel", "layout.pp"},
    {"dp", "layout.dp"},
    {"data_parallel", "layout.dp"},
    {"shard", "layout.shard"},
    {"cp", "layout.cp"},
    {"context_parallel", "layout.cp"},
    {"tp", "layout.tp"},
    {"tensor_parallel", "layout.tp"},
    {"ep", "layout.ep"},
    {"expert_parallel", "layout.ep"},
    {"virtual_stages", "layout.virtual_stages"},
    {"schedule", "layout.schedule"},
    {"pipeline_schedule", "layout.schedule"},
    {"recompute", "layout.recompute"},
    {"activation_checkpointing", "layout.recompute"},
    {"context_exchange", "layout.context_exchange"},
    {"offload", "layout.offload"},
    {"sequence_parallel", "layout.sequence_parallel"},
    {"powersgd_rank", "communication.powersgd_rank"},
}};

bool is_variable_name(std::string_view name) {
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isupper(c) || std::isdigit(c) || c == '_'; });
}

// Fields that have no setter of their own here but that the job reader knows: "optimizer.kind", "data.packing".
bool is_other_field(const std::string& target) {
  const std::string top = target.substr(0, target.find('.'));
  constexpr std::array<std::string_view, 9> kSections{"model", "data",       "batch",         "optimizer", "loader",
                                                      "lora",  "evaluation", "communication", "checkpoint"};
  return top != target && std::find(kSections.begin(), kSections.end(), top) != kSections.end();
}

bool is_known_target(const std::string& target) {
  if (target == "env" || target == "ranks" || target == "loader.pin_memory") return true;
  if (target.starts_with(kLayoutPrefix)) return is_layout_field(target.substr(kLayoutPrefix.size()));
  return find_job_field(target) != nullptr || is_other_field(target);
}

std::pair<std::int64_t, std::int64_t> nodes_and_devices(const spec::Cluster& cluster, std::int64_t ranks) {
  const std::int64_t per_node = cluster.groups.front().devices_per_node;
  const bool is_cpu = cluster.is_cpu();
  if (is_cpu && cluster.groups.front().nodes == 1) return {1, ranks};
  if (ranks <= per_node) return {1, ranks};
  if (ranks % per_node != 0) {
    throw bad_input(fmt::format("{} ranks on nodes of {} devices", ranks, per_node), "use whole nodes");
  }
  return {ranks / per_node, per_node};
}

std::string cluster_name(const spec::Cluster& cluster, std::int64_t ranks) {
  const auto [nodes, devices] = nodes_and_devices(cluster, ranks);
  return fmt::format("{}x{}x{}", nodes, devices, cluster.groups.front().device.kind);
}

void set_ranks(spec::Job& job, std::int64_t ranks) {
  if (ranks == job.cluster.devices()) return;
  if (job.cluster.groups.size() != 1) {
    throw bad_input("ranks cannot be turned on a cluster of several node groups", "fix the number of ranks");
  }
  const std::string name = cluster_name(job.cluster, ranks);
  spec::NodeGroup& group = job.cluster.groups.front();
  if (group.device.is_cpu()) {  // the ranks of a machine share its memory
    job.cluster = spec::load_cluster(name);
    return;
  }
  std::tie(group.nodes, group.devices_per_node) = nodes_and_devices(job.cluster, ranks);
  job.cluster.name = name;
}

void set_other_field(spec::Job& job, const std::string& target, const Value& value) {
  YamlNode root = parse_yaml(spec::to_yaml(job), job.name);
  apply_override(root, fmt::format("{}={}", target, to_text(value)), {{"model", "preset"}});
  job = spec::read_job(root, job.name);
}

}  // namespace

std::string job_target(const Knob& knob) {
  if (!knob.target.empty()) return knob.target;
  for (const UsualName& usual : kUsualNames)
    if (usual.name == knob.name) return std::string(usual.target);
  return is_variable_name(knob.name) ? "env" : "";
}

JobKnobs::JobKnobs(Space space, spec::Job base) : space_(std::move(space)), base_(std::move(base)) {
  for (std::size_t i = 0; i < space_.size(); ++i) {
    const Knob& knob = space_.knobs()[i];
    targets_.push_back(job_target(knob));
    if (!is_known_target(targets_[i])) {
      const std::string wrong = targets_[i].empty() ? knob.name : targets_[i];
      throw bad_input(fmt::format("knob `{}`: a job has no `{}` to turn", printable(knob.name), printable(wrong)),
                      fmt::format("give it a target; {}", did_you_mean(wrong, job_field_names())));
    }
    if (std::count(targets_.begin(), targets_.end(), targets_[i]) > 1 && targets_[i] != "env") {
      throw bad_input(fmt::format("knob `{}`: another knob turns {} already", printable(knob.name), targets_[i]),
                      "keep one of them");
    }
  }
  for (std::size_t i = 0; i < space_.size(); ++i) check_levels(i);
}

void JobKnobs::check_levels(std::size_t knob) const {
  const Knob& k = space_.knobs()[knob];
  std::vector<Value> levels = k.choices;
  if (k.kind == KnobKind::kInteger) {
    levels = {static_cast<std::int64_t>(k.low), static_cast<std::int64_t>(k.high)};
  } else if (k.kind == KnobKind::kReal) {
    levels = {k.low, k.high};
  }
  for (const Value& level : levels) {
    spec::Job scratch = base_;
    try {
      set(scratch, knob, level);
    } catch (const UserError& error) {
      throw bad_input(fmt::format("knob `{}` turns {}: {}", printable(k.name), targets_[knob], error.what()),
                      "change its levels or its target");
    }
  }
}

void JobKnobs::set(spec::Job& job, std::size_t knob, const Value& value) const {
  const std::string& target = targets_[knob];
  if (!is_active(value) || target == "env") return;
  if (target == "loader.pin_memory") return;  // no field of the job: what it means is priced, not run
  if (target == "ranks") return set_ranks(job, whole_number(value, "ranks", 1));
  if (const JobField* field = find_job_field(target)) return field->set(job, value);
  if (!target.starts_with(kLayoutPrefix)) return set_other_field(job, target, value);
  if (!job.layout) job.layout.emplace();
  set_layout_field(*job.layout, target.substr(kLayoutPrefix.size()), value);
}

bool JobKnobs::turns_layout() const {
  return std::any_of(targets_.begin(), targets_.end(), [&](const std::string& target) {
    return target.starts_with(kLayoutPrefix) || (target == "ranks" && base_.layout);
  });
}

void JobKnobs::complete_layout(spec::Job& job) const {
  spec::LayoutRequest& layout = *job.layout;
  const auto axis = [&](const char* name) {
    const auto found = layout.axes.find(name);
    return found == layout.axes.end() ? std::int64_t{1} : found->second;
  };
  const auto is_turned = [&](const char* name) {
    return std::find(targets_.begin(), targets_.end(), fmt::format("layout.{}", name)) != targets_.end();
  };
  const std::int64_t rest = std::max<std::int64_t>(1, job.cluster.devices() / (axis("pp") * axis("cp") * axis("tp")));
  const auto zero = layout.axes.find("zero");
  const bool shards = zero == layout.axes.end() ? axis("shard") > 1 : zero->second > 0;
  std::int64_t dp = shards ? 1 : rest;
  if (is_turned("dp")) dp = axis("dp");
  if (is_turned("shard")) dp = std::max<std::int64_t>(1, rest / axis("shard"));
  const bool hybrid = base_.layout && base_.layout->axes.contains("dp") && base_.layout->axes.at("dp") > 1 && shards;
  if (hybrid && !is_turned("dp") && !is_turned("shard")) dp = std::gcd(base_.layout->axes.at("dp"), rest);
  const std::int64_t shard = is_turned("shard") ? axis("shard") : std::max<std::int64_t>(1, rest / dp);
  layout.axes["dp"] = dp;
  layout.axes["shard"] = shards || is_turned("shard") ? shard : 1;
  // What means nothing in this layout is as good as not said.
  if (layout.axes["shard"] * axis("cp") == 1) layout.axes["zero"] = 0;
  if (shards && zero == layout.axes.end()) layout.axes["zero"] = layout.axes["shard"] > 1 ? 3 : 0;
  if (axis("tp") == 1) layout.sequence_parallel = false;
  if (axis("cp") == 1) layout.choices.erase("context_exchange");
  if (axis("pp") == 1) {
    layout.choices.erase("schedule");
    layout.axes.erase("virtual_stages");
  } else if (layout.choices.contains("schedule") && layout.choices.at("schedule") == "none") {
    layout.choices.erase("schedule");
  }
  if (static_cast<std::int64_t>(layout.stage_layers.size()) != axis("pp") * axis("virtual_stages")) {
    layout.stage_layers.clear();
  }
}

spec::Job JobKnobs::apply(const Config& config) const {
  spec::Job job = base_;
  for (std::size_t i = 0; i < targets_.size(); ++i) set(job, i, config.values.at(i));
  if (turns_layout() && job.layout) complete_layout(job);
  return job;
}

std::vector<std::string> JobKnobs::overrides(const Config& config) const {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Value& value = config.values.at(i);
    const std::string& target = targets_[i];
    if (!is_active(value) || target == "env" || target == "loader.pin_memory") continue;
    if (target.starts_with(kLayoutPrefix)) continue;
    if (target == "ranks") {
      words.push_back(fmt::format("cluster={}", cluster_name(base_.cluster, whole_number(value, "ranks", 1))));
    } else if (const JobField* field = find_job_field(target)) {
      words.push_back(fmt::format("{}={}", field->key, field->text(value)));
    } else {
      words.push_back(fmt::format("{}={}", target, to_text(value)));
    }
  }
  if (!turns_layout()) return words;
  if (const spec::Job job = apply(config); job.layout) words.push_back(layout_override(*job.layout));
  return words;
}

std::map<std::string, std::string> JobKnobs::environment(const Config& config) const {
  std::map<std::string, std::string> variables;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i] != "env" || !is_active(config.values.at(i))) continue;
    const std::string value = to_text(config.values[i]);
    if (value != "auto") variables[space_.knobs()[i].name] = value;
  }
  return variables;
}

std::int64_t JobKnobs::ranks(const Config& config) const {
  const Value* value = find(config, "ranks");
  return value != nullptr ? whole_number(*value, "ranks", 1) : base_.cluster.devices();
}

const Value* JobKnobs::find(const Config& config, const std::string& target) const {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i] == target && is_active(config.values.at(i))) return &config.values[i];
  }
  return nullptr;
}

std::optional<Value> JobKnobs::value_in(const spec::Job& job, const std::string& target) {
  if (target == "ranks") return Value(job.cluster.devices());
  if (const JobField* field = find_job_field(target)) return field->get(job);
  if (!target.starts_with(kLayoutPrefix)) return std::nullopt;
  const std::string name = target.substr(kLayoutPrefix.size());
  if (!is_layout_field(name)) return std::nullopt;
  if (job.layout) return layout_field(*job.layout, name);
  spec::LayoutRequest plain;
  plain.axes["dp"] = job.cluster.devices();
  return layout_field(plain, name);
}

std::string layout_override(const spec::LayoutRequest& layout) {
  std::vector<std::string> parts;
  for (const auto& [axis, size] : layout.axes) parts.push_back(fmt::format("{}: {}", axis, size));
  for (const auto& [name, choice] : layout.choices) parts.push_back(fmt::format("{}: {}", name, choice));
  if (layout.sequence_parallel) parts.emplace_back("sequence_parallel: true");
  std::vector<std::string> layers;
  for (const std::int64_t count : layout.stage_layers) layers.push_back(std::to_string(count));
  if (!layers.empty()) parts.push_back(fmt::format("stage_layers: [{}]", join(layers, ", ")));
  return fmt::format("layout={{{}}}", join(parts, ", "));
}

}  // namespace lockstep::tune
