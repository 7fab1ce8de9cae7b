#include "lockstep/checkpoint/hf_folder_writer.h"

#include <gtest/gtest.h>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/hf_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::user_error;
using torch::Tensor;

const nlohmann::json kConfig = {{"model_type", "gpt2"}, {"n_layer", 2}};

class HfFolderWriter : public ::testing::Test {
 protected:
  void write(const TensorMap& tensors, WeightFolderOptions options = {}) {
    WeightFolderWriter writer(folder_, kConfig, std::move(options));
    for (const auto& [name, tensor] : tensors) writer.add(name, tensor);
    writer.finish();
  }
  void expect_same(const TensorMap& tensors) {
    const WeightFiles weights = WeightFiles::open(folder_);
    EXPECT_EQ(weights.names().size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      const TensorEntry& entry = weights.entry(name);
      EXPECT_EQ(entry.dtype, tensor.scalar_type()) << name;
      EXPECT_EQ(c10::IntArrayRef(entry.shape), tensor.sizes()) << name;
      Tensor out = torch::empty({tensor.numel()}, entry.dtype);
      weights.read_range(name, 0, out);
      EXPECT_TRUE(torch::equal(out, tensor.detach().reshape(-1))) << name;
    }
  }
  std::set<std::string> files(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
  }

  TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "parent" / "exported";
};

TEST_F(HfFolderWriter, small_weights_are_one_file_beside_the_config) {
  const TensorMap tensors = {{"a", torch::randn({3, 4})}, {"b", torch::randn({4, 6}).t()}, {"c", torch::randn({2})}};
  write(tensors);
  EXPECT_EQ(files(folder_), (std::set<std::string>{"config.json", "model.safetensors"}));
  EXPECT_EQ(files(folder_.parent_path()), (std::set<std::string>{"exported"}));
  expect_same(tensors);
  EXPECT_EQ(SafetensorsFile::open(folder_ / "model.safetensors").metadata().at("format"), "pt");
  const nlohmann::json config = read_json_file(folder_ / "config.json");
  EXPECT_EQ(config.at("n_layer"), 2);
  EXPECT_EQ(config.at("dtype"), "float32");
}

TEST_F(HfFolderWriter, weights_beyond_the_limit_are_shards_with_an_index) {
  const TensorMap tensors = {{"a", torch::randn({10})},  // 40 bytes each row
                             {"b", torch::randn({10})},
                             {"c", torch::randn({100})},  // larger than a shard
                             {"d", torch::randn({10})},
                             {"e", torch::randn({11})}};
  write(tensors, {.max_shard_bytes = 80});
  EXPECT_EQ(files(folder_),
            (std::set<std::string>{"config.json", "model-00001-of-00004.safetensors",
                                   "model-00002-of-00004.safetensors", "model-00003-of-00004.safetensors",
                                   "model-00004-of-00004.safetensors", "model.safetensors.index.json"}));
  expect_same(tensors);
  const nlohmann::json index = read_json_file(folder_ / "model.safetensors.index.json");
  EXPECT_EQ(index.at("metadata").at("total_size"), 4 * (10 + 10 + 100 + 10 + 11));
  EXPECT_EQ(index.at("weight_map").at("a"), "model-00001-of-00004.safetensors");
  EXPECT_EQ(index.at("weight_map").at("b"), "model-00001-of-00004.safetensors");
  EXPECT_EQ(index.at("weight_map").at("c"), "model-00002-of-00004.safetensors");
  EXPECT_EQ(index.at("weight_map").at("e"), "model-00004-of-00004.safetensors");
}

TEST_F(HfFolderWriter, weights_of_exactly_the_limit_are_one_file) {
  const TensorMap tensors = {{"a", torch::randn({10})}, {"b", torch::randn({10})}};
  write(tensors, {.max_shard_bytes = 80});
  EXPECT_TRUE(fs::exists(folder_ / "model.safetensors"));
  expect_same(tensors);
}

