#include "lockstep/data/open_datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/classification.h"
#include "lockstep/data/image_arrays.h"
#include "lockstep/data/image_files.h"
#include "lockstep/data/image_store.h"
#include "lockstep/data/instruction.h"
#include "lockstep/data/labelled_images.h"
#include "lockstep/data/labelled_sentences.h"
#include "lockstep/data/mapped_file.h"
#include "lockstep/data/masked_language.h"
#include "lockstep/data/mixed_dataset.h"
#include "lockstep/data/plugin_data.h"
#include "lockstep/data/tensor_files.h"
#include "lockstep/data/text_check.h"
#include "lockstep/data/token_cache.h"
#include "lockstep/data/token_folder.h"
#include "lockstep/data/token_shard.h"
#include "lockstep/data/token_stream.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/data/tokenizer_config.h"

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

// Bytes need no tokenising: the files are mapped as they are.
std::shared_ptr<const TokenStream> open_bytes(const spec::Job& job, const std::vector<fs::path>& files) {
  BadRecords bad(job.data.on_bad);
  std::vector<fs::path> texts;
  for (const fs::path& file : files) {
    const MappedFile mapped(file, kPathFix);
    const auto instead = not_text(mapped.bytes());
    if (!instead) {
      texts.push_back(file);
    } else {
      bad.meet(bad_input("this is " + *instead, "name text, JSONL, CSV or .parquet files", {mapped.path()}));
    }
  }
  if (texts.empty()) throw bad_input("none of the files is text", kPathFix, {job.data.path});
  return open_byte_stream(texts);
}

std::shared_ptr<const TokenStream> open_stream(const spec::Job& job, const fs::path& path,
                                               const std::string& base_folder) {
  if (job.data.kind == spec::DataKind::kTokens && is_token_folder(path)) return open_token_folder(path);
  const std::vector<fs::path> files = list_data_files(path, kPathFix);
  if (job.data.kind == spec::DataKind::kTokens) return open_token_shards(files);
  const bool plain = std::all_of(files.begin(), files.end(),
                                 [](const fs::path& file) { return text_format_of(file) == TextFormat::kPlain; });
  if (plain && job.data.tokenizer == "bytes") return open_bytes(job, files);
  const CorpusOptions options{.field = job.data.field, .on_bad = job.data.on_bad};
  // The size is checked before the work: tokenising a large text takes minutes.
  return open_cached_text(path, resolve_tokenizer(job.data.tokenizer, base_folder), options,
                          [&](std::int64_t size) { check_vocabulary(job, size, "the tokenizer"); });
}

// The mask of a tokenizer, else the last id of a model that has more than the data.
TokenId mask_id(const spec::Job& job, const Tokenizer& tokenizer, std::int64_t vocab_size) {
  for (const char* name : {"[MASK]", "<mask>"}) {
    if (const auto id = tokenizer.token_id(name)) return *id;
  }
  if (job.model.vocab > vocab_size) return static_cast<TokenId>(job.model.vocab - 1);
  throw bad_input("masked language modelling needs a mask token",
                  fmt::format("use a tokenizer with [MASK], or set model.vocab above {}: its last id then is the mask",
                              vocab_size));
}

// Turns [begin, end) of a stream into samples; `what` names it in errors.
using OpenWindows = std::function<std::shared_ptr<const Dataset>(
    std::shared_ptr<const TokenStream> stream, std::int64_t begin, std::int64_t end, const std::string& what)>;

OpenWindows windows_for(const spec::Job& job, const std::string& base_folder, std::int64_t vocab_size) {
  const std::int64_t length = sequence_length(job);
  if (job.model.arch != spec::Arch::kBert) {
    const bool documents = job.data.packing == spec::Packing::kDocuments;
    return [length, documents](auto stream, std::int64_t begin, std::int64_t end, const std::string& what) {
      return language_model_windows(std::move(stream), begin, end, length, what, documents);
    };
  }
  const auto tokenizer = open_tokenizer(resolve_tokenizer(job.data.tokenizer, base_folder));
  const MaskedLanguageOptions options{.sequence_length = length,
                                      .seed = static_cast<std::uint64_t>(job.seed),
                                      .mask = mask_id(job, *tokenizer, vocab_size),
                                      .first = tokenizer->token_id("[CLS]"),
                                      .last = tokenizer->token_id("[SEP]")};
  return [options](auto stream, std::int64_t begin, std::int64_t end, const std::string& what) {
    return masked_language_windows(std::move(stream), begin, end, options, what);
  };
}

// How many of `count` are kept for evaluation.
std::int64_t held_out(const spec::Job& job, std::int64_t count) {
  const double holdout = job.data.holdout;
  if (!(holdout >= 0.0 && holdout < 1.0)) {
    throw bad_input(fmt::format("data.holdout is {}", holdout), "give the share kept for evaluation, 0 up to below 1");
  }
  return static_cast<std::int64_t>(std::llround(static_cast<double>(count) * holdout));
}

