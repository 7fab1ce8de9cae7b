#include "lockstep/data/image_transform.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "lockstep/base/counter_random.h"

namespace lockstep::data {
namespace {

// The source pixels that one target pixel is made of, along one axis.
struct Taps {
  std::int64_t first = 0;
  std::vector<float> weights;  // add up to 1, or less where the box leaves the picture: black counts
};

std::vector<Taps> taps_of(double begin, double length, std::int64_t available, std::int64_t size) {
  const double scale = length / static_cast<double>(size);
  const double reach = std::max(1.0, scale);
  std::vector<Taps> all(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * scale - 0.5;
    const auto low = static_cast<std::int64_t>(std::ceil(centre - reach));
    const auto high = static_cast<std::int64_t>(std::floor(centre + reach));
    double sum = 0;
    for (std::int64_t at = low; at <= high; ++at)
      sum += std::max(0.0, 1.0 - std::abs(static_cast<double>(at) - centre) / reach);
    Taps& taps = all[static_cast<std::size_t>(i)];
    taps.first = std::clamp<std::int64_t>(low, 0, available);
    // At the very edge of the picture there is no neighbour to mix with; outside of it is black.
    const bool outside = centre < -0.5 || centre > static_cast<double>(available) - 0.5;
    double inside = 0;
    for (std::int64_t at = taps.first; at <= std::min(high, available - 1); ++at) {
      const double weight = std::max(0.0, 1.0 - std::abs(static_cast<double>(at) - centre) / reach);
      inside += weight;
      taps.weights.push_back(static_cast<float>(weight));
    }
    const double whole = outside ? sum : inside;
    for (float& weight : taps.weights) weight = whole > 0 ? static_cast<float>(weight / whole) : 0.0f;
  }
  return all;
}

bool is_whole(double value) { return value == std::floor(value); }

void copy_pixels(const Image& image, const CropBox& box, std::int64_t size, std::uint8_t* out) {
  const auto top = static_cast<std::int64_t>(box.top), left = static_cast<std::int64_t>(box.left);
  const std::int64_t from = std::clamp<std::int64_t>(-left, 0, size);
  const std::int64_t to = std::clamp<std::int64_t>(image.width - left, from, size);
  std::memset(out, 0, static_cast<std::size_t>(size * size * image.channels));
  for (std::int64_t y = 0; y < size; ++y) {
    if (top + y < 0 || top + y >= image.height) continue;
    const std::uint8_t* row = image.pixels.data() + ((top + y) * image.width + left + from) * image.channels;
    std::memcpy(out + (y * size + from) * image.channels, row, static_cast<std::size_t>((to - from) * image.channels));
  }
}

void filter_pixels(const Image& image, const CropBox& box, std::int64_t size, std::uint8_t* out) {
  const std::vector<Taps> columns = taps_of(box.left, box.width, image.width, size);
  const std::vector<Taps> rows = taps_of(box.top, box.height, image.height, size);
  const std::int64_t channels = image.channels;
  // Rows of the source that are needed, made narrow first: [height, size, channels].
  std::vector<float> narrow(static_cast<std::size_t>(image.height * size * channels));
  std::int64_t low = image.height, high = 0;
  for (const Taps& taps : rows) {
    if (taps.weights.empty()) continue;
    low = std::min(low, taps.first);
    high = std::max(high, taps.first + static_cast<std::int64_t>(taps.weights.size()));
  }
  for (std::int64_t y = low; y < high; ++y) {
    const std::uint8_t* source = image.pixels.data() + y * image.width * channels;
    float* target = narrow.data() + y * size * channels;
    for (const Taps& taps : columns) {
      for (std::int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        const std::uint8_t* pixel = source + taps.first * channels + c;
        for (const float weight : taps.weights) {
          sum += weight * static_cast<float>(*pixel);
          pixel += channels;
        }
        *target++ = sum;
      }
    }
  }
  const std::int64_t width = size * channels;
  for (std::int64_t y = 0; y < size; ++y) {
    const Taps& taps = rows[static_cast<std::size_t>(y)];
    for (std::int64_t x = 0; x < width; ++x) {
      float sum = 0;
      const float* value = narrow.data() + taps.first * width + x;
      for (const float weight : taps.weights) {
        sum += weight * *value;
        value += width;
      }
      *out++ = static_cast<std::uint8_t>(std::clamp(sum + 0.5f, 0.0f, 255.0f));
    }
  }
}

void mirror(std::int64_t size, std::int64_t channels, std::uint8_t* out) {
  for (std::int64_t y = 0; y < size; ++y) {
    std::uint8_t* row = out + y * size * channels;
    for (std::int64_t x = 0; x < size / 2; ++x) {
      std::swap_ranges(row + x * channels, row + (x + 1) * channels, row + (size - 1 - x) * channels);
    }
  }
}

// Numbers in a row that belong to one sample.
class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t epoch, std::int64_t index)
      : key_(combine(combine(seed, static_cast<std::uint64_t>(epoch)), static_cast<std::uint64_t>(index))) {}
  std::uint64_t below(std::uint64_t bound) { return lockstep::below(next(), bound); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)

 private:
  std::uint64_t next() { return combine(key_, count_++); }
  std::uint64_t key_, count_ = 0;
};

// torchvision's: ten tries for a box that fits, then the middle.
CropBox scaled_box(const Image& image, double scale, Draws& draws) {
  const double height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = height * width * (scale + (1.0 - scale) * draws.uniform());
    const double aspect = std::exp(std::log(0.75) + (std::log(4.0 / 3.0) - std::log(0.75)) * draws.uniform());
    const double w = std::round(std::sqrt(area * aspect)), h = std::round(std::sqrt(area / aspect));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto top = draws.below(static_cast<std::uint64_t>(height - h) + 1);
    const auto left = draws.below(static_cast<std::uint64_t>(width - w) + 1);
    return {static_cast<double>(top), static_cast<double>(left), h, w};
  }
  return middle_square(image);
}

}  // namespace

void resample(const Image& image, const CropBox& box, std::int64_t size, bool mirrored, std::uint8_t* out) {
  const auto side = static_cast<double>(size);
  const bool as_it_is = box.height == side && box.width == side && is_whole(box.top) && is_whole(box.left);
  as_it_is ? copy_pixels(image, box, size, out) : filter_pixels(image, box, size, out);
  if (mirrored) mirror(size, image.channels, out);
}

CropBox middle_square(const Image& image) {
  const std::int64_t side = std::min(image.height, image.width);
  const std::int64_t top = (image.height - side) / 2, left = (image.width - side) / 2;  // whole pixels
  return {static_cast<double>(top), static_cast<double>(left), static_cast<double>(side), static_cast<double>(side)};
}

Augmented augment(const Image& image, std::int64_t size, const spec::Augmentation& how, std::uint64_t seed,
                  std::int64_t epoch, std::int64_t index) {
  Draws draws(seed, epoch, index);
  Augmented result{middle_square(image), false};
  if (how.flip) result.mirrored = draws.below(2) == 1;
  if (how.scale < 1.0) result.box = scaled_box(image, how.scale, draws);
  if (how.padding > 0) {
    const double pixel = result.box.width / static_cast<double>(size);  // of the target, in pixels of the picture
    const auto shift = [&] {
      return static_cast<double>(draws.below(static_cast<std::uint64_t>(2 * how.padding + 1))) -
             static_cast<double>(how.padding);
    };
    result.box.top += shift() * pixel;
    result.box.left += shift() * pixel;
  }
  return result;
}

}  // namespace lockstep::data
