// PNG and JPEG to pixels, by libpng and libjpeg-turbo.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::data {

// Rows from the top, pixels from the left, channels side by side: uint8 [height, width, channels].
struct Image {
  std::int64_t height = 0, width = 0, channels = 3;
  std::vector<std::uint8_t> pixels;
};

// Larger pictures are refused before memory is taken for them: a header of 20 bytes can announce any size.
inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 27;

// Throws environment_error when this build has no decoders.
void require_image_decoders();

// The picture in grey (1 channel) or RGB (3), going by its first bytes, whatever its file is called. Transparent pixels
// are put on black. A JPEG may come smaller by a factor of 2, 4 or 8, if both sides stay at least `least_side`; 0: as
// it is. Throws bad_input at `place` for what is damaged, cut off or neither of the two. Safe from many threads.
Image decode_image(std::span<const std::uint8_t> bytes, std::int64_t channels, std::int64_t least_side,
                   const SourcePlace& place);

}  // namespace lockstep::data