Datasets open_language_model(const spec::Job& job, const std::string& base_folder) {
  const auto stream = open_stream(job, resolve(job.data.path, base_folder), base_folder);
  check_vocabulary(job, stream->vocab_size(), job.data.path);
  const OpenWindows windows = windows_for(job, base_folder, stream->vocab_size());
  const std::int64_t tokens = stream->size();
  if (!job.data.evaluation_path.empty()) {
    const auto held = open_stream(job, resolve(job.data.evaluation_path, base_folder), base_folder);
    check_vocabulary(job, held->vocab_size(), job.data.evaluation_path);
    return {windows(stream, 0, tokens, job.data.path), windows(held, 0, held->size(), job.data.evaluation_path)};
  }
  const std::int64_t held = held_out(job, tokens);
  Datasets datasets;
  datasets.train = windows(stream, 0, tokens - held, "the training part of " + job.data.path);
  if (job.data.holdout > 0.0) {
    datasets.evaluation = windows(stream, tokens - held, tokens, "the held-out part of " + job.data.path);
  }
  return datasets;
}

InstructionOptions instruction_options(const spec::Job& job, const Tokenizer& tokenizer,
                                       const TokenizerConfig& config) {
  InstructionOptions options{.chat_template = choose_chat_template(job.data.chat_template, tokenizer, config),
                             .ends = {},
                             .padding = padding_id(tokenizer, config),
                             .sequence_length = sequence_length(job),
                             .packing = job.data.packing};
  const bool own_markers =
      options.chat_template != spec::ChatTemplate::kAlpaca && options.chat_template != spec::ChatTemplate::kPlain;
  if (!own_markers) options.ends = text_ends(tokenizer, config);
  return options;
}

