// What must not depend on the layout beside the steps themselves: evaluations and their metrics, which parameters are
// decayed, and attention that stays within documents.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/train.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

constexpr const char* kLlama =
    "{arch: llama, name: small, layers: 2, hidden: 32, heads: 4, ffn_hidden: 48, vocab: 256, max_sequence: 64, "
    "init_std: 0.3, qkv_bias: true}";
constexpr const char* kGpt =
    "{arch: gpt, name: small, layers: 2, hidden: 32, heads: 4, ffn_hidden: 48, vocab: 256, max_sequence: 64, "
    "init_std: 0.3}";
constexpr const char* kBert =
    "{arch: bert, name: small, layers: 2, hidden: 32, heads: 4, ffn_hidden: 48, vocab: 256, max_sequence: 64, "
    "init_std: 0.3, classes: 3, dropout: 0}";

plan::Layout layout_of(const std::string& text) {
  plan::Layout layout = plan::parse_layout(text);
  layout.precision = spec::Precision::kFp64;
  return layout;
}

class LayoutsAlike : public ::testing::Test {
 protected:
  spec::Job job(const std::string& model, const std::string& data, const std::string& rest) const {
    return spec::parse_job(
        fmt::format("model: {}\ncluster: 1x1xcpu\nprecision: fp64\nseed: 5\ndata: {}\n{}", model, data, rest), "test");
  }
  std::string put(const std::string& name, const std::string& text) const {
    const std::string path = (folder_.path() / name).string();
    std::ofstream(path) << text;
    return path;
  }

  TemporaryFolder folder_;
};

// The initial weights, which are the same under every layout: a learning rate of 0 leaves them.
constexpr const char* kUntouched =
    "batch: {micro: 2, global: 8, sequence_length: 32}\noptimizer: {learning_rate: 0, weight_decay: 0}\nsteps: 1\n";

void expect_same(const EvaluationResult& a, const EvaluationResult& b, const std::string& layout) {
  EXPECT_NEAR(a.loss, b.loss, 1e-12) << layout;
  EXPECT_EQ(a.targets, b.targets) << layout;
  EXPECT_EQ(a.accuracy, b.accuracy) << layout;
  ASSERT_EQ(a.metrics.size(), b.metrics.size()) << layout;
  for (std::size_t i = 0; i < a.metrics.size(); ++i) {
    EXPECT_EQ(a.metrics[i].first, b.metrics[i].first);
    // Counts are whole numbers; a perplexity follows from the loss.
    const double slack = a.metrics[i].first == "perplexity" ? 1e-9 : 0.0;
    EXPECT_NEAR(a.metrics[i].second, b.metrics[i].second, slack) << layout << " " << a.metrics[i].first;
  }
}

TEST_F(LayoutsAlike, evaluations_of_the_same_weights_are_the_same_figures) {
  const std::string text = put("text.txt", made_text(20000));
  const spec::Job given = job(kLlama, fmt::format("{{kind: text, path: {}}}", text),
                              std::string(kUntouched) + "evaluation: {samples: 13, metrics: [accuracy, perplexity]}\n");
  const EvaluationResult one = train(given, layout_of("dp=1"), {.evaluate = true}).evaluation;
  EXPECT_EQ(one.targets, 13 * 32) << "thirteen samples, which divide over no layout";
  EXPECT_GT(one.loss, 3.0);
  for (const char* layout : {"dp=4", "dp=2", "tp=4", "pp=2", "shard=4,zero=3", "dp=2,tp=2", "cp=2"}) {
    expect_same(train(given, layout_of(layout), {.evaluate = true}).evaluation, one, layout);
  }
}

TEST_F(LayoutsAlike, f1_is_counted_over_all_ranks) {
  std::string table = "label,sentence\n";
  for (int i = 0; i < 41; ++i) table += fmt::format("{},sentence {} of {}\n", i * i % 3, i, std::string(i % 9, 'x'));
  const std::string path = put("labelled.csv", table);
  const spec::Job given = job(kBert, fmt::format("{{kind: classification, path: {0}, evaluation_path: {0}}}", path),
                              std::string(kUntouched) + "evaluation: {metrics: [f1, f1_micro, accuracy]}\n");
  const EvaluationResult one = train(given, layout_of("dp=1"), {.evaluate = true}).evaluation;
  EXPECT_EQ(one.targets, 41);
  ASSERT_EQ(one.metrics.size(), 3u);
  EXPECT_GT(one.metrics[0].second, 0.0);
  EXPECT_EQ(one.metrics[1].second, one.accuracy) << "one label each";
  EXPECT_EQ(one.metrics[2].second, one.accuracy);
  EXPECT_NE(one.metrics[0].second, one.metrics[1].second);
  for (const char* layout : {"dp=4", "dp=2", "tp=4", "pp=2", "shard=2,zero=3", "dp=3"}) {
    expect_same(train(given, layout_of(layout), {.evaluate = true}).evaluation, one, layout);
  }
}

