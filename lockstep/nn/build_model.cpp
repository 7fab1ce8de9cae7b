#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/image_model.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/plugin_model.h"
#include "lockstep/nn/script_model.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::nn {
namespace {

UserError does_not_add_up(const spec::Model& spec, const std::string& problem, const std::string& fix) {
  return bad_input("model " + spec.name + ": " + problem, fix);
}

void require_positive(const spec::Model& spec, const char* key, std::int64_t value) {
  if (value > 0) return;
  throw does_not_add_up(spec, std::string(key) + " is " + std::to_string(value), std::string("set model.") + key);
}

void check_transformer(const spec::Model& spec) {
  require_positive(spec, "layers", spec.layers);
  require_positive(spec, "hidden", spec.hidden);
  require_positive(spec, "heads", spec.heads);
  require_positive(spec, "vocab", spec.vocab);
  const bool learned_positions = spec.arch == spec::Arch::kGpt || spec.arch == spec::Arch::kBert;
  if (learned_positions) require_positive(spec, "max_sequence", spec.max_sequence);
  if (spec.arch == spec::Arch::kLlama) require_positive(spec, "ffn_hidden", spec.ffn_hidden);
  if (spec.head_dim <= 0 && spec.hidden % spec.heads != 0) {
    throw does_not_add_up(
        spec,
        "hidden " + std::to_string(spec.hidden) + " does not divide into " + std::to_string(spec.heads) + " heads",
        "change model.heads or give model.head_dim");
  }
  if (spec.kv_heads > 0 && spec.heads % spec.kv_heads != 0) {
    throw does_not_add_up(
        spec, std::to_string(spec.heads) + " heads do not divide into " + std::to_string(spec.kv_heads) + " kv_heads",
        "change model.kv_heads");
  }
  if (learned_positions && spec.kv_heads > 0 && spec.kv_heads != spec.heads) {
    throw does_not_add_up(spec, std::string(spec::to_string(spec.arch)) + " has no grouped-query attention",
                          "set model.kv_heads to model.heads, or use arch llama");
  }
  if (spec.experts > 0 && spec.activation != spec::Activation::kSilu) {
    throw does_not_add_up(spec, "experts are trained with activation silu only", "set model.activation to silu");
  }
  if (spec::has_decoder(spec) && spec::rotary_dim(spec) % 2 != 0) {
    throw does_not_add_up(spec, "RoPE rotates an even part of a head, not " + std::to_string(spec::rotary_dim(spec)),
                          "change model.head_dim or model.rotary_fraction");
  }
}

void check_mamba(const spec::Model& spec) {
  require_positive(spec, "layers", spec.layers);
  require_positive(spec, "hidden", spec.hidden);
  require_positive(spec, "vocab", spec.vocab);
  require_positive(spec, "state_size", spec.state_size);
  require_positive(spec, "conv_kernel", spec.conv_kernel);
  require_positive(spec, "expand", spec.expand);
  require_positive(spec, "dt_rank", spec.dt_rank);
  if (spec.activation != spec::Activation::kSilu) {
    throw does_not_add_up(spec, "mamba is trained with activation silu only", "set model.activation to silu");
  }
  if (spec.dropout > 0) throw does_not_add_up(spec, "mamba has no dropout", "omit model.dropout");
}

void check_image_model(const spec::Model& spec) {
  require_positive(spec, "image_size", spec.image_size);
  require_positive(spec, "image_channels", spec.image_channels);
  require_positive(spec, "classes", spec.classes);
  if (spec.arch == spec::Arch::kMnistCnn && spec.image_size < 6) {
    throw does_not_add_up(spec, "images of " + std::to_string(spec.image_size) + " pixels are too small",
                          "use 6 or more");
  }
  if (spec.arch != spec::Arch::kResNet) return;
  require_positive(spec, "stage_blocks", static_cast<std::int64_t>(spec.stage_blocks.size()));
  for (const std::int64_t blocks : spec.stage_blocks) require_positive(spec, "stage_blocks", blocks);
}

void check(const spec::Model& spec, const BuildOptions& options) {
  if (spec.dropout < 0 || spec.dropout >= 1) {
    throw does_not_add_up(spec, "dropout " + std::to_string(spec.dropout) + " is not in [0, 1)", "set model.dropout");
  }
  if (options.device.is_cpu() && !compat::cpu_has_matmul(options.dtype)) {
    throw environment_error("this libtorch cannot multiply fp16 matrices on the CPU",
                            "use precision bf16 or fp32, or build against libtorch 2.x");
  }
  if (spec.is_scripted()) return;
  if (spec.is_image_model()) return check_image_model(spec);
  if (spec.classes > 0 && options.partition.cp_size() > 1) {
    throw does_not_add_up(spec, "a classifier reads one position of a whole sequence, and cp splits sequences",
                          "use cp=1");
  }
  if (spec.arch == spec::Arch::kMamba) return check_mamba(spec);
  check_transformer(spec);
}

std::shared_ptr<TrainableModel> make(const spec::Model& spec, const BuildOptions& build) {
  check(spec, build);
  const auto options = torch::dtype(build.dtype).device(build.device);
  switch (spec.arch) {
    case spec::Arch::kMnistCnn:
      return make_mnist_cnn(spec, options);
    case spec::Arch::kCifarCnn:
      return make_cifar_cnn(spec, options);
    case spec::Arch::kResNet:
      return make_resnet(spec, options);
    case spec::Arch::kGpt:
      return make_gpt(spec, build);
    case spec::Arch::kLlama:
    case spec::Arch::kMoe:
      return make_llama(spec, build);
    case spec::Arch::kMamba:
      return make_mamba(spec, build);
    case spec::Arch::kBert:
      return make_bert(spec, build);
    case spec::Arch::kTorchScript:
      return std::make_shared<ScriptModel>(spec, build);
    case spec::Arch::kPlugin:
      return std::make_shared<PluginModel>(spec, build);
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<TrainableModel> build_model(const spec::Model& spec, const BuildOptions& options) {
  compat::avoid_broken_amx();
  auto model = make(spec, options);
  if (options.initialise) initialise(*model, options.seed);
  return model;
}

}  // namespace lockstep::nn
