// Masked language modelling (Devlin et al. 2018): some tokens are hidden, and the model says which they were.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/token_stream.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {

struct MaskedLanguageOptions {
  std::int64_t sequence_length = 0;
  std::uint64_t seed = 1;
  TokenId mask = 0;
  std::optional<TokenId> first;  // [CLS]: before every sequence
  std::optional<TokenId> last;   // [SEP]: after every sequence; inside, it is never hidden
};

// Sample i is [CLS] w [SEP] with w the i-th window of the stream's tokens [begin, end), windows sharing no token;
// without [CLS] or [SEP] the window is longer. Of w, 15% (at least one token) are chosen: of these 80% become the mask,
// 10% a random token, 10% stay; targets are the chosen tokens in their places, kIgnoredTarget elsewhere. The choice is
// a function of (seed, epoch, i) alone. Throws bad_input naming `what` when not even one window fits.
std::shared_ptr<const Dataset> masked_language_windows(std::shared_ptr<const TokenStream> stream, std::int64_t begin,
                                                       std::int64_t end, const MaskedLanguageOptions& options,
                                                       const std::string& what);

}  // namespace lockstep::data
