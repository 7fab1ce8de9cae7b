#include "lockstep/nn/hf_weights.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/file_layout.h"
#include "small_models.h"
#include "split_model.h"
#include "tests/support/tiny_models.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using namespace testing;

spec::Model classifier() {
  spec::Model model = small_bert();
  model.classes = 3;
  return model;
}

std::shared_ptr<TrainableModel> shaken(const spec::Model& spec) {
  auto model = build_model(spec, {.dtype = torch::kDouble, .seed = 4});
  shake(*model);
  return model;
}

// A file as Hugging Face writes it for the encoder alone: no prefix, no heads.
TensorMap encoder_file(const TrainableModel& model, bool with_pooler) {
  TensorMap file;
  for (const auto& [name, tensor] : state_dict(model)) {
    if (name.rfind("bert.", 0) != 0 || (!with_pooler && name.rfind("bert.pooler.", 0) == 0)) continue;
    file.emplace(name.substr(5), tensor);
  }
  return file;
}

TEST(BertWeights, of_an_encoder_start_a_classifier_whose_head_is_new) {
  const auto source = shaken(classifier());
  for (const bool with_pooler : {true, false}) {
    const auto model = build_model(classifier(), {.dtype = torch::kDouble, .seed = 9});
    const TensorMap before = [&] {
      TensorMap copy;
      for (const auto& [name, tensor] : state_dict(*model)) copy.emplace(name, tensor.detach().clone());
      return copy;
    }();
    const LoadReport report = load_weights(*model, encoder_file(*source, with_pooler), "file");
    std::set<std::string> anew{"classifier.bias", "classifier.weight"};
    if (!with_pooler) anew.insert({"bert.pooler.dense.bias", "bert.pooler.dense.weight"});
    EXPECT_EQ(std::set<std::string>(report.initial.begin(), report.initial.end()), anew);
    for (const auto& [name, tensor] : state_dict(*model)) {
      EXPECT_TRUE(tensor.equal(anew.count(name) ? before.at(name) : state_dict(*source).at(name))) << name;
    }
  }
}

TEST(BertWeights, of_the_published_pretraining_file_are_found_under_their_old_names) {
  const auto source = shaken(small_bert());
  TensorMap file;
  for (const auto& [name, tensor] : state_dict(*source)) {
    std::string old = name;
    if (name.ends_with("LayerNorm.weight")) old = name.substr(0, name.size() - 6) + "gamma";
    if (name.ends_with("LayerNorm.bias")) old = name.substr(0, name.size() - 4) + "beta";
    file.emplace(old, tensor);
  }
  file["bert.embeddings.position_ids"] = torch::arange(96).unsqueeze(0);
  file["bert.pooler.dense.weight"] = torch::zeros({32, 32});
  file["cls.seq_relationship.weight"] = torch::zeros({2, 32});
  file["cls.predictions.decoder.weight"] = file.at("bert.embeddings.word_embeddings.weight");
  const auto model = build_model(small_bert(), {.dtype = torch::kDouble, .seed = 9});
  const LoadReport report = load_weights(*model, file, "file");
  EXPECT_TRUE(report.initial.empty());
  EXPECT_EQ(report.unused.size(), 4u);
  for (const auto& [name, tensor] : state_dict(*model)) EXPECT_TRUE(tensor.equal(state_dict(*source).at(name))) << name;
}

TEST(BertWeights, that_do_not_fit_are_refused_alike_by_every_part_of_a_pipeline) {
  const auto source = shaken(classifier());
  TensorMap file = state_dict(*source);
  file["classifier.weight"] = torch::zeros({5, 32});
  file["classifier.bias"] = torch::zeros({5});
  const auto first = build_model(classifier(), {.part = {.end_layer = 1, .head = false}});
  const std::string shape = error_of([&] { load_weights(*first, file, "file"); });
  EXPECT_NE(shape.find("set model.classes to the number of classes in the file"), std::string::npos) << shape;
  file = state_dict(*source);
  file.erase("bert.encoder.layer.1.output.dense.weight");
  const std::string missing = error_of([&] { load_weights(*first, file, "file"); });
  EXPECT_NE(missing.find("missing tensors bert.encoder.layer.1.output.dense.weight"), std::string::npos) << missing;
}

// The runs that a rank reads for its part, and a shard of that part.
// Small, with as many key heads as given, in a family that packs projections.
spec::Model packing(spec::Family family, std::int64_t kv_heads) {
  spec::Model model = tiny::llama_of({2, 16, 4, 24, 11, 8}, kv_heads);
  spec::adopt_family(model, family);
  if (model.decoder.rotary_fraction < 1) model.decoder.rotary_fraction = 0.5;  // heads have four values here
  model.init_std = 0.3;
  return model;
}

class PackedWeights : public ::testing::TestWithParam<std::pair<spec::Family, std::int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Families, PackedWeights,
                         ::testing::Values(std::pair{spec::Family::kPhi3, 2}, std::pair{spec::Family::kNeox, 4},
                                           std::pair{spec::Family::kFalcon, 1}, std::pair{spec::Family::kFalcon, 2}),
                         [](const auto& each) { return std::to_string(each.index); });

