// Reading Hugging Face's tokenizer files. They may come from anywhere, so everything is checked, and a step that we
// do not reproduce exactly is refused by name: wrong ids would train a wrong model without a word.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/data/hf_tokenizer.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;
constexpr std::int64_t kMaxId = std::int64_t{1} << 24;

UserError refuse(const std::string& place, const std::string& what) {
  return bad_input(
      "the tokenizer uses " + what + ", which lockstep does not reproduce",
      "use a BPE or WordPiece tokenizer of a known kind, or tokenise elsewhere into token shards (data.kind: tokens)",
      {place});
}

UserError malformed(const std::string& place, const std::string& what) {
  return bad_input(what, "take the file from the model's folder again", {place});
}

json parse(const fs::path& file) {
  const std::string text = read_file(file, kMaxFileBytes);
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw malformed(file.string(), fmt::format("not JSON: wrong at byte {} of {}", error.byte, text.size()));
  }
}

// Absent and null read as the fallback; any other type than the fallback's is an error.
bool flag(const json& object, const char* key, bool fallback, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) throw malformed(place, fmt::format("`{}` is not true or false", key));
  return found->get<bool>();
}

std::string text(const json& object, const char* key, const std::string& fallback, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_string()) throw malformed(place, fmt::format("`{}` is not a string", key));
  return found->get<std::string>();
}

std::string sound(const std::string& text) {
  std::string storage;
  return std::string(sound_utf8(text, storage));
}

const json& part(const json& object, const char* key) {
  static const json kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

std::string type_of(const json& object, const std::string& what, const std::string& place) {
  if (!object.is_object()) throw malformed(place, what + " is not an object");
  return text(object, "type", "", place);
}

TokenId checked_id(const json& value, const std::string& token, const std::string& place) {
  // get<uint64_t> of a negative number would wrap.
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 || value.get<std::int64_t>() >= kMaxId ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxId))) {
    throw malformed(place, fmt::format("the id of `{}` is not a whole number below 2^24", printable(token)));
  }
  return value.get<TokenId>();
}

Vocabulary parse_vocabulary(const json& object, const std::string& place) {
  if (!object.is_object() || object.empty())
    throw malformed(place, "the vocabulary is not an object of tokens and ids");
  Vocabulary vocabulary;
  std::unordered_map<TokenId, const std::string*> owners;
  for (const auto& [token, value] : object.items()) {
    const auto entry = vocabulary.emplace(token, checked_id(value, token, place)).first;
    const auto [owner, fresh] = owners.emplace(entry->second, &entry->first);
    if (fresh) continue;
    throw malformed(place, fmt::format("`{}` and `{}` both have the id {}", printable(token), printable(*owner->second),
                                       entry->second));
  }
  return vocabulary;
}

Merge split_merge(std::string_view line, const std::string& place) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    throw malformed(place, "the merge `" + printable(line) + "` is not a pair of tokens");
  }
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

std::vector<Merge> parse_merges(const json& list, const std::string& place) {
  if (!list.is_array()) throw malformed(place, "`merges` is not a list");
  std::vector<Merge> merges;
  for (const json& merge : list) {
    if (merge.is_string()) {
      merges.push_back(split_merge(merge.get_ref<const std::string&>(), place));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges.push_back({merge[0].get<std::string>(), merge[1].get<std::string>()});
    } else {
      throw malformed(place, fmt::format("merge {} is not a pair of tokens", merges.size()));
    }
  }
  return merges;
}

void parse_normalizer(const json& object, const std::string& place, int depth, Normalizer& steps) {
  using Kind = NormalizerStep::Kind;
  if (object.is_null()) return;
  const std::string type = type_of(object, "the normalizer", place);
  if (const auto form = value_named<NormalForm>(type)) {
    steps.push_back({.kind = Kind::kForm, .form = *form});
  } else if (type == "Lowercase") {
    steps.push_back({.kind = Kind::kLowercase});
  } else if (type == "BertNormalizer") {
    BertNormalization bert;
    bert.clean_text = flag(object, "clean_text", true, place);
    bert.handle_chinese_chars = flag(object, "handle_chinese_chars", true, place);
    bert.lowercase = flag(object, "lowercase", true, place);
    bert.strip_accents = flag(object, "strip_accents", bert.lowercase, place);
    steps.push_back({.kind = Kind::kBert, .bert = bert});
  } else if (type == "Prepend") {
    steps.push_back({.kind = Kind::kPrepend, .to = sound(text(object, "prepend", "", place))});
  } else if (type == "Replace" && part(object, "pattern").is_object() && part(object, "pattern").contains("String")) {
    const std::string from = sound(text(part(object, "pattern"), "String", "", place));
    if (from.empty()) throw refuse(place, "a replacement of an empty text");
    steps.push_back({.kind = Kind::kReplace, .from = from, .to = sound(text(object, "content", "", place))});
  } else if (type == "Sequence" && depth > 0 && part(object, "normalizers").is_array()) {
    for (const json& step : part(object, "normalizers")) parse_normalizer(step, place, depth - 1, steps);
  } else {
    throw refuse(place, "the normalizer `" + printable(type) + "`");
  }
}

