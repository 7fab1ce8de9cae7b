// Encoded pictures for tests, made by the encoders of the libraries that decode them.
#pragma once

#include <png.h>
#include <turbojpeg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data::testing {

// Pixels of a picture that differs from others by `shade`: uint8 [height, width, 3].
inline std::vector<std::uint8_t> pixels_of(int height, int width, int shade) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      pixels.push_back(static_cast<std::uint8_t>(shade + 3 * x));
      pixels.push_back(static_cast<std::uint8_t>(shade + 5 * y));
      pixels.push_back(static_cast<std::uint8_t>(shade));
    }
  }
  return pixels;
}

inline std::string png_of(int height, int width, int shade) {
  const std::vector<std::uint8_t> pixels = pixels_of(height, width, shade);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr);
  std::string bytes(size, '\0');
  png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr);
  bytes.resize(size);
  return bytes;
}

inline std::string jpeg_of(int height, int width, int shade) {
  const std::vector<std::uint8_t> pixels = pixels_of(height, width, shade);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;  // NOLINT: the library's type
  void* encoder = tjInitCompress();
  tjCompress2(encoder, pixels.data(), width, 0, height, TJPF_RGB, &buffer, &size, TJSAMP_444, 98, 0);
  std::string bytes(reinterpret_cast<const char*>(buffer), size);
  tjFree(buffer);
  tjDestroy(encoder);
  return bytes;
}

}  // namespace lockstep::data::testing
