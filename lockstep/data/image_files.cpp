#include "lockstep/data/image_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMnistFix = "run `make data-mnist`, or put the four IDX files there yourself";
constexpr const char* kMnistRepair = "remove it and run `make data-mnist` again, or copy the file again";
constexpr const char* kCifarFix =
    "put CIFAR-10's binary files there, or run `python3 scripts/make_cifar_like.py FOLDER` for a generated set";
constexpr const char* kCifarRepair = "copy the file again, or generate a set with scripts/make_cifar_like.py";
constexpr std::int64_t kClasses = 10;

// 256 normalised values, one per byte: the conversion at batch time is one look-up per pixel.
std::array<float, 256> pixel_table(float mean, float deviation) {
  std::array<float, 256> table{};
  for (int i = 0; i < 256; ++i) table[i] = (static_cast<float>(i) / 255.0f - mean) / deviation;
  return table;
}

std::uint32_t big_endian_u32(const std::uint8_t* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) | (std::uint32_t{bytes[2]} << 8) | bytes[3];
}

void check_label(std::uint8_t label, std::int64_t record, const std::string& path, const char* fix) {
  if (label < kClasses) return;
  throw bad_input(fmt::format("label {} out of range 0..9 at record {}", label, record), fix, {path});
}

// An IDX file of unsigned bytes with `dims` dimensions; the payload has exactly the size that the header announces.
struct IdxHeader {
  std::array<std::uint32_t, 3> shape{1, 1, 1};
  std::size_t payload_offset = 0;
};

IdxHeader check_idx(const MappedFile& file, std::uint32_t dims) {
  const std::span<const std::uint8_t> bytes = file.bytes();
  const SourcePlace place{file.path()};
  const std::size_t header_size = 4 + 4 * std::size_t{dims};
  if (bytes.size() < header_size) {
    throw bad_input(
        fmt::format("truncated: {} bytes, an IDX header of {} dimensions has {}", bytes.size(), dims, header_size),
        kMnistRepair, place);
  }
  const std::uint32_t magic = big_endian_u32(bytes.data());
  if (magic != (0x0800u | dims)) {
    throw bad_input(fmt::format("not an IDX file of {} dimensions of bytes: magic 0x{:08x} instead of 0x{:08x}", dims,
                                magic, 0x0800u | dims),
                    kMnistRepair, place);
  }
  IdxHeader header;
  header.payload_offset = header_size;
  // 3 x 32 bits do not fit into 64: 128 bits keep a lying header from wrapping around to the right size.
  unsigned __int128 payload = 1;
  for (std::uint32_t d = 0; d < dims; ++d) {
    header.shape[d] = big_endian_u32(bytes.data() + 4 + 4 * std::size_t{d});
    payload *= header.shape[d];
  }
  const std::size_t real = bytes.size() - header_size;
  if (payload > real) {
    const auto missing = payload - real;
    const auto shown = static_cast<std::uint64_t>(std::min<unsigned __int128>(missing, UINT64_MAX));
    throw bad_input(fmt::format("truncated by {} bytes: the header announces {}x{}x{} bytes, the file holds {}", shown,
                                header.shape[0], header.shape[1], header.shape[2], real),
                    kMnistRepair, place);
  }
  if (payload < real) {
    throw bad_input(fmt::format("{} bytes too many: the header announces {}x{}x{} bytes, the file holds {}",
                                real - static_cast<std::uint64_t>(payload), header.shape[0], header.shape[1],
                                header.shape[2], real),
                    kMnistRepair, place);
  }
  return header;
}

// Samples of square images: write(index, out) fills one image and returns its label.
template <class Write>
Samples fetch_images(std::span<const std::int64_t> indices, std::int64_t channels, std::int64_t side, Write write) {
  const auto n = static_cast<std::int64_t>(indices.size());
  Samples samples{torch::empty({n, channels, side, side}, torch::kFloat32), torch::empty({n}, torch::kInt64)};
  float* out = samples.input.data_ptr<float>();
  std::int64_t* target = samples.target.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    *target++ = write(index, out);
    out += channels * side * side;
  }
  return samples;
}

class MnistDataset final : public Dataset {
 public:
  static constexpr std::int64_t kSide = 28;
  static constexpr std::int64_t kPixels = kSide * kSide;

  MnistDataset(const fs::path& images, const fs::path& labels)
      : images_(images, kMnistFix), labels_(labels, kMnistFix), table_(pixel_table(kMnistMean, kMnistDeviation)) {
    const IdxHeader image_header = check_idx(images_, 3);
    const IdxHeader label_header = check_idx(labels_, 1);
    if (image_header.shape[1] != kSide || image_header.shape[2] != kSide) {
      throw bad_input(fmt::format("images of {}x{} instead of 28x28", image_header.shape[1], image_header.shape[2]),
                      kMnistRepair, {images_.path()});
    }
    if (image_header.shape[0] != label_header.shape[0]) {
      throw bad_input(fmt::format("{} labels for the {} images of {}", label_header.shape[0], image_header.shape[0],
                                  images_.path()),
                      kMnistRepair, {labels_.path()});
    }
    size_ = image_header.shape[0];
    if (size_ == 0) throw bad_input("the file holds no images", kMnistRepair, {images_.path()});
    pixels_ = images_.bytes().data() + image_header.payload_offset;
    classes_ = labels_.bytes().data() + label_header.payload_offset;
    for (std::int64_t i = 0; i < size_; ++i) check_label(classes_[i], i, labels_.path(), kMnistRepair);
  }

