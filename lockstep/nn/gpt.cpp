// GPT-2 (Radford et al. 2019) with Hugging Face's names: learned positions, pre-LayerNorm, gelu_new, tied head.
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/language_model.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

struct GptLayer : torch::nn::Module {
  std::shared_ptr<LayerNorm> ln_1, ln_2;
  std::shared_ptr<Linear> c_attn, attn_proj, c_fc, mlp_proj;
};

class Gpt : public LanguageModel {
 public:
  Gpt(const spec::Model& model, const BuildOptions& build) : LanguageModel(model, build) {
    auto transformer = register_module("transformer", std::make_shared<Group>());
    wte_ = make_words(*transformer, "wte");
    if (part().embedding) {
      wpe_ = transformer->register_module(
          "wpe", std::make_shared<Embedding>(model.max_sequence, model.hidden, model.init_std, tensor_options(),
                                             std::vector<Segment>{}, outside_blocks()));
    }
    auto layers = transformer->register_module("h", std::make_shared<Group>());
    make_layers(*layers, [&](std::int64_t) { return make_layer(); });
    if (part().head) ln_f_ = transformer->register_module("ln_f", make_layer_norm());
    make_head(wte_);
  }

  Tensor embed(const Tensor& tokens, const ForwardContext& context) override {
    Tensor x = embed_words(tokens);
    const Tensor rows = stream_positions(x.size(1), context);
    const Tensor places = places_in_documents(rows, context);
    x = x + (places.defined() ? wpe_->forward(places) : wpe_->weight.slice(0, 0, x.size(1)));
    return dropout(x, dropout_of(context), site_of(context, 0), rows);
  }

  LayerOutput run_layer(std::int64_t index, int part_index, const Tensor& x, const ForwardContext& context) override {
    const GptLayer& layer = layer_at<GptLayer>(index);
    return {part_index == 0 ? attend(layer, index, x, context) : expand(layer, index, x, context)};
  }

  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const override { return {wte_, wpe_}; }

 protected:
  Tensor final_norm(const Tensor& x) const override { return ln_f_->forward(x); }
  std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const override { return {ln_f_}; }

 private:
  std::shared_ptr<GptLayer> make_layer() const {
    const Init normal{Init::Kind::kNormal, spec().init_std};
    // Residual projections are scaled down by the number of residual additions (section 2.3 of the paper).
    const Init scaled{Init::Kind::kNormal, spec().init_std / std::sqrt(2.0 * static_cast<double>(spec().layers))};
    const std::int64_t inner = spec().ffn_hidden > 0 ? spec().ffn_hidden : 4 * spec().hidden;
    const std::int64_t dim = head_dim(), width = spec().heads * dim;
    const Segment heads = head_share(spec(), partition()).query;
    const Segment own{heads.first * dim, heads.count * dim};  // of each of the three projections
    const auto dense = [&](std::int64_t in, std::int64_t out, const Init& init, const LinearCut& cut) {
      return std::make_shared<Linear>(in, out, spec().bias, WeightLayout::kInOut, init, tensor_options(), cut);
    };
    const auto by_outputs = [](std::vector<Segment> segments) {
      return LinearCut{.kind = LinearCut::Kind::kOutputs, .segments = std::move(segments)};
    };
    const auto by_inputs = [&](const Segment& segment) {
      return LinearCut{.kind = LinearCut::Kind::kInputs, .segments = {segment}, .bias = outside_blocks()};
    };
    auto layer = std::make_shared<GptLayer>();
    layer->ln_1 = layer->register_module("ln_1", make_layer_norm());
    auto attn = layer->register_module("attn", std::make_shared<Group>());
    layer->c_attn = attn->register_module(
        "c_attn", dense(spec().hidden, 3 * width, normal,
                        by_outputs({own, {width + own.first, own.count}, {2 * width + own.first, own.count}})));
    layer->attn_proj = attn->register_module("c_proj", dense(width, spec().hidden, scaled, by_inputs(own)));
    layer->ln_2 = layer->register_module("ln_2", make_layer_norm());
    auto mlp = layer->register_module("mlp", std::make_shared<Group>());
    const Segment columns = partition().tp_share(inner);
    layer->c_fc = mlp->register_module("c_fc", dense(spec().hidden, inner, normal, by_outputs({columns})));
    layer->mlp_proj = mlp->register_module("c_proj", dense(inner, spec().hidden, scaled, by_inputs(columns)));
    return layer;
  }

  Tensor attend(const GptLayer& layer, std::int64_t index, const Tensor& x, const ForwardContext& context) const {
    const double p = dropout_of(context);
    const Segment heads = head_share(spec(), partition()).query;
    const Tensor qkv = layer.c_attn->forward(enter_block(layer.ln_1->forward(x), "tp: attention input"));
    Tensor attended;
    if (partition().cp_size() == 1 && !context.documents.defined()) {
      attended = causal_attention_packed(qkv, heads.count,
                                         {p, site_of(context, index, DropoutPlace::kAttention), heads.first});
    } else {
      const auto parts = qkv.view({qkv.size(0), qkv.size(1), 3, heads.count, head_dim()}).unbind(2);
      const AttentionOptions options = attention_options(index, heads.first, context);
      attended = attend_by_document(parts[0], parts[1], parts[2], options, self_attention).flatten(2);
    }
    return leave_block(x, attended, *layer.attn_proj, "tp: attention output",
                       {p, site_of(context, index, DropoutPlace::kAttentionOutput)}, context);
  }

  Tensor expand(const GptLayer& layer, std::int64_t index, const Tensor& x, const ForwardContext& context) const {
    const double p = dropout_of(context);
    const Tensor normed = enter_block(layer.ln_2->forward(x), "tp: mlp input");
    const bool fused = partition().tp_size() == 1 && p == 0 && layer.c_fc->plain() && layer.mlp_proj->plain();
    if (fused && spec().activation == spec::Activation::kGeluTanh) {
      return gelu_mlp(x, normed, layer.c_fc->weight, layer.c_fc->bias, layer.mlp_proj->weight, layer.mlp_proj->bias,
                      WeightLayout::kInOut);
    }
    return leave_block(x, activated(*layer.c_fc, normed, spec().activation), *layer.mlp_proj, "tp: mlp output",
                       {p, site_of(context, index, DropoutPlace::kMlpOutput)}, context);
  }

  std::shared_ptr<Embedding> wte_, wpe_;
  std::shared_ptr<LayerNorm> ln_f_;
};

}  // namespace

std::shared_ptr<LanguageModel> make_gpt(const spec::Model& spec, const BuildOptions& options) {
  return std::make_shared<Gpt>(spec, options);
}

}  // namespace lockstep::nn
