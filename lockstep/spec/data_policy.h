// How data is read: what is done about what is wrong, and what becomes of pictures.
#pragma once

#include <cstdint>

#include "lockstep/base/enum_names.h"

namespace lockstep::spec {

// What is done about records and files of the data that are wrong.
enum class OnBad { kRefuse, kSkip };
constexpr auto names_of(OnBad) { return enum_names<OnBad::kSkip>("refuse", "skip"); }

// What training does to pictures (data/image_transform.h). Nothing: the middle square, resized.
struct Augmentation {
  std::int64_t padding = 0;  // moved by up to so many pixels, with black around them
  double scale = 1.0;        // a random part of at least this share of the area
  bool flip = false;         // every second one mirrored, left to right
  bool operator==(const Augmentation&) const = default;
};

}  // namespace lockstep::spec
