// Reading Hugging Face's tokenizer files. They may come from anywhere, so everything is checked, and a step that we
// do not reproduce exactly is refused by name: wrong ids would train a wrong model without a word.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/data/hf_tokenizer.h"
#include "lockstep/data/tokenizer_json.h"
#include "lockstep/data/tokenizer_steps.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

json parse(const fs::path& file) {
  const std::string text = read_file(file, kMaxFileBytes);
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw malformed_tokenizer(file.string(), fmt::format("not JSON: wrong at byte {} of {}", error.byte, text.size()));
  }
}

Vocabulary parse_vocabulary(const json& object, const std::string& place) {
  if (!object.is_object() || object.empty())
    throw malformed_tokenizer(place, "the vocabulary is not an object of tokens and ids");
  Vocabulary vocabulary;
  std::unordered_map<TokenId, const std::string*> owners;
  for (const auto& [token, value] : object.items()) {
    const auto entry = vocabulary.emplace(token, json_id(value, token, place)).first;
    const auto [owner, fresh] = owners.emplace(entry->second, &entry->first);
    if (fresh) continue;
    throw malformed_tokenizer(place, fmt::format("`{}` and `{}` both have the id {}", printable(token),
                                                 printable(*owner->second), entry->second));
  }
  return vocabulary;
}

Merge split_merge(std::string_view line, const std::string& place) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    throw malformed_tokenizer(place, "the merge `" + printable(line) + "` is not a pair of tokens");
  }
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

std::vector<Merge> parse_merges(const json& list, const std::string& place) {
  if (!list.is_array()) throw malformed_tokenizer(place, "`merges` is not a list");
  std::vector<Merge> merges;
  for (const json& merge : list) {
    if (merge.is_string()) {
      merges.push_back(split_merge(merge.get_ref<const std::string&>(), place));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges.push_back({merge[0].get<std::string>(), merge[1].get<std::string>()});
    } else {
      throw malformed_tokenizer(place, fmt::format("merge {} is not a pair of tokens", merges.size()));
    }
  }
  return merges;
}

std::vector<AddedToken> parse_added(const json& list, const Vocabulary& vocabulary, const std::string& place) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array()) throw malformed_tokenizer(place, "`added_tokens` is not a list");
  for (const json& entry : list) {
    if (!entry.is_object()) throw malformed_tokenizer(place, "an added token is not an object");
    AddedToken token;
    token.content = json_text(entry, "content", "", place);
    token.id = json_id(json_part(entry, "id"), token.content, place);
    token.single_word = json_flag(entry, "single_word", false, place);
    token.lstrip = json_flag(entry, "lstrip", false, place);
    token.rstrip = json_flag(entry, "rstrip", false, place);
    token.special = json_flag(entry, "special", false, place);
    token.normalized = json_flag(entry, "normalized", !token.special, place);
    const auto known = vocabulary.find(token.content);
    if (known != vocabulary.end() && known->second != token.id) {
      throw malformed_tokenizer(place, fmt::format("the added token `{}` has the id {}, in the vocabulary {}",
                                                   printable(token.content), token.id, known->second));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Whether no token of a vocabulary reaches across the start of a run of U+2581: text may then be cut there before it is
// encoded, which is much faster than all of it as one word.
bool may_cut_at_spaces(const Vocabulary& vocabulary) {
  for (const auto& [token, id] : vocabulary) {
    const std::u32string characters = decode_utf8(token);
    for (std::size_t i = 1; i < characters.size(); ++i) {
      if (characters[i] == kVisibleSpace && characters[i - 1] != kVisibleSpace) return false;
    }
  }
  return vocabulary.contains(std::string(kVisibleSpaceBytes));
}

// The space that a decoder takes off the front of the text.
bool strips_first_space(const json& decoder, const std::string& place) {
  if (!decoder.is_object()) return false;
  const std::string type = json_text(decoder, "type", "", place);
  if (type == "Metaspace") return json_text(decoder, "prepend_scheme", "always", place) != "never";
  const json& steps = json_part(decoder, "decoders");
  return type == "Sequence" && steps.is_array() && std::any_of(steps.begin(), steps.end(), [&](const json& step) {
           return step.is_object() && json_text(step, "type", "", place) == "Strip" && json_part(step, "start") == 1;
         });
}

// BPE over characters, as SentencePiece trains it (Llama 2, Mistral).
void set_up_characters(const json& model, const json& decoder, PreTokenizer& steps, BpeOptions& options,
                       const std::string& place) {
  using Kind = PreTokenizerStep::Kind;
  options.byte_level = false;
  options.byte_fallback = json_flag(model, "byte_fallback", false, place);
  options.strip_first_space = strips_first_space(decoder, place);
  if (!steps.empty() && (steps.size() > 1 || steps[0].kind != Kind::kMetaspace)) {
    throw refuse_tokenizer(place, "BPE over characters with another pre-tokenizer than Metaspace");
  }
  const bool split = !steps.empty() && steps[0].split;
  if (!split && !options.ignore_merges && may_cut_at_spaces(options.vocabulary)) steps.push_back({Kind::kSpaceRuns});
}

std::shared_ptr<const WordModel> parse_bpe(const json& model, const json& decoder, Vocabulary vocabulary,
                                           PreTokenizer& steps, bool byte_level, const std::string& place) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json_text(model, key, "", place).empty()) throw refuse_tokenizer(place, fmt::format("`{}`", key));
  }
  if (byte_level && json_flag(model, "byte_fallback", false, place))
    throw refuse_tokenizer(place, "`byte_fallback` over bytes");
  if (json_part(model, "dropout").is_number() && json_part(model, "dropout").get<double>() > 0)
    throw refuse_tokenizer(place, "BPE dropout");
  BpeOptions options;
  options.vocabulary = std::move(vocabulary);
  options.merges = parse_merges(json_part(model, "merges"), place);
  if (json_part(model, "unk_token").is_string()) options.unknown = json_part(model, "unk_token").get<std::string>();
  options.fuse_unknown = json_flag(model, "fuse_unk", false, place);
  options.ignore_merges = json_flag(model, "ignore_merges", false, place);
  if (!byte_level) set_up_characters(model, decoder, steps, options, place);
  return make_bpe(std::move(options), place);
}

