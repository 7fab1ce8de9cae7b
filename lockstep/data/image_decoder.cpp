#include "lockstep/data/image_decoder.h"

#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <memory>

#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

constexpr const char* kFix = "write the picture again, or leave it out (data.on_bad: skip)";

UserError damaged(const char* kind, const std::string& why, const SourcePlace& place) {
  return bad_input(fmt::format("a damaged {}: {}", kind, printable(why, 100)), kFix, place);
}

void check_size(std::int64_t width, std::int64_t height, const SourcePlace& place) {
  if (width >= 1 && height >= 1 && width <= kMostPixels / height) return;
  throw bad_input(fmt::format("a picture of {}x{} pixels, up to {} are read", width, height, kMostPixels), kFix, place);
}

struct EndPng {
  void operator()(png_image* image) const { png_image_free(image); }
};

Image decode_png(std::span<const std::uint8_t> bytes, std::int64_t channels, const SourcePlace& place) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, EndPng> guard(&header);
  if (png_image_begin_read_from_memory(&header, bytes.data(), bytes.size()) == 0) {
    throw damaged("PNG", header.message, place);
  }
  check_size(header.width, header.height, place);
  header.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  Image image{header.height, header.width, channels, {}};
  image.pixels.resize(static_cast<std::size_t>(image.height * image.width * channels));
  const png_color black{0, 0, 0};
  const int row = 0;  // without gaps
  if (png_image_finish_read(&header, &black, image.pixels.data(), row, nullptr) == 0) {
    throw damaged("PNG", header.message, place);
  }
  return image;
}

struct EndJpeg {
  void operator()(void* handle) const { tjDestroy(handle); }
};

// The largest reduction that leaves both sides long enough.
int reduction(std::int64_t width, std::int64_t height, std::int64_t least_side) {
  int factor = 1;
  while (least_side > 0 && factor < 8 && std::min(width, height) / (std::int64_t{2} * factor) >= least_side)
    factor *= 2;
  return factor;
}

Image decode_jpeg(std::span<const std::uint8_t> bytes, std::int64_t channels, std::int64_t least_side,
                  const SourcePlace& place) {
  const std::unique_ptr<void, EndJpeg> decoder(tjInitDecompress());
  if (!decoder) throw environment_error("libjpeg-turbo cannot be started", "free memory");
  int width = 0, height = 0, sampling = 0, colours = 0;
  if (tjDecompressHeader3(decoder.get(), bytes.data(), bytes.size(), &width, &height, &sampling, &colours) != 0) {
    throw damaged("JPEG", tjGetErrorStr2(decoder.get()), place);
  }
  check_size(width, height, place);
  const int factor = reduction(width, height, least_side);
  Image image{(height + factor - 1) / factor, (width + factor - 1) / factor, channels, {}};
  image.pixels.resize(static_cast<std::size_t>(image.height * image.width * channels));
  const int format = channels == 1 ? TJPF_GRAY : TJPF_RGB;
  // A picture that is cut off decodes with a warning and a grey rest: that counts as damaged too.
  if (tjDecompress2(decoder.get(), bytes.data(), bytes.size(), image.pixels.data(), static_cast<int>(image.width), 0,
                    static_cast<int>(image.height), format, TJFLAG_ACCURATEDCT) != 0) {
    throw damaged("JPEG", tjGetErrorStr2(decoder.get()), place);
  }
  return image;
}

}  // namespace

void require_image_decoders() {}

Image decode_image(std::span<const std::uint8_t> bytes, std::int64_t channels, std::int64_t least_side,
                   const SourcePlace& place) {
  LOCKSTEP_ASSERT(channels == 1 || channels == 3, "pictures are decoded to 1 or 3 channels");
  constexpr std::uint8_t kPng[] = {0x89, 'P', 'N', 'G'}, kJpeg[] = {0xFF, 0xD8, 0xFF};
  const auto begins = [&](std::span<const std::uint8_t> magic) {
    return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
  };
  if (begins(kPng)) return decode_png(bytes, channels, place);
  if (begins(kJpeg)) return decode_jpeg(bytes, channels, least_side, place);
  throw bad_input(bytes.empty() ? "the picture is empty" : "neither a PNG nor a JPEG, whatever its name says", kFix,
                  place);
}

}  // namespace lockstep::data
