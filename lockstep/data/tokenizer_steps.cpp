#include "lockstep/data/tokenizer_steps.h"

#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/data/tokenizer_json.h"
#include "lockstep/data/unicode.h"

namespace lockstep::data {
namespace {

using nlohmann::json;

std::string sound(const std::string& text) {
  std::string storage;
  return std::string(sound_utf8(text, storage));
}

NormalizerStep parse_replace(const json& object, const std::string& place) {
  using Kind = NormalizerStep::Kind;
  const json& pattern = json_part(object, "pattern");
  if (!pattern.is_object()) throw malformed_tokenizer(place, "a Replace has no `pattern`");
  const std::string to = sound(json_text(object, "content", "", place));
  if (pattern.contains("String")) {
    const std::string from = sound(json_text(pattern, "String", "", place));
    if (from.empty()) throw refuse_tokenizer(place, "a replacement of an empty text");
    return {.kind = Kind::kReplace, .from = from, .to = to};
  }
  // What SentencePiece's converters write for "remove extra white space".
  const std::string regex = json_text(pattern, "Regex", "", place);
  if (regex == " {2,}") return {.kind = Kind::kReplaceSpaces, .to = to};
  throw refuse_tokenizer(place, "a replacement of the pattern `" + printable(regex) + "`");
}

PreTokenizerStep parse_split(const json& object, const std::string& place) {
  const json& pattern = json_part(object, "pattern");
  const std::string regex = pattern.is_object() ? json_text(pattern, "Regex", "", place) : "";
  PreTokenizerStep step{PreTokenizerStep::Kind::kGpt2};
  if (!find_pattern(regex, step)) throw refuse_tokenizer(place, "the split pattern `" + printable(regex) + "`");
  const std::string behavior = json_text(object, "behavior", "", place);
  const bool invert = json_flag(object, "invert", false, place);
  // The known patterns match every character, so these two come to the same.
  if ((behavior == "Isolated" && !invert) || (behavior == "Removed" && invert)) return step;
  throw refuse_tokenizer(place, fmt::format("a split with behavior `{}`, invert {}", printable(behavior), invert));
}

PreTokenizerStep parse_metaspace(const json& object, const std::string& place) {
  using Prepend = PreTokenizerStep::Prepend;
  PreTokenizerStep step{PreTokenizerStep::Kind::kMetaspace};
  if (json_text(object, "replacement", "", place) != kVisibleSpaceBytes) {
    throw refuse_tokenizer(place, "a Metaspace with another sign than U+2581");
  }
  const bool older = json_flag(object, "add_prefix_space", true, place);  // what files said before prepend_scheme
  const std::string scheme = json_text(object, "prepend_scheme", older ? "always" : "never", place);
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    throw refuse_tokenizer(place, "the prepend_scheme `" + printable(scheme) + "`");
  }
  step.prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
  step.split = json_flag(object, "split", true, place);
  return step;
}

}  // namespace

void parse_normalizer(const json& object, const std::string& place, int depth, Normalizer& steps) {
  using Kind = NormalizerStep::Kind;
  if (object.is_null()) return;
  const std::string type = json_type(object, "the normalizer", place);
  if (const auto form = value_named<NormalForm>(type)) {
    steps.push_back({.kind = Kind::kForm, .form = *form});
  } else if (type == "Lowercase") {
    steps.push_back({.kind = Kind::kLowercase});
  } else if (type == "BertNormalizer") {
    BertNormalization bert;
    bert.clean_text = json_flag(object, "clean_text", true, place);
    bert.handle_chinese_chars = json_flag(object, "handle_chinese_chars", true, place);
    bert.lowercase = json_flag(object, "lowercase", true, place);
    bert.strip_accents = json_flag(object, "strip_accents", bert.lowercase, place);
    steps.push_back({.kind = Kind::kBert, .bert = bert});
  } else if (type == "Prepend") {
    steps.push_back({.kind = Kind::kPrepend, .to = sound(json_text(object, "prepend", "", place))});
  } else if (type == "Replace") {
    steps.push_back(parse_replace(object, place));
  } else if (type == "Precompiled") {
    const std::string map = json_text(object, "precompiled_charsmap", "", place);
    if (!map.empty()) steps.push_back({.kind = Kind::kCharsmap, .charsmap = read_charsmap(map, place)});
  } else if (type == "Nmt" || type == "StripAccents") {
    steps.push_back({.kind = type == "Nmt" ? Kind::kNmt : Kind::kStripAccents});
  } else if (type == "Strip") {
    steps.push_back({.kind = Kind::kStrip,
                     .left = json_flag(object, "strip_left", true, place),
                     .right = json_flag(object, "strip_right", true, place)});
  } else if (type == "Sequence" && depth > 0 && json_part(object, "normalizers").is_array()) {
    for (const json& step : json_part(object, "normalizers")) parse_normalizer(step, place, depth - 1, steps);
  } else {
    throw refuse_tokenizer(place, "the normalizer `" + printable(type) + "`");
  }
}

void parse_pre_tokenizer(const json& object, const std::string& place, int depth, PreTokenizer& steps,
                         bool& byte_level) {
  using Kind = PreTokenizerStep::Kind;
  if (object.is_null()) return;
  const std::string type = json_type(object, "the pre_tokenizer", place);
  if (byte_level) throw refuse_tokenizer(place, "a pre-tokenizer after ByteLevel");
  if (type == "ByteLevel") {
    if (json_flag(object, "add_prefix_space", true, place)) steps.push_back({Kind::kPrefixSpace});
    if (json_flag(object, "use_regex", true, place)) steps.push_back({Kind::kGpt2});
    byte_level = true;
  } else if (type == "BertPreTokenizer") {
    steps.push_back({Kind::kBert});
  } else if (type == "Split") {
    steps.push_back(parse_split(object, place));
  } else if (type == "WhitespaceSplit") {
    steps.push_back({Kind::kWhiteSpace});
  } else if (type == "Metaspace") {
    steps.push_back(parse_metaspace(object, place));
  } else if (type == "Sequence" && depth > 0 && json_part(object, "pretokenizers").is_array()) {
    for (const json& step : json_part(object, "pretokenizers"))
      parse_pre_tokenizer(step, place, depth - 1, steps, byte_level);
  } else {
    throw refuse_tokenizer(place, "the pre-tokenizer `" + printable(type) + "`");
  }
}

}  // namespace lockstep::data