// `vocabulary` gets the ids of the tokens.
std::shared_ptr<const WordModel> parse_unigram(const json& model, const json& decoder, Vocabulary& vocabulary,
                                               bool byte_level, const std::string& place) {
  if (byte_level) throw refuse_tokenizer(place, "Unigram over bytes");
  const json& list = json_part(model, "vocab");
  if (!list.is_array() || list.empty() || list.size() > static_cast<std::size_t>(kMaxTokenId)) {
    throw malformed_tokenizer(place, "the vocabulary is not a list of tokens and scores");
  }
  UnigramOptions options;
  for (const json& entry : list) {
    const bool pair = entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
    if (!pair)
      throw malformed_tokenizer(place, fmt::format("token {} is not a text and a score", options.tokens.size()));
    const auto id = static_cast<TokenId>(options.tokens.size());
    options.tokens.emplace_back(entry[0].get<std::string>(), entry[1].get<double>());
    if (!vocabulary.emplace(options.tokens.back().first, id).second) {
      throw malformed_tokenizer(place,
                                fmt::format("`{}` is in the vocabulary twice", printable(options.tokens.back().first)));
    }
  }
  if (!json_part(model, "unk_id").is_number_integer())
    throw refuse_tokenizer(place, "Unigram without an unknown token");
  options.unknown = json_id(json_part(model, "unk_id"), "unk_id", place);
  options.byte_fallback = json_flag(model, "byte_fallback", false, place);
  options.strip_first_space = strips_first_space(decoder, place);
  return make_unigram(std::move(options), place);
}

std::shared_ptr<const WordModel> parse_word_piece(const json& model, const json& decoder, Vocabulary vocabulary,
                                                  bool byte_level, const std::string& place) {
  if (byte_level) throw refuse_tokenizer(place, "WordPiece over bytes");
  WordPieceOptions options;
  options.vocabulary = std::move(vocabulary);
  options.unknown = json_text(model, "unk_token", options.unknown, place);
  options.continuation = json_text(model, "continuing_subword_prefix", options.continuation, place);
  const json& longest = json_part(model, "max_input_chars_per_word");
  if (longest.is_number_unsigned())
    options.max_characters = std::min<std::uint64_t>(longest.get<std::uint64_t>(), 10'000);
  if (decoder.is_object()) options.clean_up = json_flag(decoder, "cleanup", true, place);
  return make_word_piece(std::move(options), place);
}

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines = split(read_file(file, kMaxFileBytes), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (std::string& line : lines) {
    if (line.ends_with('\r')) line.pop_back();
  }
  return lines;
}

}  // namespace

