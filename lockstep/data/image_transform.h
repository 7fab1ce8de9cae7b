// From a decoded picture to the square that a model takes: resized, cropped, mirrored.
#pragma once

#include <cstdint>

#include "lockstep/data/image_decoder.h"
#include "lockstep/spec/data_policy.h"

namespace lockstep::data {

// A rectangle of a picture, in pixels; it may have parts of pixels.
struct CropBox {
  double top = 0, left = 0, height = 0, width = 0;
};

// Writes the box, resized to size x size, to `out`: uint8 [size, size, channels]. Bilinear; where the box is larger,
// over as many pixels as fall on one (a triangle filter, as PIL and torchvision's antialias do). Pixels of a box that
// is already size x size and lies on whole pixels are copied. Parts of the box outside the picture are black.
void resample(const Image& image, const CropBox& box, std::int64_t size, bool mirrored, std::uint8_t* out);

// The middle square of the picture, as large as it goes.
CropBox middle_square(const Image& image);

// What the augmentation does to sample `index` in epoch `epoch`: the same for the same seed, on any rank and machine,
// and after a resume. Scale: a part of the area, of an aspect of 3/4 to 4/3, anywhere (as torchvision's
// RandomResizedCrop). Padding: the middle square at size x size, moved by up to `padding` pixels with black around it.
// Flip: every second one.
struct Augmented {
  CropBox box;
  bool mirrored = false;
};
Augmented augment(const Image& image, std::int64_t size, const spec::Augmentation& how, std::uint64_t seed,
                  std::int64_t epoch, std::int64_t index);

}  // namespace lockstep::data