  std::int64_t size() const override { return size_; }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    images_.require_unchanged();
    labels_.require_unchanged();
    return fetch_images(indices, 1, kSide, [&](std::int64_t index, float* out) {
      const std::uint8_t* image = pixels_ + index * kPixels;
      for (std::int64_t i = 0; i < kPixels; ++i) *out++ = table_[image[i]];
      return classes_[index];
    });
  }

  std::string describe() const override { return fmt::format("MNIST, {} images of 28x28", size_); }

 private:
  MappedFile images_;
  MappedFile labels_;
  std::array<float, 256> table_;
  const std::uint8_t* pixels_ = nullptr;
  const std::uint8_t* classes_ = nullptr;
  std::int64_t size_ = 0;
};

class CifarDataset final : public Dataset {
 public:
  static constexpr std::int64_t kSide = 32;
  static constexpr std::int64_t kPlane = kSide * kSide;
  static constexpr std::int64_t kRecord = 1 + 3 * kPlane;

  explicit CifarDataset(const std::vector<fs::path>& paths) {
    for (int c = 0; c < 3; ++c) tables_[c] = pixel_table(kCifarMean[c], kCifarDeviation[c]);
    for (const fs::path& path : paths) {
      MappedFile file(path, kCifarFix);
      const auto size = static_cast<std::int64_t>(file.size());
      if (size == 0) throw bad_input("the file is empty", kCifarRepair, {file.path()});
      if (size % kRecord != 0) {
        throw bad_input(fmt::format("truncated by {} bytes: {} bytes are not a whole number of records of {}",
                                    kRecord - size % kRecord, size, kRecord),
                        kCifarRepair, {file.path()});
      }
      const std::int64_t records = size / kRecord;
      for (std::int64_t i = 0; i < records; ++i) check_label(file.bytes()[i * kRecord], i, file.path(), kCifarRepair);
      starts_.push_back(size_);
      size_ += records;
      files_.push_back(std::move(file));
    }
    LOCKSTEP_ASSERT(size_ > 0, "a CIFAR-10 data set needs at least one file");
  }

  std::int64_t size() const override { return size_; }

  Samples fetch(std::span<const std::int64_t> indices) const override {
    return fetch_images(indices, 3, kSide, [&](std::int64_t index, float* out) {
      const std::uint8_t* record = find(index);
      for (int c = 0; c < 3; ++c) {
        const std::uint8_t* plane = record + 1 + c * kPlane;
        for (std::int64_t i = 0; i < kPlane; ++i) *out++ = tables_[c][plane[i]];
      }
      return record[0];
    });
  }

  std::string describe() const override {
    return fmt::format("CIFAR-10 format, {} images of 3x32x32 in {} file{}", size_, files_.size(),
                       files_.size() == 1 ? "" : "s");
  }

 private:
  const std::uint8_t* find(std::int64_t index) const {
    const auto file = std::upper_bound(starts_.begin(), starts_.end(), index) - starts_.begin() - 1;
    files_[file].require_unchanged();
    return files_[file].bytes().data() + (index - starts_[file]) * kRecord;
  }

  std::vector<MappedFile> files_;
  std::vector<std::int64_t> starts_;  // index of each file's first record
  std::array<std::array<float, 256>, 3> tables_;
  std::int64_t size_ = 0;
};

// Both spellings are in circulation; when neither is there, the first is the one that the message names.
fs::path idx_path(const fs::path& folder, const std::string& stem, const std::string& ending) {
  const fs::path dashed = folder / (stem + "-" + ending);
  const fs::path dotted = folder / (stem + "." + ending);
  return !fs::exists(dashed) && fs::exists(dotted) ? dotted : dashed;
}

bool is_cifar_file(const std::string& name, bool train) {
  if (!name.ends_with(".bin")) return false;
  return train ? name.starts_with("data_batch") || name.starts_with("train") : name.starts_with("test");
}

}  // namespace

std::shared_ptr<const Dataset> open_mnist_files(const fs::path& images, const fs::path& labels) {
  return std::make_shared<MnistDataset>(images, labels);
}

std::shared_ptr<const Dataset> open_mnist(const fs::path& folder, bool train) {
  const std::string stem = train ? "train" : "t10k";
  return open_mnist_files(idx_path(folder, stem + "-images", "idx3-ubyte"),
                          idx_path(folder, stem + "-labels", "idx1-ubyte"));
}

std::shared_ptr<const Dataset> open_cifar10_files(const std::vector<fs::path>& files) {
  return std::make_shared<CifarDataset>(files);
}

std::shared_ptr<const Dataset> open_cifar10(const fs::path& folder, bool train) {
  std::vector<fs::path> files;
  for (const fs::path& file : list_data_files(folder, kCifarFix)) {
    if (is_cifar_file(file.filename().string(), train)) files.push_back(file);
  }
  if (!files.empty()) return open_cifar10_files(files);
  if (!train) return nullptr;
  throw environment_error("no data_batch_*.bin or train*.bin in the folder", kCifarFix, {folder.string()});
}

}  // namespace lockstep::data
