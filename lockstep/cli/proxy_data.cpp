#include "lockstep/cli/proxy_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/plan/run.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostBytes = 8 << 20, kLeastBytes = 1 << 16;

std::int64_t samples_of(const spec::Job& job) {
  return job.steps * plan::batch_of(job, plan::layout_of(job)).global_sequences;
}

// How many samples of `bytes` each: what the steps need, within the limits.
std::int64_t limited_samples(const spec::Job& job, std::int64_t bytes) {
  const std::int64_t step = plan::batch_of(job, plan::layout_of(job)).global_sequences;
  const std::int64_t most = std::max(step, kMostBytes / bytes), least = kLeastBytes / bytes + 1;
  return std::max(least, std::min(samples_of(job), most));
}

std::string words(std::mt19937_64& random, std::int64_t bytes) {
  std::string text(static_cast<std::size_t>(bytes), ' ');
  for (char& letter : text) {
    const auto drawn = static_cast<int>(random() % 32);
    letter = drawn < 26 ? static_cast<char>('a' + drawn) : ' ';
  }
  return text;
}

// NumPy's format 1.0: magic, version, length of the header, the header padded so that data begins at a multiple of 64.
std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, shape);
  constexpr std::size_t kPreamble = 10, kAlignment = 64;
  header.append((kAlignment - (kPreamble + header.size() + 1) % kAlignment) % kAlignment, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() % 256);
  file += static_cast<char>(header.size() / 256);
  return file + header + data;
}

void write_images(const spec::Job& job, const fs::path& folder, std::mt19937_64& random) {
  const spec::Model& model = job.model;
  const std::int64_t pixels = model.image_size * model.image_size * model.image_channels;
  const std::int64_t count = limited_samples(job, pixels);
  std::string images(static_cast<std::size_t>(count * pixels), '\0');
  for (char& pixel : images) pixel = static_cast<char>(random() % 256);
  std::string labels(static_cast<std::size_t>(count * 8), '\0');
  for (std::int64_t i = 0; i < count; ++i) {
    const auto label = static_cast<std::uint64_t>(i % std::max<std::int64_t>(1, model.classes));
    for (int byte = 0; byte < 8; ++byte) {
      labels[static_cast<std::size_t>(i * 8 + byte)] = static_cast<char>((label >> (8 * byte)) & 0xFFU);
    }
  }
  write_file_atomically(
      folder / "train-images.npy",
      npy("|u1", fmt::format("{}, {}, {}, {}", count, model.image_size, model.image_size, model.image_channels),
          images));
  write_file_atomically(folder / "train-labels.npy", npy("<i8", fmt::format("{},", count), labels));
}

void write_sentences(const spec::Job& job, const fs::path& file, std::mt19937_64& random) {
  const std::int64_t count = limited_samples(job, job.batch.sequence_length);
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    text += fmt::format("{}\t{}\n", i % std::max<std::int64_t>(1, job.model.classes),
                        words(random, job.batch.sequence_length));
  }
  write_file_atomically(file, text);
}

}  // namespace

void write_proxy_data(spec::Job& job, const fs::path& folder) {
  make_folders(folder);
  std::mt19937_64 random(1);
  switch (job.data.kind) {
    case spec::DataKind::kImages:
      job.data.path = folder.string();
      return write_images(job, folder, random);
    case spec::DataKind::kClassification:
      job.data.path = (folder / "sentences.tsv").string();
      return write_sentences(job, job.data.path, random);
    case spec::DataKind::kText: {
      job.data.path = (folder / "text.txt").string();
      const std::int64_t sample = job.batch.sequence_length + 1;
      write_file_atomically(job.data.path, words(random, (limited_samples(job, sample) + 1) * sample));
      return;
    }
    default:
      LOCKSTEP_ASSERT(false, "proxies read text, sentences or images");
  }
}

}  // namespace lockstep::cli
