// Llama (Touvron et al. 2023) and its relatives (spec::Decoder): norms, RoPE (rotate_half), grouped-query attention, a
// gated or plain MLP or a mixture of experts. Parameters have the names of Hugging Face's Llama, with Gemma 2's names
// for more norms and Mixtral's or DeepSeek's for experts; file_layout.h says where families keep them in their files.
#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/decoder_attention.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/nn/moe.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

struct LlamaLayer : torch::nn::Module {
  DecoderAttention attention;
  std::shared_ptr<Linear> gate, up, down;                                          // gate: null where the MLP is plain
  std::shared_ptr<MoeMlp> experts;                                                 // instead of these three
  std::shared_ptr<Norm> before_attention, after_attention, before_mlp, after_mlp;  // null: not there
};

class Llama : public LanguageModel {
 public:
  Llama(const spec::Model& model, const BuildOptions& build)
      : LanguageModel(model, build), heads_(head_share(model, partition())) {
    auto base = register_module("model", std::make_shared<Group>());
    embed_ = make_words(*base, "embed_tokens");
    auto layers = base->register_module("layers", std::make_shared<Group>());
    make_layers(*layers, [&](std::int64_t i) { return make_layer(i); });
    if (part().head) norm_ = base->register_module("norm", make_norm());
    make_head(embed_);
  }

  Tensor embed(const Tensor& tokens, const ForwardContext&) override {
    const Tensor x = embed_words(tokens);
    return spec().decoder.scaled_embeddings ? x * std::sqrt(static_cast<double>(spec().hidden)) : x;
  }

  int parts_per_layer() const override { return is_parallel() ? 1 : 2; }

  LayerOutput run_layer(std::int64_t index, int part_index, const Tensor& x, const ForwardContext& context) override {
    const LlamaLayer& layer = layer_at<LlamaLayer>(index);
    if (is_parallel()) return {attend_and_expand(layer, index, x, context)};
    if (part_index == 0) return {attend(layer, index, x, context)};
    return layer.experts ? route(layer, x, context) : LayerOutput{expand(layer, x)};
  }

  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const override { return {embed_}; }

 protected:
  Tensor final_norm(const Tensor& x) const override { return norm_->forward(x); }
  std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const override { return {norm_}; }

 private:
  bool is_parallel() const { return spec().decoder.parallel_block != spec::ParallelBlock::kNone; }

  DecoderBuild build_of() const { return {spec(), partition(), heads_, tensor_options(), outside_blocks()}; }

  std::shared_ptr<LlamaLayer> make_layer(std::int64_t index) const {
    auto layer = std::make_shared<LlamaLayer>();
    layer->attention = make_decoder_attention(*layer, build_of());
    if (spec::has_experts(spec(), index)) {
      layer->experts = layer->register_module(MoeMlp::module_name(spec()),
                                              std::make_shared<MoeMlp>(spec(), index, partition(), tensor_options()));
    } else {
      make_mlp(*layer, spec::mlp_width(spec(), index));
    }
    make_norms(*layer);
    return layer;
  }

  void make_mlp(LlamaLayer& layer, std::int64_t width) const {
    const DecoderBuild build = build_of();
    const Segment columns = partition().tp_share(width);
    auto mlp = layer.register_module("mlp", std::make_shared<Group>());
    const auto inner = [&](const char* name) {
      return mlp->register_module(name, build.dense(spec().hidden, width, spec().bias, build.by_outputs(columns)));
    };
    if (spec().decoder.gated_mlp) layer.gate = inner("gate_proj");
    layer.up = inner("up_proj");
    layer.down =
        mlp->register_module("down_proj", build.dense(width, spec().hidden, spec().bias, build.by_inputs(columns)));
  }

  // The names are those of Llama, of Gemma 2 and of OLMo 2: the same name may stand before the MLP or after attention.
  void make_norms(LlamaLayer& layer) const {
    const spec::NormPlace place = spec().decoder.norm_place;
    const auto norm = [&](const char* name) { return layer.register_module(name, make_norm()); };
    if (place == spec::NormPlace::kBefore) {
      layer.before_attention = norm("input_layernorm");
      if (spec().decoder.parallel_block != spec::ParallelBlock::kOneNorm) {
        layer.before_mlp = norm("post_attention_layernorm");
      }
      return;
    }
    if (place == spec::NormPlace::kBoth) layer.before_attention = norm("input_layernorm");
    layer.after_attention = norm("post_attention_layernorm");
    if (place == spec::NormPlace::kBoth) layer.before_mlp = norm("pre_feedforward_layernorm");
    layer.after_mlp = norm("post_feedforward_layernorm");
  }

  static Tensor normed(const std::shared_ptr<Norm>& norm, const Tensor& x) { return norm ? norm->forward(x) : x; }

  // The residual stream with a block's result added, whose last layer is cut by inputs.
  Tensor add_block(const Tensor& x, const Tensor& inner, const Linear& last, const std::shared_ptr<Norm>& after,
                   const char* site) const {
    if (!after) return leave_block(x, inner, last, site);
    const Tensor product = leave_block(last.product(inner), site);
    return x + after->forward(last.bias.defined() ? product + last.bias : product);
  }

