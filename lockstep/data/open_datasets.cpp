#include "lockstep/data/open_datasets.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/data/classification.h"
#include "lockstep/data/image_files.h"
#include "lockstep/data/mapped_file.h"
#include "lockstep/data/token_shard.h"
#include "lockstep/data/token_stream.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPathFix = "check data.path in the job file";

fs::path resolve(const std::string& path, const std::string& base_folder) {
  if (base_folder.empty() || fs::path(path).is_absolute()) return path;
  return fs::path(base_folder) / path;
}

// A tokenizer is "bytes", a path, or a path relative to the base folder.
std::string resolve_tokenizer(const std::string& name, const std::string& base_folder) {
  return name == "bytes" ? name : resolve(name, base_folder).string();
}

void require_path(const spec::Job& job) {
  if (job.data.path.empty())
    throw bad_input("data.path is not set", "say where the data is, e.g. data: {path: data/mnist}");
}

std::int64_t sequence_length(const spec::Job& job) {
  const std::int64_t length = job.batch.sequence_length > 0 ? job.batch.sequence_length : job.model.max_sequence;
  if (length < 1) throw bad_input("batch.sequence_length is not set", "set it, e.g. batch: {sequence_length: 256}");
  return length;
}

void check_vocabulary(const spec::Job& job, std::int64_t vocab_size, const std::string& what) {
  if (job.model.vocab <= 0 || vocab_size <= job.model.vocab) return;
  throw bad_input(fmt::format("{} has ids up to {}, the model's vocab is {}", what, vocab_size - 1, job.model.vocab),
                  fmt::format("set model.vocab to at least {}, or use the model's own tokenizer", vocab_size));
}

std::shared_ptr<const TokenStream> open_stream(const spec::Job& job, const fs::path& path,
                                               const std::string& base_folder) {
  const std::vector<fs::path> files = list_data_files(path, kPathFix);
  if (job.data.kind == spec::DataKind::kTokens) return open_token_shards(files);
  if (job.data.tokenizer == "bytes") return open_byte_stream(files);
  const auto tokenizer = open_tokenizer(resolve_tokenizer(job.data.tokenizer, base_folder));
  // Before the work: tokenising a large text takes minutes.
  check_vocabulary(job, tokenizer->vocab_size(), "the tokenizer");
  return tokenize_files(files, *tokenizer);
}

Datasets open_language_model(const spec::Job& job, const std::string& base_folder) {
  const std::int64_t length = sequence_length(job);
  const auto stream = open_stream(job, resolve(job.data.path, base_folder), base_folder);
  check_vocabulary(job, stream->vocab_size(), job.data.path);
  const std::int64_t tokens = stream->size();
  if (!job.data.evaluation_path.empty()) {
    const auto held = open_stream(job, resolve(job.data.evaluation_path, base_folder), base_folder);
    check_vocabulary(job, held->vocab_size(), job.data.evaluation_path);
    return {language_model_windows(stream, 0, tokens, length, job.data.path),
            language_model_windows(held, 0, held->size(), length, job.data.evaluation_path)};
  }
  const double holdout = job.data.holdout;
  if (!(holdout >= 0.0 && holdout < 1.0)) {
    throw bad_input(fmt::format("data.holdout is {}", holdout), "give the share kept for evaluation, 0 up to below 1");
  }
  const auto held = static_cast<std::int64_t>(std::llround(static_cast<double>(tokens) * holdout));
  Datasets datasets;
  datasets.train = language_model_windows(stream, 0, tokens - held, length, "the training part of " + job.data.path);
  if (holdout > 0.0) {
    datasets.evaluation =
        language_model_windows(stream, tokens - held, tokens, length, "the held-out part of " + job.data.path);
  }
  return datasets;
}

Datasets open_mnist_job(const spec::Job& job, const std::string& base_folder) {
  const fs::path folder = resolve(job.data.path, base_folder);
  const fs::path held = job.data.evaluation_path.empty() ? folder : resolve(job.data.evaluation_path, base_folder);
  return {open_mnist(folder, true), open_mnist(held, false)};
}

Datasets open_cifar_job(const spec::Job& job, const std::string& base_folder) {
  const auto open = [](const fs::path& path, bool train) {
    return fs::is_regular_file(path) ? open_cifar10_files({path}) : open_cifar10(path, train);
  };
  const fs::path path = resolve(job.data.path, base_folder);
  Datasets datasets{open(path, true), nullptr};
  if (!job.data.evaluation_path.empty()) {
    datasets.evaluation = open(resolve(job.data.evaluation_path, base_folder), false);
  } else if (!fs::is_regular_file(path)) {
    datasets.evaluation = open(path, false);
  }
  return datasets;
}

Datasets open_classification_job(const spec::Job& job, const std::string& base_folder) {
  const auto tokenizer = open_tokenizer(resolve_tokenizer(job.data.tokenizer, base_folder));
  check_vocabulary(job, tokenizer->vocab_size(), "the tokenizer");
  const auto open = [&](const std::string& path) {
    return open_classification(resolve(path, base_folder), *tokenizer, sequence_length(job), job.model.classes);
  };
  Datasets datasets{open(job.data.path), nullptr};
  if (!job.data.evaluation_path.empty()) datasets.evaluation = open(job.data.evaluation_path);
  return datasets;
}

}  // namespace

Datasets open_datasets(const spec::Job& job, const std::string& base_folder) {
  require_path(job);
  switch (job.data.kind) {
    case spec::DataKind::kMnist:
      return open_mnist_job(job, base_folder);
    case spec::DataKind::kCifar10:
      return open_cifar_job(job, base_folder);
    case spec::DataKind::kText:
    case spec::DataKind::kTokens:
      return open_language_model(job, base_folder);
    case spec::DataKind::kClassification:
      return open_classification_job(job, base_folder);
    case spec::DataKind::kInstruction:
      break;
  }
  throw bad_input("data.kind: instruction is not read by this version", "use kind: text or classification");
}

}  // namespace lockstep::data
