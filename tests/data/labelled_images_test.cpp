// Pictures in folders and tar files: decoding, labels, augmentation that follows from seed and place, damaged files.
#include "lockstep/data/labelled_images.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/data/image_decoder.h"
#include "lockstep/data/image_transform.h"
#include "lockstep/data/loader.h"
#include "pictures.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;
namespace fs = std::filesystem;

Image decode(const std::string& bytes, std::int64_t channels = 3, std::int64_t least_side = 0) {
  return decode_image({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, channels, least_side,
                      {"x.png"});
}

TEST(Decoder, png_is_exact_and_jpeg_close_whatever_the_file_is_called) {
  const Image png = decode(png_of(7, 5, 40));
  EXPECT_EQ(png.height, 7);
  EXPECT_EQ(png.width, 5);
  EXPECT_EQ(png.pixels, pixels_of(7, 5, 40));
  const Image jpeg = decode(jpeg_of(16, 24, 40));
  const auto wanted = pixels_of(16, 24, 40);
  ASSERT_EQ(jpeg.pixels.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(jpeg.pixels[i], wanted[i], 6) << i;
  EXPECT_EQ(decode(png_of(4, 4, 9), 1).pixels.size(), 16u);
}

TEST(Decoder, large_jpeg_is_decoded_smaller_but_never_below_the_side_that_is_needed) {
  EXPECT_EQ(decode(jpeg_of(64, 96, 1), 3, 32).height, 32);
  EXPECT_EQ(decode(jpeg_of(64, 96, 1), 3, 33).height, 64);
  EXPECT_EQ(decode(jpeg_of(64, 96, 1), 3, 0).height, 64);
}

TEST(Decoder, damaged_and_lying_pictures_are_refused) {
  const auto refused = [](std::string bytes, const char* why) {
    expect_user_error(ExitCode::kUsage, {"x.png", why}, [&] { decode(bytes); });
  };
  const std::string png = png_of(20, 20, 3), jpeg = jpeg_of(40, 40, 3);
  refused(png.substr(0, png.size() / 2), "damaged PNG");
  refused(jpeg.substr(0, jpeg.size() / 2), "damaged JPEG");
  std::string flipped = png;
  flipped[png.size() / 2] ^= 0x55;
  refused(flipped, "damaged PNG");
  refused("a text that is called .png", "neither a PNG nor a JPEG");
  refused("", "empty");
  std::string bomb = png;  // announces 2^31 - 1 pixels in both directions; its checksum is wrong too
  bomb.replace(16, 8, "\x7F\xFF\xFF\xFF\x7F\xFF\xFF\xFF", 8);
  refused(bomb, "PNG");
}

TEST(Resample, keeps_what_fits_and_averages_what_is_larger) {
  const Image image = decode(png_of(8, 8, 10));
  std::vector<std::uint8_t> out(8 * 8 * 3);
  resample(image, middle_square(image), 8, false, out.data());
  EXPECT_EQ(out, image.pixels);
  resample(image, middle_square(image), 8, true, out.data());
  EXPECT_EQ(out[0], image.pixels[7 * 3]);
  // Halved: away from the edges a triangle of four pixels around 2i + 0.5, of a ramp of 3 per pixel.
  std::vector<std::uint8_t> half(4 * 4 * 3);
  resample(image, middle_square(image), 4, false, half.data());
  EXPECT_EQ(half[(1 * 4 + 1) * 3], 10 + std::lround(3 * 2.5));
  EXPECT_EQ(half[(1 * 4 + 2) * 3], 10 + std::lround(3 * 4.5));
  EXPECT_EQ(half[(2 * 4 + 2) * 3 + 2], 10);
  // Moved beyond the edge: black.
  resample(image, {-2, 3, 8, 8}, 8, false, out.data());
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[2 * 8 * 3], image.pixels[3 * 3]);
  EXPECT_EQ(out[(2 * 8 + 5) * 3], 0);
}

class Pictures : public ::testing::Test {
 protected:
  // `count` pictures of 12x12 in the classes dog and cat, the files a mixture of PNG and JPEG.
  void make(int count, const std::string& below = "train") {
    for (int i = 0; i < count; ++i) {
      const fs::path folder = folder_.path() / below / (i % 2 == 0 ? "dog" : "cat");
      fs::create_directories(folder);
      write(folder / fmt::format("{:03d}.{}", i, i % 3 == 0 ? "jpg" : "png"),
            i % 3 == 0 ? jpeg_of(12, 12, 2 * i) : png_of(12, 12, 2 * i));
    }
  }
  std::shared_ptr<const Dataset> open(const LabelledImageOptions& options) const {
    return labelled_images(open_image_classes(folder_.path() / "train"), options);
  }
  static LabelledImageOptions options() {
    LabelledImageOptions options;
    options.shape = {3, 12, 12, 2};
    options.seed = 7;
    return options;
  }
  TemporaryFolder folder_;
};

TEST_F(Pictures, classes_are_numbered_in_the_order_of_their_names) {
  make(10);
  write(folder_.path() / "train" / "dog" / "notes.txt", "not a picture");
  const auto store = open_image_classes(folder_.path() / "train");
  ASSERT_EQ(store->size(), 10);
  EXPECT_EQ(store->classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(store->label(0), 0);
  EXPECT_EQ(store->label(9), 1);
  fs::create_directories(folder_.path() / "test" / "dgo");
  write(folder_.path() / "test" / "dgo" / "1.png", png_of(4, 4, 1));
  expect_user_error(ExitCode::kUsage, {"class `dgo`", "did you mean `dog`"},
                    [&] { open_image_classes(folder_.path() / "test", store->classes()); });
  LabelledImageOptions one = options();
  one.shape.classes = 1;
  expect_user_error(ExitCode::kUsage, {"2 classes, the model has 1", "model.classes to 2"}, [&] { open(one); });
}

TEST_F(Pictures, augmentation_follows_from_seed_epoch_and_sample_alone) {
  make(9);
  LabelledImageOptions with = options();
  with.augmentation = {.padding = 3, .flip = true};
  const auto a = open(with), b = open(with);
  const std::vector<std::int64_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8}, some = {5, 2};
  const Samples whole = a->fetch_in_epoch(all, 4), part = b->fetch_in_epoch(some, 4);
  EXPECT_TRUE(torch::equal(whole.input[5], part.input[0]));
  EXPECT_TRUE(torch::equal(whole.input[2], part.input[1]));
  EXPECT_FALSE(torch::equal(a->fetch_in_epoch(all, 5).input, whole.input));
  with.seed = 8;
  EXPECT_FALSE(torch::equal(open(with)->fetch_in_epoch(all, 4).input, whole.input));
  EXPECT_TRUE(torch::equal(open(options())->fetch_in_epoch(all, 4).input, open(options())->fetch(all).input));
  with.augmentation = {.scale = 0.3};
  EXPECT_FALSE(torch::equal(open(with)->fetch_in_epoch(all, 4).input, open(options())->fetch(all).input));
}

TEST_F(Pictures, a_loader_that_resumes_sees_the_same_pictures) {
  make(11);
  LabelledImageOptions with = options();
  with.augmentation = {.padding = 2, .flip = true};
  const LoaderOptions how{.micro = 3, .seed = 3, .num_workers = 2};
  Loader loader(open(with), how);
  std::vector<torch::Tensor> seen;
  Position middle;
  for (int step = 0; step < 8; ++step) {
    if (step == 5) middle = loader.position();
    seen.push_back(loader.next().input);
  }
  ASSERT_EQ(middle.epoch, 1);
  Loader resumed(open(with), how, middle);
  for (int step = 5; step < 8; ++step) EXPECT_TRUE(torch::equal(resumed.next().input, seen[step])) << step;
}

TEST_F(Pictures, a_damaged_one_is_refused_by_name_or_the_next_takes_its_place) {
  make(6);
  const auto file = folder_.path() / "train" / "cat" / "001.png";
  const std::string bytes = read_file(file);
  write(file, bytes.substr(0, bytes.size() - 30));
  const std::vector<std::int64_t> all = {0, 1, 2};
  expect_user_error(ExitCode::kUsage, {"cat/001.png", "damaged PNG", "on_bad"}, [&] { open(options())->fetch(all); });
  LabelledImageOptions skip = options();
  skip.on_bad = spec::OnBad::kSkip;
  std::vector<std::string> told;
  skip.notice = [&told](const std::string& text) { told.push_back(text); };
  const auto pictures = open(skip);
  const Samples samples = pictures->fetch(all);
  EXPECT_TRUE(torch::equal(samples.input[0], samples.input[1]));
  EXPECT_FALSE(torch::equal(samples.input[1], samples.input[2]));
  pictures->fetch(all);
  ASSERT_EQ(told.size(), 1u);  // once, however often it is met
  EXPECT_NE(told[0].find("left out: "), std::string::npos) << told[0];
  EXPECT_NE(told[0].find("cat/001.png"), std::string::npos) << told[0];
}

TEST_F(Pictures, are_asked_for_where_there_are_none) {
  fs::create_directories(folder_.path() / "train" / "cat");
  write(folder_.path() / "train" / "cat" / "a.txt", "x");
  expect_user_error(ExitCode::kEnvironment, {"no .png"}, [&] { open_image_classes(folder_.path() / "train"); });
  write(folder_.path() / "train" / "lost.png", png_of(3, 3, 1));
  expect_user_error(ExitCode::kUsage, {"lost.png", "no folder of a class"},
                    [&] { open_image_classes(folder_.path() / "train"); });
}

// A tar header with its checksum, the contents, and zeros up to the next block.
std::string member(const std::string& name, const std::string& contents, char kind = '0') {
  std::string header(512, '\0');
  header.replace(0, std::min<std::size_t>(name.size(), 100), name.substr(0, 100));
  header.replace(100, 8, "0000644\0", 8);
  header.replace(124, 12, fmt::format("{:011o}", contents.size()) + std::string(1, '\0'));
  header[156] = kind;
  header.replace(257, 8, "ustar\00000", 8);
  header.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return header + contents + std::string((512 - contents.size() % 512) % 512, '\0');
}

class Tars : public Pictures {
 protected:
  std::shared_ptr<const ImageStore> open_tar(const std::string& bytes) {
    write(folder_.path() / "a.tar", bytes);
    return open_image_tars({folder_.path() / "a.tar"});
  }
};

TEST_F(Tars, members_of_one_key_are_a_sample) {
  const std::string long_name = "train/" + std::string(120, 'n');
  const std::string tar = member("s/1.jpg", jpeg_of(8, 8, 3)) + member("s/1.cls", "7\n") + member("s/2.json", "{}") +
                          member("s/2.cls", "0") + member("s/2.png", png_of(9, 9, 4)) +
                          member("././@LongLink", long_name + ".png" + std::string(1, '\0'), 'L') +
                          member(long_name.substr(0, 100), png_of(5, 5, 1)) +
                          member("x", fmt::format("{} path={}.cls\n", 140, long_name), 'x') + member("short", "3") +
                          std::string(1024, '\0');
  const auto store = open_tar(tar);
  ASSERT_EQ(store->size(), 3);
  EXPECT_TRUE(store->classes().empty());
  EXPECT_EQ(store->label(0), 7);
  EXPECT_EQ(store->label(1), 0);
  EXPECT_EQ(store->label(2), 3);
  const std::string png = png_of(9, 9, 4);
  EXPECT_EQ(store->read(1), std::vector<std::uint8_t>(png.begin(), png.end()));
  EXPECT_NE(store->name(2).find(long_name), std::string::npos);
}

TEST_F(Tars, labels_may_be_names) {
  const auto store = open_tar(member("1.png", png_of(8, 8, 3)) + member("1.cls", "dog") +
                              member("2.png", png_of(8, 8, 3)) + member("2.cls", "cat"));
  EXPECT_EQ(store->classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(store->label(0), 1);
  EXPECT_EQ(store->label(1), 0);
}

TEST_F(Tars, damaged_and_incomplete_ones_are_refused) {
  const std::string good = member("1.png", png_of(8, 8, 3)) + member("1.cls", "1");
  const auto refused = [&](const std::string& bytes, const char* why) {
    expect_user_error(ExitCode::kUsage, {"a.tar", why}, [&] { open_tar(bytes); });
  };
  std::string flipped = good;
  flipped[3] ^= 1;
  refused(flipped, "no header of a member at byte 0");
  refused(good.substr(0, 600), "cut off");
  refused(good + "rest", "no header");
  refused(member("1.png", png_of(8, 8, 3)) + member("2.cls", "1"), "without a label");
  refused(member("1.cls", "1"), "without a picture");
}

}  // namespace
}  // namespace lockstep::data
