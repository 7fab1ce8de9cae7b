// What GPT and Llama share: tokens in, a backbone, and a head that is either a language model's (tied to the input
// embedding or not) or a classifier on the last position ("score", as Hugging Face's ...ForSequenceClassification).
#pragma once

#include <memory>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/model.h"

namespace lockstep::nn {

class LanguageModel : public TrainableModel {
 public:
  torch::Tensor forward(const torch::Tensor& input, const ForwardContext& context) override;
  LossResult loss(const torch::Tensor& input, const torch::Tensor& target, const ForwardContext& context) override;

  // Final hidden states [samples, seq, hidden], normalised, before the head.
  virtual torch::Tensor hidden_states(const torch::Tensor& tokens, const ForwardContext& context) = 0;

 protected:
  using TrainableModel::TrainableModel;

  // Registers `lm_head` or `score` where the model has one of its own; otherwise the head is `embedding`.
  void make_head(const std::shared_ptr<Embedding>& embedding, const torch::TensorOptions& options);

 private:
  torch::Tensor head_weight() const { return head_ ? head_->weight : embedding_->weight; }
  torch::Tensor head_input(const torch::Tensor& tokens, const ForwardContext& context);
  void check_tokens(const torch::Tensor& tokens) const;

  std::shared_ptr<Embedding> embedding_;
  std::shared_ptr<Linear> head_;  // null: tied
};

std::shared_ptr<TrainableModel> make_gpt(const spec::Model& spec, const torch::TensorOptions& options);
std::shared_ptr<TrainableModel> make_llama(const spec::Model& spec, const torch::TensorOptions& options);

}  // namespace lockstep::nn
