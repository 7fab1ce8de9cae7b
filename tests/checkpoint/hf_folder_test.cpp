#include "lockstep/checkpoint/hf_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::user_error;
using torch::Tensor;

const char* const kFirst = "model-00001-of-00002.safetensors";
const char* const kSecond = "model-00002-of-00002.safetensors";
const char* const kIndex = R"({"metadata": {"total_size": 1, "more": [{"a": null}]}, "weight_map": {
  "a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
  "c": "model-00002-of-00002.safetensors"}})";

Tensor numbers(std::vector<std::int64_t> shape) {
  const std::int64_t count = c10::multiply_integers(shape);
  return torch::arange(count, torch::kFloat32).reshape(shape);
}

Tensor whole(const WeightFiles& weights, const std::string& name) {
  const TensorEntry& entry = weights.entry(name);
  Tensor out = torch::empty({c10::multiply_integers(entry.shape)}, entry.dtype);
  weights.read_range(name, 0, out);
  return out.reshape(entry.shape);
}

class HfFolder : public ::testing::Test {
 protected:
  HfFolder() { make_folders(folder_); }

  void write_shards(const std::string& index = kIndex) {
    write_safetensors(folder_ / kFirst, {{"a", numbers({3, 4})}, {"b", numbers({2}) + 7}});
    write_safetensors(folder_ / kSecond, {{"c", numbers({5}) * 2}});
    write_file_atomically(folder_ / "model.safetensors.index.json", index);
  }
  std::string refusal(ExitCode code = ExitCode::kUsage) {
    return user_error([&] { WeightFiles::open(folder_); }, code);
  }
  std::string refusal_of_index(const std::string& index) {
    write_shards(index);
    return refusal();
  }

  TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "model";
};

TEST_F(HfFolder, one_file_is_the_same_by_its_path_and_by_its_folder) {
  write_safetensors(folder_ / "model.safetensors", {{"x", numbers({3, 4})}, {"y", numbers({2})}});
  for (const fs::path& path : {folder_, folder_ / "model.safetensors", folder_ / ""}) {
    const WeightFiles weights = WeightFiles::open(path);
    EXPECT_EQ(weights.names(), (std::vector<std::string>{"x", "y"}));
    EXPECT_TRUE(weights.contains("x"));
    EXPECT_FALSE(weights.contains("z"));
    EXPECT_EQ(weights.entry("x").shape, (std::vector<std::int64_t>{3, 4}));
    EXPECT_TRUE(torch::equal(whole(weights, "x"), numbers({3, 4})));
  }
}

TEST_F(HfFolder, shards_are_one_set_of_tensors_by_their_folder_and_by_their_index) {
  write_shards();
  for (const fs::path& path : {folder_, folder_ / "model.safetensors.index.json"}) {
    const WeightFiles weights = WeightFiles::open(path);
    EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_TRUE(torch::equal(whole(weights, "a"), numbers({3, 4})));
    EXPECT_TRUE(torch::equal(whole(weights, "b"), numbers({2}) + 7));
    EXPECT_TRUE(torch::equal(whole(weights, "c"), numbers({5}) * 2));
  }
}

TEST_F(HfFolder, a_range_is_what_the_flat_tensor_holds_there) {
  const Tensor tensor = numbers({6, 5});
  write_safetensors(folder_ / "model.safetensors", {{"x", tensor}});
  const WeightFiles weights = WeightFiles::open(folder_);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 30}, {7, 9}, {29, 1}, {30, 0}, {0, 0}}) {
    for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kBFloat16}) {
      Tensor out = torch::full({count}, -1, dtype);
      weights.read_range("x", first, out);
      EXPECT_TRUE(torch::equal(out, tensor.flatten().narrow(0, first, count).to(dtype))) << first << " " << count;
    }
  }
}

TEST_F(HfFolder, a_range_can_be_read_into_the_middle_of_a_parameter_that_has_a_gradient) {
  write_safetensors(folder_ / "model.safetensors", {{"x", numbers({10})}});
  Tensor flat = torch::zeros({6}).requires_grad_();
  Tensor middle;
  {
    const torch::NoGradGuard no_grad;
    middle = flat.narrow(0, 2, 3);
  }
  WeightFiles::open(folder_).read_range("x", 4, middle);
  EXPECT_TRUE(torch::equal(flat.detach(), torch::tensor({0.f, 0.f, 4.f, 5.f, 6.f, 0.f})));
}