void expect_weights(const TrainResult& a, const TrainResult& b, const std::string& layout) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < b.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 1e-10) << layout << " " << i;
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, tensor] : b.weights) {
    EXPECT_LT((a.weights.at(name) - tensor).abs().max().item<double>(), 1e-9) << layout << " " << name;
  }
}

TEST_F(LayoutsAlike, decay_of_matrices_leaves_vectors_alone_in_every_shard) {
  const std::string path = put("text.txt", made_text(4000));
  const auto given = [&](const char* decay) {
    return job(kLlama, fmt::format("{{kind: text, path: {}, holdout: 0}}", path),
               fmt::format("batch: {{micro: 2, global: 8, sequence_length: 32}}\nsteps: 4\n"
                           "optimizer: {{learning_rate: 1e-2, weight_decay: 0.5, decay: {}}}\n",
                           decay));
  };
  const TrainResult all = train(given("all"), layout_of("dp=1")), one = train(given("matrices"), layout_of("dp=1"));
  double least = 1.0;
  for (const auto& [name, tensor] : one.weights) {
    if (name.find("norm") == std::string::npos) continue;
    least = std::min(least, (tensor - all.weights.at(name)).abs().max().item<double>());
  }
  EXPECT_LT(least, 1.0);
  EXPECT_GT(least, 1e-3) << "every norm differs from one that was decayed";
  for (const char* layout : {"dp=4", "shard=2,zero=1", "shard=4,zero=2", "shard=3,zero=3", "tp=2", "pp=2",
                             "shard=2,tp=2,zero=3", "pp=2,tp=2,sequence_parallel=true"}) {
    expect_weights(train(given("matrices"), layout_of(layout)), one, layout);
  }
}

// Conversations of unlike length; every step sees all of them, packed or one in a sequence.
std::string conversations() {
  std::string lines;
  for (int i = 0; i < 13; ++i) {
    lines += fmt::format("{{\"prompt\": \"q{}{}\", \"completion\": \"a{}{}\"}}\n", i, std::string(i % 4, '?'), i * i,
                         std::string(i * 3 % 5, '!'));
  }
  return lines;
}

class Documents : public LayoutsAlike {
 protected:
  TrainResult trained(const char* model, const char* packing, const std::string& layout) const {
    const std::string data =
        fmt::format("{{kind: instruction, path: {}, chat_template: plain, packing: {}, holdout: 0, shuffle: false}}",
                    path_, packing);
    spec::Job given = job(model, data,
                          "batch: {micro: 1, global: 1, sequence_length: 32}\nsteps: 3\n"
                          "optimizer: {learning_rate: 1e-2}\n");
    given.batch.global = data::open_datasets(given).train->size();
    return train(given, layout_of(layout));
  }
  std::string path_ = put("conversations.jsonl", conversations());
};

TEST_F(Documents, packed_ones_train_as_each_in_a_sequence_of_its_own) {
  for (const char* model : {kLlama, kGpt}) {
    const TrainResult apart = trained(model, "false", "dp=1");
    const TrainResult together = trained(model, "true", "dp=1");
    EXPECT_GT(std::abs(together.losses[0] - apart.losses[0]), 1e-4) << "examples see those before them";
    for (const char* layout : {"dp=1", "dp=2", "shard=2,zero=3", "tp=2", "tp=2,sequence_parallel=true", "pp=2",
                               "pp=2,tp=2", "pp=2,schedule=zero_bubble", "dp=1,recompute=full"}) {
      expect_weights(trained(model, "documents", layout), apart, layout);
    }
  }
}

TEST_F(Documents, are_refused_where_sequences_are_cut) {
  EXPECT_THROW(trained(kLlama, "documents", "cp=2"), UserError);
}

}  // namespace
}  // namespace lockstep::engine