TEST_P(PackedWeights, come_back_from_the_familys_file_on_one_rank_and_on_two) {
  const spec::Model spec = packing(GetParam().first, GetParam().second);
  const auto source = build_model(spec, {.dtype = torch::kDouble, .seed = 5});
  const TensorMap ours = state_dict(*source), file = to_file_tensors(ours, spec);
  EXPECT_LT(file.size(), ours.size());
  for (const auto& [name, tensor] : file) EXPECT_FALSE(name.ends_with("q_proj.weight")) << name;
  const auto again = build_model(spec, {.dtype = torch::kDouble, .seed = 6});
  load_weights(*again, file, "file");
  for (const auto& [name, tensor] : state_dict(*again)) EXPECT_TRUE(tensor.equal(ours.at(name))) << name;
  parallel::run_ranks(2, [&](const comm::Communicator& tp) {
    Partition partition;
    partition.tp = tp;
    const auto part = build_model(spec, {.dtype = torch::kDouble, .seed = 6, .partition = partition});
    load_weights(*part, file, "file");
    for (const DeclaredParameter& parameter : declared_parameters(*part)) {
      const Tensor local = parameter.tensor.detach().view({-1}), whole = ours.at(parameter.name).detach().view({-1});
      for (const nn::Run& run : runs_of(parameter.placement, 0, local.numel())) {
        EXPECT_TRUE(local.narrow(0, run.local, run.count).equal(whole.narrow(0, run.whole, run.count)))
            << parameter.name;
      }
    }
  });
}

// By hand: Phi 3 has queries, keys, values one after the other, Falcon a key head's queries, then its key, then its
// value.
TEST(PackedRows, have_their_rows_in_the_familys_order) {
  const auto rows = [](const spec::Model& spec, const char* which) {
    const std::string name = std::string("model.layers.1.self_attn.") + which + "_proj.weight";
    std::string text;
    for (const Segment& segment : file_place(name, {8, 16}, spec).rows) {
      text += std::to_string(segment.first) + "+" + std::to_string(segment.count) + " ";
    }
    return text;
  };
  const spec::Model phi3 = packing(spec::Family::kPhi3, 2), falcon = packing(spec::Family::kFalcon, 2);
  EXPECT_EQ(rows(phi3, "q"), "0+16 ");
  EXPECT_EQ(rows(phi3, "k"), "16+8 ");
  EXPECT_EQ(rows(phi3, "v"), "24+8 ");
  EXPECT_EQ(rows(falcon, "q"), "0+8 16+8 ");
  EXPECT_EQ(rows(falcon, "k"), "8+4 24+4 ");
  EXPECT_EQ(rows(falcon, "v"), "12+4 28+4 ");
  EXPECT_EQ(file_place("model.layers.1.self_attn.v_proj.weight", {8, 16}, falcon).name,
            "transformer.h.1.self_attention.query_key_value.weight");
  EXPECT_EQ(file_place("lm_head.weight", {11, 16}, packing(spec::Family::kNeox, 4)).name, "embed_out.weight");
}

TEST(Weights, are_read_by_the_stretches_that_a_rank_holds) {
  const auto source = shaken(small_bert());
  const TensorMap file = state_dict(*source);
  parallel::run_ranks(2, [&](const comm::Communicator& tp) {
    Partition partition;
    partition.tp = tp;
    const auto model = build_model(small_bert(), {.dtype = torch::kDouble, .partition = partition});
    std::int64_t read = 0;
    WeightSource pieces{"file", {}, [&](const std::string& name, std::int64_t first, Tensor out) {
                          out.copy_(file.at(name).view({-1}).narrow(0, first, out.numel()));
                          read += out.numel();
                        }};
    for (const auto& [name, tensor] : file) pieces.sizes.emplace(name, tensor.sizes().vec());
    const auto parameters = declared_parameters(*model);
    std::int64_t wanted = 0;
    std::map<std::string, Tensor> shards;
    load_parts(
        small_bert(), parameters,
        [&](const DeclaredParameter& parameter) {  // everything but the first third
          const std::int64_t count = parameter.tensor.numel(), first = count / 3;
          wanted += count - first;
          return LocalValues{shards[parameter.name] = torch::zeros({count - first}, torch::kDouble), first};
        },
        pieces);
    EXPECT_EQ(read, wanted);
    load_weights(*model, file, "file");
    for (const DeclaredParameter& parameter : parameters) {
      const Tensor& shard = shards.at(parameter.name);
      const Tensor local = parameter.tensor.detach().view({-1});
      EXPECT_TRUE(shard.equal(local.slice(0, local.numel() - shard.numel()))) << parameter.name;
      Tensor expected = torch::empty_like(local);
      for (const nn::Run& run : runs_of(parameter.placement, 0, local.numel())) {
        expected.narrow(0, run.local, run.count)
            .copy_(file.at(parameter.name).view({-1}).narrow(0, run.whole, run.count));
      }
      EXPECT_TRUE(local.equal(expected)) << parameter.name;
    }
  });
}

}  // namespace
}  // namespace lockstep::nn
