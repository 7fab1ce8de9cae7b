// Where encoded pictures with labels lie: a folder per class, or WebDataset's tar files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::data {

// Immutable; safe from many threads.
class ImageStore {
 public:
  virtual ~ImageStore() = default;
  virtual std::int64_t size() const = 0;
  // The encoded picture (PNG or JPEG). Throws UserError when it cannot be read.
  virtual std::vector<std::uint8_t> read(std::int64_t index) const = 0;
  virtual std::string name(std::int64_t index) const = 0;  // for messages
  virtual std::int64_t label(std::int64_t index) const = 0;
  // The names of the classes in the order of their labels; empty where labels are numbers.
  virtual const std::vector<std::string>& classes() const = 0;
};

// FOLDER/CLASS/.../*.png, *.jpg, *.jpeg: sorted by path, classes numbered in the order of their names. `known` are the
// classes of the training set, whose numbers an evaluation set has to use; empty: this is the training set. Hidden
// files and files with other endings are left out. Throws UserError.
std::shared_ptr<const ImageStore> open_image_classes(const std::filesystem::path& folder,
                                                     const std::vector<std::string>& known = {});

// WebDataset: tar files whose members KEY.jpg (.jpeg, .png) and KEY.cls, next to each other, are one sample. Labels are
// numbers, or names that are numbered in their order. The headers of all members are read once when they are opened;
// pictures are then read from the mapped files in any order. Throws UserError for a tar that is damaged or cut off, a
// picture without label and a label without picture.
std::shared_ptr<const ImageStore> open_image_tars(const std::vector<std::filesystem::path>& tars,
                                                  const std::vector<std::string>& known = {});

}  // namespace lockstep::data
