// Llama (Touvron et al. 2023) with Hugging Face's names: RMSNorm, RoPE (rotate_half), grouped-query attention, SwiGLU.
#include <string>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/language_model.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

class LlamaBlock : public torch::nn::Module {
 public:
  LlamaBlock(const spec::Model& spec, std::int64_t index, const torch::TensorOptions& options)
      : heads_(spec.heads),
        kv_heads_(spec.kv_heads > 0 ? spec.kv_heads : spec.heads),
        head_dim_(spec.head_dim > 0 ? spec.head_dim : spec.hidden / spec.heads),
        layer_(static_cast<std::uint32_t>(1 + 3 * index)),
        dropout_(spec.dropout) {
    const auto dense = [&](std::int64_t in, std::int64_t out) {
      return std::make_shared<Linear>(in, out, spec.bias, WeightLayout::kOutIn,
                                      Init{Init::Kind::kNormal, spec.init_std}, options);
    };
    const auto norm = [&] { return std::make_shared<RmsNorm>(spec.hidden, spec.norm_epsilon, options); };
    auto attention = register_module("self_attn", std::make_shared<Group>());
    q_ = attention->register_module("q_proj", dense(spec.hidden, heads_ * head_dim_));
    k_ = attention->register_module("k_proj", dense(spec.hidden, kv_heads_ * head_dim_));
    v_ = attention->register_module("v_proj", dense(spec.hidden, kv_heads_ * head_dim_));
    o_ = attention->register_module("o_proj", dense(heads_ * head_dim_, spec.hidden));
    auto mlp = register_module("mlp", std::make_shared<Group>());
    gate_ = mlp->register_module("gate_proj", dense(spec.hidden, spec.ffn_hidden));
    up_ = mlp->register_module("up_proj", dense(spec.hidden, spec.ffn_hidden));
    down_ = mlp->register_module("down_proj", dense(spec.ffn_hidden, spec.hidden));
    input_norm_ = register_module("input_layernorm", norm());
    post_norm_ = register_module("post_attention_layernorm", norm());
  }

  Tensor forward(const Tensor& x, const RopeTables& tables, const ForwardContext& context) const {
    const std::int64_t batch = x.size(0), seq = x.size(1);
    const Tensor normed = input_norm_->forward(x);
    const Tensor q = rope(q_->forward(normed).view({batch, seq, heads_, head_dim_}), tables.cos, tables.sin);
    const Tensor k = rope(k_->forward(normed).view({batch, seq, kv_heads_, head_dim_}), tables.cos, tables.sin);
    const Tensor v = v_->forward(normed).view({batch, seq, kv_heads_, head_dim_});
    // Llama's only dropout is on the attention probabilities (attention_dropout).
    const AttentionDropout attention_dropout{context.training ? dropout_ : 0.0,
                                             {context.seed, context.step, context.first_index, layer_}};
    const Tensor attended = causal_attention(q, k, v, attention_dropout).view({batch, seq, heads_ * head_dim_});
    const Tensor middle = o_->add_to(x, attended);
    const Tensor inner = post_norm_->forward(middle);
    if (!gate_->bias.defined()) return swiglu_mlp(middle, inner, gate_->weight, up_->weight, down_->weight);
    return down_->add_to(middle, swiglu(gate_->forward(inner), up_->forward(inner)));
  }

 private:
  std::int64_t heads_, kv_heads_, head_dim_;
  std::uint32_t layer_;
  double dropout_;
  std::shared_ptr<Linear> q_, k_, v_, o_, gate_, up_, down_;
  std::shared_ptr<RmsNorm> input_norm_, post_norm_;
};

class Llama : public LanguageModel {
 public:
  Llama(const spec::Model& model, const torch::TensorOptions& options)
      : LanguageModel(model, options.dtype().toScalarType()) {
    auto base = register_module("model", std::make_shared<Group>());
    embed_ = base->register_module("embed_tokens",
                                   std::make_shared<Embedding>(model.vocab, model.hidden, model.init_std, options));
    auto layers = base->register_module("layers", std::make_shared<Group>());
    for (std::int64_t i = 0; i < model.layers; ++i) {
      blocks_.push_back(layers->register_module(std::to_string(i), std::make_shared<LlamaBlock>(model, i, options)));
    }
    norm_ = base->register_module("norm", std::make_shared<RmsNorm>(model.hidden, model.norm_epsilon, options));
    make_head(embed_, options);
  }

  Tensor hidden_states(const Tensor& tokens, const ForwardContext& context) override {
    prepare_tables(tokens.size(1));
    const RopeTables tables{tables_.cos.slice(0, 0, tokens.size(1)), tables_.sin.slice(0, 0, tokens.size(1))};
    Tensor x = embed_->forward(tokens);
    for (const auto& block : blocks_) x = block->forward(x, tables, context);
    return norm_->forward(x);
  }

 private:
  // Angles are a pure function of the spec: made once for the longest sequence seen, and no part of the state.
  void prepare_tables(std::int64_t seq) {
    if (tables_.cos.defined() && tables_.cos.size(0) >= seq) return;
    const std::int64_t head_dim = spec().head_dim > 0 ? spec().head_dim : spec().hidden / spec().heads;
    tables_ = rope_tables(seq, head_dim, spec().rope_theta, spec().rope_scaling, embed_->weight.options());
  }

  std::shared_ptr<Embedding> embed_;
  std::vector<std::shared_ptr<LlamaBlock>> blocks_;
  std::shared_ptr<RmsNorm> norm_;
  RopeTables tables_;
};

}  // namespace

std::shared_ptr<TrainableModel> make_llama(const spec::Model& spec, const torch::TensorOptions& options) {
  return std::make_shared<Llama>(spec, options);
}

}  // namespace lockstep::nn
