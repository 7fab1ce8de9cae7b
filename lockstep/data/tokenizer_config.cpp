#include "lockstep/data/tokenizer_config.h"

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{64} << 20;

// A token is a text, or an object with the text as `content`.
std::string token_of(const JsonReader& config, const char* key) {
  if (!config.has(key)) return {};
  if (config.value().at(key).is_object()) return config.object(key).text("content", "");
  return config.text(key);
}

// A program, or a list of named ones of which `default` is for chats.
std::string chat_template_of(const JsonReader& config, const std::string& file) {
  constexpr const char* kKey = "chat_template";
  if (!config.has(kKey)) return {};
  if (!config.value().at(kKey).is_array()) return config.text(kKey);
  for (const nlohmann::json& entry : config.array(kKey)) {
    const JsonReader named(entry, file, kKey);
    if (named.text("name", "") == "default") return named.text("template", "");
  }
  return {};
}

}  // namespace

TokenizerConfig read_tokenizer_config(const std::string& tokenizer) {
  TokenizerConfig result;
  result.bytes = tokenizer == "bytes";
  if (result.bytes) return result;
  const fs::path folder = fs::is_directory(tokenizer) ? fs::path(tokenizer) : fs::path(tokenizer).parent_path();
  const fs::path file = folder / "tokenizer_config.json";
  if (fs::exists(file)) {
    const nlohmann::json json = read_json_file(file, kMaxFileBytes);
    const JsonReader config(json, printable_path(file));
    result.end_of_text = token_of(config, "eos_token");
    result.padding = token_of(config, "pad_token");
    // GPT-2 names one token for both ends and puts it only at the end.
    const std::string begin = token_of(config, "bos_token");
    if (config.boolean_or("add_bos_token", true) && begin != result.end_of_text) result.begin_of_text = begin;
    result.chat_template = chat_template_of(config, printable_path(file));
  }
  const fs::path program = folder / "chat_template.jinja";  // takes precedence, as in transformers
  if (fs::exists(program)) result.chat_template = read_file(program, kMaxFileBytes);
  return result;
}

TokenId padding_id(const Tokenizer& tokenizer, const TokenizerConfig& config) {
  if (const auto id = tokenizer.token_id(config.padding); id && !config.padding.empty()) return *id;
  return padding_id(tokenizer);
}

}  // namespace lockstep::data