Datasets open_instruction_job(const spec::Job& job, const std::string& base_folder) {
  const std::string name = resolve_tokenizer(job.data.tokenizer, base_folder);
  const auto tokenizer = open_tokenizer(name);
  check_vocabulary(job, tokenizer->vocab_size(), "the tokenizer");
  const InstructionOptions options = instruction_options(job, *tokenizer, read_tokenizer_config(name));
  const auto read = [&](const std::string& path) {
    return read_instructions(list_data_files(resolve(path, base_folder), kPathFix), *tokenizer, options);
  };
  const auto examples = read(job.data.path);
  if (!job.data.evaluation_path.empty()) {
    const auto held = read(job.data.evaluation_path);
    return {instruction_samples(examples, 0, examples->size(), options, job.data.path),
            instruction_samples(held, 0, held->size(), options, job.data.evaluation_path)};
  }
  const std::int64_t split = examples->size() - held_out(job, examples->size());
  Datasets datasets{instruction_samples(examples, 0, split, options, "the training part of " + job.data.path), nullptr};
  if (split < examples->size()) {
    datasets.evaluation =
        instruction_samples(examples, split, examples->size(), options, "the held-out part of " + job.data.path);
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

bool is_tar(const fs::path& file) { return lockstep::to_lower(file.extension().string()) == ".tar"; }

// The tar files of `path`: those for evaluation begin with test or val.
std::vector<fs::path> tars_at(const fs::path& path, bool train, bool any) {
  std::vector<fs::path> tars;
  for (const fs::path& file : list_data_files(path, kPathFix)) {
    const std::string name = file.filename().string();
    const bool held = name.starts_with("test") || name.starts_with("val");
    if (is_tar(file) && (any || held != train)) tars.push_back(file);
  }
  return tars;
}

// The folder of the pictures for evaluation beside train/, if any.
std::optional<fs::path> held_out_folder(const fs::path& folder) {
  for (const char* name : {"test", "val", "validation"}) {
    if (fs::is_directory(folder / name)) return folder / name;
  }
  return std::nullopt;
}

// Pictures in folders or tars, whichever is there: training, and evaluation with the classes of training.
struct ImageStores {
  std::shared_ptr<const ImageStore> train, evaluation;
};

ImageStores open_image_stores(const fs::path& path, const fs::path& held) {
  ImageStores stores;
  if (!tars_at(path, true, true).empty()) {
    const auto tars = tars_at(path, true, !held.empty() || fs::is_regular_file(path));
    if (tars.empty())
      throw environment_error("no tar files for training: all begin with test or val", kPathFix, {path.string()});
    stores.train = open_image_tars(tars);
    const auto others = held.empty() ? tars_at(path, false, false) : tars_at(held, false, true);
    if (!others.empty()) stores.evaluation = open_image_tars(others, stores.train->classes());
    return stores;
  }
  const bool parted = fs::is_directory(path / "train");
  stores.train = open_image_classes(parted ? path / "train" : path);
  const auto beside = parted ? held_out_folder(path) : std::nullopt;
  if (!held.empty()) stores.evaluation = open_image_classes(held, stores.train->classes());
  if (held.empty() && beside) stores.evaluation = open_image_classes(*beside, stores.train->classes());
  return stores;
}

Datasets open_images_job(const spec::Job& job, const std::string& base_folder, const Notice& notice) {
  const ImageShape shape{job.model.image_channels, job.model.image_size, job.model.image_size, job.model.classes};
  const fs::path path = resolve(job.data.path, base_folder);
  const fs::path held = job.data.evaluation_path.empty() ? fs::path() : resolve(job.data.evaluation_path, base_folder);
  if (fs::exists(path / "train-images.npy")) {
    if (job.data.augment != spec::Augmentation{}) {
      throw bad_input("NumPy arrays are not augmented", "remove data.augment, or use folders of pictures",
                      {path.string()});
    }
    return {open_image_folder(path, true, shape), open_image_folder(held.empty() ? path : held, false, shape)};
  }
  if (!fs::exists(path)) throw environment_error("no such file or folder", kPathFix, {path.string()});
  const ImageStores stores = open_image_stores(path, held);
  LabelledImageOptions options{shape, job.data.augment, job.data.on_bad, static_cast<std::uint64_t>(job.seed), notice};
  Datasets datasets{labelled_images(stores.train, options), nullptr};
  options.augmentation = {};
  if (stores.evaluation) datasets.evaluation = labelled_images(stores.evaluation, options);
  return datasets;
}

Datasets open_classification_job(const spec::Job& job, const std::string& base_folder) {
  const std::string name = resolve_tokenizer(job.data.tokenizer, base_folder);
  const auto tokenizer = open_tokenizer(name);
  check_vocabulary(job, tokenizer->vocab_size(), "the tokenizer");
  const TokenId padding = padding_id(*tokenizer, read_tokenizer_config(name));
  const std::vector<std::string> names = label_names_of(MappedFile(resolve(job.data.path, base_folder), kPathFix));
  const auto open = [&](const std::string& path) {
    return open_classification(resolve(path, base_folder), *tokenizer, sequence_length(job), job.model.classes, padding,
                               names);
  };
  Datasets datasets{open(job.data.path), nullptr};
  if (!job.data.evaluation_path.empty()) datasets.evaluation = open(job.data.evaluation_path);
  return datasets;
}

// The plugin's options say where its files are.
Datasets open_plugin_job(const spec::Job& job, const std::string&) { return open_plugin_data(job); }

Datasets open_tensors_job(const spec::Job& job, const std::string& base_folder) {
  const spec::ScriptLoss loss = job.model.script.loss;
  const bool returned =
      job.model.is_scripted() && (loss == spec::ScriptLoss::kReturned || loss == spec::ScriptLoss::kOwn);
  if (job.data.target.empty() && !returned) {
    throw bad_input("data.target is not set", "name the tensor that the model's output is compared with");
  }
  const TensorNames names{job.data.inputs, job.data.target};
  const auto whole = open_tensor_files(resolve(job.data.path, base_folder), names);
  if (!job.data.evaluation_path.empty()) {
    return {whole, open_tensor_files(resolve(job.data.evaluation_path, base_folder), names)};
  }
  const std::int64_t split = whole->size() - held_out(job, whole->size());
  if (split == whole->size()) return {whole, nullptr};
  return {part_of(whole, 0, split), part_of(whole, split, whole->size())};
}

}  // namespace

namespace {

Datasets open_mixture(const spec::Job& job, const std::string& base_folder, const Notice& notice) {
  std::vector<WeightedSource> train;
  std::vector<std::shared_ptr<const Dataset>> held;
  for (const spec::DataSource& source : job.data.sources) {
    spec::Job part = job;
    part.data.sources.clear();
    part.data.path = source.path;
    Datasets datasets = open_datasets(part, base_folder, notice);
    train.push_back({std::move(datasets.train), source.weight});
    if (datasets.evaluation) held.push_back(std::move(datasets.evaluation));
  }
  // With evaluation_path every source opened the same one.
  if (!job.data.evaluation_path.empty() && held.size() > 1) held.resize(1);
  return {mix_datasets(std::move(train), static_cast<std::uint64_t>(job.seed)),
          held.empty() ? nullptr : join_datasets(held)};
}

}  // namespace

Datasets open_datasets(const spec::Job& job, const std::string& base_folder, const Notice& notice) {
  if (!job.data.sources.empty()) return open_mixture(job, base_folder, notice);
  if (job.data.kind != spec::DataKind::kPlugin) require_path(job);
  if (job.data.kind == spec::DataKind::kImages) return open_images_job(job, base_folder, notice);
  // In DataKind's order.
  using Open = Datasets (*)(const spec::Job&, const std::string&);
  constexpr std::array<Open, 9> kOpen{open_mnist_job,       open_cifar_job,      nullptr,
                                      open_language_model,  open_language_model, open_classification_job,
                                      open_instruction_job, open_tensors_job,    open_plugin_job};
  static_assert(kOpen.size() == names_of(spec::DataKind{}).size());
  return kOpen[static_cast<std::size_t>(job.data.kind)](job, base_folder);
}

}  // namespace lockstep::data
