#include "lockstep/spec/model.h"

#include <gtest/gtest.h>

#include <fstream>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/yaml.h"
#include "lockstep/spec/model_reader.h"

namespace lockstep::spec {
namespace {

using lockstep::testing::user_error;

Model read(const std::string& text) {
  const YamlNode root = parse_yaml(text, "m.yaml");
  return read_model(root, "", "inline");
}

struct Published {
  const char* name;
  std::int64_t parameters;
};

// Counts of the released checkpoints: Hugging Face (transformers' num_parameters, safetensors metadata), torchvision
// (num_params of the weights), PyTorch examples.
const Published kPublished[] = {
    {"mnist-cnn", 1'199'882},           {"resnet18", 11'689'512},          {"resnet50", 25'557'032},
    {"resnet101", 44'549'160},          {"resnet152", 60'192'808},         {"bert-base", 109'482'240},
    {"bert-large", 335'141'888},        {"gpt2-124m", 124'439'808},        {"gpt2-355m", 354'823'168},
    {"gpt2-774m", 774'030'080},         {"gpt2-1.5b", 1'557'611'200},      {"llama2-7b", 6'738'415'616},
    {"llama2-13b", 13'015'864'320},     {"llama2-70b", 68'976'648'192},    {"llama3-8b", 8'030'261'248},
    {"llama3-70b", 70'553'706'496},     {"llama3-405b", 405'853'388'800},  {"llama3.2-1b", 1'235'814'400},
    {"llama3.2-3b", 3'212'749'824},     {"mistral-7b", 7'241'732'096},     {"mixtral-8x7b", 46'702'792'704},
    {"mixtral-8x22b", 140'620'634'112}, {"tinyllama-1.1b", 1'100'048'384}, {"smollm2-135m", 134'515'008},
    {"smollm2-1.7b", 1'711'376'384},    {"mamba-130m", 129'135'360},       {"mamba-2.8b", 2'768'345'600},
    {"qwen2.5-7b", 7'615'616'512},      {"qwen3-8b", 8'190'735'360},       {"gemma2-9b", 9'241'705'984},
    {"gemma3-1b", 999'885'952},         {"phi3-mini", 3'821'079'552},      {"falcon-7b", 6'921'720'704},
    {"olmo2-7b", 7'298'617'344},        {"neox-20b", 20'554'567'680},      {"deepseek-moe-16b", 16'375'728'128}};

TEST(ModelPresets, have_the_published_parameter_counts) {
  for (const Published& row : kPublished) EXPECT_EQ(parameter_count(load_model(row.name)), row.parameters) << row.name;
}

TEST(ModelPresets, of_gpt3_have_the_counts_of_its_paper) {
  // Brown et al. 2020, table D.1: 1,320 and 174,600 million, as far as those are written out.
  EXPECT_NEAR(static_cast<double>(parameter_count(load_model("gpt-1.3b"))), 1'320e6, 5e6);
  EXPECT_NEAR(static_cast<double>(parameter_count(load_model("gpt3-175b"))), 174'600e6, 50e6);
}

TEST(ModelPresets, without_a_published_count_are_as_large_as_their_name_says) {
  // Rajbhandari et al. 2019 names these shapes 10B and 100B and counts no further.
  const std::pair<const char*, double> rows[] = {{"gpt-10b", 10e9}, {"gpt-100b", 100e9}};
  for (const auto& [name, size] : rows) {
    EXPECT_NEAR(static_cast<double>(parameter_count(load_model(name))) / size, 1.0, 0.04) << name;
  }
}

TEST(ModelPresets, all_names_are_there_and_load) {
  const std::vector<std::string> wanted = {
      "bert-base",   "bert-large",  "cifar-cnn",  "deepseek-moe-16b", "falcon-7b",    "gemma2-9b",     "gemma3-1b",
      "gpt-1.3b",    "gpt-100b",    "gpt-10b",    "gpt2-1.5b",        "gpt2-124m",    "gpt2-355m",     "gpt2-774m",
      "gpt3-175b",   "llama2-13b",  "llama2-70b", "llama2-7b",        "llama3-405b",  "llama3-70b",    "llama3-8b",
      "llama3.2-1b", "llama3.2-3b", "mamba-130m", "mamba-2.8b",       "mistral-7b",   "mixtral-8x22b", "mixtral-8x7b",
      "mnist-cnn",   "neox-20b",    "olmo2-7b",   "phi3-mini",        "qwen2.5-7b",   "qwen3-8b",      "resnet101",
      "resnet152",   "resnet18",    "resnet50",   "smollm2-1.7b",     "smollm2-135m", "tinyllama-1.1b"};
  EXPECT_EQ(model_preset_names(), wanted);
  for (const std::string& name : wanted) EXPECT_EQ(load_model(name).name, name);
}

TEST(ModelPresets, are_embedded_without_a_copy_going_stale) {
  for (const std::string& name : model_preset_names()) {
    const std::string path = std::string(LOCKSTEP_SOURCE_DIR) + "/specs/models/" + name + ".yaml";
    EXPECT_EQ(load_model(path), load_model(name)) << name;
  }
}

TEST(ModelPresets, survive_being_written_and_read) {
  for (const std::string& name : model_preset_names()) {
    const Model model = load_model(name);
    EXPECT_EQ(read(to_yaml(model)), model) << to_yaml(model);
  }
}

TEST(ModelFile, of_experts_say_how_tokens_are_balanced) {
  const Model model =
      read("{preset: mixtral-8x7b, router_auxiliary_loss: 0.02, router_z_loss: 1e-3, capacity_factor: 1.25}");
  EXPECT_EQ(model.router_auxiliary_loss, 0.02);
  EXPECT_EQ(model.router_z_loss, 1e-3);
  EXPECT_EQ(model.capacity_factor, 1.25);
  EXPECT_EQ(read(to_yaml(model)), model);
  EXPECT_EQ(load_model("mixtral-8x7b").capacity_factor, 0.0);  // dropless
  EXPECT_HAS(user_error([] { read("{preset: llama2-7b, capacity_factor: 1}"); }), "unknown key `capacity_factor`");
}

TEST(ParameterCount, of_the_cifar_cnn_is_the_sum_of_its_layers) {
  const std::int64_t by_hand =
      (3 * 64 * 9 + 128) + (64 * 128 * 9 + 256) + (128 * 256 * 9 + 512) + (256 * 256 * 9 + 512) + 256 * 10 + 10;
  EXPECT_EQ(parameter_count(load_model("cifar-cnn")), by_hand);
}

TEST(ParameterCount, without_the_input_embedding_keeps_a_tied_head) {
  const Model gpt = load_model("gpt2-124m");
  EXPECT_EQ(parameter_count(gpt) - parameter_count_without_input_embedding(gpt), 1024 * 768);
  const Model llama = load_model("llama2-7b");
  EXPECT_EQ(parameter_count(llama) - parameter_count_without_input_embedding(llama), 32000 * 4096);
  const Model resnet = load_model("resnet50");
  EXPECT_EQ(parameter_count_without_input_embedding(resnet), parameter_count(resnet));
}

TEST(ParameterCount, of_active_experts_is_mixtrals_13_billion) {
  const Model model = load_model("mixtral-8x7b");
  EXPECT_EQ(active_parameter_count_without_input_embedding(model) + 32000 * 4096, 12'879'925'248);
  // Mistral AI, April 2024: 39 billion of 141 are active.
  const Model larger = load_model("mixtral-8x22b");
  EXPECT_NEAR(static_cast<double>(active_parameter_count_without_input_embedding(larger) + 32000 * 6144), 39e9, 0.5e9);
  const Model dense = load_model("llama3-8b");
  EXPECT_EQ(active_parameter_count_without_input_embedding(dense), parameter_count_without_input_embedding(dense));
}

TEST(ModelFile, presets_can_be_changed_and_what_is_derived_follows) {
  const Model resnet = read("{preset: resnet50, classes: 10, image_size: 32}");
  EXPECT_EQ(resnet.name, "resnet50");
  EXPECT_EQ(resnet.image_size, 32);
  EXPECT_EQ(parameter_count(resnet), 25'557'032 - (1000 - 10) * 2049);
  const Model gpt = read("{preset: gpt2-124m, hidden: 384, heads: 6, layers: 2}");
  EXPECT_EQ(gpt.head_dim, 64);
  EXPECT_EQ(gpt.ffn_hidden, 4 * 384);
}

TEST(ModelFile, fields_left_out_follow_the_architecture) {
  const Model llama =
      read("{arch: llama, layers: 2, hidden: 64, heads: 4, ffn_hidden: 128, vocab: 1k, max_sequence: 64}");
  EXPECT_FALSE(llama.bias);
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_EQ(llama.activation, Activation::kSilu);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.vocab, 1000);
  const Model gpt = read("{arch: gpt, layers: 2, hidden: 64, heads: 4, vocab: 256, max_sequence: 64}");
  EXPECT_TRUE(gpt.bias);
  EXPECT_TRUE(gpt.tied_embeddings);
  EXPECT_EQ(gpt.activation, Activation::kGeluTanh);
}

TEST(ModelFile, a_familys_name_alone_suggests_its_smallest) {
  EXPECT_HAS(user_error([] { load_model("gpt2"); }), "did you mean `gpt2-124m`?");
  EXPECT_HAS(user_error([] { load_model("llama2"); }), "did you mean `llama2-7b`?");
}

TEST(ModelFile, errors_name_the_place_and_the_nearest_key) {
  EXPECT_EQ(user_error([] { read("arch: gpt\nlayers: 2\nhiden: 64\nheads: 4\nvocab: 256\nmax_sequence: 64\n"); }),
            "m.yaml:3:1: unknown key `hiden`; did you mean `hidden`?");
  EXPECT_HAS(user_error([] { read("arch: gtp\n"); }), "m.yaml:1:7: `arch` cannot be `gtp`");
  EXPECT_HAS(user_error([] { read("acrh: gpt\n"); }),
             "m.yaml:1:1: unknown key `acrh` in a model; did you mean `arch`?");
  EXPECT_HAS(user_error([] { read("layers: 3\n"); }), "neither `arch` nor `preset`");
  EXPECT_HAS(user_error([] { read("{preset: resnet5}"); }),
             "m.yaml:1:10: there is no model preset `resnet5`; did you mean `resnet50`?");
  EXPECT_HAS(user_error([] { read("{preset: resnet50, clases: 10}"); }),
             "m.yaml:1:20: unknown key `clases`; did you mean `classes`?");
  EXPECT_HAS(user_error([] { read("{preset: resnet50, hidden: 10}"); }), "unknown key `hidden`");
  EXPECT_HAS(user_error([] { read("{preset: resnet50, arch: gpt}"); }), "m.yaml:1:26");
  EXPECT_HAS(user_error([] { load_model("gpt2-124"); }), "did you mean `gpt2-124m`?");
  EXPECT_HAS(user_error([] { load_model("no/such.yaml"); }, ExitCode::kEnvironment), "no/such.yaml");
}

TEST(ModelFile, impossible_shapes_are_refused) {
  const std::string gpt = "arch: gpt\nlayers: 2\nvocab: 256\nmax_sequence: 64\n";
  EXPECT_HAS(user_error([&] { read(gpt + "hidden: 65\nheads: 4\n"); }), "not a multiple of heads");
  EXPECT_HAS(user_error([&] { read(gpt + "hidden: 64\nheads: 4\nkv_heads: 3\n"); }), "does not divide");
  EXPECT_HAS(user_error([&] { read(gpt + "hidden: 64\nheads: 0\n"); }), "`heads` is 0; it must be 1");
  EXPECT_HAS(user_error([&] { read(gpt + "hidden: 1e30\nheads: 4\n"); }), "too large");
  EXPECT_HAS(user_error([&] { read("{preset: gpt2-124m, layers: 10000, hidden: 4194304, heads: 1}"); }), "parameters");
  EXPECT_HAS(user_error([&] { read("{preset: resnet50, stage_blocks: [1, 2]}"); }), "4 entries");
}

TEST(ModelFile, is_found_by_path_and_named_after_its_stem) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "tiny.yaml") << "preset: gpt2-124m\nlayers: 2\n";
  const Model model = load_model((folder.path() / "tiny.yaml").string());
  EXPECT_EQ(model.layers, 2);
}

}  // namespace
}  // namespace lockstep::spec
