// What Hugging Face's tokenizer_config.json says besides the vocabulary.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

struct TokenizerConfig {
  bool bytes = false;         // the tokenizer `bytes`, which has no files
  std::string begin_of_text;  // "": none; also when the file says not to add it
  std::string end_of_text;
  std::string padding;
  std::string chat_template;  // a Jinja program; "": none
};

// Reads tokenizer_config.json and chat_template.jinja in the folder `tokenizer`, or beside it when it is a file;
// `bytes` and files that are absent give the defaults. Throws UserError for a damaged file.
TokenizerConfig read_tokenizer_config(const std::string& tokenizer);

// The token that fills up short sequences: the one the files name, else padding_id(tokenizer).
TokenId padding_id(const Tokenizer& tokenizer, const TokenizerConfig& config);

}  // namespace lockstep::data
