// BERT (Devlin et al. 2018) with Hugging Face's names: every token sees every other, LayerNorm after each residual sum;
// a masked-LM head on the word embeddings, or a pooler of the first position and a classifier. All tokens are of type
// 0.
//
// A masked LM has no pooler and a classifier no masked-LM head, as in Hugging Face's files; spec::parameter_count
// counts BertModel, so a classifier has exactly those parameters, and a masked LM its transform and bias instead of the
// pooler.
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/encoder_block.h"
#include "lockstep/nn/language_model.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

struct BertLayer : torch::nn::Module {
  std::shared_ptr<Linear> query, key, value, attention_output, intermediate, output;
  std::shared_ptr<LayerNorm> attention_norm, output_norm;
};

// cls.predictions: what comes between the last layer and the decoder, and the decoder's bias where it is tied.
struct MaskedHead : Layer {
  // `vocabulary` is this rank's share of the bias.
  void add_bias(std::int64_t vocab, const Segment& vocabulary, const torch::TensorOptions& options) {
    bias = declare("bias", {.whole = {vocab}, .segments = {vocabulary}}, constant_value(0.0), options);
  }

  Tensor bias;  // [vocab / tp]; undefined where the decoder has one of its own
  std::shared_ptr<Linear> dense;
  std::shared_ptr<LayerNorm> norm;
};

class Bert : public LanguageModel {
 public:
  Bert(const spec::Model& model, const BuildOptions& build)
      : LanguageModel(model, build), heads_(head_share(model, partition()).query) {
    auto bert = register_module("bert", std::make_shared<Group>());
    make_embeddings(*bert->register_module("embeddings", std::make_shared<Group>()));
    auto encoder = bert->register_module("encoder", std::make_shared<Group>());
    auto layers = encoder->register_module("layer", std::make_shared<Group>());
    make_layers(*layers, [&](std::int64_t) { return make_layer(); });
    set_head(words_, !part().head ? nullptr : model.classes > 0 ? make_classifier(*bert) : make_masked_head());
  }

  Tensor forward(const Tensor& input, const ForwardContext& context) override {
    return LanguageModel::forward(input, with_lengths(input, context));
  }
  LossResult loss(const Tensor& input, const Tensor& target, const ForwardContext& context) override {
    return LanguageModel::loss(input, target, with_lengths(input, context));
  }

  Tensor embed(const Tensor& tokens, const ForwardContext& context) override {
    Tensor x = embed_words(tokens);
    const Tensor rows = stream_positions(x.size(1), context);
    Tensor places = rows.defined() ? positions_->forward(rows) : positions_->weight.slice(0, 0, x.size(1));
    if (types_ && x.is_cuda()) places = places + types_->weight.select(0, 0);  // one pass over the batch less
    x = x + places;
    if (types_ && !x.is_cuda()) x = x + types_->weight.select(0, 0);
    return dropout(embedding_norm_->forward(x), dropout_of(context), site_of(context, 0), rows);
  }

  LayerOutput run_layer(std::int64_t index, int part_index, const Tensor& x, const ForwardContext& context) override {
    const BertLayer& layer = layer_at<BertLayer>(index);
    return {part_index == 0 ? attend(layer, index, x, context) : expand(layer, index, x, context)};
  }

  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const override {
    std::vector<std::shared_ptr<torch::nn::Module>> modules{words_, positions_, embedding_norm_};
    if (types_) modules.push_back(types_);
    return modules;
  }

 protected:
  // The head's transform acts on each row of the residual stream by itself, as a norm does.
  Tensor final_norm(const Tensor& x) const override {
    return masked_head_ ? masked_head_->norm->forward(activated(*masked_head_->dense, x, spec().activation)) : x;
  }
  Tensor pooled(const Tensor& normed, const Tensor&, const ForwardContext& context) const override {
    if (!pooler_) return normed;
    const Tensor first = at::tanh(pooler_->forward(normed.select(1, 0)));  // [samples, hidden]
    return dropout(first, dropout_of(context), site_of(context, 1 + 3 * spec().layers));
  }
  std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const override {
    if (pooler_) return {pooler_};
    return {masked_head_};
  }
  Tensor head_bias() const override {
    return masked_head_ && masked_head_->bias.defined() ? masked_head_->bias : LanguageModel::head_bias();
  }

