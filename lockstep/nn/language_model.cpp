#include "lockstep/nn/language_model.h"

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/collectives.h"

namespace lockstep::nn {

using torch::Tensor;

LanguageModel::LanguageModel(const spec::Model& spec, const BuildOptions& options)
    : UnitModel(spec, options.dtype),
      partition_(options.partition),
      part_(options.part),
      options_(torch::dtype(options.dtype).device(options.device)) {
  if (part_.end_layer < 0) part_.end_layer = spec.layers;
}

std::shared_ptr<Embedding> LanguageModel::make_words(torch::nn::Module& parent, const char* name) const {
  const bool decodes = part_.head && spec().tied_embeddings && spec().classes == 0;
  if (!part_.embedding && !decodes) return nullptr;
  return parent.register_module(name,
                                std::make_shared<Embedding>(spec().vocab, spec().hidden, spec().init_std, options_,
                                                            std::vector<Segment>{partition_.tp_share(spec().vocab)}));
}

Tensor LanguageModel::embed_words(const Tensor& tokens) const {
  if (partition_.tp_size() == 1) return embedding_->forward(tokens);
  return leave_block(embedding_->forward_own(tokens), "tp: embedding");
}

std::shared_ptr<LayerNorm> LanguageModel::make_layer_norm() const {
  return std::make_shared<LayerNorm>(spec().hidden, spec().bias, spec().norm_epsilon, options_, outside_blocks());
}

std::shared_ptr<Norm> LanguageModel::make_norm() const {
  const spec::Decoder& d = spec().decoder;
  const Norm::Settings settings{d.norm, d.norm_plus_one, spec().bias || d.norm_bias, spec().norm_epsilon};
  return std::make_shared<Norm>(spec().hidden, settings, options_, outside_blocks());
}

std::shared_ptr<RmsNorm> LanguageModel::make_rms_norm() const {
  return std::make_shared<RmsNorm>(spec().hidden, spec().norm_epsilon, options_, outside_blocks());
}

AttentionOptions LanguageModel::attention_options(std::int64_t layer, std::int64_t first_head,
                                                  const ForwardContext& context) const {
  AttentionOptions options;
  options.dropout = dropout_of(context);
  options.site = site_of(context, layer, DropoutPlace::kAttention);
  options.first_head = first_head;
  options.documents = context.documents;
  options.partition = &partition_;
  options.balanced = balances_context(spec(), partition_);
  return options;
}

void LanguageModel::make_head(const std::shared_ptr<Embedding>& embedding) {
  embedding_ = embedding;
  if (!part_.head) return;
  const bool classifier = spec().classes > 0;
  if (!classifier && spec().tied_embeddings) return;
  LinearCut cut;
  cut.weight = {partition_.tp_size(), false};
  if (!classifier) {
    cut = {.kind = LinearCut::Kind::kOutputs, .segments = {partition_.tp_share(spec().vocab)}};
  }
  head_ = register_module(classifier ? "score" : "lm_head",
                          std::make_shared<Linear>(spec().hidden, classifier ? spec().classes : spec().vocab,
                                                   /*with_bias=*/false, WeightLayout::kOutIn,
                                                   Init{Init::Kind::kNormal, spec().init_std}, options_, cut));
}

void LanguageModel::set_head(const std::shared_ptr<Embedding>& embedding, const std::shared_ptr<Linear>& head) {
  embedding_ = embedding;
  head_ = head;
}

std::vector<std::shared_ptr<torch::nn::Module>> LanguageModel::head_modules() const {
  auto modules = final_modules();
  modules.push_back(head_ ? std::static_pointer_cast<torch::nn::Module>(head_) : embedding_);
  return modules;
}

Tensor LanguageModel::forward(const Tensor& input, const ForwardContext& context) {
  check_tokens(input);
  Tensor x = embed(input, context);
  for (std::int64_t layer = part_.first_layer; layer < part_.end_layer; ++layer) {
    for (int part = 0; part < parts_per_layer(); ++part) x = run_layer(layer, part, x, context).hidden;
  }
  return head_logits(x, input, context);
}

LossResult LanguageModel::loss(const Tensor& input, const Tensor& target, const ForwardContext& context) {
  if (input.size(0) == 0) {
    const auto wide = dtype() == torch::kDouble ? torch::kDouble : torch::kFloat;
    return {torch::zeros({}, torch::dtype(wide).device(input.device())), 0, 0};
  }
  check_tokens(input);
  Tensor auxiliary;
  Tensor x = embed(input, context);
  for (std::int64_t layer = part_.first_layer; layer < part_.end_layer; ++layer) {
    for (int part = 0; part < parts_per_layer(); ++part) {
      const LayerOutput output = run_layer(layer, part, x, context);
      x = output.hidden;
      if (output.auxiliary.defined()) auxiliary = auxiliary.defined() ? auxiliary + output.auxiliary : output.auxiliary;
    }
  }
  LossResult result = head_loss(x, input, target, context);
  result.auxiliary = auxiliary;
  return result;
}

std::size_t LanguageModel::unit_count() const {
  const auto layers = static_cast<std::size_t>(part_.end_layer - part_.first_layer);
  return layers * static_cast<std::size_t>(parts_per_layer()) + (part_.embedding ? 1 : 0) + (part_.head ? 1 : 0);
}

LanguageModel::UnitPlace LanguageModel::place_of(std::size_t unit) const {
  if (part_.embedding && unit == 0) return {.kind = UnitKind::kEmbedding};
  if (part_.head && unit + 1 == unit_count()) return {.kind = UnitKind::kHead};
  const auto among_layers = static_cast<std::int64_t>(unit) - (part_.embedding ? 1 : 0);
  return {.kind = UnitKind::kLayer,
          .layer = part_.first_layer + among_layers / parts_per_layer(),
          .part = static_cast<int>(among_layers % parts_per_layer())};
}

std::vector<Tensor> LanguageModel::unit_parameters(std::size_t unit) const {
  const UnitPlace place = place_of(unit);
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  if (place.kind == UnitKind::kEmbedding) modules = embedding_modules();
  if (place.kind == UnitKind::kLayer) modules = {layer_module(place.layer)};
  if (place.kind == UnitKind::kHead) modules = head_modules();
  std::vector<Tensor> tensors;
  for (const auto& module : modules) {
    if (!module) continue;
    for (Tensor& tensor : module->parameters()) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

UnitOutput LanguageModel::run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) {
  const UnitPlace place = place_of(unit);
  if (place.kind == UnitKind::kEmbedding) {
    check_tokens(x.front());
    return {.stream = {embed(x.front(), batch.context)}};
  }
  if (place.kind == UnitKind::kHead) return {.loss = head_loss(x.front(), batch.input, batch.target, batch.context)};
  LayerOutput output = run_layer(place.layer, place.part, x.front(), batch.context);
  return {.stream = {std::move(output.hidden)}, .auxiliary = std::move(output.auxiliary)};
}

Tensor LanguageModel::predict_unit(std::size_t, const Stream& x, const UnitBatch& batch) {
  return head_logits(x.front(), batch.input, batch.context);
}

bool LanguageModel::recomputes(std::size_t unit, plan::Recompute recompute) const {
  const UnitPlace place = place_of(unit);
  if (place.kind != UnitKind::kLayer) return false;
  if (recompute == plan::Recompute::kFull) return true;
  return recompute == plan::Recompute::kSelective && parts_per_layer() > 1 && place.part == 0;
}

LossResult LanguageModel::head_loss(const Tensor& x, const Tensor& tokens, const Tensor& target,
                                    const ForwardContext& context) {
  const Tensor normed = final_norm(x);
  CrossEntropy result;
  if (spec().classes > 0) {
    const Tensor rows = partition_.sequence_parallel ? collect_rows(normed, partition_.tp, "tp: head rows") : normed;
    result = linear_cross_entropy(pooled(rows, tokens, context), head_weight(), head_bias(), target, !context.training);
  } else {
    const Tensor rows = pooled(enter_block(normed, "tp: head"), tokens, context);
    const double cap = spec().decoder.logit_softcap;
    const bool plain = partition_.tp_size() == 1 && cap == 0;
    result = plain ? linear_cross_entropy(rows, head_weight(), head_bias(), target, !context.training)
                   : split_cross_entropy(rows, head_weight(), head_bias(), target,
                                         {partition_.tp, partition_.tp_share(spec().vocab), spec().vocab},
                                         !context.training, cap);
  }
  return {result.loss_sum, result.count, result.correct, {}};
}

Tensor LanguageModel::head_logits(const Tensor& x, const Tensor& tokens, const ForwardContext& context) {
  const Tensor normed = final_norm(x);
  if (spec().classes > 0) {
    const Tensor rows = partition_.sequence_parallel ? collect_rows(normed, partition_.tp, "tp: head rows") : normed;
    return linear(pooled(rows, tokens, context), head_weight(), head_bias(), WeightLayout::kOutIn);
  }
  const Tensor rows = pooled(enter_block(normed, "tp: head"), tokens, context);
  Tensor own = linear(rows, head_weight(), head_bias(), WeightLayout::kOutIn);  // [samples, rows, vocab / tp]
  if (spec().decoder.logit_softcap > 0) own = soft_capped(own, spec().decoder.logit_softcap);
  const std::int64_t tp = partition_.tp_size();
  if (tp == 1) return own;
  // Shares may differ by one class: each rank's go into their place in zeros, and the ranks' tensors add up.
  const Segment share = partition_.tp_share(spec().vocab);
  Tensor all = at::constant_pad_nd(own, {share.first, spec().vocab - share.first - share.count});
  return leave_tensor_region(all, partition_.tp, "tp: logits");
}

Tensor LanguageModel::pooled(const Tensor& normed, const Tensor& tokens, const ForwardContext& context) const {
  if (spec().classes == 0) return normed;
  // The hidden state of each sample's last token that is not padding; the first where all is.
  const Tensor last = (lengths_without_padding(tokens, context.padding_id) - 1).clamp_min(0);
  return normed.gather(1, last.view({-1, 1, 1}).expand({-1, 1, normed.size(2)})).squeeze(1);
}

Tensor LanguageModel::enter_block(const Tensor& x, const char* site) const {
  return partition_.sequence_parallel ? gather_rows(x, partition_.tp, site)
                                      : enter_tensor_region(x, partition_.tp, site);
}

Tensor LanguageModel::leave_block(const Tensor& x, const char* site) const {
  return partition_.sequence_parallel ? scatter_rows(x, partition_.tp, site)
                                      : leave_tensor_region(x, partition_.tp, site);
}

Tensor LanguageModel::leave_block(const Tensor& residual, const Tensor& x, const Linear& last, const char* site) const {
  if (partition_.tp_size() == 1) return last.add_to(residual, x);
  const Tensor sum = residual + leave_block(last.product(x), site);
  return last.bias.defined() ? sum + last.bias : sum;
}

Tensor LanguageModel::leave_block(const Tensor& residual, const Tensor& x, const Linear& last, const char* site,
                                  const OutputDropout& output_dropout, const ForwardContext& context) const {
  if (output_dropout.probability == 0) return leave_block(residual, x, last, site);
  Tensor out = leave_block(last.product(x), site);
  if (last.bias.defined()) out = out + last.bias;
  return residual +
         dropout(out, output_dropout.probability, output_dropout.site, stream_positions(out.size(1), context));
}

Tensor LanguageModel::stream_positions(std::int64_t rows, const ForwardContext& context) const {
  if (!partition_.sequence_parallel) return context.positions;
  const std::int64_t first = partition_.tp_rank() * rows;
  if (!context.positions.defined()) return torch::arange(first, first + rows, options_.dtype(torch::kLong));
  return context.positions.narrow(0, first, rows);
}

Tensor LanguageModel::places_in_documents(const Tensor& rows, const ForwardContext& context) const {
  if (!context.documents.defined()) return rows;
  const Tensor documents = context.documents.to(options_.device());
  const Tensor all = torch::arange(documents.size(1), documents.options()) - documents;
  return rows.defined() ? all.index_select(1, rows) : all;
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

Tensor lengths_without_padding(const Tensor& tokens, std::int64_t padding_id) {
  const Tensor counts = torch::arange(1, tokens.size(1) + 1, tokens.options());
  return ((tokens != padding_id) * counts).amax(1);
}

}  // namespace lockstep::nn
