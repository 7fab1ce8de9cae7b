// Models of a type of one's own, made with the public headers alone, trained under data, shard and pipeline
// parallelism.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/train.h"
#include "lockstep/nn/language_model.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

using torch::Tensor;

// x + W2 relu(W1 norm(x)) over a running mean of the tokens before: no attention at all.
class MeanLayer : public torch::nn::Module {
 public:
  MeanLayer(const spec::Model& spec, const torch::TensorOptions& options) {
    norm = register_module("norm", std::make_shared<nn::RmsNorm>(spec.hidden, 1e-5, options));
    const auto linear = [&](std::int64_t in, std::int64_t out) {
      return std::make_shared<nn::Linear>(in, out, /*with_bias=*/true, nn::WeightLayout::kOutIn,
                                          nn::Init{nn::Init::Kind::kNormal, 0.1}, options);
    };
    up = register_module("up", linear(spec.hidden, spec.ffn_hidden));
    down = register_module("down", linear(spec.ffn_hidden, spec.hidden));
  }
  Tensor forward(const Tensor& x) const {
    const Tensor count = torch::arange(1, x.size(1) + 1, x.options()).view({1, -1, 1});
    return x + down->forward(at::relu(up->forward(norm->forward(x.cumsum(1) / count + x))));
  }
  std::shared_ptr<nn::RmsNorm> norm;
  std::shared_ptr<nn::Linear> up, down;
};

class MeanModel : public nn::LanguageModel {
 public:
  MeanModel(const spec::Model& spec, const nn::BuildOptions& build) : LanguageModel(spec, build) {
    if (part().embedding) {
      tokens_ =
          register_module("tokens", std::make_shared<nn::Embedding>(spec.vocab, spec.hidden, 0.1, tensor_options()));
    }
    auto layers = register_module("layers", std::make_shared<nn::Group>());
    for (std::int64_t i = part().first_layer; i < part().end_layer; ++i) {
      layers_.push_back(
          layers->register_module(std::to_string(i), std::make_shared<MeanLayer>(spec, tensor_options())));
    }
    if (part().head)
      norm_ = register_module("norm", std::make_shared<nn::RmsNorm>(spec.hidden, 1e-5, tensor_options()));
    make_head(tokens_);
    if (build.initialise) nn::initialise(*this, build.seed);
  }
  Tensor embed(const Tensor& tokens, const nn::ForwardContext&) override { return tokens_->forward(tokens); }
  int parts_per_layer() const override { return 1; }
  nn::LayerOutput run_layer(std::int64_t layer, int, const Tensor& x, const nn::ForwardContext&) override {
    return {layers_[static_cast<std::size_t>(layer - part().first_layer)]->forward(x)};
  }
  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const override { return {tokens_}; }
  std::shared_ptr<torch::nn::Module> layer_module(std::int64_t layer) const override {
    return layers_[static_cast<std::size_t>(layer - part().first_layer)];
  }

 protected:
  Tensor final_norm(const Tensor& x) const override { return norm_->forward(x); }
  std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const override { return {norm_}; }

 private:
  std::shared_ptr<nn::Embedding> tokens_;
  std::vector<std::shared_ptr<MeanLayer>> layers_;
  std::shared_ptr<nn::RmsNorm> norm_;
};

// A model that knows nothing of units: the engine runs it as one.
class WholeModel : public nn::TrainableModel {
 public:
  WholeModel(const spec::Model& spec, const nn::BuildOptions& build) : TrainableModel(spec, build.dtype) {
    const auto options = torch::TensorOptions().dtype(build.dtype);
    tokens_ = register_module("tokens", std::make_shared<nn::Embedding>(spec.vocab, spec.hidden, 0.1, options));
    layer_ = register_module("layer", std::make_shared<MeanLayer>(spec, options));
    unused_ = register_module("unused", std::make_shared<nn::RmsNorm>(spec.hidden, 1e-5, options));
    head_ =
        register_module("head", std::make_shared<nn::Linear>(spec.hidden, spec.vocab, true, nn::WeightLayout::kOutIn,
                                                             nn::Init{nn::Init::Kind::kNormal, 0.1}, options));
  }
  Tensor forward(const Tensor& input, const nn::ForwardContext&) override {
    return head_->forward(layer_->forward(layer_->forward(tokens_->forward(input))));
  }
  nn::LossResult loss(const Tensor& input, const Tensor& target, const nn::ForwardContext& context) override {
    const Tensor logits = forward(input, context).flatten(0, 1).log_softmax(-1);
    return {-logits.gather(1, target.reshape({-1, 1})).sum(), target.numel()};
  }

