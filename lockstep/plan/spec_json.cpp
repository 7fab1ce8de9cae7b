#include "lockstep/plan/spec_json.h"

#include <utility>

#include "lockstep/plan/json_fields.h"

namespace lockstep::plan {

void fields_of(auto& fields, Is<spec::RopeScaling> auto& scaling) {
  fields.name("kind", scaling.kind);
  fields.non_negative("factor", scaling.factor);
  fields.non_negative("low_freq_factor", scaling.low_freq_factor);
  fields.non_negative("high_freq_factor", scaling.high_freq_factor);
  fields.value("original_max_sequence", scaling.original_max_sequence);
  const spec::RopeScaling usual;
  fields.value_or_absent("beta_fast", scaling.beta_fast, usual.beta_fast);
  fields.value_or_absent("beta_slow", scaling.beta_slow, usual.beta_slow);
  fields.value_or_absent("truncate", scaling.truncate, usual.truncate);
  fields.value_or_absent("attention_factor", scaling.attention_factor, usual.attention_factor);
  fields.value_or_absent("short_factors", scaling.short_factors, usual.short_factors);
  fields.value_or_absent("long_factors", scaling.long_factors, usual.long_factors);
}

void fields_of(auto& fields, Is<spec::Decoder> auto& decoder) {
  fields.name("family", decoder.family);
  fields.name("norm", decoder.norm);
  fields.value("norm_plus_one", decoder.norm_plus_one);
  fields.value("norm_bias", decoder.norm_bias);
  fields.name("norm_place", decoder.norm_place);
  fields.name("parallel_block", decoder.parallel_block);
  fields.value("gated_mlp", decoder.gated_mlp);
  fields.value("qkv_bias", decoder.qkv_bias);
  fields.value("attention_output_bias", decoder.attention_output_bias);
  fields.name("qk_norm", decoder.qk_norm);
  fields.non_negative("clip_qkv", decoder.clip_qkv);
  fields.non_negative("score_dim", decoder.score_dim);
  fields.non_negative("attention_softcap", decoder.attention_softcap);
  fields.non_negative("logit_softcap", decoder.logit_softcap);
  const spec::Decoder plain;
  fields.value_or_absent("key_value_rank", decoder.key_value_rank, plain.key_value_rank);
  fields.value_or_absent("query_rank", decoder.query_rank, plain.query_rank);
  fields.value_or_absent("value_dim", decoder.value_dim, plain.value_dim);
  fields.value_or_absent("only_planned", decoder.only_planned, plain.only_planned);
  fields.non_negative("sliding_window", decoder.sliding_window);
  fields.non_negative("window_period", decoder.window_period);
  fields.non_negative("window_from", decoder.window_from);
  fields.non_negative("rotary_fraction", decoder.rotary_fraction);
  fields.non_negative("local_rope_theta", decoder.local_rope_theta);
  fields.value("scaled_embeddings", decoder.scaled_embeddings);
  fields.non_negative("dense_layers", decoder.dense_layers);
  fields.non_negative("dense_ffn_hidden", decoder.dense_ffn_hidden);
  fields.value("normalized_routing", decoder.normalized_routing);
  fields.non_negative("routed_scale", decoder.routed_scale);
}

// Options are YAML in one line, as the job file has them.
void fields_of(auto& fields, Is<spec::PluginUse> auto& plugin) {
  std::string options = spec::flow_text(plugin.options);
  fields.value("file", plugin.file);
  fields.value("digest", plugin.digest);
  fields.value("name", plugin.name);
  fields.value("folder", plugin.folder);
  fields.value("options", options);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(plugin)>>) {
    plugin.options = spec::read_plugin_options(options, plugin.folder);
  }
}

// Facts are one text, as in job files.
void fields_of(auto& fields, Is<spec::Script> auto& script) {
  std::string facts = to_text(script.facts);
  fields.value("path", script.path);
  fields.name("loss", script.loss);
  fields.value("digest", script.digest);
  fields.object_or_absent("plugin", script.plugin);
  fields.object_or_absent("own_loss", script.own_loss);
  fields.value("facts", facts);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(script)>>) {
    script.facts = spec::script_facts(facts, "script.facts");
  }
}

