#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/image_store.h"
#include "lockstep/data/mapped_file.h"
#include "lockstep/data/tar_members.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFix = "write tar files with KEY.jpg (or .png) and KEY.cls side by side";

struct Picture {
  std::size_t tar = 0;
  std::uint64_t offset = 0, bytes = 0;
  std::string name;   // of the member
  std::string label;  // as it is written
};

// KEY and ending: WebDataset cuts at the first dot of the last part of the path.
std::pair<std::string, std::string> split_name(const std::string& name) {
  const std::size_t slash = name.find_last_of('/');
  const std::size_t dot = name.find('.', slash == std::string::npos ? 0 : slash + 1);
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), lockstep::to_lower(name.substr(dot + 1))};
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

// The members of one key, while they come.
struct Sample {
  std::string key;
  std::optional<Picture> picture;
  std::optional<std::string> label;
};

class ImageTars final : public ImageStore {
 public:
  ImageTars(const std::vector<fs::path>& tars, const std::vector<std::string>& known) {
    for (const fs::path& path : tars) {
      files_.emplace_back(path, "check data.path in the job file");
      read_members(files_.size() - 1);
    }
    if (pictures_.empty()) throw environment_error("the tar files hold no pictures", kFix, {tars.front().string()});
    number_labels(known);
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(pictures_.size()); }
  std::string name(std::int64_t index) const override {
    return files_[pictures_[index].tar].path() + ":" + pictures_[index].name;
  }
  std::int64_t label(std::int64_t index) const override { return labels_[index]; }
  const std::vector<std::string>& classes() const override { return classes_; }

  std::vector<std::uint8_t> read(std::int64_t index) const override {
    const Picture& picture = pictures_[index];
    files_[picture.tar].require_unchanged();
    const auto bytes = files_[picture.tar].bytes().subspan(picture.offset, picture.bytes);
    return {bytes.begin(), bytes.end()};
  }

 private:
  void read_members(std::size_t tar) {
    Sample sample;
    for_each_tar_member(files_[tar], [&](const TarMember& member) {
      auto [key, ending] = split_name(member.name);
      if (key != sample.key) {
        finish(sample, tar);
        sample = {key, std::nullopt, std::nullopt};
      }
      if (ending == "jpg" || ending == "jpeg" || ending == "png") {
        sample.picture = Picture{tar, member.offset, member.bytes, member.name, {}};
      } else if (ending == "cls") {
        if (member.bytes > 4096)
          throw bad_input("a label of more than 4096 bytes", kFix, {files_[tar].path() + ":" + member.name});
        sample.label = std::string(trim(files_[tar].text().substr(member.offset, member.bytes)));
      }
    });
    finish(sample, tar);
  }

  // Members with other endings only, such as texts, are no sample of ours.
  void finish(const Sample& sample, std::size_t tar) {
    if (!sample.picture && !sample.label) return;
    const SourcePlace place{files_[tar].path() + ":" + sample.key};
    if (!sample.label || sample.label->empty()) throw bad_input("a picture without a label (.cls)", kFix, place);
    if (!sample.picture) throw bad_input("a label without a picture (.jpg or .png)", kFix, place);
    pictures_.push_back(*sample.picture);
    pictures_.back().label = *sample.label;
  }

  void number_labels(const std::vector<std::string>& known) {
    const bool numbers = known.empty() && std::all_of(pictures_.begin(), pictures_.end(), [](const Picture& picture) {
                           return number_of(picture.label).has_value();
                         });
    if (!numbers) {
      std::set<std::string> names;
      for (const Picture& picture : pictures_) names.insert(picture.label);
      classes_ = known.empty() ? std::vector<std::string>(names.begin(), names.end()) : known;
    }
    for (const Picture& picture : pictures_) {
      const auto found = std::lower_bound(classes_.begin(), classes_.end(), picture.label);
      if (!numbers && (found == classes_.end() || *found != picture.label)) {
        throw bad_input(fmt::format("the class `{}` is not in the training set", printable(picture.label)),
                        did_you_mean(picture.label, classes_), {files_[picture.tar].path() + ":" + picture.name});
      }
      labels_.push_back(numbers ? *number_of(picture.label) : found - classes_.begin());
    }
  }

  std::vector<MappedFile> files_;
  std::vector<Picture> pictures_;
  std::vector<std::int64_t> labels_;
  std::vector<std::string> classes_;
};

}  // namespace

std::shared_ptr<const ImageStore> open_image_tars(const std::vector<fs::path>& tars,
                                                  const std::vector<std::string>& known) {
  return std::make_shared<ImageTars>(tars, known);
}

}  // namespace lockstep::data
