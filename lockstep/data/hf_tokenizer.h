// A tokenizer put together from the steps of a Hugging Face tokenizer.json:
// added tokens -> normaliser -> added tokens of normalised text -> pre-tokeniser -> model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/added_tokens.h"
#include "lockstep/data/normalizer.h"
#include "lockstep/data/pre_tokenizer.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/data/word_model.h"

namespace lockstep::data {

struct HfTokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::shared_ptr<const WordModel> model;
  Vocabulary vocabulary;  // of the model
  std::vector<AddedToken> added;
};

std::shared_ptr<const Tokenizer> make_hf_tokenizer(HfTokenizerParts parts);

// Reads the files named in tokenizer.h; `path` is a folder or a file. Throws UserError.
HfTokenizerParts read_hf_tokenizer(const std::filesystem::path& path);

// The pieces of read_hf_tokenizer: one tokenizer.json; vocab.json with merges.txt; vocab.txt.
HfTokenizerParts read_tokenizer_json(const std::filesystem::path& file);
HfTokenizerParts read_gpt2_files(const std::filesystem::path& vocab, const std::filesystem::path& merges);
HfTokenizerParts read_bert_vocabulary(const std::filesystem::path& vocab);

}  // namespace lockstep::data
