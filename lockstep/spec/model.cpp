#include "lockstep/spec/model.h"

#include <fmt/format.h>

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
  std::string take() { return std::move(text_); }

 private:
  std::string indent_, text_;
};

void write_rope(const RopeScaling& rope, Lines& lines) {
  if (rope == RopeScaling{}) return;
  lines.add("rope_scaling", fmt::format("{{kind: {}, factor: {}, low_freq_factor: {}, high_freq_factor: {}, "
                                        "original_max_sequence: {}}}",
                                        to_string(rope.kind), exact_real(rope.factor), exact_real(rope.low_freq_factor),
                                        exact_real(rope.high_freq_factor), rope.original_max_sequence));
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
  if (model.arch == Arch::kLlama || model.arch == Arch::kMoe) {
    lines.add("rope_theta", exact_real(model.rope_theta));
    write_rope(model.rope_scaling, lines);
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
  lines.add("torchscript", yaml_quote(script.path));
  lines.add("loss", std::string(to_string(script.loss)));
  lines.add("digest", yaml_quote(script.digest));
  if (script.facts.known()) lines.add("facts", yaml_quote(to_text(script.facts)));
}

}  // namespace

std::string to_yaml(const Model& model, int indent) {
  Lines lines(indent);
  lines.add("name", yaml_quote(model.name));
  if (model.is_scripted()) {
    write_script(model.script, lines);
    return lines.take();
  }
  lines.add("arch", std::string(to_string(model.arch)));
  lines.add("dropout", exact_real(model.dropout));
  model.is_language_model() ? write_language_model(model, lines) : write_image_model(model, lines);
  return lines.take();
}

}  // namespace lockstep::spec
