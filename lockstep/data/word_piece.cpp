#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/unicode.h"
#include "lockstep/data/word_model.h"

namespace lockstep::data {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// The replacements of the `tokenizers` package, in its order.
void clean_up(std::string& piece) {
  static constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplacements) replace_all(piece, from, to);
}

class WordPiece final : public WordModel {
 public:
  WordPiece(WordPieceOptions options, const std::string& place) : options_(std::move(options)) {
    const auto found = options_.vocabulary.find(options_.unknown);
    if (found == options_.vocabulary.end()) {
      throw bad_input("the vocabulary lacks the unknown token `" + printable(options_.unknown) + "`",
                      "take the vocabulary file of a BERT-like tokenizer", {place});
    }
    unknown_ = found->second;
    for (const auto& [token, id] : options_.vocabulary) longest_ = std::max(longest_, token.size());
  }

  // Greedy: the longest token that the rest begins with; a word that cannot be covered is unknown as a whole.
  void encode_word(std::string_view word, std::vector<TokenId>& ids) const override {
    std::vector<std::size_t> starts;  // byte offset of every character, and the end
    for (std::size_t i = 0; i < word.size(); ++i) {
      if ((static_cast<unsigned char>(word[i]) & 0xC0) != 0x80) starts.push_back(i);
    }
    const std::size_t characters = starts.size();
    starts.push_back(word.size());
    if (characters > options_.max_characters) {
      ids.push_back(unknown_);
      return;
    }
    const std::size_t before = ids.size();
    std::string candidate;
    for (std::size_t at = 0; at < characters;) {
      std::size_t end = characters;
      for (; end > at; --end) {
        candidate.assign(at == 0 ? "" : options_.continuation);
        candidate += word.substr(starts[at], starts[end] - starts[at]);
        if (candidate.size() > longest_) continue;
        if (const auto found = options_.vocabulary.find(candidate); found != options_.vocabulary.end()) {
          ids.push_back(found->second);
          break;
        }
      }
      if (end == at) {
        ids.resize(before);
        ids.push_back(unknown_);
        return;
      }
      at = end;
    }
  }

  void decode_token(std::string_view token, bool first, std::string& text) const override {
    std::string piece;
    if (!first && token.starts_with(options_.continuation)) {
      token.remove_prefix(options_.continuation.size());
    } else if (!first) {
      piece.push_back(' ');
    }
    piece.append(token);
    if (options_.clean_up) clean_up(piece);
    text += piece;
  }

 private:
  WordPieceOptions options_;
  TokenId unknown_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace

std::shared_ptr<const WordModel> make_word_piece(WordPieceOptions options, const std::string& place) {
  return std::make_shared<WordPiece>(std::move(options), place);
}

}  // namespace lockstep::data