HfTokenizerParts read_tokenizer_json(const fs::path& file) {
  const std::string place = file.string();
  const json root = parse(file);
  if (!root.is_object()) throw malformed_tokenizer(place, "no JSON object");
  const json& model = json_part(root, "model");
  std::string type = json_type(model, "`model`", place);
  if (type.empty() && model.contains("merges")) type = "BPE";  // files of older versions do not say
  constexpr int kMaxDepth = 4;
  HfTokenizerParts parts;
  bool byte_level = false;
  parse_normalizer(json_part(root, "normalizer"), place, kMaxDepth, parts.normalizer);
  parse_pre_tokenizer(json_part(root, "pre_tokenizer"), place, kMaxDepth, parts.pre_tokenizer, byte_level);
  if (type != "BPE" && type != "WordPiece" && type != "Unigram") {
    throw refuse_tokenizer(place, "the model `" + printable(type) + "`");
  }
  if (type != "Unigram") parts.vocabulary = parse_vocabulary(json_part(model, "vocab"), place);
  const json& decoder = json_part(root, "decoder");
  if (type == "BPE") {
    parts.model = parse_bpe(model, decoder, parts.vocabulary, parts.pre_tokenizer, byte_level, place);
  } else if (type == "Unigram") {
    parts.model = parse_unigram(model, decoder, parts.vocabulary, byte_level, place);
  } else {
    parts.model = parse_word_piece(model, decoder, parts.vocabulary, byte_level, place);
  }
  parts.added = parse_added(json_part(root, "added_tokens"), parts.vocabulary, place);
  return parts;
}

HfTokenizerParts read_gpt2_files(const fs::path& vocab, const fs::path& merges) {
  HfTokenizerParts parts;
  parts.vocabulary = parse_vocabulary(parse(vocab), vocab.string());
  BpeOptions options;
  options.vocabulary = parts.vocabulary;
  int line_number = 0;
  for (const std::string& line : lines_of(merges)) {
    ++line_number;
    if (line.starts_with("#version") || line.empty()) continue;
    options.merges.push_back(split_merge(line, fmt::format("{}:{}", merges.string(), line_number)));
  }
  parts.model = make_bpe(std::move(options), merges.string());
  parts.pre_tokenizer = {{PreTokenizerStep::Kind::kGpt2}};
  if (const auto end = parts.vocabulary.find("<|endoftext|>"); end != parts.vocabulary.end()) {
    AddedToken token;
    token.content = end->first;
    token.id = end->second;
    token.special = true;
    parts.added.push_back(std::move(token));
  }
  return parts;
}

HfTokenizerParts read_bert_vocabulary(const fs::path& vocab) {
  const std::string place = vocab.string();
  HfTokenizerParts parts;
  TokenId next = 0;
  for (const std::string& line : lines_of(vocab)) {
    if (next >= kMaxTokenId) throw malformed_tokenizer(place, "more than 2^24 tokens");
    parts.vocabulary.insert_or_assign(line, next++);
  }
  BertNormalization bert;
  const fs::path config_file = vocab.parent_path() / "tokenizer_config.json";
  if (fs::exists(config_file)) {
    const json config = parse(config_file);
    if (!config.is_object()) throw malformed_tokenizer(config_file.string(), "no JSON object");
    bert.lowercase = json_flag(config, "do_lower_case", true, config_file.string());
    bert.handle_chinese_chars = json_flag(config, "tokenize_chinese_chars", true, config_file.string());
    bert.strip_accents = json_flag(config, "strip_accents", bert.lowercase, config_file.string());
  }
  WordPieceOptions options;
  options.vocabulary = parts.vocabulary;
  parts.model = make_word_piece(std::move(options), place);
  parts.normalizer = {{.kind = NormalizerStep::Kind::kBert, .bert = bert}};
  parts.pre_tokenizer = {{PreTokenizerStep::Kind::kBert}};
  for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    const auto found = parts.vocabulary.find(name);
    if (found == parts.vocabulary.end()) continue;
    AddedToken token;
    token.content = name;
    token.id = found->second;
    token.special = true;
    parts.added.push_back(std::move(token));
  }
  return parts;
}

HfTokenizerParts read_hf_tokenizer(const fs::path& path) {
  const bool folder = fs::is_directory(path);
  const fs::path home = folder ? path : path.parent_path();
  const std::string name = path.filename().string();
  if (!folder && !fs::exists(path)) {
    throw environment_error("no such tokenizer",
                            "data.tokenizer is `bytes`, or a folder or file with Hugging Face files", {path.string()});
  }
  if (folder ? fs::exists(home / "tokenizer.json") : name.ends_with(".json") && name != "vocab.json") {
    return read_tokenizer_json(folder ? home / "tokenizer.json" : path);
  }
  if (folder ? fs::exists(home / "vocab.json") : name == "vocab.json" || name == "merges.txt") {
    return read_gpt2_files(home / "vocab.json", home / "merges.txt");
  }
  if (!folder) return read_bert_vocabulary(path);
  if (fs::exists(home / "vocab.txt")) return read_bert_vocabulary(home / "vocab.txt");
  throw environment_error("no tokenizer.json, vocab.json or vocab.txt in the folder",
                          "copy the tokenizer files of the model there", {path.string()});
}

}  // namespace lockstep::data
