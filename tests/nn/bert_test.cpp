#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/hf_weights.h"
#include "lockstep/nn/language_model.h"
#include "small_models.h"
#include "split_model.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using namespace testing;

constexpr double kTolerance = 1e-11;
constexpr std::int64_t kPadding = 0;

spec::Model classifier() {
  spec::Model model = small_bert();
  model.classes = 3;
  return model;
}

spec::Model untied() {
  spec::Model model = small_bert();
  model.tied_embeddings = false;
  model.activation = spec::Activation::kGeluTanh;
  return model;
}

std::shared_ptr<TrainableModel> shaken(const spec::Model& spec) {
  auto model = build_model(spec, {.dtype = torch::kDouble, .seed = 4});
  shake(*model);
  return model;
}

// Two sentences of 16 places, the second with padding behind its 11 tokens; a third of the tokens are to be guessed.
Batch padded_batch(const spec::Model& spec) {
  const Tensor tokens = tokens_for(spec, 2, 16).remainder(spec.vocab - 1) + 1;
  tokens[1].slice(0, 11).fill_(kPadding);
  Batch batch{tokens, torch::full({2, 16}, kIgnoredTarget, torch::kLong), {.lengths = torch::tensor({16, 11})}};
  if (spec.classes > 0) {
    batch.target = torch::tensor({2, 0});
    return batch;
  }
  for (const int place : {0, 3, 4, 9, 10}) batch.target.select(1, place).copy_(tokens_for(spec, 2, 1, place).view({2}));
  return batch;
}

// The paper's formulas, one operation at a time, on the weights by their names.
class Textbook {
 public:
  Textbook(TensorMap weights, const spec::Model& spec) : weights_(std::move(weights)), spec_(spec) {}

  Tensor logits(const Tensor& tokens, const Tensor& lengths) const {
    const std::int64_t seq = tokens.size(1);
    Tensor x = weight("bert.embeddings.word_embeddings.weight")
                   .index_select(0, tokens.view({-1}))
                   .view({tokens.size(0), seq, spec_.hidden});
    x = x + weight("bert.embeddings.position_embeddings.weight").slice(0, 0, seq) +
        weight("bert.embeddings.token_type_embeddings.weight")[0];
    x = norm(x, "bert.embeddings.LayerNorm");
    const Tensor hidden_keys = torch::arange(seq).unsqueeze(0) >= lengths.unsqueeze(1);  // [samples, seq]
    for (std::int64_t i = 0; i < spec_.layers; ++i) {
      const std::string layer = "bert.encoder.layer." + std::to_string(i) + ".";
      x = norm(x + dense(attended(x, layer + "attention.self.", hidden_keys), layer + "attention.output.dense"),
               layer + "attention.output.LayerNorm");
      x = norm(x + dense(activation(dense(x, layer + "intermediate.dense")), layer + "output.dense"),
               layer + "output.LayerNorm");
    }
    if (spec_.classes > 0) return dense(at::tanh(dense(x.select(1, 0), "bert.pooler.dense")), "classifier");
    x = norm(activation(dense(x, "cls.predictions.transform.dense")), "cls.predictions.transform.LayerNorm");
    if (!spec_.tied_embeddings) return dense(x, "cls.predictions.decoder");
    return x.matmul(weight("bert.embeddings.word_embeddings.weight").t()) + weight("cls.predictions.bias");
  }

