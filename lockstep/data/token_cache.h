// Text as tokens, tokenised once: the first process that asks writes the shards into a cache, all others map them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/data/corpus.h"
#include "lockstep/data/token_stream.h"

namespace lockstep::data {

// $LOCKSTEP_CACHE, else $XDG_CACHE_HOME/lockstep, else ~/.cache/lockstep. Not created.
std::filesystem::path cache_directory();

// The tokens of a file or folder of text (data/corpus.h). The cache is keyed by the names, sizes, times and contents
// (fingerprint) of the files, the tokenizer's files and the options: what changes is tokenised again. Processes that
// ask for the same wait for the first of them, six hours at most. `check` sees the tokenizer's vocabulary size before
// the work begins. Throws UserError.
std::shared_ptr<const TokenStream> open_cached_text(const std::filesystem::path& path, const std::string& tokenizer,
                                                    const CorpusOptions& options,
                                                    const std::function<void(std::int64_t vocab_size)>& check);

}  // namespace lockstep::data
