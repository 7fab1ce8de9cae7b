// Sentence classification from a TSV file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "lockstep/data/dataset.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

// Lines `label<TAB>sentence`, labels 0..classes-1 (classes 0: any label up to 2^31); a first line whose label is no
// number is a header. Sentences are tokenised now, put between [CLS] and [SEP] where the tokenizer has them, cut to
// `sequence_length` and padded at batch time. Throws UserError with file:line.
std::shared_ptr<const Dataset> open_classification(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                                   std::int64_t sequence_length, std::int64_t classes);

}  // namespace lockstep::data