 private:
  const Tensor& weight(const std::string& name) const { return weights_.at(name); }
  Tensor dense(const Tensor& x, const std::string& name) const {
    return x.matmul(weight(name + ".weight").t()) + weight(name + ".bias");
  }
  Tensor norm(const Tensor& x, const std::string& name) const {
    const Tensor centred = x - x.mean(-1, true);
    const Tensor deviation = (centred.square().mean(-1, true) + spec_.norm_epsilon).sqrt();
    return centred / deviation * weight(name + ".weight") + weight(name + ".bias");
  }
  Tensor activation(const Tensor& x) const {
    if (spec_.activation == spec::Activation::kGelu) return x * 0.5 * (1.0 + at::erf(x / std::sqrt(2.0)));
    return 0.5 * x * (1.0 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3))));
  }
  Tensor attended(const Tensor& x, const std::string& self, const Tensor& hidden_keys) const {
    const auto heads = [&](const char* name) {
      return dense(x, self + name).view({x.size(0), x.size(1), spec_.heads, -1}).transpose(1, 2);
    };
    const Tensor scores = heads("query").matmul(heads("key").transpose(2, 3)) / std::sqrt(spec_.head_dim);
    const Tensor seen = scores.masked_fill(hidden_keys.unsqueeze(1).unsqueeze(1), -INFINITY);
    return at::softmax(seen, -1).matmul(heads("value")).transpose(1, 2).flatten(2);
  }

  TensorMap weights_;
  spec::Model spec_;
};

Tensor loss_of(const Tensor& logits, const Tensor& target) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), target.reshape({-1}), {}, at::Reduction::Sum,
                                kIgnoredTarget);
}

TEST(Bert, computes_the_formulas_of_the_paper) {
  for (const spec::Model& spec : {small_bert(), classifier(), untied()}) {
    const Batch batch = padded_batch(spec);
    const auto model = shaken(spec);
    TensorMap copies;
    for (const auto& [name, tensor] : state_dict(*model)) {
      copies.emplace(name, tensor.detach().clone().requires_grad_(true));
    }
    const Tensor logits = Textbook(copies, spec).logits(batch.tokens, batch.context.lengths);
    const Tensor loss = loss_of(logits, batch.target);
    loss.backward();
    const LossResult result = model->loss(batch.tokens, batch.target, batch.context);
    result.loss_sum.backward();
    expect_near(result.loss_sum, loss, kTolerance, "loss");
    ForwardContext evaluation = batch.context;
    evaluation.training = false;
    expect_near(model->forward(batch.tokens, evaluation), logits, kTolerance, "logits");
    for (const auto& entry : model->named_parameters()) {
      expect_near(entry.value().grad(), copies.at(entry.key()).grad(), kTolerance, entry.key());
    }
  }
}

TEST(Bert, has_the_parameters_of_hugging_faces_models) {
  const auto count = [](const spec::Model& spec) {
    std::int64_t total = 0;
    for (const Tensor& parameter : build_model(spec, {.device = torch::kMeta})->parameters())
      total += parameter.numel();
    return total;
  };
  spec::Model base = spec::load_model("bert-base");
  EXPECT_EQ(count(base), 109514298);  // transformers: BertForMaskedLM
  // The masked LM has a transform (a matrix, two biases, a LayerNorm) and a bias per token instead of the pooler.
  EXPECT_EQ(count(base), spec::parameter_count(base) + 2 * base.hidden + base.vocab);
  base.classes = 2;
  EXPECT_EQ(count(base), 109483778);  // transformers: BertForSequenceClassification
  EXPECT_EQ(count(base), spec::parameter_count(base));
}

TEST(Bert, does_not_read_padding) {
  for (const spec::Model& spec : {small_bert(), classifier()}) {
    const auto model = shaken(spec);
    const Tensor tokens = tokens_for(spec, 1, 9).remainder(spec.vocab - 1) + 1;
    const Tensor padded = at::cat({tokens, torch::full({1, 5}, kPadding, torch::kLong)}, 1);
    const Tensor alone = model->forward(tokens, {.padding_id = kPadding, .training = false});
    const Tensor with_padding = model->forward(padded, {.padding_id = kPadding, .training = false});
    const Tensor read = spec.classes > 0 ? with_padding : with_padding.slice(1, 0, 9);
    expect_near(read, alone, kTolerance, "logits of the tokens");
    const Tensor all = model->forward(padded, {.training = false});
    EXPECT_GT((all.slice(1, 0, alone.size(1)) - alone).abs().max().item<double>(), 1e-6) << "padding is masked by id";
  }
}