void fields_of(auto& fields, Is<spec::Model> auto& model) {
  fields.value("name", model.name);
  fields.name("arch", model.arch);
  fields.name("activation", model.activation);
  fields.non_negative("layers", model.layers);
  fields.non_negative("hidden", model.hidden);
  fields.non_negative("heads", model.heads);
  fields.non_negative("kv_heads", model.kv_heads);
  fields.non_negative("head_dim", model.head_dim);
  fields.non_negative("ffn_hidden", model.ffn_hidden);
  fields.non_negative("vocab", model.vocab);
  fields.non_negative("max_sequence", model.max_sequence);
  fields.non_negative("experts", model.experts);
  fields.non_negative("experts_per_token", model.experts_per_token);
  fields.non_negative("shared_experts", model.shared_experts);
  fields.non_negative("state_size", model.state_size);
  fields.non_negative("conv_kernel", model.conv_kernel);
  fields.non_negative("expand", model.expand);
  fields.non_negative("dt_rank", model.dt_rank);
  fields.non_negative("type_vocab", model.type_vocab);
  fields.non_negative("image_size", model.image_size);
  fields.value("image_channels", model.image_channels);
  fields.non_negative("classes", model.classes);
  fields.non_negative("global_batch_tokens", model.global_batch_tokens);
  fields.value("stage_blocks", model.stage_blocks);
  fields.value("norm_epsilon", model.norm_epsilon);
  fields.value("rope_theta", model.rope_theta);
  fields.object("rope_scaling", model.rope_scaling);
  fields.value("dropout", model.dropout);
  fields.value("init_std", model.init_std);
  fields.value("tied_embeddings", model.tied_embeddings);
  fields.value("bias", model.bias);
  fields.value("bottleneck", model.bottleneck);
  // Younger than the first plan files.
  fields.non_negative_or_absent("router_auxiliary_loss", model.router_auxiliary_loss);
  fields.non_negative_or_absent("router_z_loss", model.router_z_loss);
  fields.non_negative_or_absent("capacity_factor", model.capacity_factor);
  fields.object_or_absent("decoder", model.decoder);
  if (model.is_scripted()) fields.object("script", model.script);
}

void fields_of(auto& fields, Is<spec::Link> auto& link) {
  fields.name("kind", link.kind);
  fields.non_negative("bytes_per_second", link.bytes_per_second);
  fields.non_negative("latency_seconds", link.latency_seconds);
}

void fields_of(auto& fields, Is<spec::Device> auto& device) {
  fields.value("kind", device.kind);
  fields.non_negative("memory_bytes", device.memory_bytes);
  fields.non_negative("memory_bytes_per_second", device.memory_bytes_per_second);
  fields.non_negative("peak_bf16_flops", device.peak_bf16_flops);
  fields.non_negative("peak_fp32_flops", device.peak_fp32_flops);
  fields.non_negative("peak_fp8_flops", device.peak_fp8_flops);
  fields.non_negative_or_absent("reached_bf16_flops", device.reached_bf16_flops);
}

void fields_of(auto& fields, Is<spec::NodeGroup> auto& group) {
  fields.value("name", group.name);
  fields.positive("nodes", group.nodes);
  fields.positive("devices_per_node", group.devices_per_node);
  fields.object("device", group.device);
  fields.object("intra", group.intra);
  fields.object("nic", group.nic);
  fields.value("nics_per_node", group.nics_per_node);
  fields.non_negative_or_absent("host_memory_bytes", group.host_memory_bytes);
  fields.non_negative("price_per_device_hour_usd", group.price_per_device_hour_usd);
  fields.non_negative("failures_per_1000_node_days", group.failures_per_1000_node_days);
}

void fields_of(auto& fields, Is<spec::Storage> auto& storage) {
  fields.non_negative("read_bytes_per_second", storage.read_bytes_per_second);
  fields.non_negative("write_bytes_per_second", storage.write_bytes_per_second);
}

void fields_of(auto& fields, Is<spec::Cluster> auto& cluster) {
  fields.value("name", cluster.name);
  fields.objects("groups", cluster.groups);
  fields.object("between_groups", cluster.between_groups);
  fields.object("storage", cluster.storage);
}

nlohmann::json model_to_json(const spec::Model& model) { return to_json_object(model); }
spec::Model read_model(JsonReader reader) { return read_object<spec::Model>(std::move(reader)); }

nlohmann::json cluster_to_json(const spec::Cluster& cluster) { return to_json_object(cluster); }

spec::Cluster read_cluster(JsonReader reader) {
  spec::Cluster cluster = read_object<spec::Cluster>(reader);
  if (cluster.groups.empty()) reader.fail("groups", "is empty");
  return cluster;
}

}  // namespace lockstep::plan
