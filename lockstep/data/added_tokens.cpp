#include "lockstep/data/added_tokens.h"

#include <algorithm>

#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

// The last character before the end of valid UTF-8, and how many bytes it has.
char32_t last_character(std::string_view text, std::size_t& bytes) {
  bytes = 1;
  while (bytes < text.size() && bytes < 4 && (static_cast<unsigned char>(text[text.size() - bytes]) & 0xC0) == 0x80)
    ++bytes;
  return decode_utf8(text.substr(text.size() - bytes)).front();
}

char32_t first_character(std::string_view text, std::size_t& bytes) {
  bytes = 1;
  while (bytes < text.size() && bytes < 4 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) ++bytes;
  return decode_utf8(text.substr(0, bytes)).front();
}

bool touches_word(std::string_view before, std::string_view after) {
  std::size_t bytes = 0;
  if (!before.empty() && is_word(last_character(before, bytes))) return true;
  return !after.empty() && is_word(first_character(after, bytes));
}

std::size_t white_space_at_end(std::string_view text) {
  std::size_t total = 0;
  std::size_t bytes = 0;
  while (total < text.size() && is_white_space(last_character(text.substr(0, text.size() - total), bytes)))
    total += bytes;
  return total;
}

std::size_t white_space_at_start(std::string_view text) {
  std::size_t total = 0;
  std::size_t bytes = 0;
  while (total < text.size() && is_white_space(first_character(text.substr(total), bytes))) total += bytes;
  return total;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), by_byte_(256) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    by_byte_[static_cast<unsigned char>(tokens_[i].content.front())].push_back(i);
    begins_token_[static_cast<unsigned char>(tokens_[i].content.front())] = true;
  }
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view rest) const {
  for (const std::size_t i : by_byte_[static_cast<unsigned char>(rest.front())]) {
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return nullptr;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Part> parts;
  std::size_t done = 0;
  if (!tokens_.empty()) {
    for (std::size_t at = 0; at < text.size();) {
      while (at < text.size() && !begins_token_[static_cast<unsigned char>(text[at])]) ++at;
      if (at == text.size()) break;
      const AddedToken* token = longest_at(text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at;
      std::size_t end = at + token->content.size();
      at = end;
      if (token->single_word && touches_word(text.substr(0, begin), text.substr(end))) continue;
      if (token->lstrip) begin = std::max(done, begin - white_space_at_end(text.substr(0, begin)));
      if (token->rstrip) end += white_space_at_start(text.substr(end));
      if (done < begin) parts.push_back({-1, text.substr(done, begin - done)});
      parts.push_back({token->id, text.substr(begin, end - begin)});
      done = end;
    }
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
  return parts;
}

}  // namespace lockstep::data