 private:
  std::shared_ptr<nn::Embedding> tokens_;
  std::shared_ptr<MeanLayer> layer_;
  std::shared_ptr<nn::RmsNorm> unused_;
  std::shared_ptr<nn::Linear> head_;
};

template <typename Model = MeanModel>
TrainResult trained(const TrainingRuns& runs, const std::string& layout_text, std::int64_t micro,
                    std::int64_t accumulation, double bucket_mib = 25.0) {
  spec::Job job = runs.job("batch: {micro: 4, sequence_length: 32}\nsteps: 12\n",
                           "{arch: llama, name: own, layers: 2, hidden: 32, heads: 4, ffn_hidden: 48, vocab: 256, "
                           "max_sequence: 64}");
  job.precision = spec::Precision::kFp64;
  job.optimizer.learning_rate = 1e-2;
  job.batch.micro = micro;
  job.batch.accumulation = accumulation;
  job.cluster = {};
  job.communication.bucket_mib = bucket_mib;
  plan::Layout layout = plan::parse_layout(layout_text);
  layout.precision = job.precision;
  TrainOptions options;
  options.make_model = [](const spec::Model& spec, const nn::BuildOptions& build) {
    return std::make_shared<Model>(spec, build);
  };
  return train(job, layout, options);
}

void expect_equal(const TrainResult& a, const TrainResult& b) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < b.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 1e-10) << "step " << i;
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, tensor] : b.weights) {
    EXPECT_LT((a.weights.at(name) - tensor).abs().max().item<double>(), 1e-9) << name;
  }
}

TEST(OwnModel, learns_on_one_rank_and_has_its_own_parameters) {
  const TrainResult one = trained(TrainingRuns(), "dp=1", 8, 1);
  ASSERT_EQ(one.losses.size(), 12u);
  EXPECT_LT(one.losses.back(), 0.8 * one.losses.front());
  EXPECT_TRUE(one.weights.contains("layers.1.down.weight"));
}

TEST(OwnModel, trains_the_same_under_dp_2_and_shard_2) {
  const TrainingRuns runs;
  const TrainResult one = trained(runs, "dp=1", 8, 1);
  expect_equal(trained(runs, "dp=2,shard=2,zero=3", 2, 1), one);
  expect_equal(trained(runs, "dp=2,shard=2,zero=1", 2, 1), one);
}

TEST(OwnModel, trains_the_same_under_pp_2) {
  const TrainingRuns runs;
  expect_equal(trained(runs, "pp=2", 4, 2), trained(runs, "dp=1", 4, 2));
}

TEST(OwnModel, without_units_trains_the_same_with_buckets_of_any_size) {
  const TrainingRuns runs;
  const TrainResult one = trained<WholeModel>(runs, "dp=1", 4, 2);
  EXPECT_LT(one.losses.back(), 0.9 * one.losses.front());
  expect_equal(trained<WholeModel>(runs, "dp=2", 2, 2, 1e-6), one);
  expect_equal(trained<WholeModel>(runs, "dp=4", 1, 2, 0.02), one);
  expect_equal(trained<WholeModel>(runs, "dp=2,shard=2,zero=2", 1, 2), one);
}

TEST(OwnModel, an_error_of_one_rank_is_told_as_it_was) {
  spec::Job job = TrainingRuns().job();
  job.cluster = {};
  TrainOptions options;
  options.make_model = [](const spec::Model&, const nn::BuildOptions&) -> std::shared_ptr<nn::TrainableModel> {
    throw bad_input("this model cannot be built", "");
  };
  plan::Layout layout;
  layout.dp = 2;
  EXPECT_THROW(train(job, layout, options), UserError);
}

}  // namespace
}  // namespace lockstep::engine