TEST(Bert, looks_at_both_sides) {
  const auto model = shaken(small_bert());
  const Tensor tokens = tokens_for(small_bert(), 1, 12);
  Tensor changed = tokens.clone();
  changed[0][5] = (changed[0][5].item<std::int64_t>() + 1) % 61;
  const Tensor difference = model->forward(tokens, {.training = false}) - model->forward(changed, {.training = false});
  EXPECT_GT(difference.abs().amax({0, 2}).min().item<double>(), 1e-9);
}

TEST(Bert, drops_the_same_elements_however_a_batch_is_split) {
  for (spec::Model spec : {small_bert(), classifier()}) {
    spec.dropout = 0.2;
    const auto model = shaken(spec);
    const Batch batch = padded_batch(spec);
    const ForwardContext context{.seed = 3, .step = 7, .first_index = 12, .padding_id = kPadding};
    const double whole = model->loss(batch.tokens, batch.target, context).loss_sum.item<double>();
    double parts = 0;
    for (std::int64_t i = 0; i < 2; ++i) {
      ForwardContext one = context;
      one.first_index += i;
      parts +=
          model->loss(batch.tokens.slice(0, i, i + 1), batch.target.slice(0, i, i + 1), one).loss_sum.item<double>();
    }
    EXPECT_NEAR(whole, parts, 1e-11 * whole);
    ForwardContext next = context;
    next.step += 1;
    EXPECT_NE(whole, model->loss(batch.tokens, batch.target, next).loss_sum.item<double>());
  }
}

TEST(Bert, on_several_ranks_equals_one) {
  const Split ring{.cp = 2}, all_to_all{.cp = 2, .exchange = plan::ContextExchange::kAllToAll};
  for (const double dropout : {0.0, 0.2}) {
    for (spec::Model spec : {small_bert(), classifier(), untied()}) {
      spec.dropout = dropout;
      const Batch batch = padded_batch(spec);
      const Outcome one = run_split(spec, {}, batch);
      std::vector<Split> splits{{.tp = 2}, {.tp = 2, .sequence_parallel = true}};
      if (spec.classes == 0) {
        splits.insert(splits.end(), {ring, all_to_all, {.tp = 2, .cp = 2, .sequence_parallel = true}});
      }
      for (const Split& split : splits) expect_same(run_split(spec, split, batch), one, kTolerance, split.name());
    }
  }
}

TEST(Bert, runs_unit_by_unit_in_parts_of_a_pipeline) {
  for (const spec::Model& spec : {small_bert(), classifier()}) {
    const Batch batch = padded_batch(spec);
    const auto whole = shaken(spec);
    const double expected = whole->loss(batch.tokens, batch.target, batch.context).loss_sum.item<double>();
    const auto part = [&](const ModelPart& which) {
      auto model = std::dynamic_pointer_cast<LanguageModel>(
          build_model(spec, {.dtype = torch::kDouble, .seed = 4, .part = which}));
      shake(*model);
      return model;
    };
    const auto first = part({.end_layer = 1, .head = false}), last = part({.first_layer = 1, .embedding = false});
    Tensor x = first->embed(batch.tokens, batch.context);
    for (int i = 0; i < 2; ++i) x = first->run_layer(0, i, x, batch.context).hidden;
    for (int i = 0; i < 2; ++i) x = last->run_layer(1, i, x, batch.context).hidden;
    const LossResult result = last->head_loss(x, batch.tokens, batch.target, batch.context);
    EXPECT_NEAR(result.loss_sum.item<double>(), expected, kTolerance * expected);
  }
}

TEST(BertClassifier, is_not_split_along_the_sequence) {
  std::string error;
  parallel::run_ranks(2, [&](const comm::Communicator& world) {
    Partition partition;
    partition.cp = world;
    const std::string text = error_of([&] { build_model(classifier(), {.partition = partition}); });
    if (world.rank() == 0) error = text;
  });
  EXPECT_NE(error.find("cp splits sequences"), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep::nn
