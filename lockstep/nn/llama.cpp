// Llama (Touvron et al. 2023) with Hugging Face's names: RMSNorm, RoPE (rotate_half), grouped-query attention, SwiGLU;
// and Mixtral (Jiang et al. 2024), which is Llama with a mixture of experts for the MLP.
#include <string>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/nn/moe.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

struct LlamaLayer : torch::nn::Module {
  std::shared_ptr<Linear> q, k, v, o, gate, up, down;
  std::shared_ptr<MoeMlp> experts;  // Mixtral: instead of gate, up and down
  std::shared_ptr<RmsNorm> input_norm, post_norm;
};

class Llama : public LanguageModel {
 public:
  Llama(const spec::Model& model, const BuildOptions& build)
      : LanguageModel(model, build), heads_(head_share(model, partition())) {
    auto base = register_module("model", std::make_shared<Group>());
    embed_ = make_words(*base, "embed_tokens");
    auto layers = base->register_module("layers", std::make_shared<Group>());
    make_layers(*layers, [&](std::int64_t i) { return make_layer(i); });
    if (part().head) norm_ = base->register_module("norm", make_rms_norm());
    make_head(embed_);
  }

  Tensor embed(const Tensor& tokens, const ForwardContext&) override { return embed_words(tokens); }

  LayerOutput run_layer(std::int64_t index, int part_index, const Tensor& x, const ForwardContext& context) override {
    const LlamaLayer& layer = layer_at<LlamaLayer>(index);
    if (part_index == 0) return {attend(layer, index, x, context)};
    return layer.experts ? route(layer, x, context) : LayerOutput{expand(layer, x)};
  }

  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const override { return {embed_}; }

 protected:
  Tensor final_norm(const Tensor& x) const override { return norm_->forward(x); }
  std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const override { return {norm_}; }

 private:
  std::shared_ptr<LlamaLayer> make_layer(std::int64_t index) const {
    const auto dense = [&](std::int64_t in, std::int64_t out, const LinearCut& cut) {
      return std::make_shared<Linear>(in, out, spec().bias, WeightLayout::kOutIn,
                                      Init{Init::Kind::kNormal, spec().init_std}, tensor_options(), cut);
    };
    const auto by_outputs = [](const Segment& segment, std::int64_t sharers = 1) {
      return LinearCut{
          .kind = LinearCut::Kind::kOutputs, .segments = {segment}, .weight = {sharers, /*partial=*/sharers > 1}};
    };
    const auto by_inputs = [&](const Segment& segment) {
      return LinearCut{.kind = LinearCut::Kind::kInputs, .segments = {segment}, .bias = outside_blocks()};
    };
    const std::int64_t dim = head_dim(), kv_heads = spec().kv_heads > 0 ? spec().kv_heads : spec().heads;
    const auto rows = [dim](const Segment& heads) { return Segment{heads.first * dim, heads.count * dim}; };
    auto layer = std::make_shared<LlamaLayer>();
    auto attention = layer->register_module("self_attn", std::make_shared<Group>());
    const LinearCut keys = by_outputs(rows(heads_.key), heads_.key_sharers);
    layer->q =
        attention->register_module("q_proj", dense(spec().hidden, spec().heads * dim, by_outputs(rows(heads_.query))));
    layer->k = attention->register_module("k_proj", dense(spec().hidden, kv_heads * dim, keys));
    layer->v = attention->register_module("v_proj", dense(spec().hidden, kv_heads * dim, keys));
    layer->o =
        attention->register_module("o_proj", dense(spec().heads * dim, spec().hidden, by_inputs(rows(heads_.query))));
    if (spec().experts > 0) {
      layer->experts = layer->register_module("block_sparse_moe",
                                              std::make_shared<MoeMlp>(spec(), index, partition(), tensor_options()));
    } else {
      const Segment columns = partition().tp_share(spec().ffn_hidden);
      auto mlp = layer->register_module("mlp", std::make_shared<Group>());
      layer->gate = mlp->register_module("gate_proj", dense(spec().hidden, spec().ffn_hidden, by_outputs(columns)));
      layer->up = mlp->register_module("up_proj", dense(spec().hidden, spec().ffn_hidden, by_outputs(columns)));
      layer->down = mlp->register_module("down_proj", dense(spec().ffn_hidden, spec().hidden, by_inputs(columns)));
    }
    layer->input_norm = layer->register_module("input_layernorm", make_rms_norm());
    layer->post_norm = layer->register_module("post_attention_layernorm", make_rms_norm());
    return layer;
  }

  Tensor attend(const LlamaLayer& layer, std::int64_t index, const Tensor& x, const ForwardContext& context) {
    const Tensor normed = enter_block(layer.input_norm->forward(x), "tp: attention input");
    const std::int64_t batch = normed.size(0), rows = normed.size(1);
    const RopeTables tables = tables_for(rows, context.positions);
    const auto heads = [&](const Tensor& projected) { return projected.view({batch, rows, -1, head_dim()}); };
    const Tensor q = rope(heads(layer.q->forward(normed)), tables.cos, tables.sin);
    const Tensor k = rope(heads(layer.k->forward(normed)), tables.cos, tables.sin);
    const Tensor v = heads(layer.v->forward(normed));
    // Llama's only dropout is on the attention probabilities (attention_dropout).
    const AttentionOptions options = attention_options(index, heads_.query.first, context);
    return leave_block(x, self_attention(q, k, v, options).flatten(2), *layer.o, "tp: attention output");
  }

  Tensor expand(const LlamaLayer& layer, const Tensor& x) const {
    const Tensor inner = enter_block(layer.post_norm->forward(x), "tp: mlp input");
    const bool plain = layer.gate->plain() && layer.up->plain() && layer.down->plain();
    if (partition().tp_size() == 1 && plain && !layer.gate->bias.defined()) {
      return swiglu_mlp(x, inner, layer.gate->weight, layer.up->weight, layer.down->weight);
    }
    return leave_block(x, swiglu(layer.gate->forward(inner), layer.up->forward(inner)), *layer.down, "tp: mlp output");
  }

  LayerOutput route(const LlamaLayer& layer, const Tensor& x, const ForwardContext& context) const {
    const Tensor inner = enter_block(layer.post_norm->forward(x), "tp: mlp input");
    const MoeMlp::Output routed = layer.experts->forward(inner, context);
    return {x + leave_block(routed.y, "tp: mlp output"), routed.auxiliary};
  }

  // Angles are a pure function of the spec: made once for the longest sequence seen, and no part of the state.
  RopeTables tables_for(std::int64_t rows, const Tensor& positions) {
    const std::int64_t longest = positions.defined() ? positions.max().item<std::int64_t>() + 1 : rows;
    if (!tables_.cos.defined() || tables_.cos.size(0) < longest) {
      tables_ = rope_tables(longest, head_dim(), spec().rope_theta, spec().rope_scaling, tensor_options());
    }
    if (positions.defined()) return {tables_.cos.index_select(0, positions), tables_.sin.index_select(0, positions)};
    return {tables_.cos.slice(0, 0, rows), tables_.sin.slice(0, 0, rows)};
  }

  HeadShare heads_;
  std::shared_ptr<Embedding> embed_;
  std::shared_ptr<RmsNorm> norm_;
  RopeTables tables_;
};

}  // namespace

std::shared_ptr<LanguageModel> make_llama(const spec::Model& spec, const BuildOptions& options) {
  return std::make_shared<Llama>(spec, options);
}

}  // namespace lockstep::nn
