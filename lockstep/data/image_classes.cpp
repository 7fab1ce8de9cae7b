#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/data/image_store.h"
#include "lockstep/data/mapped_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix = "put pictures into one folder per class: train/cat/1.png, train/dog/2.jpg";
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;

bool is_picture(const fs::path& file) {
  const std::string extension = lockstep::to_lower(file.extension().string());
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

class ImageClasses final : public ImageStore {
 public:
  ImageClasses(fs::path folder, const std::vector<std::string>& known) : folder_(std::move(folder)) {
    std::set<std::string> names;
    for (const fs::path& file : list_data_files(folder_, kFix)) {
      const fs::path below = file.lexically_relative(folder_);
      if (!is_picture(file)) continue;
      if (std::distance(below.begin(), below.end()) < 2) {
        throw bad_input("a picture that lies in no folder of a class", kFix, {file.string()});
      }
      files_.push_back(below.string());
      names.insert(below.begin()->string());
    }
    if (files_.empty())
      throw environment_error("the folder holds no .png, .jpg or .jpeg files", kFix, {folder_.string()});
    classes_.assign(names.begin(), names.end());
    if (!known.empty()) number_as(known);
    for (const std::string& file : files_) {
      const std::string name = fs::path(file).begin()->string();
      labels_.push_back(std::lower_bound(classes_.begin(), classes_.end(), name) - classes_.begin());
    }
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  std::string name(std::int64_t index) const override { return (folder_ / files_[index]).string(); }
  std::int64_t label(std::int64_t index) const override { return labels_[index]; }
  const std::vector<std::string>& classes() const override { return classes_; }

  std::vector<std::uint8_t> read(std::int64_t index) const override {
    const std::string bytes = read_file(folder_ / files_[index], kMostFileBytes);
    return {bytes.begin(), bytes.end()};
  }

 private:
  void number_as(const std::vector<std::string>& known) {
    for (const std::string& name : classes_) {
      if (std::binary_search(known.begin(), known.end(), name)) continue;
      throw bad_input(fmt::format("the class `{}` is not in the training set", printable(name)),
                      did_you_mean(name, known), {(folder_ / name).string()});
    }
    classes_ = known;
  }

  fs::path folder_;
  std::vector<std::string> files_;  // below the folder
  std::vector<std::int64_t> labels_;
  std::vector<std::string> classes_;  // sorted
};

}  // namespace

std::shared_ptr<const ImageStore> open_image_classes(const fs::path& folder, const std::vector<std::string>& known) {
  return std::make_shared<ImageClasses>(folder, known);
}

}  // namespace lockstep::data
