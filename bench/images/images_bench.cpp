// CPU seconds that a picture costs the loader (read, decode, augment) against those that it costs ResNet-18 (forward,
// loss, backward at 32x32), in turns in one process. Prints JSON.
//
//   bench_images [pictures] [rounds] [FOLDER...]
//
// FOLDER: pictures of yours, a folder per class, beside those that are made here.
#include <ATen/Parallel.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lockstep/base/file.h"
#include "lockstep/data/labelled_images.h"
#include "lockstep/nn/model.h"
#include "lockstep/spec/model.h"
#include "tests/data/pictures.h"

namespace {

namespace fs = std::filesystem;
using namespace lockstep;

constexpr std::int64_t kBatch = 64;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void write_pictures(const fs::path& folder, int count, int side, bool jpeg) {
  for (int i = 0; i < count; ++i) {
    const fs::path home = folder / ("class" + std::to_string(i % 10));
    fs::create_directories(home);
    std::ofstream out(home / (std::to_string(i) + (jpeg ? ".jpg" : ".png")), std::ios::binary);
    const std::string bytes = jpeg ? data::testing::jpeg_of(side, side, i) : data::testing::png_of(side, side, i);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
}

double seconds_per_picture(const data::Dataset& pictures, std::int64_t epoch) {
  const double start = cpu_seconds();
  for (std::int64_t begin = 0; begin < pictures.size(); begin += kBatch) {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = begin; i < std::min(begin + kBatch, pictures.size()); ++i) indices.push_back(i);
    pictures.fetch_in_epoch(indices, epoch);
  }
  return (cpu_seconds() - start) / static_cast<double>(pictures.size());
}

double seconds_per_trained(nn::TrainableModel& model, const data::Dataset& pictures) {
  std::vector<std::int64_t> indices(kBatch);
  for (std::int64_t i = 0; i < kBatch; ++i) indices[static_cast<std::size_t>(i)] = i;
  const data::Samples batch = pictures.fetch(indices);
  const double start = cpu_seconds();
  model.loss(batch.input, batch.target, {.seed = 1}).loss_sum.backward();
  return (cpu_seconds() - start) / static_cast<double>(kBatch);
}

nlohmann::json row_of(const std::string& name, const fs::path& folder, nn::TrainableModel& model, int rounds) {
  data::LabelledImageOptions options;
  const auto store = data::open_image_classes(folder);
  options.shape = {3, 32, 32, static_cast<std::int64_t>(store->classes().size())};
  options.augmentation = {.padding = 4, .flip = true};
  const auto pictures = data::labelled_images(store, options);
  std::vector<double> loaded, trained;
  seconds_per_trained(model, *pictures);
  for (int round = 0; round < rounds; ++round) {
    loaded.push_back(seconds_per_picture(*pictures, round));
    trained.push_back(seconds_per_trained(model, *pictures));
  }
  return {{"pictures", name},
          {"count", pictures->size()},
          {"loaded_cpu_seconds", loaded},
          {"trained_cpu_seconds", trained}};
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::stoi(argv[1]) : 2000;
  const int rounds = argc > 2 ? std::stoi(argv[2]) : 3;
  at::set_num_threads(1);
  spec::Model resnet = spec::load_model("resnet18");
  resnet.classes = 1000;  // more than any folder here
  resnet.image_size = 32;
  const auto model = nn::build_model(resnet, {.seed = 1});
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [name, side, jpeg] :
       {std::tuple{"PNG 32x32", 32, false}, {"JPEG 32x32", 32, true}, {"JPEG 256x256", 256, true}}) {
    const TemporaryFolder folder;
    write_pictures(folder.path(), count, side, jpeg);
    rows.push_back(row_of(name, folder.path(), *model, rounds));
  }
  for (int i = 3; i < argc; ++i) rows.push_back(row_of(argv[i], argv[i], *model, rounds));
  std::cout << rows.dump(1) << '\n';
  return 0;
}
