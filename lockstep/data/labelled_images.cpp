#include "lockstep/data/labelled_images.h"

#include <fmt/format.h>

#include <mutex>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/data/image_decoder.h"
#include "lockstep/data/image_transform.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMostNamed = 20;

class LabelledImages final : public Dataset {
 public:
  LabelledImages(std::shared_ptr<const ImageStore> store, const LabelledImageOptions& options)
      : store_(std::move(store)), options_(options) {
    const std::int64_t classes = options_.shape.classes;
    for (std::int64_t i = 0; i < store_->size(); ++i) {
      if (store_->label(i) < classes) continue;
      const std::string what = store_->classes().empty()
                                   ? fmt::format("the label is {}", store_->label(i))
                                   : fmt::format("there are {} classes", store_->classes().size());
      throw bad_input(fmt::format("{}, the model has {} classes", what, classes),
                      fmt::format("set model.classes to {}", store_->classes().empty()
                                                                 ? store_->label(i) + 1
                                                                 : static_cast<std::int64_t>(store_->classes().size())),
                      {store_->name(i)});
    }
  }

  std::int64_t size() const override { return store_->size(); }

  Samples fetch(std::span<const std::int64_t> indices) const override { return fetch_in_epoch(indices, 0); }

  Samples fetch_in_epoch(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    const std::int64_t size = options_.shape.width, channels = options_.shape.channels;
    torch::Tensor pixels = torch::empty({n, size, size, channels}, torch::kUInt8);
    torch::Tensor labels = torch::empty({n}, torch::kInt64);
    std::uint8_t* out = pixels.data_ptr<std::uint8_t>();
    std::int64_t* label = labels.data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      *label++ = write(index, epoch, out);
      out += size * size * channels;
    }
    return {pixels.permute({0, 3, 1, 2}), labels};
  }

  std::string describe() const override {
    return fmt::format(
        "{} pictures of {} classes, made {}x{}x{}", store_->size(),
        store_->classes().empty() ? options_.shape.classes : static_cast<std::int64_t>(store_->classes().size()),
        options_.shape.channels, options_.shape.width, options_.shape.width);
  }

 private:
  // Writes sample `index` and returns its label.
  std::int64_t write(std::int64_t index, std::int64_t epoch, std::uint8_t* out) const {
    for (std::int64_t tried = 0; tried < store_->size(); ++tried) {
      const std::int64_t at = (index + tried) % store_->size();
      try {
        const Image image = decode(at);
        const Augmented how = augment(image, options_.shape.width, options_.augmentation, options_.seed, epoch, index);
        resample(image, how.box, options_.shape.width, how.mirrored, out);
        return store_->label(at);
      } catch (const UserError& error) {
        if (options_.on_bad == spec::OnBad::kRefuse) throw;
        name_once(at, error);
      }
    }
    throw bad_input("none of the pictures can be decoded", "check data.path in the job file");
  }

  Image decode(std::int64_t at) const {
    // A crop of a part needs more pixels than the whole picture does.
    const bool whole = options_.augmentation.scale >= 1.0;
    return decode_image(store_->read(at), options_.shape.channels, whole ? options_.shape.width : 0,
                        {store_->name(at)});
  }

  void name_once(std::int64_t at, const UserError& error) const {
    const std::lock_guard lock(mutex_);
    if (!named_.insert(at).second || named_.size() > kMostNamed + 1) return;
    const std::string text = named_.size() > kMostNamed ? "left out: more pictures, which are not named"
                                                        : fmt::format("left out: {}", error.what());
    options_.notice ? options_.notice(text) : fmt::print(stderr, "lockstep: {}\n", text);
  }

  std::shared_ptr<const ImageStore> store_;
  LabelledImageOptions options_;
  mutable std::mutex mutex_;
  mutable std::set<std::int64_t> named_;
};

}  // namespace

std::shared_ptr<const Dataset> labelled_images(std::shared_ptr<const ImageStore> store,
                                               const LabelledImageOptions& options) {
  require_image_decoders();
  return std::make_shared<LabelledImages>(std::move(store), options);
}

}  // namespace lockstep::data
