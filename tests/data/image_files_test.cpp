#include "lockstep/data/image_files.h"

#include <gtest/gtest.h>

#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;

class Mnist : public ::testing::Test {
 protected:
  void write_pair(const std::string& images, const std::string& labels) {
    write(folder_.path() / "train-images-idx3-ubyte", images);
    write(folder_.path() / "train-labels-idx1-ubyte", labels);
  }
  auto open() { return open_mnist(folder_.path(), true); }
  void expect_bad(std::initializer_list<std::string> parts) {
    expect_user_error(ExitCode::kUsage, parts, [&] { open(); });
  }

  TemporaryFolder folder_;
};

TEST_F(Mnist, is_read_and_normalised) {
  write_pair(mnist_images(12), mnist_labels(12));
  const auto dataset = open();
  ASSERT_EQ(dataset->size(), 12);
  const std::int64_t indices[] = {7, 0};
  const Samples samples = dataset->fetch(indices);
  ASSERT_EQ(samples.input.sizes(), (std::vector<std::int64_t>{2, 1, 28, 28}));
  ASSERT_EQ(samples.input.scalar_type(), torch::kFloat32);
  ASSERT_EQ(samples.target.scalar_type(), torch::kInt64);
  EXPECT_EQ(samples.target[0].item<std::int64_t>(), 7);
  EXPECT_EQ(samples.target[1].item<std::int64_t>(), 0);
  // Row 2, column 3 of image 7 is the byte 7 + 2*28 + 3.
  EXPECT_FLOAT_EQ(samples.input[0][0][2][3].item<float>(), ((7 + 59) / 255.0f - 0.1307f) / 0.3081f);
}

TEST_F(Mnist, is_found_under_the_spelling_with_dots) {
  write(folder_.path() / "t10k-images.idx3-ubyte", mnist_images(3));
  write(folder_.path() / "t10k-labels.idx1-ubyte", mnist_labels(3));
  EXPECT_EQ(open_mnist(folder_.path(), false)->size(), 3);
}

TEST_F(Mnist, gives_empty_tensors_for_no_indices) {
  write_pair(mnist_images(2), mnist_labels(2));
  const Samples samples = open()->fetch({});
  EXPECT_EQ(samples.input.sizes(), (std::vector<std::int64_t>{0, 1, 28, 28}));
  EXPECT_EQ(samples.target.numel(), 0);
}

TEST_F(Mnist, missing_file_is_an_environment_error_that_names_the_way_to_get_it) {
  expect_user_error(ExitCode::kEnvironment, {"train-images-idx3-ubyte", "make data-mnist"}, [&] { open(); });
}

TEST_F(Mnist, truncated_images_are_refused_with_the_number_of_missing_bytes) {
  std::string images = mnist_images(5);
  images.resize(images.size() - 100);
  write_pair(images, mnist_labels(5));
  expect_bad({"train-images-idx3-ubyte", "truncated by 100 bytes"});
}

TEST_F(Mnist, half_a_header_is_refused) {
  write_pair(mnist_images(5).substr(0, 10), mnist_labels(5));
  expect_bad({"train-images", "truncated"});
}

TEST_F(Mnist, header_that_announces_four_billion_images_is_refused_without_allocating) {
  std::string images = mnist_images(2);
  images.replace(4, 4, big_endian(0xFFFFFFFF));
  write_pair(images, mnist_labels(2));
  expect_bad({"truncated by", "4294967295"});
}

TEST_F(Mnist, sizes_whose_product_wraps_around_are_refused) {
  // 2^22 x 2^21 x 2^21 = 2^64 wraps to 0, which is what an empty payload has.
  write_pair(big_endian(0x803) + big_endian(1u << 22) + big_endian(1u << 21) + big_endian(1u << 21), mnist_labels(2));
  expect_bad({"truncated by"});
}

TEST_F(Mnist, bytes_after_the_last_image_are_refused) {
  write_pair(mnist_images(2) + "xyz", mnist_labels(2));
  expect_bad({"3 bytes too many"});
}