 private:
  ForwardContext with_lengths(const Tensor& tokens, ForwardContext context) const {
    if (context.lengths.defined() || context.padding_id < 0) return context;
    LOCKSTEP_ASSERT(partition().cp_size() == 1, "a part of a sequence does not say where its padding begins");
    context.lengths = lengths_without_padding(tokens, context.padding_id);
    return context;
  }

  std::shared_ptr<Linear> make_linear(std::int64_t in, std::int64_t out, bool bias, const LinearCut& cut) const {
    return std::make_shared<Linear>(in, out, bias, WeightLayout::kOutIn, Init{Init::Kind::kNormal, spec().init_std},
                                    tensor_options(), cut);
  }

  void make_embeddings(torch::nn::Module& parent) {
    words_ = make_words(parent, "word_embeddings");
    if (!part().embedding) return;
    const auto table = [&](std::int64_t count) {
      return std::make_shared<Embedding>(count, spec().hidden, spec().init_std, tensor_options(),
                                         std::vector<Segment>{}, outside_blocks());
    };
    positions_ = parent.register_module("position_embeddings", table(spec().max_sequence));
    if (spec().type_vocab > 0) {
      types_ = parent.register_module("token_type_embeddings", table(spec().type_vocab));
    }
    embedding_norm_ = parent.register_module("LayerNorm", make_layer_norm());
  }

  std::shared_ptr<BertLayer> make_layer() const {
    const std::int64_t hidden = spec().hidden, width = spec().heads * head_dim();
    const std::int64_t inner = spec().ffn_hidden > 0 ? spec().ffn_hidden : 4 * hidden;
    const LinearCut heads = by_outputs({heads_.first * head_dim(), heads_.count * head_dim()});
    const Segment columns = partition().tp_share(inner);
    auto layer = std::make_shared<BertLayer>();
    auto attention = layer->register_module("attention", std::make_shared<Group>());
    auto self = attention->register_module("self", std::make_shared<Group>());
    layer->query = self->register_module("query", make_linear(hidden, width, spec().bias, heads));
    layer->key = self->register_module("key", make_linear(hidden, width, spec().bias, heads));
    layer->value = self->register_module("value", make_linear(hidden, width, spec().bias, heads));
    auto attended = attention->register_module("output", std::make_shared<Group>());
    layer->attention_output =
        attended->register_module("dense", make_linear(width, hidden, spec().bias, by_inputs(heads.segments.front())));
    layer->attention_norm = attended->register_module("LayerNorm", make_layer_norm());
    auto intermediate = layer->register_module("intermediate", std::make_shared<Group>());
    layer->intermediate =
        intermediate->register_module("dense", make_linear(hidden, inner, spec().bias, by_outputs(columns)));
    auto output = layer->register_module("output", std::make_shared<Group>());
    layer->output = output->register_module("dense", make_linear(inner, hidden, spec().bias, by_inputs(columns)));
    layer->output_norm = output->register_module("LayerNorm", make_layer_norm());
    return layer;
  }

  static LinearCut by_outputs(const Segment& segment) {
    return {.kind = LinearCut::Kind::kOutputs, .segments = {segment}};
  }
  LinearCut by_inputs(const Segment& segment) const {
    return {.kind = LinearCut::Kind::kInputs, .segments = {segment}, .bias = outside_blocks()};
  }

  // Every tp rank pools and classifies all samples, so each has the whole gradient.
  std::shared_ptr<Linear> make_classifier(torch::nn::Module& bert) {
    const Sharing complete{partition().tp_size(), /*partial=*/false};
    const LinearCut whole{.weight = complete, .bias = complete};
    auto pooler = bert.register_module("pooler", std::make_shared<Group>());
    pooler_ = pooler->register_module("dense", make_linear(spec().hidden, spec().hidden, spec().bias, whole));
    return register_module("classifier", make_linear(spec().hidden, spec().classes, /*bias=*/true, whole));
  }

