// A folder of token shards with an index: what `lockstep tokenize` writes and `data.kind: tokens` reads
// (docs/reference/token-shards.md).
//
//   work.json         what is being tokenised, and how: written first, so that a run that was killed goes on
//   tokens-00000.bin  one shard (data/token_shard.h) per unit of the corpus, each published when it is whole
//   index.json        the shards in order with their counts; written last: the folder is complete where it is there
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/data/corpus.h"
#include "lockstep/data/token_stream.h"

namespace lockstep::data {

struct TokenizeProgress {
  std::uint64_t bytes = 0, total_bytes = 0;  // of input
  std::int64_t tokens = 0;
  std::size_t shards = 0, total_shards = 0;
  std::size_t kept = 0;  // shards that an earlier run had written
};

struct TokenizeRequest {
  std::vector<std::filesystem::path> inputs;  // files and folders, in order
  std::string tokenizer;                      // open_tokenizer()
  std::filesystem::path output;
  CorpusOptions corpus = {};
  int workers = 0;                                                // threads; 0: one per core
  double wait_seconds = 0;                                        // for another process that writes the same folder
  std::function<bool(const TokenizeProgress&)> on_progress = {};  // after every shard; false: stop. One at a time
};

struct TokenizeResult {
  std::int64_t tokens = 0, documents = 0, skipped = 0, vocab_size = 0;
  std::int64_t unknown = 0;  // tokens that stand for what the vocabulary lacks
  std::size_t shards = 0, kept = 0;
  std::uint64_t bytes = 0;
  bool finished = true;          // false: on_progress asked to stop; the same call goes on from here
  std::vector<std::string> bad;  // the first few records that were left out
};

// Tokenises the inputs into the folder with several threads. Shards that an earlier, interrupted call for the same
// inputs, tokenizer and options wrote are checked and kept; the result does not depend on threads or interruptions.
// Throws UserError, also when the folder holds something else, and when most of a text is unknown to the tokenizer.
TokenizeResult tokenize_corpus(const TokenizeRequest& request);

// What decides the shards: the inputs with sizes and times of change, the tokenizer's files, the options.
nlohmann::json corpus_identity(const TokenizeRequest& request);

bool is_token_folder(const std::filesystem::path& path);

// The shards that the index names, in order, as one stream. Throws UserError where one is missing or another.
std::shared_ptr<const TokenStream> open_token_folder(const std::filesystem::path& folder,
                                                     std::int64_t verify_up_to_bytes = 256 << 20);

}  // namespace lockstep::data
