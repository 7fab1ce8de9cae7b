#include "lockstep/spec/job.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "lockstep/base/yaml.h"
#include "lockstep/spec/job_reader.h"

namespace lockstep::spec {
namespace {

// Keys of which a file may have one: an override of one takes the place of the other.
constexpr std::array<std::string_view, 3> kGoals = {"steps", "tokens", "epochs"};
constexpr std::array<std::string_view, 2> kLayouts = {"layout", "plan"};
constexpr std::array<std::string_view, 2> kBatches = {"batch.accumulation", "batch.global"};

void drop_replaced(YamlNode& root, const std::string& override_key) {
  const std::string top = override_key.substr(0, override_key.find('.'));
  for (const std::span<const std::string_view> group : {std::span<const std::string_view>(kGoals), {kLayouts}}) {
    if (std::find(group.begin(), group.end(), top) == group.end()) continue;
    for (const std::string_view other : group) {
      if (other != top) root.erase(other);
    }
  }
  if (std::find(kBatches.begin(), kBatches.end(), override_key) == kBatches.end()) return;
  YamlNode* batch = root.find("batch");
  if (batch == nullptr || !batch->is_map()) return;
  for (const std::string_view other : kBatches) {
    if (other != override_key) batch->erase(other.substr(std::string_view("batch.").size()));
  }
}

}  // namespace

std::vector<std::pair<const char*, PluginUse*>> plugins_of(Job& job) {
  std::vector<std::pair<const char*, PluginUse*>> all = {{"model", &job.model.script.plugin},
                                                         {"model.loss_options", &job.model.script.own_loss},
                                                         {"data", &job.data.plugin},
                                                         {"optimizer.schedule_options", &job.optimizer.own_schedule},
                                                         {"evaluation", &job.evaluation.plugin}};
  std::erase_if(all, [](const auto& entry) { return !entry.second->used(); });
  return all;
}

YamlNode load_job_tree(const std::string& path, const std::vector<std::string>& overrides) {
  YamlNode root = read_yaml_file(path);
  // Replaced keys go first, so that of two overrides that exclude each other both stay and are reported.
  for (const std::string& assignment : overrides) drop_replaced(root, assignment.substr(0, assignment.find('=')));
  for (const std::string& assignment : overrides) apply_override(root, assignment, {{"model", "preset"}});
  return root;
}

Job load_job(const std::string& path, const std::vector<std::string>& overrides) {
  return read_job(load_job_tree(path, overrides), std::filesystem::path(path).stem().string());
}

Job parse_job(const std::string& yaml_text, const std::string& name_for_errors) {
  const YamlNode root = parse_yaml(yaml_text, name_for_errors);
  return read_job(root, std::filesystem::path(name_for_errors).stem().string());
}

}  // namespace lockstep::spec
