// Cases by hand; tests/data/compare_tokenizers.py compares with Hugging Face's `tokenizers` on 150,000 strings.
#include "lockstep/data/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/data/pre_tokenizer.h"
#include "lockstep/data/unicode.h"
#include "lockstep/data/word_model.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;
using nlohmann::json;
using Ids = std::vector<TokenId>;
using Words = std::vector<std::string>;

Words words(PreTokenizerStep::Kind kind, const std::string& text, int digits = 3) {
  std::string storage, spaced;
  std::vector<Word> places;
  const std::string_view split = split_words({{kind, digits}}, sound_utf8(text, storage), PiecePlace{}, spaced, places);
  Words result;
  for (const Word word : places) result.emplace_back(split.substr(word.begin, word.end - word.begin));
  return result;
}

TEST(Utf8, replaces_each_maximal_invalid_part_like_python) {
  EXPECT_EQ(decode_utf8("a\xFFz"), U"a\uFFFDz");
  EXPECT_EQ(decode_utf8("\xE2\x82"), U"\uFFFD");                  // cut off
  EXPECT_EQ(decode_utf8("\xED\xA0\x80"), U"\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(decode_utf8("\xC0\xAF"), U"\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(decode_utf8("\xF0\x9F\x99\x82"), U"\U0001F642");
  EXPECT_EQ(encode_utf8(U"\u00e9\u20ac\U0001F642"), "\u00e9\u20ac\U0001F642");
}

TEST(Gpt2Words, follow_the_pattern) {
  const auto split = [](const std::string& text) { return words(PreTokenizerStep::Kind::kGpt2, text); };
  EXPECT_EQ(split("I'll don't DON'T"), (Words{"I", "'ll", " don", "'t", " DON", "'", "T"}));
  EXPECT_EQ(split("a  b\n\n c "), (Words{"a", " ", " b", "\n\n", " c", " "}));
  EXPECT_EQ(split("x1234 5!?"), (Words{"x", "1234", " 5", "!?"}));
  EXPECT_EQ(split("\u00e9t\u00e9 \u65e5\u672c\u00bd"), (Words{"\u00e9t\u00e9", " \u65e5\u672c", "\u00bd"}));
  EXPECT_EQ(split("a\u3000\u3000b"), (Words{"a", "\u3000", "\u3000", "b"}));
  EXPECT_EQ(split(""), Words{});
}

TEST(Llama3Words, follow_the_pattern) {
  const auto split = [](const std::string& text) { return words(PreTokenizerStep::Kind::kLlama3, text); };
  EXPECT_EQ(split("DON'T I'Ll"), (Words{"DON", "'T", " I", "'Ll"}));
  EXPECT_EQ(split("1234567"), (Words{"123", "456", "7"}));
  EXPECT_EQ(split("(word) x"), (Words{"(word", ")", " x"}));
  EXPECT_EQ(split("end.\n\n  next"), (Words{"end", ".\n\n", " ", " next"}));
  EXPECT_EQ(split("a \n \n  b"), (Words{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(words(PreTokenizerStep::Kind::kLlama3, "123", 1), (Words{"1", "2", "3"}));
}

TEST(BertWords, drop_white_space_and_isolate_punctuation) {
  EXPECT_EQ(words(PreTokenizerStep::Kind::kBert, " a,b  c-\u3002$"), (Words{"a", ",", "b", "c", "-", "\u3002", "$"}));
}

// A byte-level BPE with the merges h+e, l+l, he+ll, Ġ+he, and all bytes: byte b has id b.
json small_bpe() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_stand_ins()[byte]] = byte;
  int next = 256;
  for (const char* token : {"he", "ll", "hell", "\u0120he"}) vocabulary[token] = next++;
  json root;
  root["added_tokens"] =
      json::array({{{"id", 300}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}}});
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"h e", "l l", "he ll", "\u0120 he"}}};
  return root;
}

class TokenizerFiles : public ::testing::Test {
 protected:
  auto open(const json& root) {
    write(folder_.path() / "tokenizer.json", root.dump());
    return open_tokenizer(folder_.path().string());
  }
  void expect_refused(const json& root, std::initializer_list<std::string> parts) {
    expect_user_error(ExitCode::kUsage, parts, [&] { open(root); });
  }
  TemporaryFolder folder_;
};