TEST_F(Mnist, wrong_magic_is_refused) {
  write_pair(mnist_labels(100), mnist_labels(100));
  expect_bad({"train-images", "magic"});
}

TEST_F(Mnist, other_image_sizes_are_refused) {
  write_pair(big_endian(0x803) + big_endian(1) + big_endian(2) + big_endian(2) + "abcd", mnist_labels(1));
  expect_bad({"2x2 instead of 28x28"});
}

TEST_F(Mnist, different_numbers_of_labels_and_images_are_refused) {
  write_pair(mnist_images(4), mnist_labels(3));
  expect_bad({"train-labels", "3 labels for the 4 images"});
}

TEST_F(Mnist, label_out_of_range_is_refused_with_its_record) {
  std::string labels = mnist_labels(6);
  labels[8 + 4] = 12;
  write_pair(mnist_images(6), labels);
  expect_bad({"train-labels", "label 12", "record 4"});
}

TEST_F(Mnist, empty_set_is_refused) {
  write_pair(mnist_images(0), mnist_labels(0));
  expect_bad({"no images"});
}

class Cifar : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(Cifar, files_are_read_one_after_the_other_and_normalised_per_channel) {
  write(folder_.path() / "data_batch_1.bin", cifar_records(0, 4));
  write(folder_.path() / "data_batch_2.bin", cifar_records(4, 3));
  write(folder_.path() / "test_batch.bin", cifar_records(7, 2));
  const auto train = open_cifar10(folder_.path(), true);
  const auto test = open_cifar10(folder_.path(), false);
  ASSERT_EQ(train->size(), 7);
  ASSERT_EQ(test->size(), 2);
  const std::int64_t indices[] = {5, 3};
  const Samples samples = train->fetch(indices);
  ASSERT_EQ(samples.input.sizes(), (std::vector<std::int64_t>{2, 3, 32, 32}));
  EXPECT_EQ(samples.target[0].item<std::int64_t>(), 5);
  EXPECT_EQ(samples.target[1].item<std::int64_t>(), 3);
  for (int c = 0; c < 3; ++c) {
    const float expected = ((5 * 3 + c) / 255.0f - kCifarMean[c]) / kCifarDeviation[c];
    EXPECT_FLOAT_EQ(samples.input[0][c][31][31].item<float>(), expected);
  }
}

TEST_F(Cifar, generated_names_are_found_too) {
  write(folder_.path() / "train.bin", cifar_records(0, 2));
  EXPECT_EQ(open_cifar10(folder_.path(), true)->size(), 2);
  EXPECT_EQ(open_cifar10(folder_.path(), false), nullptr);
}

TEST_F(Cifar, folder_without_batches_is_an_environment_error) {
  write(folder_.path() / "readme.txt", "x");
  expect_user_error(ExitCode::kEnvironment, {folder_.path().string(), "make_cifar_like.py"},
                    [&] { open_cifar10(folder_.path(), true); });
  expect_user_error(ExitCode::kEnvironment, {"absent"}, [&] { open_cifar10(folder_.path() / "absent", true); });
}

TEST_F(Cifar, truncated_and_wrong_records_are_refused) {
  const auto path = folder_.path() / "data_batch_1.bin";
  write(path, cifar_records(0, 2).substr(0, 2 * 3073 - 5));
  expect_user_error(ExitCode::kUsage, {"data_batch_1.bin", "truncated by 5 bytes"},
                    [&] { open_cifar10_files({path}); });
  std::string records = cifar_records(0, 3);
  records[2 * 3073] = static_cast<char>(200);
  write(path, records);
  expect_user_error(ExitCode::kUsage, {"label 200", "record 2"}, [&] { open_cifar10_files({path}); });
  write(path, "");
  expect_user_error(ExitCode::kUsage, {"empty"}, [&] { open_cifar10_files({path}); });
}

}  // namespace
}  // namespace lockstep::data
