// What all language models share: an embedding, layers made of parts, a final norm, and a head that is a language
// model's (tied to the input embedding or not) or a classifier ("score" on the last position, as Hugging Face's
// ...ForSequenceClassification; BERT pools the first).
//
// A model runs as a whole (forward, loss), or unit by unit (nn/unit_model.h), which is how pipelines, ZeRO-3 and
// recomputation run it:
//   x = model.embed(tokens, context);                                    // where part().embedding
//   for each layer, for each part:  x = model.run_layer(layer, part, x, context).hidden;
//   model.head_loss(x, tokens, target, context);                         // where part().head
// Between units x is [samples, rows, hidden]; rows are this rank's: the sequence divided by cp and, with sequence
// parallel, by tp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/unit_model.h"

namespace lockstep::nn {

struct LayerOutput {
  torch::Tensor hidden;
  // Undefined, or 0-dim: this rank's share of a loss besides the model's own (load balancing of experts), already
  // multiplied by its coefficient. The sum over the ranks that route together is the term of one micro-step.
  torch::Tensor auxiliary = {};
};

// Dropout masks are numbered: the embedding's is 0, then come three places of each layer, then a classifier's input.
enum class DropoutPlace : std::uint32_t { kAttention = 0, kAttentionOutput = 1, kMlpOutput = 2 };
inline DropoutSite site_of(const ForwardContext& context, std::int64_t number) {
  return {context.seed, context.step, context.first_index, static_cast<std::uint32_t>(number)};
}
inline DropoutSite site_of(const ForwardContext& context, std::int64_t layer, DropoutPlace place) {
  return site_of(context, 1 + 3 * layer + static_cast<std::int64_t>(place));
}

class LanguageModel : public UnitModel {
 public:
  torch::Tensor forward(const torch::Tensor& input, const ForwardContext& context) override;
  LossResult loss(const torch::Tensor& input, const torch::Tensor& target, const ForwardContext& context) override;

  // Units: the embedding, the parts of each layer, the head, as far as part() has them.
  std::size_t unit_count() const override;
  std::vector<torch::Tensor> unit_parameters(std::size_t unit) const override;
  bool ends_in_loss() const override { return part_.head; }
  UnitOutput run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;
  torch::Tensor predict_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;
  bool recomputes(std::size_t unit, plan::Recompute recompute) const override;

  // tokens int64 [samples, rows] (cp's rows; with sequence parallel the result has 1/tp of them).
  virtual torch::Tensor embed(const torch::Tensor& tokens, const ForwardContext& context) = 0;
  // Parts of a layer that end in a residual sum: attention and MLP, or one mixer.
  virtual int parts_per_layer() const { return 2; }
  virtual LayerOutput run_layer(std::int64_t layer, int part, const torch::Tensor& x,
                                const ForwardContext& context) = 0;
  // Final norm, head and loss over this rank's rows. loss_sum of tp ranks is the same; of cp ranks it adds up.
  LossResult head_loss(const torch::Tensor& x, const torch::Tensor& tokens, const torch::Tensor& target,
                       const ForwardContext& context);
  // Logits of this rank's rows over the whole vocabulary (tp ranks gather theirs).
  torch::Tensor head_logits(const torch::Tensor& x, const torch::Tensor& tokens, const ForwardContext& context);