TEST_F(TokenizerFiles, bpe_merges_by_rank_and_decodes_back) {
  const auto tokenizer = open(small_bpe());
  EXPECT_EQ(tokenizer->encode("hello"), (Ids{258, 'o'}));
  EXPECT_EQ(tokenizer->encode(" hello"), (Ids{' ', 258, 'o'}));  // he+ll comes before Ġ+he
  EXPECT_EQ(tokenizer->encode(" he"), (Ids{259}));
  EXPECT_EQ(tokenizer->encode("lll"), (Ids{257, 'l'}));
  EXPECT_EQ(tokenizer->encode("\u00e9"), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(tokenizer->encode("he<|endoftext|>he"), (Ids{256, 300, 256}));
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  const std::string text = "hello he\u00e9 \U0001F642\n<|endoftext|>";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->decode(Ids{256, 300, 999}, true), "he");
  EXPECT_EQ(tokenizer->decode(Ids{0xC3}), "\uFFFD");
  EXPECT_EQ(end_of_text_id(*tokenizer), 300);
}

TEST_F(TokenizerFiles, merges_may_be_pairs_and_ignore_merges_keeps_known_words_whole) {
  json root = small_bpe();
  root["model"]["merges"] = json::array({{"h", "e"}, {"l", "l"}});
  EXPECT_EQ(open(root)->encode("hell"), (Ids{256, 257}));
  root["model"]["ignore_merges"] = true;
  EXPECT_EQ(open(root)->encode("hell"), (Ids{258}));
}

TEST_F(TokenizerFiles, long_word_takes_no_quadratic_time) {
  const auto tokenizer = open(small_bpe());
  EXPECT_EQ(tokenizer->encode(std::string(2'000'000, 'l')).size(), 1'000'000u);
}

