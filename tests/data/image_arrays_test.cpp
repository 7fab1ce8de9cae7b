#include "lockstep/data/image_arrays.h"

#include <gtest/gtest.h>

#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;

// As numpy.save writes it: version 1.0, the header padded to a multiple of 64.
std::string npy(const std::string& type, const std::string& shape, const std::string& data,
                const std::string& fortran = "False") {
  std::string header = "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': (" + shape + "), }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  const auto length = static_cast<unsigned>(header.size());
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(length & 0xff) + static_cast<char>(length >> 8) +
         header + data;
}

std::string labels(std::initializer_list<std::int64_t> values) {
  std::string bytes;
  for (const std::int64_t value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

// Byte i of the file is i mod 256.
std::string counting(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i);
  return bytes;
}

class ImageArrays : public ::testing::Test {
 protected:
  void write_pair(const std::string& images, const std::string& targets) {
    write(folder_.path() / "train-images.npy", images);
    write(folder_.path() / "train-labels.npy", targets);
  }
  auto open() { return open_image_folder(folder_.path(), true, shape_); }
  void expect_bad(std::initializer_list<std::string> parts) {
    expect_user_error(ExitCode::kUsage, parts, [&] { open(); });
  }

  TemporaryFolder folder_;
  const ImageShape shape_{.channels = 3, .height = 4, .width = 5, .classes = 7};
};

TEST_F(ImageArrays, come_as_bytes_with_channels_last) {
  write_pair(npy("|u1", "3, 4, 5, 3", counting(180)), npy("<i8", "3,", labels({6, 0, 3})));
  const auto dataset = open();
  ASSERT_EQ(dataset->size(), 3);
  const std::int64_t indices[] = {2, 0};
  const Samples samples = dataset->fetch(indices);
  ASSERT_EQ(samples.input.sizes(), (std::vector<std::int64_t>{2, 3, 4, 5}));
  ASSERT_EQ(samples.input.scalar_type(), torch::kUInt8);
  EXPECT_TRUE(samples.input.is_contiguous(at::MemoryFormat::ChannelsLast));
  // Image 2, row 1, column 3, colour 2.
  EXPECT_EQ(samples.input[0][2][1][3].item<int>(), 2 * 60 + (1 * 5 + 3) * 3 + 2);
  EXPECT_EQ(samples.target[0].item<std::int64_t>(), 3);
  EXPECT_EQ(samples.target[1].item<std::int64_t>(), 6);
  EXPECT_EQ(dataset->fetch({}).input.sizes(), (std::vector<std::int64_t>{0, 3, 4, 5}));
}

TEST_F(ImageArrays, labels_may_be_narrow_and_evaluation_is_optional) {
  const std::int32_t narrow[] = {1, 5};
  write_pair(npy("|u1", "2, 4, 5, 3", counting(120)),
             npy("<i4", "2,", std::string(reinterpret_cast<const char*>(narrow), sizeof narrow)));
  const std::int64_t indices[] = {1};
  EXPECT_EQ(open()->fetch(indices).target[0].item<std::int64_t>(), 5);
  EXPECT_EQ(open_image_folder(folder_.path(), false, shape_), nullptr);
}

TEST_F(ImageArrays, a_missing_file_names_the_way_to_get_it) {
  expect_user_error(ExitCode::kEnvironment, {"train-images.npy", "make_image_arrays.py"}, [&] { open(); });
}

TEST_F(ImageArrays, what_does_not_fit_is_refused) {
  const std::string good = npy("<i8", "2,", labels({1, 2})), images = npy("|u1", "2, 4, 5, 3", counting(120));
  write_pair(images, npy("<i8", "2,", labels({1, 7})));
  expect_bad({"label 7", "image 1", "model.classes"});
  write_pair(images, npy("<i8", "3,", labels({1, 2, 3})));
  expect_bad({"labels [3]", "2 images"});
  write_pair(npy("|u1", "2, 5, 4, 3", counting(120)), good);
  expect_bad({"images [2, 5, 4, 3]", "model.image_size"});
  write_pair(npy("<f4", "2, 4, 5, 3", counting(480)), good);
  expect_bad({"'<f4'"});
  write_pair(npy("|u1", "2, 4, 5, 3", counting(120), "True"), good);
  expect_bad({"Fortran"});
  write_pair("plain text", good);
  expect_bad({"not an .npy file"});
}

TEST_F(ImageArrays, a_header_that_lies_about_the_size_is_refused) {
  const std::string good = npy("<i8", "2,", labels({1, 2}));
  write_pair(npy("|u1", "2, 4, 5, 3", counting(119)), good);
  expect_bad({"holds 119 bytes"});
  write_pair(npy("|u1", "1152921504606846976, 16, 5, 3", counting(120)), good);
  expect_bad({"holds 120 bytes"});
  std::string cut = npy("|u1", "2, 4, 5, 3", "");
  cut.resize(40);
  write_pair(cut, good);
  expect_bad({"truncated inside its header"});
}

}  // namespace
}  // namespace lockstep::data