  // The modules whose parameters a unit uses: the embedding's, a layer's, the head's (a tied head: the embedding too).
  virtual std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const = 0;
  std::shared_ptr<torch::nn::Module> layer_module(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer - part_.first_layer)];
  }
  virtual std::vector<std::shared_ptr<torch::nn::Module>> head_modules() const;

  const Partition& partition() const { return partition_; }
  const ModelPart& part() const { return part_; }  // end_layer is never -1 here
  // The weight that embedding and head share, by its module; null where they do not.
  std::shared_ptr<Embedding> tied_embedding() const { return head_ ? nullptr : embedding_; }

  // Throws bad_input for tokens outside the vocabulary or too many of them.
  void check_tokens(const torch::Tensor& tokens) const;

 protected:
  LanguageModel(const spec::Model& spec, const BuildOptions& options);

  // The norm between the last layer and the head.
  virtual torch::Tensor final_norm(const torch::Tensor& x) const = 0;
  // What the head reads of the normed rows; a classifier picks one position per sample.
  virtual torch::Tensor pooled(const torch::Tensor& normed, const torch::Tensor& tokens,
                               const ForwardContext& context) const;
  virtual std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const = 0;  // of final_norm() and pooled()

  // The token embedding as `name` below `parent`, where this part embeds or its head is tied to it; null elsewhere.
  std::shared_ptr<Embedding> make_words(torch::nn::Module& parent, const char* name) const;
  // The embedding of make_head() or set_head(), summed over tp ranks.
  torch::Tensor embed_words(const torch::Tensor& tokens) const;

  // Registers make(index) for each layer of this part below `parent`, under its number.
  template <class Make>
  void make_layers(torch::nn::Module& parent, Make make) {
    for (std::int64_t i = part_.first_layer; i < part_.end_layer; ++i) {
      layers_.push_back(parent.register_module(std::to_string(i), make(i)));
    }
  }
  template <class Layer>
  const Layer& layer_at(std::int64_t index) const {
    return static_cast<const Layer&>(*layer_module(index));
  }

  std::shared_ptr<LayerNorm> make_layer_norm() const;
  std::shared_ptr<RmsNorm> make_rms_norm() const;
  std::shared_ptr<Norm> make_norm() const;  // of spec().decoder's kind

  // Registers `lm_head` or `score` where the model has one of its own; otherwise the head is `embedding`. Only where
  // part().head.
  void make_head(const std::shared_ptr<Embedding>& embedding);
  // The same for a head that the model has registered itself; null: `embedding`.
  void set_head(const std::shared_ptr<Embedding>& embedding, const std::shared_ptr<Linear>& head);

  torch::TensorOptions tensor_options() const { return options_; }
  // Rows of the residual stream to and from the tensor-parallel blocks: with sequence parallel gathered and scattered,
  // otherwise whole and summed.
  torch::Tensor enter_block(const torch::Tensor& x, const char* site) const;
  torch::Tensor leave_block(const torch::Tensor& x, const char* site) const;
  // residual + the ranks' products summed + bias: how a block whose last layer is cut by inputs ends.
  torch::Tensor leave_block(const torch::Tensor& residual, const torch::Tensor& x, const Linear& last,
                            const char* site) const;
  // The same with dropout before the sum.
  struct OutputDropout {
    double probability = 0.0;
    DropoutSite site;
  };
  torch::Tensor leave_block(const torch::Tensor& residual, const torch::Tensor& x, const Linear& last, const char* site,
                            const OutputDropout& output_dropout, const ForwardContext& context) const;
  // Norms and biases outside the blocks: held by all tp ranks, each seeing only its rows under sequence parallel.
  Sharing outside_blocks() const { return {partition_.tp_size(), partition_.sequence_parallel}; }
  std::int64_t head_dim() const { return spec().head_dim > 0 ? spec().head_dim : spec().hidden / spec().heads; }
  double dropout_of(const ForwardContext& context) const { return context.training ? spec().dropout : 0.0; }
  // Of self-attention in a layer, whose heads of this rank begin at `first_head`.
  AttentionOptions attention_options(std::int64_t layer, std::int64_t first_head, const ForwardContext& context) const;
  // Global positions of the rows between units (int64, one per row; undefined: all rows, in order).
  torch::Tensor stream_positions(std::int64_t rows, const ForwardContext& context) const;

  // The same counted from the beginning of each row's document, int64 [samples, rows]; `rows` where there are none.
  torch::Tensor places_in_documents(const torch::Tensor& rows, const ForwardContext& context) const;

  // [vocab / tp] or undefined.
  virtual torch::Tensor head_bias() const { return head_ ? head_->bias : torch::Tensor(); }

 private:
  enum class UnitKind { kEmbedding, kLayer, kHead };
  struct UnitPlace {
    UnitKind kind = UnitKind::kLayer;
    std::int64_t layer = 0;
    int part = 0;
  };
  UnitPlace place_of(std::size_t unit) const;
  torch::Tensor head_weight() const { return head_ ? head_->weight : embedding_->weight; }

  Partition partition_;
  ModelPart part_;
  torch::TensorOptions options_;
  std::vector<std::shared_ptr<torch::nn::Module>> layers_;
  std::shared_ptr<Embedding> embedding_;
  std::shared_ptr<Linear> head_;  // null: tied
};

// Tokens of each sample up to its last that is not `padding_id` (int64 [samples], as ForwardContext::lengths).
torch::Tensor lengths_without_padding(const torch::Tensor& tokens, std::int64_t padding_id);

std::shared_ptr<LanguageModel> make_bert(const spec::Model& spec, const BuildOptions& options);
std::shared_ptr<LanguageModel> make_gpt(const spec::Model& spec, const BuildOptions& options);
std::shared_ptr<LanguageModel> make_llama(const spec::Model& spec, const BuildOptions& options);
std::shared_ptr<LanguageModel> make_mamba(const spec::Model& spec, const BuildOptions& options);

}  // namespace lockstep::nn