TEST_F(TokenizerFiles, steps_we_do_not_reproduce_are_refused_by_name) {
  json root = small_bpe();
  root["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}};
  expect_refused(root, {"tokenizer.json", "precompiled_charsmap"});
  root = small_bpe();
  root["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}};
  expect_refused(root, {"another sign than U+2581"});
  root["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
  expect_refused(root, {"pre-tokenizer `UnicodeScripts`"});
  root["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}};
  expect_refused(root, {"split pattern"});
  root = small_bpe();
  root["model"]["type"] = "Unigram";
  expect_refused(root, {"Unigram over bytes"});
  root = small_bpe();
  root["model"]["byte_fallback"] = true;
  expect_refused(root, {"byte_fallback"});
  root = small_bpe();
  root["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  expect_refused(root, {"another pre-tokenizer than Metaspace"});
}

// BPE over characters as Llama 2's file has it, with the merges a+b and space+ab, and bytes for everything else.
json small_sentence_piece() {
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  int next = 300;
  for (const char* token : {"\u2581", "a", "b", "ab", "\u2581ab"}) vocabulary[token] = next++;
  json root;
  root["added_tokens"] = json::array();
  for (const char* token : {"<unk>", "<s>", "</s>"}) {
    root["added_tokens"].push_back(
        {{"id", vocabulary[token]}, {"content", token}, {"special", true}, {"normalized", false}});
  }
  root["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Prepend"}, {"prepend", "\u2581"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
  root["pre_tokenizer"] = nullptr;
  root["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "Strip"}, {"content", " "}, {"start", 1}}}}};
  root["model"] = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                   {"byte_fallback", true}, {"vocab", vocabulary},  {"merges", {"a b", "\u2581 ab"}}};
  return root;
}

TEST_F(TokenizerFiles, bpe_over_characters_makes_spaces_visible_and_falls_back_to_bytes) {
  const auto tokenizer = open(small_sentence_piece());
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{304}));
  EXPECT_EQ(tokenizer->encode("ab ab  ab"), (Ids{304, 304, 300, 304}));
  EXPECT_EQ(tokenizer->encode("a\nb"), (Ids{300, 301, 3 + '\n', 302}));
  EXPECT_EQ(tokenizer->encode("\u00e9"), (Ids{300, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer->encode("<s>ab</s>ab"), (Ids{1, 304, 2, 304}));  // a space after every added token
  const std::string text = "ab \u00e9\n  b";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->encode(std::string(2'000'000, 'a')).size(), 2'000'001u);
}

TEST_F(TokenizerFiles, text_that_goes_on_gets_no_space) {
  const auto tokenizer = open(small_sentence_piece());
  const auto after = [&](Ids ids, const char* text) {
    tokenizer->encode_after(text, ids);
    return ids;
  };
  EXPECT_EQ(after({}, "ab"), (Ids{304}));
  EXPECT_EQ(after({302}, "ab"), (Ids{302, 303}));
  EXPECT_EQ(after({302}, " ab"), (Ids{302, 304}));
  EXPECT_EQ(after({1}, "ab"), (Ids{1, 304}));  // behind an added token text begins anew
  EXPECT_EQ(after({302}, "ab</s>ab"), (Ids{302, 303, 2, 304}));
}

TEST_F(TokenizerFiles, metaspace_puts_spaces_where_its_scheme_says) {
  json root = small_sentence_piece();
  root["normalizer"] = nullptr;
  const auto encode = [&](const char* scheme, bool split, const char* text) {
    root["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}};
    return open(root)->encode(text);
  };
  EXPECT_EQ(encode("first", false, "ab</s>ab"), (Ids{304, 2, 303}));
  EXPECT_EQ(encode("always", false, "ab</s>ab"), (Ids{304, 2, 304}));
  EXPECT_EQ(encode("never", false, "ab</s>ab ab"), (Ids{303, 2, 303, 304}));
  EXPECT_EQ(encode("always", false, " ab"), (Ids{304}));  // it has one
  EXPECT_EQ(encode("always", true, "ab  ab"), (Ids{304, 300, 304}));
}

TEST_F(TokenizerFiles, wrong_contents_are_refused) {
  json root = small_bpe();
  root["model"]["merges"].push_back("x yz");
  expect_refused(root, {"merge", "vocabulary lacks"});
  root = small_bpe();
  root["model"]["vocab"]["twice"] = 5;
  expect_refused(root, {"both have the id 5"});
  for (const json& id : {json(-1), json(1.5), json("7"), json(std::uint64_t{1} << 63), json(std::int64_t{1} << 33)}) {
    root = small_bpe();
    root["model"]["vocab"]["odd"] = id;
    expect_refused(root, {"the id of `odd`"});
  }
  root = small_bpe();
  root["added_tokens"][0]["content"] = "he";
  expect_refused(root, {"added token `he`"});
  write(folder_.path() / "tokenizer.json", "{\"model\": ");
  expect_user_error(ExitCode::kUsage, {"not JSON"}, [&] { open_tokenizer(folder_.path().string()); });
}

TEST_F(TokenizerFiles, missing_ones_are_an_environment_error) {
  expect_user_error(ExitCode::kEnvironment, {"no tokenizer.json"}, [&] { open_tokenizer(folder_.path().string()); });
  expect_user_error(ExitCode::kEnvironment, {"no such tokenizer"}, [] { open_tokenizer("/absent/tokenizer.json"); });
}

TEST_F(TokenizerFiles, added_tokens_keep_their_flags) {
  json root = small_bpe();
  root["added_tokens"].push_back(
      {{"id", 301}, {"content", "<s>"}, {"lstrip", true}, {"rstrip", true}, {"normalized", false}});
  root["added_tokens"].push_back({{"id", 302}, {"content", "he"}, {"single_word", true}, {"normalized", false}});
  root["added_tokens"][2]["id"] = 256;  // `he` is in the vocabulary already
  const auto tokenizer = open(root);
  EXPECT_EQ(tokenizer->encode("a \u3000<s>\n b"), (Ids{'a', 301, 'b'}));
  EXPECT_EQ(tokenizer->encode("xhe"), (Ids{'x', 256}));
  EXPECT_EQ(tokenizer->encode(".he."), (Ids{'.', 256, '.'}));
}

TEST_F(TokenizerFiles, bert_vocabulary_lower_cases_strips_accents_and_splits_chinese) {
  write(folder_.path() / "vocab.txt",
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\n!\n\u4e2d\n\u6587\ncafe\ndo\nn\n'\nt\n");
  const auto tokenizer = open_tokenizer(folder_.path().string());
  EXPECT_EQ(tokenizer->encode("UNaffable!"), (Ids{5, 6, 7, 8}));
  EXPECT_EQ(tokenizer->encode("caf\u00e9 cafe\u0301"), (Ids{11, 11}));
  EXPECT_EQ(tokenizer->encode("\u4e2d\u6587x"), (Ids{9, 10, 1}));
  EXPECT_EQ(tokenizer->encode("unwell"), (Ids{1}));
  EXPECT_EQ(tokenizer->encode("un [MASK]\u200b"), (Ids{5, 4}));
  EXPECT_EQ(tokenizer->encode(std::string(101, 'u')), (Ids{1}));
  EXPECT_EQ(tokenizer->decode(Ids{2, 5, 6, 7, 8, 3}, true), "unaffable!");
  EXPECT_EQ(padding_id(*tokenizer), 0);
}

TEST_F(TokenizerFiles, bert_vocabulary_keeps_case_when_its_config_says_so) {
  write(folder_.path() / "vocab.txt", "[UNK]\ncafe\nCaf\u00e9\n");
  write(folder_.path() / "tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(open_tokenizer(folder_.path().string())->encode("Caf\u00e9 cafe CAFE"), (Ids{2, 1, 0}));
}

TEST(ByteTokenizer, gives_the_bytes) {
  const auto tokenizer = open_tokenizer("bytes");
  EXPECT_EQ(tokenizer->encode("a\u00e9"), (Ids{'a', 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer->decode(Ids{'a', 0xC3, 0xA9, 256, -1}), "a\u00e9");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
}

}  // namespace
}  // namespace lockstep::data
