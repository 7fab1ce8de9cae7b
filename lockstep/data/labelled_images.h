// Encoded pictures with labels as a data set: decoded, cut and mirrored when a batch is made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/image_arrays.h"
#include "lockstep/data/image_store.h"
#include "lockstep/spec/data_policy.h"

namespace lockstep::data {

struct LabelledImageOptions {
  ImageShape shape;                 // square; images of any size become it
  spec::Augmentation augmentation;  // of training; nothing for evaluation
  spec::OnBad on_bad = spec::OnBad::kRefuse;
  std::uint64_t seed = 1;
  std::function<void(const std::string& text)> notice = {};  // hears of pictures left out; empty: standard error
};

// fetch() gives uint8 [n, channels, size, size], channels last in memory, as data/image_arrays.h does; what it looks
// like follows from (seed, epoch, sample) alone. A picture that cannot be decoded is refused by name, or (on_bad: skip)
// the next one that can takes its place, with its label, the same on every rank; each is named once to
// options.notice.
// Throws UserError when a label is not below shape.classes.
std::shared_ptr<const Dataset> labelled_images(std::shared_ptr<const ImageStore> store,
                                               const LabelledImageOptions& options);

}  // namespace lockstep::data