TEST_F(HfFolder, a_conversion_of_several_pieces_has_no_seams) {
  const std::int64_t count = 5'000'001;  // 20 MB, more than one piece
  const Tensor tensor = torch::arange(count, torch::kInt32);
  write_safetensors(folder_ / "model.safetensors", {{"x", tensor}});
  Tensor out = torch::empty({count - 3}, torch::kFloat64);
  WeightFiles::open(folder_).read_range("x", 2, out);
  EXPECT_TRUE(torch::equal(out, tensor.narrow(0, 2, count - 3).to(torch::kFloat64)));
}

TEST_F(HfFolder, a_range_beyond_the_tensor_and_an_unknown_tensor_are_refused_by_name) {
  write_shards();
  const WeightFiles weights = WeightFiles::open(folder_);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 6}, {5, 1}, {6, 0}, {-1, 1}}) {
    const std::string error = user_error([&] { weights.read_range("c", first, torch::empty({count})); });
    EXPECT_HAS(error, kSecond);
    EXPECT_HAS(error, "'c' has 5 elements");
  }
  EXPECT_HAS(user_error([&] { weights.entry("d"); }), "no tensor 'd'");
  EXPECT_HAS(user_error([&] { weights.read_range("d", 0, torch::empty({1})); }), "no tensor 'd'");
}

TEST_F(HfFolder, booleans_other_than_0_and_1_are_refused_in_the_range_that_has_them) {
  const std::string header = R"({"x":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  write_file_atomically(folder_ / "model.safetensors", bytes + header + std::string("\1\0\2", 3));
  const WeightFiles weights = WeightFiles::open(folder_);
  weights.read_range("x", 0, torch::empty({2}, torch::kBool));
  EXPECT_HAS(user_error([&] { weights.read_range("x", 1, torch::empty({2}, torch::kFloat32)); }), "BOOL");
}

TEST_F(HfFolder, a_shard_that_is_missing_is_named_with_a_tensor_of_it) {
  write_shards();
  fs::remove(folder_ / kSecond);
  const std::string error = refusal();
  EXPECT_HAS(error, kSecond);
  EXPECT_HAS(error, "'c'");
}

TEST_F(HfFolder, an_index_that_does_not_match_its_shards_is_refused) {
  const std::string wrong_shard = R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}})";
  EXPECT_HAS(refusal_of_index(wrong_shard), "'b'");
  const std::string one_too_many = R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors",
    "d": "model-00002-of-00002.safetensors"}})";
  EXPECT_HAS(refusal_of_index(one_too_many), "lacks tensor 'd'");
  const std::string one_too_few = R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors"}})";
  EXPECT_HAS(refusal_of_index(one_too_few), "'b', which the index does not list");
}

TEST_F(HfFolder, a_tensor_in_two_shards_is_refused) {
  write_shards();
  write_safetensors(folder_ / kSecond, {{"a", numbers({3, 4})}, {"c", numbers({5})}});
  EXPECT_HAS(refusal(), "'a', which the index says is in model-00001-of-00002.safetensors");
}

TEST_F(HfFolder, a_shard_that_was_cut_short_is_refused_by_name) {
  write_shards();
  fs::resize_file(folder_ / kSecond, fs::file_size(folder_ / kSecond) - 1);
  EXPECT_HAS(refusal(), kSecond);
}

TEST_F(HfFolder, an_index_cannot_name_files_outside_its_folder) {
  write_safetensors(temporary_.path() / "secret.safetensors", {{"a", numbers({1})}});
  const std::string absolute = (temporary_.path() / "secret.safetensors").string();
  for (const std::string& name :
       std::vector<std::string>{"../secret.safetensors", absolute, "sub/../../secret.safetensors",
                                "..\\\\secret.safetensors", "a\\u0000.safetensors", "..", "", ".safetensors"}) {
    const std::string error = refusal_of_index(R"({"weight_map": {"a": ")" + name + "\"}}");
    EXPECT_HAS(error, "index.json");
    EXPECT_HAS(error, "'a'");
  }
}

TEST_F(HfFolder, links_may_stay_inside_the_folder_and_not_lead_out_of_it) {
  write_shards();
  make_folders(folder_ / "real");
  fs::rename(folder_ / kSecond, folder_ / "real" / "c.safetensors");
  fs::create_symlink("real/c.safetensors", folder_ / kSecond);
  EXPECT_TRUE(torch::equal(whole(WeightFiles::open(folder_), "c"), numbers({5}) * 2));

  fs::rename(folder_ / "real", temporary_.path() / "real");
  fs::remove(folder_ / kSecond);
  fs::create_symlink("../real/c.safetensors", folder_ / kSecond);
  EXPECT_HAS(refusal(), "link out of the folder");
  fs::remove(folder_ / kSecond);
  fs::create_symlink("nowhere", folder_ / kSecond);
  EXPECT_HAS(refusal(), "is not there");
}

