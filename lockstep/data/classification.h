// Sentence classification from a file of labelled sentences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

// Labels are 0..classes-1 (classes 0: any label up to 2^31); formats: data/labelled_sentences.h. Sentences are
// tokenised now, put between [CLS] and [SEP] where the tokenizer has them, cut to `sequence_length`, and filled up with
// `padding` at batch time. Throws UserError with file:line. `names` are those of the labels of the training set
// (label_names_of()); none: labels are numbers.
std::shared_ptr<const Dataset> open_classification(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                                   std::int64_t sequence_length, std::int64_t classes, TokenId padding,
                                                   const std::vector<std::string>& names = {});

}  // namespace lockstep::data
