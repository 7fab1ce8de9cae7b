#include "lockstep/nn/language_model.h"

#include <string>
#include <tuple>

#include "lockstep/base/error.h"

namespace lockstep::nn {

using torch::Tensor;

namespace {

// The hidden state of each sample's last token that is not padding: [samples, seq, hidden] -> [samples, hidden].
Tensor last_positions(const Tensor& hidden, const Tensor& tokens, std::int64_t padding_id) {
  const std::int64_t seq = tokens.size(1);
  const Tensor places = torch::arange(seq, tokens.options());
  const Tensor last = std::get<0>(((tokens != padding_id) * places).max(1));  // [samples]; 0 where all is padding
  return hidden.gather(1, last.view({-1, 1, 1}).expand({-1, 1, hidden.size(2)})).squeeze(1);
}

}  // namespace

void LanguageModel::make_head(const std::shared_ptr<Embedding>& embedding, const torch::TensorOptions& options) {
  embedding_ = embedding;
  const bool classifier = spec().classes > 0;
  if (!classifier && spec().tied_embeddings) return;
  head_ = register_module(
      classifier ? "score" : "lm_head",
      std::make_shared<Linear>(spec().hidden, classifier ? spec().classes : spec().vocab, /*with_bias=*/false,
                               WeightLayout::kOutIn, Init{Init::Kind::kNormal, spec().init_std}, options));
}

Tensor LanguageModel::forward(const Tensor& input, const ForwardContext& context) {
  return linear(head_input(input, context), head_weight(), Tensor(), WeightLayout::kOutIn);
}

LossResult LanguageModel::loss(const Tensor& input, const Tensor& target, const ForwardContext& context) {
  if (input.size(0) == 0) {
    const auto wide = dtype() == torch::kDouble ? torch::kDouble : torch::kFloat;
    return {torch::zeros({}, torch::dtype(wide).device(input.device())), 0, 0};
  }
  const CrossEntropy result =
      linear_cross_entropy(head_input(input, context), head_weight(), Tensor(), target, !context.training);
  return {result.loss_sum, result.count, result.correct};
}

Tensor LanguageModel::head_input(const Tensor& tokens, const ForwardContext& context) {
  check_tokens(tokens);
  const Tensor hidden = hidden_states(tokens, context);
  return spec().classes > 0 ? last_positions(hidden, tokens, context.padding_id) : hidden;
}

void LanguageModel::check_tokens(const Tensor& tokens) const {
  LOCKSTEP_ASSERT(tokens.dim() == 2 && tokens.scalar_type() == torch::kLong, "tokens are int64 [samples, seq]");
  if (spec().max_sequence > 0 && tokens.size(1) > spec().max_sequence) {
    throw bad_input("a sequence of " + std::to_string(tokens.size(1)) + " tokens is longer than the model's " +
                        std::to_string(spec().max_sequence) + " positions",
                    "lower batch.sequence_length or raise model.max_sequence");
  }
  if (tokens.numel() == 0 || !tokens.is_cpu()) return;  // on a device libtorch checks without a synchronisation
  const auto lowest = tokens.min().item<std::int64_t>(), highest = tokens.max().item<std::int64_t>();
  if (lowest >= 0 && highest < spec().vocab) return;
  throw bad_input("token " + std::to_string(lowest < 0 ? lowest : highest) + " is outside the model's vocabulary of " +
                      std::to_string(spec().vocab),
                  "use the tokenizer that the model was made for, or raise model.vocab");
}

}  // namespace lockstep::nn
