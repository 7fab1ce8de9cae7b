#include "lockstep/plan/spec_json.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::plan {
namespace {

using spec::Model;

template <class T>
struct Field {
  const char* name;
  T Model::*member;
};

constexpr std::array<Field<std::int64_t>, 19> kIntegers{{{"layers", &Model::layers},
                                                         {"hidden", &Model::hidden},
                                                         {"heads", &Model::heads},
                                                         {"kv_heads", &Model::kv_heads},
                                                         {"head_dim", &Model::head_dim},
                                                         {"ffn_hidden", &Model::ffn_hidden},
                                                         {"vocab", &Model::vocab},
                                                         {"max_sequence", &Model::max_sequence},
                                                         {"experts", &Model::experts},
                                                         {"experts_per_token", &Model::experts_per_token},
                                                         {"shared_experts", &Model::shared_experts},
                                                         {"state_size", &Model::state_size},
                                                         {"conv_kernel", &Model::conv_kernel},
                                                         {"expand", &Model::expand},
                                                         {"dt_rank", &Model::dt_rank},
                                                         {"type_vocab", &Model::type_vocab},
                                                         {"image_size", &Model::image_size},
                                                         {"classes", &Model::classes},
                                                         {"global_batch_tokens", &Model::global_batch_tokens}}};
constexpr std::array<Field<double>, 4> kReals{{{"norm_epsilon", &Model::norm_epsilon},
                                               {"rope_theta", &Model::rope_theta},
                                               {"dropout", &Model::dropout},
                                               {"init_std", &Model::init_std}}};
// Younger than the first plan files: left out at 0, and 0 where they are left out.
constexpr std::array<Field<double>, 3> kOptionalReals{{{"router_auxiliary_loss", &Model::router_auxiliary_loss},
                                                       {"router_z_loss", &Model::router_z_loss},
                                                       {"capacity_factor", &Model::capacity_factor}}};
constexpr std::array<Field<bool>, 3> kFlags{
    {{"tied_embeddings", &Model::tied_embeddings}, {"bias", &Model::bias}, {"bottleneck", &Model::bottleneck}}};

constexpr std::array kArchs{spec::Arch::kMnistCnn, spec::Arch::kCifarCnn, spec::Arch::kResNet, spec::Arch::kBert,
                            spec::Arch::kGpt,      spec::Arch::kLlama,    spec::Arch::kMoe,    spec::Arch::kMamba};
constexpr std::array kActivations{spec::Activation::kRelu, spec::Activation::kGelu, spec::Activation::kGeluTanh,
                                  spec::Activation::kSilu};
constexpr std::array kLinks{spec::LinkKind::kNvlink,       spec::LinkKind::kPcie,       spec::LinkKind::kXgmi,
                            spec::LinkKind::kSharedMemory, spec::LinkKind::kInfiniband, spec::LinkKind::kRoce,
                            spec::LinkKind::kEthernet};

const char* name_of(spec::RopeScaling::Kind kind);
const char* name_of(spec::Activation activation) { return spec::to_string(activation); }
const char* name_of(spec::Arch arch) { return spec::to_string(arch); }
const char* name_of(spec::LinkKind kind) { return spec::to_string(kind); }

template <class Values>
auto read_enum(StrictReader& reader, const char* key, const Values& values) {
  std::vector<std::string> names;
  for (const auto value : values) names.emplace_back(name_of(value));
  return values[reader.choice(key, names)];
}

using spec::RopeScaling;
constexpr std::array kRopeScalings{RopeScaling::Kind::kNone, RopeScaling::Kind::kLinear, RopeScaling::Kind::kLlama3};
const char* name_of(RopeScaling::Kind kind) {
  switch (kind) {
    case RopeScaling::Kind::kNone:
      return "none";
    case RopeScaling::Kind::kLinear:
      return "linear";
    case RopeScaling::Kind::kLlama3:
      return "llama3";
  }
  return "?";
}

nlohmann::json rope_to_json(const RopeScaling& scaling) {
  return {{"kind", name_of(scaling.kind)},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_sequence", scaling.original_max_sequence}};
}

nlohmann::json link_to_json(const spec::Link& link) {
  return {{"kind", name_of(link.kind)},
          {"bytes_per_second", link.bytes_per_second},
          {"latency_seconds", link.latency_seconds}};
}

RopeScaling read_rope(StrictReader reader) {
  RopeScaling scaling;
  scaling.kind = read_enum(reader, "kind", kRopeScalings);
  scaling.factor = reader.non_negative("factor");
  scaling.low_freq_factor = reader.non_negative("low_freq_factor");
  scaling.high_freq_factor = reader.non_negative("high_freq_factor");
  scaling.original_max_sequence = reader.integer("original_max_sequence");
  reader.finish();
  return scaling;
}

spec::Link read_link(StrictReader reader) {
  spec::Link link;
  link.kind = read_enum(reader, "kind", kLinks);
  link.bytes_per_second = reader.non_negative("bytes_per_second");
  link.latency_seconds = reader.non_negative("latency_seconds");
  reader.finish();
  return link;
}

nlohmann::json device_to_json(const spec::Device& device) {
  return {{"kind", device.kind},
          {"memory_bytes", device.memory_bytes},
          {"memory_bytes_per_second", device.memory_bytes_per_second},
          {"peak_bf16_flops", device.peak_bf16_flops},
          {"peak_fp32_flops", device.peak_fp32_flops},
          {"peak_fp8_flops", device.peak_fp8_flops}};
}

spec::Device read_device(StrictReader reader) {
  spec::Device device;
  device.kind = reader.text("kind");
  device.memory_bytes = reader.non_negative("memory_bytes");
  device.memory_bytes_per_second = reader.non_negative("memory_bytes_per_second");
  device.peak_bf16_flops = reader.non_negative("peak_bf16_flops");
  device.peak_fp32_flops = reader.non_negative("peak_fp32_flops");
  device.peak_fp8_flops = reader.non_negative("peak_fp8_flops");
  reader.finish();
  return device;
}

nlohmann::json group_to_json(const spec::NodeGroup& group) {
  return {{"name", group.name},
          {"nodes", group.nodes},
          {"devices_per_node", group.devices_per_node},
          {"device", device_to_json(group.device)},
          {"intra", link_to_json(group.intra)},
          {"nic", link_to_json(group.nic)},
          {"nics_per_node", group.nics_per_node},
          {"price_per_device_hour_usd", group.price_per_device_hour_usd},
          {"failures_per_1000_node_days", group.failures_per_1000_node_days}};
}

spec::NodeGroup read_group(StrictReader reader) {
  spec::NodeGroup group;
  group.name = reader.text("name");
  group.nodes = reader.positive("nodes");
  group.devices_per_node = reader.positive("devices_per_node");
  group.device = read_device(reader.object("device"));
  group.intra = read_link(reader.object("intra"));
  group.nic = read_link(reader.object("nic"));
  group.nics_per_node = reader.integer("nics_per_node");
  group.price_per_device_hour_usd = reader.non_negative("price_per_device_hour_usd");
  group.failures_per_1000_node_days = reader.non_negative("failures_per_1000_node_days");
  reader.finish();
  return group;
}

}  // namespace

nlohmann::json model_to_json(const spec::Model& model) {
  nlohmann::json json = {{"name", model.name},
                         {"arch", name_of(model.arch)},
                         {"activation", name_of(model.activation)},
                         {"image_channels", model.image_channels},
                         {"rope_scaling", rope_to_json(model.rope_scaling)},
                         {"stage_blocks", model.stage_blocks}};
  for (const auto& field : kIntegers) json[field.name] = model.*field.member;
  for (const auto& field : kReals) json[field.name] = model.*field.member;
  for (const auto& field : kOptionalReals) {
    if (model.*field.member != 0.0) json[field.name] = model.*field.member;
  }
  for (const auto& field : kFlags) json[field.name] = model.*field.member;
  return json;
}

spec::Model read_model(StrictReader reader) {
  spec::Model model;
  model.name = reader.text("name");
  model.arch = read_enum(reader, "arch", kArchs);
  model.activation = read_enum(reader, "activation", kActivations);
  model.image_channels = reader.integer("image_channels");
  model.rope_scaling = read_rope(reader.object("rope_scaling"));
  model.stage_blocks = reader.integers("stage_blocks");
  for (const auto& field : kIntegers) {
    model.*field.member = reader.integer(field.name);
    if (model.*field.member < 0) reader.fail(field.name, "is negative");
  }
  for (const auto& field : kReals) model.*field.member = reader.number(field.name);
  for (const auto& field : kOptionalReals) {
    if (reader.has(field.name)) model.*field.member = reader.non_negative(field.name);
  }
  for (const auto& field : kFlags) model.*field.member = reader.boolean(field.name);
  reader.finish();
  return model;
}

nlohmann::json cluster_to_json(const spec::Cluster& cluster) {
  nlohmann::json groups = nlohmann::json::array();
  for (const spec::NodeGroup& group : cluster.groups) groups.push_back(group_to_json(group));
  return {{"name", cluster.name},
          {"groups", std::move(groups)},
          {"between_groups", link_to_json(cluster.between_groups)},
          {"storage",
           {{"read_bytes_per_second", cluster.storage.read_bytes_per_second},
            {"write_bytes_per_second", cluster.storage.write_bytes_per_second}}}};
}

spec::Cluster read_cluster(StrictReader reader) {
  spec::Cluster cluster;
  cluster.name = reader.text("name");
  for (StrictReader& group : reader.objects("groups")) cluster.groups.push_back(read_group(std::move(group)));
  if (cluster.groups.empty()) reader.fail("groups", "is empty");
  cluster.between_groups = read_link(reader.object("between_groups"));
  StrictReader storage = reader.object("storage");
  cluster.storage.read_bytes_per_second = storage.non_negative("read_bytes_per_second");
  cluster.storage.write_bytes_per_second = storage.non_negative("write_bytes_per_second");
  storage.finish();
  reader.finish();
  return cluster;
}

}  // namespace lockstep::plan