  // What attention's output projection reads.
  Tensor attended(const LlamaLayer& layer, std::int64_t index, const Tensor& entered, const ForwardContext& context) {
    // Dropout is on the probabilities alone (attention_dropout).
    AttentionOptions options = attention_options(index, heads_.query.first, context);
    options.window = spec::window_of(spec(), index);
    options.softcap = spec().decoder.attention_softcap;
    const RopeTables tables = tables_for(index, entered.size(1), context.positions);
    return layer.attention.forward(entered, tables, options, build_of());
  }

  Tensor attend(const LlamaLayer& layer, std::int64_t index, const Tensor& x, const ForwardContext& context) {
    const Tensor entered = enter_block(normed(layer.before_attention, x), "tp: attention input");
    return add_block(x, attended(layer, index, entered, context), *layer.attention.o, layer.after_attention,
                     "tp: attention output");
  }

  // What the MLP's last layer reads.
  Tensor expanded(const LlamaLayer& layer, const Tensor& entered) const {
    if (!layer.gate) return activated(*layer.up, entered, spec().activation);
    return gated(layer.gate->forward(entered), layer.up->forward(entered), spec().activation);
  }

  Tensor expand(const LlamaLayer& layer, const Tensor& x) const {
    const Tensor entered = enter_block(normed(layer.before_mlp, x), "tp: mlp input");
    const bool swiglu = layer.gate && spec().activation == spec::Activation::kSilu;
    if (swiglu && !layer.after_mlp && partition().tp_size() == 1 && !layer.gate->bias.defined() &&
        layer.gate->plain() && layer.up->plain() && layer.down->plain()) {
      return swiglu_mlp(x, entered, layer.gate->weight, layer.up->weight, layer.down->weight);
    }
    return add_block(x, expanded(layer, entered), *layer.down, layer.after_mlp, "tp: mlp output");
  }

  // Both read the layer's input, and one exchange brings the sum of both home.
  Tensor attend_and_expand(const LlamaLayer& layer, std::int64_t index, const Tensor& x,
                           const ForwardContext& context) {
    const Tensor for_attention = enter_block(layer.before_attention->forward(x), "tp: layer input");
    const Tensor for_mlp =
        layer.before_mlp ? enter_block(layer.before_mlp->forward(x), "tp: mlp input") : for_attention;
    const Linear &o = *layer.attention.o, &down = *layer.down;
    Tensor sum = o.product(attended(layer, index, for_attention, context));
    sum = sum + down.product(expanded(layer, for_mlp));
    Tensor out = x + leave_block(sum, "tp: layer output");
    if (o.bias.defined()) out = out + o.bias;
    return down.bias.defined() ? out + down.bias : out;
  }

  LayerOutput route(const LlamaLayer& layer, const Tensor& x, const ForwardContext& context) const {
    const Tensor inner = enter_block(normed(layer.before_mlp, x), "tp: mlp input");
    const MoeMlp::Output routed = layer.experts->forward(inner, context);
    return {x + normed(layer.after_mlp, leave_block(routed.y, "tp: mlp output")), routed.auxiliary};
  }

  // Angles are a pure function of the spec: made once for the longest sequence seen, and no part of the state.
  RopeTables tables_for(std::int64_t layer, std::int64_t rows, const Tensor& positions) {
    const spec::Decoder& d = spec().decoder;
    const bool local = d.local_rope_theta > 0 && spec::window_of(spec(), layer) > 0;
    const std::int64_t sequence = rows * partition().cp_size();
    const bool is_long = spec().rope_scaling.kind == spec::RopeScaling::Kind::kLongRope &&
                         sequence > spec().rope_scaling.original_max_sequence;
    RopeTables& tables = tables_[{local, is_long}];
    const std::int64_t longest = positions.defined() ? positions.max().item<std::int64_t>() + 1 : rows;
    if (!tables.cos.defined() || tables.cos.size(0) < longest) {
      tables = rope_tables(longest, spec::rotary_dim(spec()), local ? d.local_rope_theta : spec().rope_theta,
                           local ? spec::RopeScaling{} : spec().rope_scaling, tensor_options(),
                           {spec().max_sequence, sequence});
    }
    if (positions.defined()) return {tables.cos.index_select(0, positions), tables.sin.index_select(0, positions)};
    return {tables.cos.slice(0, 0, rows), tables.sin.slice(0, 0, rows)};
  }

  HeadShare heads_;
  std::shared_ptr<Embedding> embed_;
  std::shared_ptr<Norm> norm_;
  std::map<std::pair<bool, bool>, RopeTables> tables_;  // of layers with a theta of their own; of long sequences
};

}  // namespace

std::shared_ptr<LanguageModel> make_llama(const spec::Model& spec, const BuildOptions& options) {
  return std::make_shared<Llama>(spec, options);
}

}  // namespace lockstep::nn
