#include "lockstep/data/token_cache.h"

#include <fmt/format.h>

#include <cstdlib>

#include "lockstep/base/counter_random.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/data/token_folder.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr double kLongestWait = 6 * 3600;

const char* set_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// The name of a folder of the cache; the folder holds all that went into it, and a wrong one is noticed.
std::string name_of(const std::string& identity) {
  std::uint64_t low = 1, high = 2;
  for (const char c : identity) {
    low = combine(low, static_cast<unsigned char>(c));
    high = combine(high, static_cast<unsigned char>(c));
  }
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace

fs::path cache_directory() {
  if (const char* cache = set_variable("LOCKSTEP_CACHE")) return cache;
  if (const char* cache = set_variable("XDG_CACHE_HOME")) return fs::path(cache) / "lockstep";
  if (const char* home = set_variable("HOME")) return fs::path(home) / ".cache/lockstep";
  throw environment_error("there is no place to keep tokens: HOME is not set", "set LOCKSTEP_CACHE to a folder");
}

std::shared_ptr<const TokenStream> open_cached_text(const fs::path& path, const std::string& tokenizer,
                                                    const CorpusOptions& options,
                                                    const std::function<void(std::int64_t vocab_size)>& check) {
  TokenizeRequest request{.inputs = {path}, .tokenizer = tokenizer, .output = {}, .corpus = options};
  request.wait_seconds = kLongestWait;
  request.output = cache_directory() / "tokens" / name_of(corpus_identity(request).dump());
  if (!fs::exists(request.output / "index.json")) {
    check(open_tokenizer(tokenizer)->vocab_size());
    try {
      make_folders(request.output);
    } catch (const UserError& error) {
      throw environment_error(std::string("tokens cannot be kept: ") + error.what(),
                              "set LOCKSTEP_CACHE to a folder that can be written");
    }
    tokenize_corpus(request);
  }
  return open_token_folder(request.output);
}

}  // namespace lockstep::data