  // Returns the decoder; null: the word embeddings.
  std::shared_ptr<Linear> make_masked_head() {
    auto cls = register_module("cls", std::make_shared<Group>());
    masked_head_ = cls->register_module("predictions", std::make_shared<MaskedHead>());
    const LinearCut whole{.weight = outside_blocks(), .bias = outside_blocks()};
    auto transform = masked_head_->register_module("transform", std::make_shared<Group>());
    masked_head_->dense =
        transform->register_module("dense", make_linear(spec().hidden, spec().hidden, spec().bias, whole));
    masked_head_->norm = transform->register_module("LayerNorm", make_layer_norm());
    const Segment vocabulary = partition().tp_share(spec().vocab);
    if (!spec().tied_embeddings) {
      return masked_head_->register_module(
          "decoder", make_linear(spec().hidden, spec().vocab, /*bias=*/true, by_outputs(vocabulary)));
    }
    masked_head_->add_bias(spec().vocab, vocabulary, tensor_options());
    return nullptr;
  }

  // Whether a layer's halves run as one function each: this rank has all of it, and nothing is added to it.
  bool fuses(const BertLayer& layer, const Tensor& x) const {
    const Partition& ranks = partition();
    const bool gelu = spec().activation == spec::Activation::kGelu || spec().activation == spec::Activation::kGeluTanh;
    if (ranks.tp_size() > 1 || ranks.cp_size() > 1 || !spec().bias || !gelu || head_dim() % 8 != 0) return false;
    for (const auto& linear :
         {layer.query, layer.key, layer.value, layer.attention_output, layer.intermediate, layer.output}) {
      if (!linear->plain()) return false;
    }
    return takes_encoder_block(x) && head_dim() <= 128 && layer.intermediate->weight.size(0) % 8 == 0;
  }
  static LinearTensors tensors(const Linear& linear) { return {linear.weight, linear.bias}; }
  NormTensors tensors(const LayerNorm& norm) const { return {norm.weight, norm.bias, spec().norm_epsilon}; }

  Tensor attend(const BertLayer& layer, std::int64_t index, const Tensor& x, const ForwardContext& context) const {
    if (fuses(layer, x)) {
      return encoder_attention(
          x, tensors(*layer.query), tensors(*layer.key), tensors(*layer.value), tensors(*layer.attention_output),
          tensors(*layer.attention_norm),
          {heads_.count, context.lengths, dropout_of(context), site_of(context, index, DropoutPlace::kAttention),
           site_of(context, index, DropoutPlace::kAttentionOutput)});
    }
    const Tensor rows = enter_block(x, "tp: attention input");
    const auto heads = [&](const Linear& projection) {
      return projection.forward(rows).view({rows.size(0), rows.size(1), heads_.count, head_dim()});
    };
    AttentionOptions options = attention_options(index, heads_.first, context);
    options.causal = false;
    options.lengths = context.lengths;
    const Tensor attended = self_attention(heads(*layer.query), heads(*layer.key), heads(*layer.value), options);
    return layer.attention_norm->forward(
        leave_block(x, attended.flatten(2), *layer.attention_output, "tp: attention output",
                    {dropout_of(context), site_of(context, index, DropoutPlace::kAttentionOutput)}, context));
  }

  Tensor expand(const BertLayer& layer, std::int64_t index, const Tensor& x, const ForwardContext& context) const {
    if (fuses(layer, x)) {
      return encoder_mlp(x, tensors(*layer.intermediate), tensors(*layer.output), tensors(*layer.output_norm),
                         spec().activation == spec::Activation::kGeluTanh, dropout_of(context),
                         site_of(context, index, DropoutPlace::kMlpOutput));
    }
    const Tensor inner = activated(*layer.intermediate, enter_block(x, "tp: mlp input"), spec().activation);
    return layer.output_norm->forward(
        leave_block(x, inner, *layer.output, "tp: mlp output",
                    {dropout_of(context), site_of(context, index, DropoutPlace::kMlpOutput)}, context));
  }

  Segment heads_;  // this rank's
  std::shared_ptr<Embedding> words_, positions_, types_;
  std::shared_ptr<LayerNorm> embedding_norm_;
  std::shared_ptr<MaskedHead> masked_head_;  // or a pooler, where part().head
  std::shared_ptr<Linear> pooler_;
};

}  // namespace

std::shared_ptr<LanguageModel> make_bert(const spec::Model& spec, const BuildOptions& options) {
  return std::make_shared<Bert>(spec, options);
}

}  // namespace lockstep::nn
