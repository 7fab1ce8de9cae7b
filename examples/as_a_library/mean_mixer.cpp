#include "mean_mixer.h"

#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace {

namespace nn = lockstep::nn;
using torch::Tensor;

struct MixerLayer : torch::nn::Module {
  std::shared_ptr<nn::RmsNorm> mix_norm, mlp_norm;
  std::shared_ptr<nn::Linear> gate, value, output, up, down;
};

class MeanMixer : public nn::LanguageModel {
 public:
  MeanMixer(const lockstep::spec::Model& spec, const nn::BuildOptions& options) : LanguageModel(spec, options) {
    if (partition().tp_size() > 1 || partition().cp_size() > 1) {
      throw lockstep::bad_input("MeanMixer is not split by tp or cp", "set layout.tp and layout.cp to 1");
    }
    if (part().embedding) {
      embedding_ = register_module(
          "embedding", std::make_shared<nn::Embedding>(spec.vocab, spec.hidden, spec.init_std, tensor_options()));
    }
    auto layers = register_module("layers", std::make_shared<nn::Group>());
    make_layers(*layers, [this](std::int64_t) { return make_layer(); });
    if (part().head) norm_ = register_module("norm", make_norm());
    make_head(embedding_);
  }

  Tensor embed(const Tensor& tokens, const nn::ForwardContext&) override { return embedding_->forward(tokens); }

  // x [samples, positions, hidden]
  nn::LayerOutput run_layer(std::int64_t index, int part_index, const Tensor& x, const nn::ForwardContext&) override {
    const MixerLayer& layer = layer_at<MixerLayer>(index);
    return {x + (part_index == 0 ? mixed(layer, x) : widened(layer, x))};
  }

  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const override { return {embedding_}; }

 protected:
  Tensor final_norm(const Tensor& x) const override { return norm_->forward(x); }
  std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const override { return {norm_}; }

 private:
  std::shared_ptr<nn::RmsNorm> make_norm() const {
    return std::make_shared<nn::RmsNorm>(spec().hidden, spec().norm_epsilon, tensor_options());
  }

  std::shared_ptr<MixerLayer> make_layer() const {
    const auto dense = [&](std::int64_t in, std::int64_t out) {
      return std::make_shared<nn::Linear>(in, out, /*with_bias=*/false, nn::WeightLayout::kOutIn,
                                          nn::Init{nn::Init::Kind::kNormal, spec().init_std}, tensor_options());
    };
    const std::int64_t hidden = spec().hidden, inner = spec().ffn_hidden;
    auto layer = std::make_shared<MixerLayer>();
    layer->mix_norm = layer->register_module("mix_norm", make_norm());
    layer->gate = layer->register_module("gate", dense(hidden, hidden));
    layer->value = layer->register_module("value", dense(hidden, hidden));
    layer->output = layer->register_module("output", dense(hidden, hidden));
    layer->mlp_norm = layer->register_module("mlp_norm", make_norm());
    layer->up = layer->register_module("up", dense(hidden, inner));
    layer->down = layer->register_module("down", dense(inner, hidden));
    return layer;
  }

  static Tensor mixed(const MixerLayer& layer, const Tensor& x) {
    const Tensor normed = layer.mix_norm->forward(x);
    const Tensor seen = torch::arange(1, x.size(1) + 1, x.options().requires_grad(false)).unsqueeze(1);
    const Tensor mean = layer.value->forward(normed).cumsum(1) / seen;  // of this and all earlier positions
    return layer.output->forward(torch::sigmoid(layer.gate->forward(normed)) * mean);
  }

  static Tensor widened(const MixerLayer& layer, const Tensor& x) {
    return layer.down->forward(torch::relu(layer.up->forward(layer.mlp_norm->forward(x))).square());
  }

  std::shared_ptr<nn::Embedding> embedding_;
  std::shared_ptr<nn::RmsNorm> norm_;
};

}  // namespace

std::shared_ptr<nn::TrainableModel> make_mean_mixer(const lockstep::spec::Model& spec,
                                                    const nn::BuildOptions& options) {
  auto model = std::make_shared<MeanMixer>(spec, options);
  if (options.initialise) nn::initialise(*model, options.seed);  // by names and seed alone: the same under every layout
  return model;
}
