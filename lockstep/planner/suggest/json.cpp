// The document of `lockstep suggest --json`.
#include "lockstep/base/units.h"
#include "lockstep/planner/suggest/suggest.h"

namespace lockstep::planner {
namespace {

using nlohmann::json;

json environment_to_json(const Suggestion& suggestion, std::string EnvironmentVariable::*field) {
  json object = json::object();
  for (const EnvironmentVariable& variable : suggestion.environment) object[variable.name] = variable.*field;
  return object;
}

json studies_to_json(const std::vector<StudiedKnob>& knobs) {
  json list = json::array();
  for (const StudiedKnob& knob : knobs) {
    list.push_back({{"study", knob.study},
                    {"knob", knob.knob},
                    {"value", knob.value},
                    {"set_back_percent", {{"value", knob.percent}, {"low", knob.low}, {"high", knob.high}}},
                    {"applied_to", knob.applied_to}});
  }
  return list;
}

json lora_to_json(const spec::Lora& lora) {
  if (lora.rank == 0) return nullptr;
  return {{"rank", lora.rank}, {"alpha", lora.alpha}, {"targets", lora.targets}};
}

json model_to_json(const Suggestion& suggestion) {
  const spec::Model& model = suggestion.model;
  return {{"name", model.name},
          {"arch", spec::to_string(model.arch)},
          {"parameters", spec::parameter_count(model)},
          {"layers", model.layers},
          {"hidden", model.hidden},
          {"heads", model.heads},
          {"vocab", model.vocab},
          {"interpolated", suggestion.interpolated}};
}

json cluster_to_json(const spec::Cluster& cluster) {
  const spec::NodeGroup& group = cluster.groups.front();
  return {{"name", cluster.name},
          {"gpus", cluster.devices()},
          {"gpu", group.device.kind},
          {"nodes", group.nodes},
          {"gpus_per_node", group.devices_per_node}};
}

}  // namespace

json to_json(const Suggestion& suggestion) {
  // The planner's part has the names and shapes of lockstep.plan/1.
  plan::Plan plan;
  plan.model = suggestion.model;
  plan.cluster = suggestion.cluster;
  plan.best = suggestion.candidate;
  json document = plan::to_json(plan).at("best");
  document.erase("knobs");
  document.erase("why_not");
  document["schema"] = "lockstep.suggest/1";
  document["model"] = model_to_json(suggestion);
  document["cluster"] = cluster_to_json(suggestion.cluster);
  document["task"] = to_string(suggestion.task);
  document["stack"] = to_string(suggestion.request.stack);
  document["dataset_tokens"] = suggestion.request.dataset_tokens;
  document["epochs"] = suggestion.epochs;
  document["steps"] = suggestion.steps;
  document["lora"] = lora_to_json(suggestion.lora);
  document["optimizer"] = {{"kind", "adamw"},
                           {"learning_rate", suggestion.optimizer.learning_rate},
                           {"warmup_steps", suggestion.optimizer.warmup_steps},
                           {"weight_decay", suggestion.optimizer.weight_decay},
                           {"betas", {0.9, suggestion.optimizer.beta2}}};
  document["environment"] = environment_to_json(suggestion, &EnvironmentVariable::value);
  document["environment_reasons"] = environment_to_json(suggestion, &EnvironmentVariable::reason);
  document["loader"] = {{"num_workers", suggestion.loader.num_workers},
                        {"prefetch_factor", suggestion.loader.prefetch_factor},
                        {"pin_memory", suggestion.loader.pin_memory}};
  document["reasons"] = suggestion.reasons;
  document["warnings"] = suggestion.warnings;
  document["studies"] = studies_to_json(suggestion.studied);
  document["profile"] = suggestion.profile;
  document["search"] = {{"complete", suggestion.complete_search},
                        {"candidates", suggestion.search.candidates},
                        {"feasible", suggestion.search.feasible},
                        {"seconds", suggestion.search.seconds}};
  document["plan_command"] = plan_command(suggestion);
  return document;
}

}  // namespace lockstep::planner
