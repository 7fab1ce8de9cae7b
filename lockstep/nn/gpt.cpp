// GPT-2 (Radford et al. 2019) with Hugging Face's names: learned positions, pre-LayerNorm, gelu_new, tied head.
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/language_model.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

std::int64_t attention_width(const spec::Model& spec) {
  return spec.heads * (spec.head_dim > 0 ? spec.head_dim : spec.hidden / spec.heads);
}

// Three masks per block and one for the embedding, each with a number of its own.
enum class DropoutPlace : std::uint32_t { kAttention = 0, kAttentionOutput = 1, kMlpOutput = 2 };

DropoutSite site_of(const ForwardContext& context, std::uint32_t layer) {
  return {context.seed, context.step, context.first_index, layer};
}

class GptBlock : public torch::nn::Module {
 public:
  GptBlock(const spec::Model& spec, std::int64_t index, const torch::TensorOptions& options)
      : heads_(spec.heads), index_(index), dropout_(spec.dropout), activation_(spec.activation) {
    const Init normal{Init::Kind::kNormal, spec.init_std};
    // Residual projections are scaled down by the number of residual additions (section 2.3 of the paper).
    const Init scaled{Init::Kind::kNormal, spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.layers))};
    const std::int64_t inner = spec.ffn_hidden > 0 ? spec.ffn_hidden : 4 * spec.hidden;
    const std::int64_t width = attention_width(spec);
    const auto dense = [&](std::int64_t in, std::int64_t out, const Init& init) {
      return std::make_shared<Linear>(in, out, spec.bias, WeightLayout::kInOut, init, options);
    };
    const auto norm = [&] { return std::make_shared<LayerNorm>(spec.hidden, spec.bias, spec.norm_epsilon, options); };
    ln_1_ = register_module("ln_1", norm());
    auto attn = register_module("attn", std::make_shared<Group>());
    c_attn_ = attn->register_module("c_attn", dense(spec.hidden, 3 * width, normal));
    attn_proj_ = attn->register_module("c_proj", dense(width, spec.hidden, scaled));
    ln_2_ = register_module("ln_2", norm());
    auto mlp = register_module("mlp", std::make_shared<Group>());
    c_fc_ = mlp->register_module("c_fc", dense(spec.hidden, inner, normal));
    mlp_proj_ = mlp->register_module("c_proj", dense(inner, spec.hidden, scaled));
  }

  Tensor forward(const Tensor& x, const ForwardContext& context) const {  // [batch, seq, hidden]
    const double p = context.training ? dropout_ : 0.0;
    const Tensor attended = causal_attention_packed(c_attn_->forward(ln_1_->forward(x)), heads_,
                                                    {p, site(context, DropoutPlace::kAttention)});
    const Tensor middle =
        p > 0 ? x + dropout(attn_proj_->forward(attended), p, site(context, DropoutPlace::kAttentionOutput))
              : attn_proj_->add_to(x, attended);
    const Tensor normed = ln_2_->forward(middle);
    if (p == 0 && activation_ == spec::Activation::kGeluTanh) {
      return gelu_mlp(middle, normed, c_fc_->weight, c_fc_->bias, mlp_proj_->weight, mlp_proj_->bias,
                      WeightLayout::kInOut);
    }
    const Tensor out = mlp_proj_->forward(activate(normed));
    return middle + dropout(out, p, site(context, DropoutPlace::kMlpOutput));
  }

 private:
  DropoutSite site(const ForwardContext& context, DropoutPlace place) const {
    return site_of(context, static_cast<std::uint32_t>(1 + 3 * index_) + static_cast<std::uint32_t>(place));
  }

  Tensor activate(const Tensor& x) const {
    switch (activation_) {
      case spec::Activation::kGeluTanh:
        return bias_gelu(linear(x, c_fc_->weight, Tensor(), WeightLayout::kInOut), c_fc_->bias);
      case spec::Activation::kGelu:
        return at::gelu(c_fc_->forward(x));
      case spec::Activation::kRelu:
        return at::relu(c_fc_->forward(x));
      case spec::Activation::kSilu:
        return at::silu(c_fc_->forward(x));
    }
    return {};
  }

  std::int64_t heads_;
  std::int64_t index_;
  double dropout_;
  spec::Activation activation_;
  std::shared_ptr<LayerNorm> ln_1_, ln_2_;
  std::shared_ptr<Linear> c_attn_, attn_proj_, c_fc_, mlp_proj_;
};

class Gpt : public LanguageModel {
 public:
  Gpt(const spec::Model& model, const torch::TensorOptions& options)
      : LanguageModel(model, options.dtype().toScalarType()) {
    auto transformer = register_module("transformer", std::make_shared<Group>());
    wte_ = transformer->register_module(
        "wte", std::make_shared<Embedding>(model.vocab, model.hidden, model.init_std, options));
    wpe_ = transformer->register_module(
        "wpe", std::make_shared<Embedding>(model.max_sequence, model.hidden, model.init_std, options));
    auto blocks = transformer->register_module("h", std::make_shared<Group>());
    for (std::int64_t i = 0; i < model.layers; ++i) {
      blocks_.push_back(blocks->register_module(std::to_string(i), std::make_shared<GptBlock>(model, i, options)));
    }
    ln_f_ = transformer->register_module(
        "ln_f", std::make_shared<LayerNorm>(model.hidden, model.bias, model.norm_epsilon, options));
    make_head(wte_, options);
  }

  Tensor hidden_states(const Tensor& tokens, const ForwardContext& context) override {
    const Tensor positions = wpe_->weight.slice(0, 0, tokens.size(1));  // [seq, hidden]
    Tensor x = wte_->forward(tokens) + positions;
    x = dropout(x, context.training ? spec().dropout : 0.0, site_of(context, 0));
    for (const auto& block : blocks_) x = block->forward(x, context);
    return ln_f_->forward(x);
  }

 private:
  std::shared_ptr<Embedding> wte_, wpe_;
  std::vector<std::shared_ptr<GptBlock>> blocks_;
  std::shared_ptr<LayerNorm> ln_f_;
};

}  // namespace

std::shared_ptr<TrainableModel> make_gpt(const spec::Model& spec, const torch::TensorOptions& options) {
  return std::make_shared<Gpt>(spec, options);
}

}  // namespace lockstep::nn
