#include "lockstep/tune/job/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/map_reader.h"
#include "lockstep/base/text.h"
#include "lockstep/base/yaml.h"
#include "lockstep/plan/run.h"
#include "lockstep/planner/planner.h"
#include "lockstep/spec/presets.h"
#include "lockstep/tune/job/knobs.h"
#include "lockstep/tune/job/pricer.h"

namespace lockstep::tune {
namespace {

struct WrittenSpace {
  YamlNode root;
  bool is_preset = false;
};

WrittenSpace load_written(const std::string& name, const YamlNode* beside) {
  if (const spec::EmbeddedSpec* preset = spec::find_embedded(spec::embedded_spaces(), name)) {
    return {parse_yaml(preset->text, fmt::format("{}.yaml", name)), true};
  }
  // A file that a job names lies beside the job.
  std::filesystem::path path = name;
  if (beside != nullptr && beside->source && path.is_relative()) path = beside->source->directory / path;
  if (!std::filesystem::exists(path)) {
    throw bad_input(
        fmt::format("there is no space `{}`", printable(name)),
        fmt::format("{} (or give a file)", did_you_mean(name, spec::embedded_names(spec::embedded_spaces()))),
        beside != nullptr ? beside->place() : SourcePlace());
  }
  return {read_yaml_file(path), false};
}

WrittenSpace find_written(const spec::Job& job, const std::string& job_file, const std::string& space_name) {
  if (!space_name.empty()) return load_written(space_name, nullptr);
  const YamlNode file = job_file.empty() ? YamlNode() : read_yaml_file(job_file);
  const YamlNode* section = file.find("tune");
  if (section == nullptr) return load_written(job.cluster.is_cpu() ? "lockstep-cpu" : "lockstep-gpu", nullptr);
  MapReader reader(*section, "tune");
  std::string name;
  reader.text("space", name);
  for (const char* key : {"knobs", "constraints", "nccl", "nccl_rules", "name", "description"}) reader.has(key);
  if (name.empty()) reader.require("knobs");
  reader.finish();
  if (name.empty()) return {*section, false};
  if (reader.has("knobs")) throw reader.error_at("space", "both space and knobs are given", "keep one");
  return load_written(name, section->find("space"));
}

Knob named(const YamlNode::Entry& entry) {
  Knob knob;
  knob.name = entry.key;
  if (const YamlNode* target = entry.value.find("target")) knob.target = target->scalar;
  return knob;
}

std::optional<double> number_of(const std::string& text) {
  try {
    std::size_t used = 0;
    const double number = std::stod(text, &used);
    if (used == text.size()) return number;
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return std::nullopt;
}

bool same_level(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto x = number_of(a);
  return x && x == number_of(b);
}

YamlNode scalar(const std::string& text, const YamlNode& like) {
  YamlNode node = YamlNode::make_scalar(text, like.source);
  node.line = like.line;
  node.column = like.column;
  return node;
}

void put(YamlNode& map, const std::string& key, YamlNode value) {
  if (YamlNode* there = map.find(key)) {
    *there = std::move(value);
  } else {
    map.entries.push_back({key, map.place(), std::move(value)});
  }
}

bool is_level(const YamlNode& knob, const std::string& text) {
  if (const YamlNode* choices = knob.find("choices")) {
    return std::any_of(choices->items.begin(), choices->items.end(),
                       [&](const YamlNode& item) { return same_level(item.scalar, text); });
  }
  for (const char* key : {"int", "log_int", "float", "log_float"}) {
    const YamlNode* ends = knob.find(key);
    if (ends == nullptr || ends->items.size() != 2) continue;
    const auto value = number_of(text);
    const auto low = number_of(ends->items[0].scalar);
    const auto high = number_of(ends->items[1].scalar);
    return value && low && high && *low <= *value && *value <= *high;
  }
  return knob.find("bool") != nullptr && (text == "true" || text == "false");
}

// In numeric order where all are numbers, else at the front.
void insert_level(YamlNode& choices, const std::string& text) {
  const auto value = number_of(text);
  auto at = choices.items.begin();
  while (value && at != choices.items.end() && number_of(at->scalar) && *number_of(at->scalar) < *value) ++at;
  choices.items.insert(at, scalar(text, choices));
}

class Fitting {
 public:
  Fitting(const spec::Job& job, WrittenSpace& written) : job_(job), written_(written) {}

  void fit() {
    YamlNode* knobs = written_.root.find("knobs");
    if (knobs == nullptr || !knobs->is_map()) return;  // Space::read() says what is wrong
    for (YamlNode::Entry& entry : knobs->entries) {
      if (!entry.value.is_map()) continue;
      if (written_.is_preset) narrow(entry);
      take_default(entry);
    }
    if (written_.is_preset) drop_settled(*knobs);
    keep_global_batch(*knobs);
  }

 private:
  std::int64_t data_ranks() const { return plan::layout_of(job_).data_ranks(); }
  std::int64_t global_batch() const { return plan::batch_of(job_, plan::layout_of(job_)).global_sequences; }

  // Does the job's layout leave this field without a meaning?
  bool is_moot(const std::string& target) const {
    const plan::Layout layout = job_.layout ? plan::layout_from_request(*job_.layout, job_.precision) : plan::Layout();
    if (target == "layout.sequence_parallel") return layout.tp == 1;
    if (target == "layout.context_exchange") return layout.cp == 1;
    if (target == "layout.schedule") return layout.pp == 1;
    return target == "layout.virtual_stages" && layout.virtual_stages == 1;
  }

  void take_default(YamlNode::Entry& entry) const {
    YamlNode& knob = entry.value;
    const std::string target = job_target(named(entry));
    const auto value = JobKnobs::value_in(job_, target);
    if (!value || knob.find("fixed") != nullptr || is_moot(target)) return;
    if (knob.find("default") != nullptr && !written_.is_preset) return;
    const std::string text = to_text(*value);
    YamlNode* choices = knob.find("choices");
    if (!is_level(knob, text)) {
      if (!written_.is_preset || choices == nullptr) return;
      insert_level(*choices, text);
    }
    const char* key = knob.find("bool") != nullptr ? "bool" : "default";
    put(knob, key, scalar(text, knob));
  }

  // Levels of a preset that this job can run with, every other knob as the job has it.
  void narrow(YamlNode::Entry& entry) const {
    YamlNode* choices = entry.value.find("choices");
    if (choices == nullptr || !choices->is_sequence()) return;
    const std::string target = job_target(named(entry));
    if (job_.cluster.devices() == 1 && is_between_ranks(entry.key, target)) {
      const auto value = JobKnobs::value_in(job_, target);
      const YamlNode* const usual = entry.value.find("default");
      if (value || usual != nullptr) choices->items = {scalar(value ? to_text(*value) : usual->scalar, *choices)};
      return;
    }
    std::erase_if(choices->items, [&](const YamlNode& item) { return !can_run(entry.key, target, item); });
    const auto value = JobKnobs::value_in(job_, target);
    if (choices->items.empty() && value) choices->items.push_back(scalar(to_text(*value), *choices));
    YamlNode* const usual = entry.value.find("default");
    if (usual != nullptr && !choices->items.empty() && !is_level(entry.value, usual->scalar)) {
      *usual = choices->items.front();  // the preset's own is a level that this job cannot run with
    }
  }

  // What one rank has no use for.
  static bool is_between_ranks(const std::string& name, const std::string& target) {
    return target == "layout.zero" || target.starts_with("communication.") || name.starts_with("NCCL_");
  }

  bool can_run(const std::string& name, const std::string& target, const YamlNode& level) const {
    const auto number = number_of(level.scalar);
    if (target == "batch.micro" || target == "batch.accumulation") {
      return number && *number >= 1 && global_batch() % static_cast<std::int64_t>(*number) == 0;
    }
    const std::int64_t node = job_.cluster.groups.front().devices_per_node;
    if (target == "layout.tp" && number && *number > static_cast<double>(node)) return false;
    if (target == "ranks" && number && *number > static_cast<double>(job_.cluster.devices())) return false;
    const std::string one =
        fmt::format("nccl_rules: false\nknobs: {{{}: {{choices: [{}], target: {}}}}}", name,
                    level.quoted ? yaml_quote(level.scalar) : level.scalar, target.empty() ? "arg" : target);
    const JobPricer pricer(JobKnobs(Space::parse(one, name), job_));
    const auto price = pricer.price(pricer.knobs().space().default_config());
    return !price || price->outcome != Outcome::kInvalid;
  }

  bool is_mentioned(const YamlNode& knobs, const std::string& name) const {
    const auto mentions = [&](const YamlNode* node) {
      return node != nullptr && node->scalar.find(name) != std::string::npos;
    };
    for (const YamlNode::Entry& entry : knobs.entries)
      if (entry.key != name && mentions(entry.value.find("when"))) return true;
    const YamlNode* constraints = written_.root.find("constraints");
    if (constraints == nullptr) return false;
    return std::any_of(constraints->items.begin(), constraints->items.end(),
                       [&](const YamlNode& item) { return mentions(&item); });
  }

  void drop_settled(YamlNode& knobs) const {
    std::vector<std::string> settled;
    for (const YamlNode::Entry& entry : knobs.entries) {
      const YamlNode* choices = entry.value.find("choices");
      const bool one = entry.value.find("fixed") != nullptr || (choices != nullptr && choices->items.size() == 1);
      if (one && !is_mentioned(knobs, entry.key)) settled.push_back(entry.key);
    }
    for (const std::string& name : settled) knobs.erase(name);
  }

  // The name of the knob that turns `target`, or what the job has.
  std::string factor(const YamlNode& knobs, const std::string& target) const {
    for (const YamlNode::Entry& entry : knobs.entries)
      if (job_target(named(entry)) == target) return entry.key;
    const auto value = JobKnobs::value_in(job_, target);
    return value ? to_text(*value) : "1";
  }

  // Does a constraint of the file tie one of these knobs to something?
  bool is_tied(const std::vector<std::string>& names) const {
    const YamlNode* constraints = written_.root.find("constraints");
    if (constraints == nullptr) return false;
    return std::any_of(constraints->items.begin(), constraints->items.end(), [&](const YamlNode& item) {
      return item.scalar.find("==") != std::string::npos &&
             std::any_of(names.begin(), names.end(),
                         [&](const std::string& name) { return item.scalar.find(name) != std::string::npos; });
    });
  }

  void keep_global_batch(const YamlNode& knobs) {
    std::vector<std::string> turned;
    for (const YamlNode::Entry& entry : knobs.entries) {
      const std::string target = job_target(named(entry));
      if (target == "batch.micro" || target == "batch.accumulation") turned.push_back(entry.key);
    }
    if (turned.empty() || is_tied(turned)) return;
    const std::string micro = factor(knobs, "batch.micro");
    const std::string accumulation = factor(knobs, "batch.accumulation");
    const std::string rule =
        fmt::format("{} * {} * {} == {} * {} * {} * {}", micro, accumulation, factor(knobs, "ranks"), global_batch(),
                    factor(knobs, "layout.tp"), factor(knobs, "layout.pp"), factor(knobs, "layout.cp"));
    YamlNode* constraints = written_.root.find("constraints");
    if (constraints == nullptr) {
      YamlNode list;
      list.kind = YamlNode::Kind::kSequence;
      list.source = written_.root.source;
      put(written_.root, "constraints", std::move(list));
      constraints = written_.root.find("constraints");
    }
    constraints->items.push_back(scalar(rule, written_.root));
  }

  const spec::Job& job_;
  WrittenSpace& written_;
};

}  // namespace

NcclFacts nccl_facts(const spec::Cluster& cluster) {
  NcclFacts facts;
  bool nvlink = true;
  bool hopper = true;
  for (const spec::NodeGroup& group : cluster.groups) {
    facts.nodes += static_cast<int>(group.nodes);
    nvlink = nvlink && group.intra.kind == spec::LinkKind::kNvlink;
    hopper = hopper && group.device.peak_fp8_flops > 0;
  }
  facts.hopper = nvlink && hopper;
  if (nvlink && facts.nodes == 1) facts.ll128_safe = true;
  return facts;
}

spec::Job job_to_tune(spec::Job job, const cost::Profile* profile) {
  if (job.layout || (job.cluster.is_cpu() && job.plan_file.empty())) return job;
  const plan::Plan plan = job.plan_file.empty() ? planner::make_plan(job, profile) : plan::load_plan(job.plan_file);
  plan::follow(job, plan.best);
  return job;
}

Space space_for_job(const spec::Job& job, const std::string& job_file, const std::string& space_name) {
  WrittenSpace written = find_written(job, job_file, space_name);
  Fitting(job, written).fit();
  return Space::read(written.root, nccl_facts(job.cluster));
}

}  // namespace lockstep::tune