PreTokenizerStep parse_split(const json& object, const std::string& place) {
  const json& pattern = part(object, "pattern");
  const std::string regex = pattern.is_object() ? text(pattern, "Regex", "", place) : "";
  PreTokenizerStep step{PreTokenizerStep::Kind::kGpt2};
  if (!find_pattern(regex, step)) throw refuse(place, "the split pattern `" + printable(regex) + "`");
  const std::string behavior = text(object, "behavior", "", place);
  const bool invert = flag(object, "invert", false, place);
  // The known patterns match every character, so these two come to the same.
  if ((behavior == "Isolated" && !invert) || (behavior == "Removed" && invert)) return step;
  throw refuse(place, fmt::format("a split with behavior `{}`, invert {}", printable(behavior), invert));
}

PreTokenizerStep parse_metaspace(const json& object, const std::string& place) {
  using Prepend = PreTokenizerStep::Prepend;
  PreTokenizerStep step{PreTokenizerStep::Kind::kMetaspace};
  if (text(object, "replacement", "", place) != kVisibleSpaceBytes) {
    throw refuse(place, "a Metaspace with another sign than U+2581");
  }
  const bool older = flag(object, "add_prefix_space", true, place);  // what files said before prepend_scheme
  const std::string scheme = text(object, "prepend_scheme", older ? "always" : "never", place);
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    throw refuse(place, "the prepend_scheme `" + printable(scheme) + "`");
  }
  step.prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
  step.split = flag(object, "split", true, place);
  return step;
}

// `byte_level` becomes true at a ByteLevel step, which must be the last.
void parse_pre_tokenizer(const json& object, const std::string& place, int depth, PreTokenizer& steps,
                         bool& byte_level) {
  using Kind = PreTokenizerStep::Kind;
  if (object.is_null()) return;
  const std::string type = type_of(object, "the pre_tokenizer", place);
  if (byte_level) throw refuse(place, "a pre-tokenizer after ByteLevel");
  if (type == "ByteLevel") {
    if (flag(object, "add_prefix_space", true, place)) steps.push_back({Kind::kPrefixSpace});
    if (flag(object, "use_regex", true, place)) steps.push_back({Kind::kGpt2});
    byte_level = true;
  } else if (type == "BertPreTokenizer") {
    steps.push_back({Kind::kBert});
  } else if (type == "Split") {
    steps.push_back(parse_split(object, place));
  } else if (type == "Metaspace") {
    steps.push_back(parse_metaspace(object, place));
  } else if (type == "Sequence" && depth > 0 && part(object, "pretokenizers").is_array()) {
    for (const json& step : part(object, "pretokenizers"))
      parse_pre_tokenizer(step, place, depth - 1, steps, byte_level);
  } else {
    throw refuse(place, "the pre-tokenizer `" + printable(type) + "`");
  }
}

