// The most likely cut of a word into tokens: the best path through the lattice of all tokens (Viterbi), from left to
// right. Scores are added in the order and compared with the strictness of `tokenizers`, so that ties end alike.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/data/pre_tokenizer.h"
#include "lockstep/data/unicode.h"
#include "lockstep/data/word_model.h"

namespace lockstep::data {
namespace {

// The tokens that a text begins with: nodes with their edges in order of the byte.
class ByteTrie {
 public:
  // The keys must outlive the constructor only; values are their places. Empty keys are left out.
  explicit ByteTrie(const std::vector<std::pair<std::string, double>>& tokens) {
    std::vector<std::uint32_t> order;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!tokens[i].first.empty()) order.push_back(static_cast<std::uint32_t>(i));
    }
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tokens[a].first < tokens[b].first; });
    nodes_.emplace_back();
    struct Range {
      std::uint32_t node;
      std::size_t begin, end, depth;
    };
    std::vector<Range> open = {{0, 0, order.size(), 0}};
    for (std::size_t done = 0; done < open.size(); ++done) {
      Range range = open[done];
      // In order the token that ends here comes first.
      if (range.depth > 0 && tokens[order[range.begin]].first.size() == range.depth) {
        nodes_[range.node].token = static_cast<TokenId>(order[range.begin++]);
      }
      nodes_[range.node].first_edge = static_cast<std::uint32_t>(edges_.size());
      while (range.begin < range.end) {
        const auto byte_of = [&](std::size_t i) {
          return static_cast<std::uint8_t>(tokens[order[i]].first[range.depth]);
        };
        const std::uint8_t byte = byte_of(range.begin);
        std::size_t end = range.begin + 1;
        while (end < range.end && byte_of(end) == byte) ++end;
        const auto child = static_cast<std::uint32_t>(nodes_.size());
        nodes_.emplace_back();
        edges_.push_back({byte, child});
        ++nodes_[range.node].edges;
        open.push_back({child, range.begin, end, range.depth + 1});
        range.begin = end;
      }
    }
  }

  // Calls found(id, bytes) for every token that `text` begins with, the shortest first.
  template <class Found>
  void for_each_prefix(std::string_view text, const Found& found) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto first = edges_.begin() + nodes_[node].first_edge, last = first + nodes_[node].edges;
      const auto byte = static_cast<std::uint8_t>(text[i]);
      const auto edge = std::lower_bound(first, last, byte, [](const Edge& e, std::uint8_t b) { return e.byte < b; });
      if (edge == last || edge->byte != byte) return;
      node = edge->node;
      if (nodes_[node].token >= 0) found(nodes_[node].token, i + 1);
    }
  }

 private:
  struct Node {
    std::uint32_t first_edge = 0;
    std::uint16_t edges = 0;
    TokenId token = -1;
  };
  struct Edge {
    std::uint8_t byte;
    std::uint32_t node;
  };

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
};

class Unigram final : public WordModel {
 public:
  explicit Unigram(UnigramOptions options) : options_(std::move(options)), trie_(options_.tokens) {
    constexpr double kUnknownPenalty = 10.0;  // SentencePiece's
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < options_.tokens.size(); ++i) {
      ids_.emplace(options_.tokens[i].first, static_cast<TokenId>(i));
      least = std::min(least, options_.tokens[i].second);
    }
    unknown_score_ = least - kUnknownPenalty;
  }

  void encode_word(std::string_view word, std::vector<TokenId>& ids) const override {
    const std::vector<Step> best = best_steps(word);
    std::vector<std::pair<std::size_t, std::size_t>> pieces;  // from the last on
    bool in_unknown = false;
    for (std::size_t end = word.size(); end > 0; end = best[end].begin) {
      const Step& step = best[end];
      const bool unknown = step.token == options_.unknown;
      if (unknown && in_unknown) {
        pieces.back().first = step.begin;  // neighbouring unknowns are one
      } else {
        pieces.emplace_back(step.begin, end);
      }
      in_unknown = unknown;
    }
    std::for_each(pieces.rbegin(), pieces.rend(),
                  [&](const auto& piece) { append(word.substr(piece.first, piece.second - piece.first), ids); });
  }

  void decode_token(std::string_view token, bool first, std::string& text) const override {
    decode_characters(token, {options_.byte_fallback, first && options_.strip_first_space}, text);
  }

 private:
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  // The last token of the best path that ends at a place.
  struct Step {
    std::size_t begin = kNowhere;
    double score = 0.0;  // of the whole path
    TokenId token = 0;
  };

  std::vector<Step> best_steps(std::string_view word) const {
    std::vector<Step> best(word.size() + 1);
    for (std::size_t at = 0, next = 0; at < word.size(); at = next) {
      character_at(word, at, next);
      const double here = best[at].score;
      bool has_character = false;
      const auto offer = [&](std::size_t end, double score, TokenId token) {
        if (best[end].begin == kNowhere || score > best[end].score) best[end] = {at, score, token};
      };
      trie_.for_each_prefix(word.substr(at), [&](TokenId token, std::size_t bytes) {
        offer(at + bytes, options_.tokens[static_cast<std::size_t>(token)].second + here, token);
        has_character = has_character || bytes == next - at;
      });
      if (!has_character) offer(next, unknown_score_ + here, options_.unknown);
    }
    return best;
  }

  void append(std::string_view piece, std::vector<TokenId>& ids) const {
    if (const auto found = ids_.find(std::string(piece)); found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
    const std::size_t before = ids.size();
    for (std::size_t i = 0; options_.byte_fallback && i < piece.size(); ++i) {
      const auto found = ids_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(piece[i])));
      if (found == ids_.end()) {
        ids.resize(before);
        break;
      }
      ids.push_back(found->second);
    }
    if (ids.size() == before) ids.push_back(options_.unknown);
  }

  UnigramOptions options_;
  ByteTrie trie_;
  Vocabulary ids_;
  double unknown_score_ = 0.0;
};

}  // namespace

void decode_characters(std::string_view token, const CharacterDecoding& how, std::string& text) {
  const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.back() == '>';
  int byte = 0;
  if (how.bytes && is_byte && std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5) {
    text.push_back(static_cast<char>(byte));
    return;
  }
  bool strip = how.strip_first;
  for (const char32_t c : decode_utf8(token)) {
    if (c != kVisibleSpace) {
      append_utf8(text, c);
    } else if (!strip) {
      text.push_back(' ');
    }
    strip = false;
  }
}

std::shared_ptr<const WordModel> make_unigram(UnigramOptions options, const std::string& place) {
  if (options.unknown < 0 || static_cast<std::size_t>(options.unknown) >= options.tokens.size()) {
    throw bad_input(fmt::format("`unk_id` is {}, and there are {} tokens", options.unknown, options.tokens.size()),
                    "take the file from the model's folder again", {place});
  }
  return std::make_shared<Unigram>(std::move(options));
}

}  // namespace lockstep::data
