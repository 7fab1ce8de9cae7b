// From a Job to its data sets.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/spec/job.h"

namespace lockstep::data {

struct Datasets {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> evaluation;  // null: the job keeps nothing for evaluation
};

// Opens what `job.data` names; relative paths are taken from `base_folder` ("": the working directory).
//
//   mnist           folder with the four IDX files
//   cifar10         folder with data_batch_*.bin (or train*.bin) and test_batch.bin (or test*.bin); or one .bin file
//   images          folder with train-images.npy, train-labels.npy and test-*.npy (data/image_arrays.h), with a folder
//                   of pictures per class, or with WebDataset's tar files (data/image_store.h)
//   text            file or folder (all its files, by name), as bytes or with a Hugging Face tokenizer: plain text,
//   JSON
//                   lines, CSV or Parquet (data/corpus.h), tokenised once and cached (data/token_cache.h)
//   tokens          token shard file or folder of them (data/token_folder.h, data/token_shard.h)
//   classification  TSV, CSV or JSON-lines file (data/labelled_sentences.h)
//   instruction     JSON-lines file or folder of them (data/conversation.h, data/instruction.h)
//   tensors         safetensors file or folder of them (data/tensor_files.h)
//   plugin          a data set that a plugin registered (data/plugin_data.h)
//
// `data.sources` are opened one by one and mixed by weight (data/mixed_dataset.h); their evaluation sets are joined.
//
// Text and tokens become windows of a language model, and for BERT masked ones (data/masked_language.h). Evaluation
// comes from `data.evaluation_path`, else from the format's own test files, else (text, tokens, instruction, tensors)
// from the end (`data.holdout`), and shares no token with training. Everything but images needs `batch.sequence_length`
// (else `model.max_sequence`), and ids below `model.vocab`. Throws UserError: exit 4 when a file is missing, 2 when it
// is wrong.
//
// `notice` hears of what is left out while the data is read (`on_bad: skip`), from any thread, as long as a data set
// lives; without it standard error does.
using Notice = std::function<void(const std::string& text)>;
Datasets open_datasets(const spec::Job& job, const std::string& base_folder = {}, const Notice& notice = {});

}  // namespace lockstep::data