TEST_F(HfFolderWriter, tensors_of_several_dtypes_are_aligned_and_keep_theirs) {
  const TensorMap tensors = {{"a", torch::tensor({1, 2, 3}, torch::kUInt8)},
                             {"b", torch::randn({3}).to(torch::kBFloat16)},
                             {"c", torch::randn({2, 2}, torch::kFloat64)},
                             {"d", torch::empty({0, 4})},
                             {"e", torch::tensor(5, torch::kInt64)}};
  write(tensors);
  expect_same(tensors);
  const SafetensorsFile file = SafetensorsFile::open(folder_ / "model.safetensors");
  for (const auto& [name, entry] : file.entries()) EXPECT_EQ(entry.offset % torch::elementSize(entry.dtype), 0u);
  EXPECT_FALSE(read_json_file(folder_ / "config.json").contains("dtype")) << "there is no single one";
}

TEST_F(HfFolderWriter, the_tokenizer_files_that_are_there_are_copied_and_nothing_else) {
  const fs::path source = temporary_.path() / "source";
  make_folders(source);
  const std::string large(3'000'000, 'x');
  write_file_atomically(source / "tokenizer.json", large);
  write_file_atomically(source / "tokenizer_config.json", "{}");
  write_file_atomically(source / "chat_template.jinja", "");
  write_file_atomically(source / "config.json", "{\"other\": 1}");
  write_file_atomically(source / "model.safetensors", "other weights");
  write({{"a", torch::randn({2})}}, {.tokenizer_source = source});
  EXPECT_EQ(files(folder_), (std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json",
                                                   "tokenizer_config.json", "chat_template.jinja"}));
  EXPECT_EQ(read_file(folder_ / "tokenizer.json"), large);
  EXPECT_EQ(read_json_file(folder_ / "config.json").at("model_type"), "gpt2");
}

TEST_F(HfFolderWriter, a_tokenizer_file_that_is_a_link_out_of_its_folder_is_refused_and_nothing_is_left) {
  const fs::path source = temporary_.path() / "source";
  make_folders(source);
  write_file_atomically(temporary_.path() / "secret", "secret");
  fs::create_symlink("../secret", source / "tokenizer.json");
  EXPECT_HAS(user_error([&] { write({{"a", torch::randn({2})}}, {.tokenizer_source = source}); }), "link out");
  EXPECT_TRUE(files(folder_.parent_path()).empty());
}

TEST_F(HfFolderWriter, without_finish_nothing_is_left_behind) {
  {
    WeightFolderWriter writer(folder_, kConfig, {.max_shard_bytes = 8});
    writer.add("a", torch::randn({2}));
    writer.add("b", torch::randn({2}));
    EXPECT_FALSE(fs::exists(folder_));
  }
  EXPECT_TRUE(files(folder_.parent_path()).empty());
}

TEST_F(HfFolderWriter, a_folder_with_anything_in_it_is_not_touched) {
  make_folders(folder_);
  write({{"a", torch::randn({2})}});  // an empty folder may be there
  const std::string before = read_file(folder_ / "model.safetensors");
  EXPECT_HAS(user_error([&] { write({{"a", torch::randn({2})}}); }), "exported");
  EXPECT_EQ(read_file(folder_ / "model.safetensors"), before);
  EXPECT_HAS(user_error([&] { WeightFolderWriter(folder_ / "config.json", kConfig); }), "config.json");
}

TEST_F(HfFolderWriter, a_path_with_a_slash_at_its_end_is_the_same_folder) {
  WeightFolderWriter writer(folder_ / "", kConfig);
  writer.add("a", torch::ones({2}));
  writer.finish();
  expect_same({{"a", torch::ones({2})}});
}

TEST_F(HfFolderWriter, a_name_given_twice_is_our_bug) {
  WeightFolderWriter writer(folder_, kConfig);
  writer.add("a", torch::ones({2}));
  EXPECT_THROW(writer.add("a", torch::ones({2})), InternalError);
}

}  // namespace
}  // namespace lockstep::checkpoint
