// Images and labels as NumPy arrays: any size, any number of classes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// What the model takes; images of another shape and labels from `classes` on are refused when the file is opened.
struct ImageShape {
  std::int64_t channels = 3, height = 224, width = 224;
  std::int64_t classes = 1000;
};

// A pair of .npy files: images uint8 [n, height, width, channels], labels int64 or int32 [n], both little-endian and in
// C order. fetch() gives the bytes as they are, uint8 [n, channels, height, width] with channels last in memory: a
// quarter of what floats would move, and the model normalises them where it computes. Throws UserError when a file is
// missing or is not what its header says.
std::shared_ptr<const Dataset> open_image_arrays(const std::filesystem::path& images,
                                                 const std::filesystem::path& labels, const ImageShape& shape);

// train-images.npy and train-labels.npy in `folder`; test-*.npy for evaluation, null when there is none.
std::shared_ptr<const Dataset> open_image_folder(const std::filesystem::path& folder, bool train,
                                                 const ImageShape& shape);

}  // namespace lockstep::data
