// Readers of the two classic image formats. Magic, counts and the real file size are checked before anything is
// allocated, every label when the file is opened.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

// MNIST's IDX pair. Pixels become (x/255 - 0.1307) / 0.3081; input float32 [n, 1, 28, 28].
std::shared_ptr<const Dataset> open_mnist_files(const std::filesystem::path& images,
                                                const std::filesystem::path& labels);

// The pair in `folder`, under either spelling ("train-images-idx3-ubyte", "train-images.idx3-ubyte").
std::shared_ptr<const Dataset> open_mnist(const std::filesystem::path& folder, bool train);

// CIFAR-10 binary: records of 1 label byte and 3 x 32 x 32 pixel bytes, all files one after the other. Pixels become
// (x/255 - mean) / std per channel with the means and deviations below; input float32 [n, 3, 32, 32].
std::shared_ptr<const Dataset> open_cifar10_files(const std::vector<std::filesystem::path>& files);

// data_batch_*.bin or train*.bin in `folder` (training), test_batch.bin or test*.bin (evaluation; null when there is
// none).
std::shared_ptr<const Dataset> open_cifar10(const std::filesystem::path& folder, bool train);

inline constexpr float kMnistMean = 0.1307f;
inline constexpr float kMnistDeviation = 0.3081f;
inline constexpr std::array<float, 3> kCifarMean = {0.4914f, 0.4822f, 0.4465f};
inline constexpr std::array<float, 3> kCifarDeviation = {0.2470f, 0.2435f, 0.2616f};

}  // namespace lockstep::data
