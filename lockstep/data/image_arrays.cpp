#include "lockstep/data/image_arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix =
    "put train-images.npy and train-labels.npy there, or run `python3 scripts/make_image_arrays.py FOLDER`";
constexpr const char* kRepair = "write it again with numpy.save: uint8 [n, height, width, channels], int64 labels [n]";

// What an .npy file holds (format 1.0 to 3.0, NEP 1): its header is a Python dict in one line.
struct Array {
  std::string type;                 // "|u1", "<i8"
  std::vector<std::int64_t> shape;  // without overflow: the product fits the file
  const std::uint8_t* data = nullptr;
};

// The text between `key` and the next of `ends`.
std::string_view value_of(std::string_view header, std::string_view key, std::string_view ends) {
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const std::size_t begin = at + key.size();
  return header.substr(begin, header.find_first_of(ends, begin) - begin);
}

std::vector<std::int64_t> numbers_in(std::string_view text) {
  std::vector<std::int64_t> numbers;
  bool inside = false;
  for (const char c : text) {
    if (c < '0' || c > '9') {
      inside = false;
      continue;
    }
    if (!inside) numbers.push_back(0);
    inside = true;
    numbers.back() = std::min<std::int64_t>(numbers.back() * 10 + (c - '0'), std::int64_t{1} << 50);
  }
  return numbers;
}

std::string_view header_of(const MappedFile& file, std::size_t& data_offset) {
  const std::span<const std::uint8_t> bytes = file.bytes();
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  if (bytes.size() < 12 || std::memcmp(text, "\x93NUMPY", 6) != 0) {
    throw bad_input("not an .npy file", kRepair, {file.path()});
  }
  const bool wide = bytes[6] >= 2;
  const std::size_t start = wide ? 12 : 10;
  std::size_t length = bytes[8] | (std::size_t{bytes[9]} << 8);
  if (wide) length |= (std::size_t{bytes[10]} << 16) | (std::size_t{bytes[11]} << 24);
  if (length > bytes.size() - start) throw bad_input("truncated inside its header", kRepair, {file.path()});
  data_offset = start + length;
  return {text + start, length};
}

std::size_t bytes_of(const std::string& type) {
  if (type == "|u1" || type == "<u1") return 1;
  return type == "<i4" ? 4 : type == "<i8" ? 8 : 0;
}

Array read_array(const MappedFile& file) {
  std::size_t offset = 0;
  const std::string_view header = header_of(file, offset);
  Array array;
  array.type = value_of(header, "'descr': '", "'");
  array.shape = numbers_in(value_of(header, "'shape': (", ")"));
  array.data = file.bytes().data() + offset;
  const std::size_t width = bytes_of(array.type);
  if (width == 0) throw bad_input("elements of type '" + array.type + "'", kRepair, {file.path()});
  if (!value_of(header, "'fortran_order': ", ",").starts_with("False")) {
    throw bad_input("the array is in Fortran's order", kRepair, {file.path()});
  }
  unsigned __int128 size = width;
  for (const std::int64_t n : array.shape) {
    size *= static_cast<unsigned __int128>(n);
    if (size > (static_cast<unsigned __int128>(1) << 62)) break;  // further on it could wrap around
  }
  const std::size_t real = file.size() - offset;
  if (size != real) {
    throw bad_input(fmt::format("the header announces [{}] of {}, the file holds {} bytes",
                                fmt::join(array.shape, ", "), array.type, real),
                    kRepair, {file.path()});
  }
  return array;
}

class ImageArrays final : public Dataset {
 public:
  ImageArrays(const fs::path& images, const fs::path& labels, const ImageShape& shape)
      : images_(images, kFix), labels_(labels, kFix), shape_(shape) {
    const Array pixels = read_array(images_), targets = read_array(labels_);
    const std::vector<std::int64_t> wanted{shape.height, shape.width, shape.channels};
    if (bytes_of(pixels.type) != 1 || pixels.shape.size() != 4 ||
        !std::equal(wanted.begin(), wanted.end(), pixels.shape.begin() + 1)) {
      throw bad_input(fmt::format("images [{}] of {} instead of [n, {}] of uint8", fmt::join(pixels.shape, ", "),
                                  pixels.type, fmt::join(wanted, ", ")),
                      "set model.image_size and model.image_channels to the data's, or write the images again",
                      {images_.path()});
    }
    if (bytes_of(targets.type) == 1 || targets.shape.size() != 1 || targets.shape[0] != pixels.shape[0]) {
      throw bad_input(
          fmt::format("labels [{}] of {} for {} images", fmt::join(targets.shape, ", "), targets.type, pixels.shape[0]),
          kRepair, {labels_.path()});
    }
    if (pixels.shape[0] == 0) throw bad_input("the file holds no images", kRepair, {images_.path()});
    pixels_ = pixels.data;
    read_labels(targets);
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(targets_.size()); }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    images_.require_unchanged();
    const auto n = static_cast<std::int64_t>(indices.size());
    torch::Tensor pixels = torch::empty({n, shape_.height, shape_.width, shape_.channels}, torch::kUInt8);
    torch::Tensor targets = torch::empty({n}, torch::kInt64);
    const auto image = static_cast<std::size_t>(shape_.height * shape_.width * shape_.channels);
    std::uint8_t* out = pixels.data_ptr<std::uint8_t>();
    std::int64_t* target = targets.data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      std::memcpy(out, pixels_ + static_cast<std::size_t>(index) * image, image);
      out += image;
      *target++ = targets_[static_cast<std::size_t>(index)];
    }
    return {pixels.permute({0, 3, 1, 2}), targets};
  }

  std::string describe() const override {
    return fmt::format("{} images of {}x{}x{}", size(), shape_.height, shape_.width, shape_.channels);
  }

 private:
  void read_labels(const Array& array) {
    const std::size_t width = bytes_of(array.type);
    targets_.resize(static_cast<std::size_t>(array.shape[0]));
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      std::int32_t narrow = 0;
      std::memcpy(width == 4 ? static_cast<void*>(&narrow) : &targets_[i], array.data + i * width, width);
      if (width == 4) targets_[i] = narrow;
      if (targets_[i] < 0 || targets_[i] >= shape_.classes) {
        throw bad_input(fmt::format("label {} out of range 0..{} at image {}", targets_[i], shape_.classes - 1, i),
                        "set model.classes to the data's", {labels_.path()});
      }
    }
  }

  MappedFile images_;
  MappedFile labels_;
  ImageShape shape_;
  const std::uint8_t* pixels_ = nullptr;
  std::vector<std::int64_t> targets_;
};

}  // namespace

std::shared_ptr<const Dataset> open_image_arrays(const fs::path& images, const fs::path& labels,
                                                 const ImageShape& shape) {
  return std::make_shared<ImageArrays>(images, labels, shape);
}

std::shared_ptr<const Dataset> open_image_folder(const fs::path& folder, bool train, const ImageShape& shape) {
  const std::string stem = train ? "train" : "test";
  const fs::path images = folder / (stem + "-images.npy");
  if (!train && !fs::exists(images)) return nullptr;
  return open_image_arrays(images, folder / (stem + "-labels.npy"), shape);
}

}  // namespace lockstep::data
