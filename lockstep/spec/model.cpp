#include "lockstep/spec/model.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"

namespace lockstep::spec {
namespace {

// Lines "key: value" at one indent.
class Lines {
 public:
  explicit Lines(int indent) : indent_(static_cast<std::size_t>(indent), ' ') {}
  void add(const char* key, const std::string& value) { text_ += indent_ + key + ": " + value + "\n"; }
  void add(const char* key, std::int64_t value) { add(key, std::to_string(value)); }
  void add(const char* key, bool value) { add(key, std::string(value ? "true" : "false")); }
  void add_text(const std::string& lines) { text_ += lines; }
  int indent() const { return static_cast<int>(indent_.size()); }
  std::string take() { return std::move(text_); }

 private:
  std::string indent_, text_;
};

std::string list_of(const std::vector<double>& values) {
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const double value : values) texts.push_back(exact_real(value));
  return fmt::format("[{}]", join(texts, ", "));
}

void write_rope(const RopeScaling& rope, Lines& lines) {
  if (rope == RopeScaling{}) return;
  std::string text = fmt::format("kind: {}, factor: {}", to_string(rope.kind), exact_real(rope.factor));
  if (rope.low_freq_factor != RopeScaling{}.low_freq_factor ||
      rope.high_freq_factor != RopeScaling{}.high_freq_factor) {
    text += fmt::format(", low_freq_factor: {}, high_freq_factor: {}", exact_real(rope.low_freq_factor),
                        exact_real(rope.high_freq_factor));
  }
  text += fmt::format(", original_max_sequence: {}", rope.original_max_sequence);
  if (rope.kind == RopeScaling::Kind::kYarn) {
    text += fmt::format(", beta_fast: {}, beta_slow: {}, truncate: {}", exact_real(rope.beta_fast),
                        exact_real(rope.beta_slow), rope.truncate);
  }
  if (rope.attention_factor > 0) text += ", attention_factor: " + exact_real(rope.attention_factor);
  if (rope.kind == RopeScaling::Kind::kLongRope) {
    text +=
        fmt::format(", short_factors: {}, long_factors: {}", list_of(rope.short_factors), list_of(rope.long_factors));
  }
  lines.add("rope_scaling", "{" + text + "}");
}

// What adopt_family() did not set.
void write_decoder(const Model& model, Lines& lines) {
  Model usual;
  adopt_family(usual, model.decoder.family);
  const Decoder &d = model.decoder, &u = usual.decoder;
  const auto name = [&](const char* key, auto value, auto other) {
    if (value != other) lines.add(key, std::string(to_string(value)));
  };
  const auto flag = [&](const char* key, bool value, bool other) {
    if (value != other) lines.add(key, value);
  };
  const auto real = [&](const char* key, double value, double other) {
    if (value != other) lines.add(key, exact_real(value));
  };
  const auto count = [&](const char* key, std::int64_t value) {
    if (value != 0) lines.add(key, value);
  };
  name("family", d.family, Family::kLlama);
  name("norm", d.norm, u.norm);
  flag("norm_plus_one", d.norm_plus_one, u.norm_plus_one);
  flag("norm_bias", d.norm_bias, u.norm_bias);
  name("norm_place", d.norm_place, u.norm_place);
  name("parallel_block", d.parallel_block, u.parallel_block);
  flag("gated_mlp", d.gated_mlp, u.gated_mlp);
  flag("qkv_bias", d.qkv_bias, u.qkv_bias);
  flag("attention_output_bias", d.attention_output_bias, u.attention_output_bias);
  name("qk_norm", d.qk_norm, u.qk_norm);
  real("clip_qkv", d.clip_qkv, u.clip_qkv);
  real("score_dim", d.score_dim, u.score_dim);
  real("attention_softcap", d.attention_softcap, u.attention_softcap);
  real("logit_softcap", d.logit_softcap, u.logit_softcap);
  count("key_value_rank", d.key_value_rank);
  count("query_rank", d.query_rank);
  count("value_dim", d.value_dim);
  flag("only_planned", d.only_planned, u.only_planned);
  count("sliding_window", d.sliding_window);
  count("window_period", d.window_period);
  count("window_from", d.window_from);
  real("rotary_fraction", d.rotary_fraction, u.rotary_fraction);
  real("local_rope_theta", d.local_rope_theta, u.local_rope_theta);
  flag("scaled_embeddings", d.scaled_embeddings, u.scaled_embeddings);
  count("dense_layers", d.dense_layers);
  count("dense_ffn_hidden", d.dense_ffn_hidden);
  flag("normalized_routing", d.normalized_routing, u.normalized_routing);
  real("routed_scale", d.routed_scale, u.routed_scale);
}

void write_transformer(const Model& model, Lines& lines) {
  lines.add("heads", model.heads);
  lines.add("kv_heads", model.kv_heads);
  lines.add("head_dim", model.head_dim);
  lines.add("ffn_hidden", model.ffn_hidden);
  if (model.arch == Arch::kMoe) {
    lines.add("experts", model.experts);
    lines.add("experts_per_token", model.experts_per_token);
    lines.add("shared_experts", model.shared_experts);
    lines.add("router_auxiliary_loss", exact_real(model.router_auxiliary_loss));
    lines.add("router_z_loss", exact_real(model.router_z_loss));
    lines.add("capacity_factor", exact_real(model.capacity_factor));
  }
  if (has_decoder(model)) {
    lines.add("rope_theta", exact_real(model.rope_theta));
    write_rope(model.rope_scaling, lines);
    write_decoder(model, lines);
  }
  if (model.arch == Arch::kBert) lines.add("type_vocab", model.type_vocab);
}

void write_language_model(const Model& model, Lines& lines) {
  lines.add("layers", model.layers);
  lines.add("hidden", model.hidden);
  lines.add("vocab", model.vocab);
  lines.add("max_sequence", model.max_sequence);
  lines.add("tied_embeddings", model.tied_embeddings);
  lines.add("bias", model.bias);
  lines.add("activation", std::string(to_string(model.activation)));
  lines.add("norm_epsilon", exact_real(model.norm_epsilon));
  lines.add("init_std", exact_real(model.init_std));
  lines.add("global_batch_tokens", model.global_batch_tokens);
  lines.add("classes", model.classes);
  if (model.arch == Arch::kMamba) {
    lines.add("state_size", model.state_size);
    lines.add("conv_kernel", model.conv_kernel);
    lines.add("expand", model.expand);
    lines.add("dt_rank", model.dt_rank);
  } else {
    write_transformer(model, lines);
  }
}

void write_image_model(const Model& model, Lines& lines) {
  lines.add("image_size", model.image_size);
  lines.add("image_channels", model.image_channels);
  lines.add("classes", model.classes);
  if (model.arch != Arch::kResNet) return;
  std::vector<std::string> blocks;
  for (const std::int64_t count : model.stage_blocks) blocks.push_back(std::to_string(count));
  lines.add("stage_blocks", fmt::format("[{}]", join(blocks, ", ")));
  lines.add("bottleneck", model.bottleneck);
}

void write_script(const Script& script, Lines& lines) {
  if (script.plugin.used()) lines.add_text(plugin_lines(script.plugin, lines.indent()));
  if (!script.plugin.used() && script.own_loss.used())
    lines.add_text(plugin_file_lines(script.own_loss, lines.indent()));
  if (script.plugin.used()) lines.add("arch", yaml_quote(script.plugin.name));
  if (!script.plugin.used()) lines.add("torchscript", yaml_quote(script.path));
  lines.add("loss", script.own_loss.used() ? yaml_quote(script.own_loss.name) : std::string(to_string(script.loss)));
  if (!script.own_loss.options.entries.empty()) lines.add("loss_options", flow_text(script.own_loss.options));
  if (!script.plugin.used()) lines.add("digest", yaml_quote(script.digest));
  if (script.facts.known()) lines.add("facts", yaml_quote(to_text(script.facts)));
}

}  // namespace