std::vector<AddedToken> parse_added(const json& list, const Vocabulary& vocabulary, const std::string& place) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array()) throw malformed(place, "`added_tokens` is not a list");
  for (const json& entry : list) {
    if (!entry.is_object()) throw malformed(place, "an added token is not an object");
    AddedToken token;
    token.content = text(entry, "content", "", place);
    token.id = checked_id(part(entry, "id"), token.content, place);
    token.single_word = flag(entry, "single_word", false, place);
    token.lstrip = flag(entry, "lstrip", false, place);
    token.rstrip = flag(entry, "rstrip", false, place);
    token.special = flag(entry, "special", false, place);
    token.normalized = flag(entry, "normalized", !token.special, place);
    const auto known = vocabulary.find(token.content);
    if (known != vocabulary.end() && known->second != token.id) {
      throw malformed(place, fmt::format("the added token `{}` has the id {}, in the vocabulary {}",
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
  const std::string type = text(decoder, "type", "", place);
  if (type == "Metaspace") return text(decoder, "prepend_scheme", "always", place) != "never";
  const json& steps = part(decoder, "decoders");
  return type == "Sequence" && steps.is_array() && std::any_of(steps.begin(), steps.end(), [&](const json& step) {
           return step.is_object() && text(step, "type", "", place) == "Strip" && part(step, "start") == 1;
         });
}

// BPE over characters, as SentencePiece trains it (Llama 2, Mistral).
void set_up_characters(const json& model, const json& decoder, PreTokenizer& steps, BpeOptions& options,
                       const std::string& place) {
  using Kind = PreTokenizerStep::Kind;
  options.byte_level = false;
  options.byte_fallback = flag(model, "byte_fallback", false, place);
  options.strip_first_space = strips_first_space(decoder, place);
  if (!steps.empty() && (steps.size() > 1 || steps[0].kind != Kind::kMetaspace)) {
    throw refuse(place, "BPE over characters with another pre-tokenizer than Metaspace");
  }
  const bool split = !steps.empty() && steps[0].split;
  if (!split && !options.ignore_merges && may_cut_at_spaces(options.vocabulary)) steps.push_back({Kind::kSpaceRuns});
}

std::shared_ptr<const WordModel> parse_bpe(const json& model, const json& decoder, Vocabulary vocabulary,
                                           PreTokenizer& steps, bool byte_level, const std::string& place) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text(model, key, "", place).empty()) throw refuse(place, fmt::format("`{}`", key));
  }
  if (byte_level && flag(model, "byte_fallback", false, place)) throw refuse(place, "`byte_fallback` over bytes");
  if (part(model, "dropout").is_number() && part(model, "dropout").get<double>() > 0)
    throw refuse(place, "BPE dropout");
  BpeOptions options;
  options.vocabulary = std::move(vocabulary);
  options.merges = parse_merges(part(model, "merges"), place);
  if (part(model, "unk_token").is_string()) options.unknown = part(model, "unk_token").get<std::string>();
  options.fuse_unknown = flag(model, "fuse_unk", false, place);
  options.ignore_merges = flag(model, "ignore_merges", false, place);
  if (!byte_level) set_up_characters(model, decoder, steps, options, place);
  return make_bpe(std::move(options), place);
}

std::shared_ptr<const WordModel> parse_word_piece(const json& model, const json& decoder, Vocabulary vocabulary,
                                                  bool byte_level, const std::string& place) {
  if (byte_level) throw refuse(place, "WordPiece over bytes");
  WordPieceOptions options;
  options.vocabulary = std::move(vocabulary);
  options.unknown = text(model, "unk_token", options.unknown, place);
  options.continuation = text(model, "continuing_subword_prefix", options.continuation, place);
  const json& longest = part(model, "max_input_chars_per_word");
  if (longest.is_number_unsigned())
    options.max_characters = std::min<std::uint64_t>(longest.get<std::uint64_t>(), 10'000);
  if (decoder.is_object()) options.clean_up = flag(decoder, "cleanup", true, place);
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
  if (!root.is_object()) throw malformed(place, "no JSON object");
  const json& model = part(root, "model");
  std::string type = type_of(model, "`model`", place);
  if (type.empty() && model.contains("merges")) type = "BPE";  // files of older versions do not say
  constexpr int kMaxDepth = 4;
  HfTokenizerParts parts;
  bool byte_level = false;
  parse_normalizer(part(root, "normalizer"), place, kMaxDepth, parts.normalizer);
  parse_pre_tokenizer(part(root, "pre_tokenizer"), place, kMaxDepth, parts.pre_tokenizer, byte_level);
  if (type != "BPE" && type != "WordPiece") throw refuse(place, "the model `" + printable(type) + "`");
  parts.vocabulary = parse_vocabulary(part(model, "vocab"), place);
  const json& decoder = part(root, "decoder");
  parts.model = type == "BPE" ? parse_bpe(model, decoder, parts.vocabulary, parts.pre_tokenizer, byte_level, place)
                              : parse_word_piece(model, decoder, parts.vocabulary, byte_level, place);
  parts.added = parse_added(part(root, "added_tokens"), parts.vocabulary, place);
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
    if (next >= kMaxId) throw malformed(place, "more than 2^24 tokens");
    parts.vocabulary.insert_or_assign(line, next++);
  }
  BertNormalization bert;
  const fs::path config_file = vocab.parent_path() / "tokenizer_config.json";
  if (fs::exists(config_file)) {
    const json config = parse(config_file);
    if (!config.is_object()) throw malformed(config_file.string(), "no JSON object");
    bert.lowercase = flag(config, "do_lower_case", true, config_file.string());
    bert.handle_chinese_chars = flag(config, "tokenize_chinese_chars", true, config_file.string());
    bert.strip_accents = flag(config, "strip_accents", bert.lowercase, config_file.string());
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
