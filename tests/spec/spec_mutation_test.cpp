// Model files, cluster files and Hugging Face configurations with random damage: every one is either a value that holds
// together and can be stored, or a UserError with one line; nothing else may come out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/spec/cluster_reader.h"
#include "lockstep/spec/hf_config.h"
#include "lockstep/spec/model_reader.h"
#include "lockstep/spec/presets.h"
#include "mutation.h"

namespace lockstep::spec {
namespace {

using lockstep::testing::mutate;
using lockstep::testing::Random;

void expect_sound(const Model& model) {
  const std::int64_t all = parameter_count(model), outside = parameter_count_without_input_embedding(model);
  EXPECT_GT(all, 0);
  EXPECT_GT(outside, 0);
  EXPECT_LE(outside, all);
  EXPECT_LE(active_parameter_count_without_input_embedding(model), outside);
  for (const double value : {model.norm_epsilon, model.dropout, model.init_std, model.rope_theta,
                             model.router_auxiliary_loss, model.router_z_loss, model.capacity_factor}) {
    EXPECT_TRUE(std::isfinite(value) && value >= 0) << value;
  }
  const YamlNode stored = parse_yaml(to_yaml(model), "stored.yaml");
  EXPECT_EQ(read_model(stored, "", "inline"), model) << to_yaml(model);
}

void expect_sound(const Cluster& cluster) {
  EXPECT_FALSE(cluster.groups.empty());
  EXPECT_GT(cluster.devices(), 0);
  for (const NodeGroup& group : cluster.groups) {
    for (const double value :
         {group.device.memory_bytes, group.device.memory_bytes_per_second, group.device.peak_bf16_flops,
          group.device.peak_fp32_flops, group.device.peak_fp8_flops, group.intra.bytes_per_second,
          group.intra.latency_seconds, group.nic.bytes_per_second, group.nic.latency_seconds,
          group.price_per_device_hour_usd, group.failures_per_1000_node_days}) {
      EXPECT_TRUE(std::isfinite(value) && value >= 0) << value;
    }
    EXPECT_GE(group.nics_per_node, 1);
    EXPECT_GT(group.device.memory_bytes, 0);
  }
  const YamlNode stored = parse_yaml(to_yaml(cluster), "stored.yaml");
  EXPECT_EQ(read_cluster(stored, "", "inline"), cluster) << to_yaml(cluster);
}

struct Tally {
  int values = 0, errors = 0;
};

// `read` throws, or returns after checking what it read.
Tally feed(const std::vector<std::string>& corpus, int mutants, std::uint64_t seed,
           const std::function<void(const std::string&)>& read) {
  Random random(seed);
  Tally tally;
  for (int i = 0; i < mutants; ++i) {
    const std::string mutant = mutate(corpus[static_cast<std::size_t>(i) % corpus.size()], random);
    SCOPED_TRACE(mutant.substr(0, 4000));
    try {
      read(mutant);
      ++tally.values;
    } catch (const UserError& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      EXPECT_LT(what.size(), 2000u);
      ++tally.errors;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "mutant " << i << " escaped with: " << error.what();
    }
    if (::testing::Test::HasFailure()) break;  // one mutant is enough to work on
  }
  return tally;
}

// Both outcomes happen often, so the damage neither misses nor drowns the reader.
void expect_both(const Tally& tally, int at_least) {
  EXPECT_GT(tally.values, at_least);
  EXPECT_GT(tally.errors, at_least);
}

TEST(SpecMutation, every_damaged_model_file_is_a_model_or_a_user_error) {
  std::vector<std::string> corpus;
  for (const EmbeddedSpec& preset : embedded_models()) {
    corpus.emplace_back(preset.text);
    corpus.push_back(to_yaml(load_model(std::string(preset.name))));  // every key
  }
  corpus.emplace_back("{preset: llama2-7b, layers: 4, hidden: 512, heads: 8, ffn_hidden: 1024}");
  const Tally tally = feed(corpus, 6000, 1, [](const std::string& text) {
    const YamlNode root = parse_yaml(text, "mutant.yaml");
    expect_sound(read_model(root, "", "inline"));
  });
  expect_both(tally, 800);
}

TEST(SpecMutation, every_damaged_cluster_file_is_a_cluster_or_a_user_error) {
  std::vector<std::string> corpus = {
      "4x8xH100",
      "name: mixed\ngroups:\n  - {kind: H100, nodes: 4, nic: {kind: roce, bandwidth: 200Gb/s}, nics_per_node: 4}\n"
      "  - {kind: A100, nodes: 2, devices_per_node: 4, name: old}\nstorage: {read: 40GB/s, write: 20GB/s}\n",
      "groups:\n  - kind: X1\n    device: {memory: 64GiB, memory_bandwidth: 2TB/s, peak_bf16: 500TFLOPS}\n"
      "    intra: {kind: pcie, bandwidth: 64GB/s, latency: 5us}\n"
      "    nic: {kind: ethernet, bandwidth: 100Gb/s, latency: 20us}\n"};
  for (const std::string& kind : device_kind_names()) corpus.push_back(to_yaml(load_cluster("3x4x" + kind)));
  const Tally tally = feed(corpus, 6000, 2, [](const std::string& text) {
    const YamlNode root = parse_yaml(text, "mutant.yaml");
    expect_sound(read_cluster(root, "", "inline"));
  });
  expect_both(tally, 700);
}

TEST(SpecMutation, every_damaged_hugging_face_config_is_a_model_or_a_user_error) {
  std::vector<std::string> corpus;
  for (const char* type : {"gpt2", "llama", "mixtral", "bert", "mamba"}) {
    corpus.push_back(read_file(fmt::format("{}/tests/spec/hf_configs/{}.json", LOCKSTEP_SOURCE_DIR, type)));
  }
  const Tally tally = feed(corpus, 6000, 3, [](const std::string& text) {
    expect_sound(parse_hf_config(text, "/models/mutant/config.json"));
  });
  expect_both(tally, 800);
}

}  // namespace
}  // namespace lockstep::spec