TEST_F(HfFolder, links_of_a_whole_file_and_of_an_index_are_judged_too) {
  write_safetensors(temporary_.path() / "x.safetensors", {{"a", numbers({1})}});
  fs::create_symlink("../x.safetensors", folder_ / "model.safetensors");
  EXPECT_HAS(refusal(), "link out of the folder");
  fs::remove(folder_ / "model.safetensors");
  write_file_atomically(temporary_.path() / "index.json", kIndex);
  fs::create_symlink("../index.json", folder_ / "model.safetensors.index.json");
  EXPECT_HAS(refusal(), "link out of the folder");
}

TEST_F(HfFolder, a_snapshot_of_the_download_cache_reads_its_blobs) {
  const fs::path root = temporary_.path() / "models--some--model", snapshot = root / "snapshots" / "0123abc";
  make_folders(root / "blobs");
  make_folders(snapshot);
  write_safetensors(root / "blobs" / "9f86d0", {{"x", numbers({4})}});
  fs::create_symlink("../../blobs/9f86d0", snapshot / "model.safetensors");
  EXPECT_TRUE(torch::equal(whole(WeightFiles::open(snapshot), "x"), numbers({4})));
}

TEST_F(HfFolder, an_index_that_is_not_one_is_refused) {
  const std::pair<std::string, const char*> rows[] = {
      {"", "not JSON"},
      {"[]", "not a JSON object"},
      {"7", "not a JSON object"},
      {"{}", "lists no tensors"},
      {R"({"weight_map": {}})", "lists no tensors"},
      {R"({"weight_map": []})", "weight_map is not an object"},
      {R"({"weight_map": "a.safetensors"})", "weight_map is not an object"},
      {R"({"weight_map": {"a": 7}})", "'a' has no file name"},
      {R"({"weight_map": {"a": null}})", "'a' has no file name"},
      {R"({"weight_map": {"a": ["x.safetensors"]}})", "'a' has no file name"},
      {R"({"weight_map": {"a": {"b": "x.safetensors"}}})", "'a' has no file name"},
      {R"({"weight_map": {"a": "pytorch_model-00001.bin"}})", "not the name of a safetensors file"},
      {R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})", "'a' is listed twice"},
      {R"({"weight_map": {"a": "x.safetensors"}, "weight_map": {"b": "y.safetensors"}})", "appears twice"},
      {R"({"weight_map": {"a": "x.safetensors")", "not JSON"},
      {R"({"metadata": )" + std::string(200, '[') + std::string(200, ']') + "}", "nested too deeply"},
      {R"({"weight_map": {"a\u0007\n": 7}})", "has no file name"}};
  for (const auto& [index, message] : rows) {
    const std::string error = refusal_of_index(index);
    EXPECT_HAS(error, message);
    EXPECT_HAS(error, "model.safetensors.index.json");
  }
}

TEST_F(HfFolder, damaged_indexes_are_read_or_refused_and_nothing_else) {
  write_shards();
  std::mt19937 random(7);
  const std::string good = kIndex;
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string index = good;
    for (int change = 0; change < 3; ++change) index[random() % index.size()] = static_cast<char>(random() % 256);
    std::ofstream(folder_ / "model.safetensors.index.json", std::ios::binary) << index;
    try {
      WeightFiles::open(folder_);
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(HfFolder, pickled_weights_are_refused_with_the_way_to_convert_them) {
  const auto expect_refused = [&](const fs::path& path) {
    const std::string error = user_error([&] { WeightFiles::open(path); });
    EXPECT_HAS(error, "pickled");
    EXPECT_HAS(error, "save_pretrained");
  };
  write_file_atomically(folder_ / "pytorch_model.bin", "\x80\x02}.");
  expect_refused(folder_);
  expect_refused(folder_ / "pytorch_model.bin");
  fs::rename(folder_ / "pytorch_model.bin", folder_ / "pytorch_model.bin.index.json");
  expect_refused(folder_);
  expect_refused(folder_ / "pytorch_model.bin.index.json");
}

TEST_F(HfFolder, what_is_not_there_is_an_error_of_the_environment) {
  EXPECT_HAS(refusal(ExitCode::kEnvironment), "neither model.safetensors nor");
  EXPECT_HAS(user_error([&] { WeightFiles::open(folder_ / "x.safetensors"); }, ExitCode::kEnvironment),
             "x.safetensors");
}

}  // namespace
}  // namespace lockstep::checkpoint
