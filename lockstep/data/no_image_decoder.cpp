// Chosen by CMake where libpng or libturbojpeg is not installed.
#include "lockstep/data/image_decoder.h"

namespace lockstep::data {

void require_image_decoders() {
  throw environment_error("this build of lockstep cannot decode PNG and JPEG",
                          "install libpng-dev and libturbojpeg0-dev and build again, or use NumPy arrays");
}

Image decode_image(std::span<const std::uint8_t>, std::int64_t, std::int64_t, const SourcePlace&) {
  require_image_decoders();
  return {};
}

}  // namespace lockstep::data