const char* origin_of(const Model& model) {
  return model.arch == Arch::kPlugin ? "a model of a plugin" : "a module from Python";
}

double rope_attention_factor(const RopeScaling& rope, std::int64_t max_sequence) {
  if (rope.kind != RopeScaling::Kind::kYarn && rope.kind != RopeScaling::Kind::kLongRope) return 1.0;
  if (rope.attention_factor > 0) return rope.attention_factor;
  const auto original = static_cast<double>(rope.original_max_sequence);
  const double factor = rope.factor > 0 ? rope.factor : static_cast<double>(max_sequence) / original;
  if (factor <= 1.0) return 1.0;
  if (rope.kind == RopeScaling::Kind::kYarn) return 0.1 * std::log(factor) + 1.0;
  return std::sqrt(1.0 + std::log(factor) / std::log(original));
}

std::string to_yaml(const Model& model, int indent) {
  Lines lines(indent);
  lines.add("name", yaml_quote(model.name));
  if (model.is_scripted()) {
    write_script(model.script, lines);
    if (model.image_size > 0) {
      lines.add("image_size", model.image_size);
      lines.add("image_channels", model.image_channels);
      lines.add("classes", model.classes);
    }
    return lines.take();
  }
  lines.add("arch", std::string(to_string(model.arch)));
  lines.add("dropout", exact_real(model.dropout));
  model.is_language_model() ? write_language_model(model, lines) : write_image_model(model, lines);
  return lines.take();
}

}  // namespace lockstep::spec
