#include "lockstep/data/token_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/data/fingerprint.h"
#include "lockstep/data/token_shard.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndexSchema = "lockstep.tokens/1";
constexpr const char* kWorkSchema = "lockstep.tokenize/1";
constexpr const char* kPathFix = "check the paths of the text";

std::string shard_name(std::size_t number) { return fmt::format("tokens-{:05d}.bin", number); }

std::vector<fs::path> input_files(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    for (const fs::path& file : list_data_files(input, kPathFix)) files.push_back(file);
  }
  return files;
}

std::int64_t changed_ns(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return 0;
  return static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
}

// Held while a process writes the folder; released by the kernel when the process ends.
UniqueFd lock_folder(const fs::path& folder, double wait_seconds) {
  const fs::path file = folder / ".lock";
  UniqueFd lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock)
    throw environment_error(std::string("cannot be opened: ") + std::strerror(errno), "check the folder",
                            {file.string()});
  const Stopwatch watch;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      throw environment_error(std::string("cannot be locked: ") + std::strerror(errno), "use another file system",
                              {file.string()});
    if (watch.seconds() >= wait_seconds) {
      throw environment_error("another process is tokenising into this folder", "wait for it, or use another folder",
                              {folder.string()});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return lock;
}

// Names what differs, so that nobody has to compare two files by eye.
std::string difference(const json& before, const json& now) {
  for (const auto& [key, value] : now.items()) {
    if (before.contains(key) && before.at(key) == value) continue;
    if (key == "inputs" || key == "contents") return "other input files, or they were changed since";
    return fmt::format("{} {}, now {}", key, before.contains(key) ? printable(before.at(key).dump()) : "nothing",
                       printable(value.dump()));
  }
  return "another version of lockstep wrote it";
}

// Writes work.json, or checks that the one that is there is of the same work.
void begin_work(const fs::path& folder, const json& identity) {
  const fs::path file = folder / "work.json";
  if (fs::exists(file)) {
    const json found = read_json_file(file);
    const json before = found.is_object() ? found.value("identity", json::object()) : json::object();
    if (before == identity) return;
    throw bad_input("the folder holds tokens of other work: " + difference(before, identity),
                    "use another folder, or remove this one", {folder.string()});
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() == ".lock") continue;
    throw bad_input("the folder is not empty and was not written by `lockstep tokenize`", "name a new folder",
                    {folder.string()});
  }
  write_file_atomically(file, json{{"schema", kWorkSchema}, {"identity", identity}}.dump(1) + "\n");
}

struct ShardFacts {
  std::int64_t tokens = 0, documents = 0, skipped = 0, unknown = 0;
  std::uint32_t crc = 0;
  bool kept = false;
};

json facts_file_of(const ShardFacts& facts) { return {{"skipped", facts.skipped}, {"unknown", facts.unknown}}; }

// A text of which more than this share is unknown teaches a model nothing; of a few tokens nothing is said.
constexpr double kMostUnknown = 0.5;
constexpr std::int64_t kFewTokens = 100;

void refuse_unknown(const ShardFacts& facts, const std::string& tokenizer) {
  if (facts.tokens < kFewTokens ||
      static_cast<double>(facts.unknown) <= kMostUnknown * static_cast<double>(facts.tokens))
    return;
  throw bad_input(fmt::format("the vocabulary does not have this text: {} of {} tokens are the one for unknown words",
                              facts.unknown, facts.tokens),
                  "use the tokenizer of the model, or one that was made for such text", {tokenizer});
}

// A shard that is there and whole. What its header does not count is in a file of its own beside it.
std::optional<ShardFacts> finished_shard(const fs::path& path) {
  const fs::path notes = fs::path(path).replace_extension(".json");
  if (!fs::exists(path) || !fs::exists(notes)) return std::nullopt;
  try {
    const TokenShard shard(path);
    shard.verify();
    const json noted = read_json_file(notes);
    return ShardFacts{shard.size(),
                      static_cast<std::int64_t>(shard.document_ends().size()),
                      noted.value("skipped", std::int64_t{0}),
                      noted.value("unknown", std::int64_t{0}),
                      shard.crc(),
                      true};
  } catch (const UserError&) {
    return std::nullopt;  // damaged: it is written again
  }
}

class Work {
 public:
  Work(const Corpus& corpus, const TokenizeRequest& request)
      : corpus_(corpus), request_(request), unknown_(unknown_id(corpus.tokenizer())) {
    facts_.resize(corpus.units().size());
    progress_.total_bytes = corpus.bytes();
    progress_.total_shards = facts_.size();
  }

  // The facts of all shards; none when it was stopped.
  std::optional<std::vector<ShardFacts>> run(int workers) {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(workers));
    for (int i = 0; i < workers; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    if (stopped_) return std::nullopt;
    return facts_;
  }

  std::size_t kept() const { return progress_.kept; }

 private:
  void work() {
    while (!stopped_) {
      const std::size_t unit = next_++;
      if (unit >= facts_.size()) return;
      try {
        facts_[unit] = make(unit);
        report(unit);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        // Of several the one that stands first in the corpus, so that the message is the same every time.
        if (!error_ || unit < error_unit_) {
          error_ = std::current_exception();
          error_unit_ = unit;
        }
        stopped_ = true;
      }
    }
  }

  ShardFacts make(std::size_t unit) const {
    const fs::path path = request_.output / shard_name(unit);
    if (const auto done = finished_shard(path)) return *done;
    const EncodedUnit encoded = corpus_.encode(corpus_.units()[unit]);
    ShardFacts facts{static_cast<std::int64_t>(encoded.ids.size()),
                     static_cast<std::int64_t>(encoded.document_ends.size()), encoded.skipped};
    if (unknown_) facts.unknown = std::count(encoded.ids.begin(), encoded.ids.end(), *unknown_);
    refuse_unknown(facts, request_.tokenizer);
    write_token_shard(path, encoded.ids, corpus_.tokenizer().vocab_size(), encoded.document_ends);
    facts.crc = TokenShard(path).crc();
    write_file_atomically(fs::path(path).replace_extension(".json"), facts_file_of(facts).dump() + "\n");
    return facts;
  }

  void report(std::size_t unit) {
    const std::lock_guard lock(mutex_);
    progress_.bytes += corpus_.units()[unit].bytes;
    progress_.tokens += facts_[unit].tokens;
    progress_.kept += facts_[unit].kept ? 1 : 0;
    ++progress_.shards;
    if (request_.on_progress && !request_.on_progress(progress_)) stopped_ = true;
  }

  const Corpus& corpus_;
  const TokenizeRequest& request_;
  std::optional<TokenId> unknown_;
  std::vector<ShardFacts> facts_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  TokenizeProgress progress_;
  std::exception_ptr error_;
  std::size_t error_unit_ = 0;
};

TokenizeResult result_of(const json& index) {
  const JsonReader reader(index, "index.json");
  TokenizeResult result;
  result.tokens = reader.integer("tokens", 0);
  result.documents = reader.integer("documents", 0);
  result.skipped = reader.integer("skipped", 0);
  result.unknown = index.value("unknown", std::int64_t{0});  // folders of before have none
  result.vocab_size = reader.integer("vocab_size", 1);
  result.bytes = static_cast<std::uint64_t>(reader.integer("bytes", 0));
  result.shards = reader.array("shards").size();
  return result;
}

json index_of(const Corpus& corpus, const std::vector<ShardFacts>& facts, const json& identity) {
  json index{{"schema", kIndexSchema}, {"tokenizer", identity.at("tokenizer")}, {"bytes", corpus.bytes()}};
  std::int64_t tokens = 0, documents = 0, skipped = corpus.bad_files(), unknown = 0;
  json shards = json::array();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    tokens += facts[i].tokens;
    documents += facts[i].documents;
    skipped += facts[i].skipped;
    unknown += facts[i].unknown;
    shards.push_back({{"file", shard_name(i)},
                      {"tokens", facts[i].tokens},
                      {"documents", facts[i].documents},
                      {"crc32c", facts[i].crc}});
  }
  index.update({{"tokens", tokens},
                {"documents", documents},
                {"skipped", skipped},
                {"unknown", unknown},
                {"vocab_size", corpus.tokenizer().vocab_size()},
                {"shards", std::move(shards)}});
  const auto end = end_of_text_id(corpus.tokenizer());
  index["end_of_text"] = end ? json(*end) : json();
  return index;
}

int workers_of(int asked, std::size_t units) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(1, std::min(asked > 0 ? asked : cores, static_cast<int>(std::min<std::size_t>(units, 1024))));
}

}  // namespace

json corpus_identity(const TokenizeRequest& request) {
  json inputs = json::array();
  json contents = json::array();
  for (const fs::path& input : request.inputs) contents.push_back(fingerprint_of(input));
  for (const fs::path& file : input_files(request.inputs)) {
    inputs.push_back({{"path", fs::absolute(file).lexically_normal().string()},
                      {"bytes", fs::file_size(file)},
                      {"changed_ns", changed_ns(file)}});
  }
  const std::string tokenizer = request.tokenizer == "bytes" ? "bytes" : fingerprint_of(request.tokenizer);
  return {{"format", 2},
          {"inputs", std::move(inputs)},
          {"contents", std::move(contents)},
          {"tokenizer", tokenizer},
          {"field", request.corpus.field},
          {"on_bad", std::string(to_string(request.corpus.on_bad))},
          {"unit_bytes", request.corpus.unit_bytes}};
}

TokenizeResult tokenize_corpus(const TokenizeRequest& request) {
  const json identity = corpus_identity(request);
  make_folders(request.output);
  const UniqueFd lock = lock_folder(request.output, request.wait_seconds);
  begin_work(request.output, identity);
  const fs::path index_file = request.output / "index.json";
  if (fs::exists(index_file)) {
    TokenizeResult result = result_of(read_json_file(index_file));
    result.kept = result.shards;
    return result;
  }
  const Corpus corpus(input_files(request.inputs), open_tokenizer(request.tokenizer), request.corpus);
  Work work(corpus, request);
  const auto facts = work.run(workers_of(request.workers, corpus.units().size()));
  TokenizeResult result;
  if (facts) {
    const json index = index_of(corpus, *facts, identity);
    write_file_atomically(index_file, index.dump(1) + "\n");
    for (std::size_t i = 0; i < facts->size(); ++i) {  // now in the index
      fs::remove(fs::path(request.output / shard_name(i)).replace_extension(".json"));
    }
    result = result_of(index);
  }
  result.finished = facts.has_value();
  result.kept = work.kept();
  result.bad = corpus.bad_messages();
  return result;
}

bool is_token_folder(const fs::path& path) {
  return fs::is_directory(path) && (fs::exists(path / "index.json") || fs::exists(path / "work.json"));
}

std::shared_ptr<const TokenStream> open_token_folder(const fs::path& folder, std::int64_t verify_up_to_bytes) {
  const fs::path file = folder / "index.json";
  if (!fs::exists(file)) {
    throw bad_input("tokenising into this folder was not finished",
                    "run the same `lockstep tokenize` again: it goes on", {folder.string()});
  }
  const json index = read_json_file(file);
  const JsonReader reader(index, file.string());
  reader.require_text("schema", kIndexSchema);
  std::vector<fs::path> shards;
  for (const JsonReader& shard : reader.objects("shards")) {
    const std::string name = shard.text("file");
    if (name.empty() || name.find('/') != std::string::npos || name == "..")
      shard.fail("file", "is no file name of this folder", "write the folder again");
    shards.push_back(folder / name);
    const TokenShard opened(shards.back());
    if (opened.size() != shard.integer("tokens", 0) ||
        opened.crc() != static_cast<std::uint32_t>(shard.integer("crc32c", 0))) {
      throw bad_input("not the shard that index.json names: its tokens are others", "write the folder again",
                      {shards.back().string()});
    }
  }
  if (shards.empty()) throw bad_input("the folder holds no tokens", "tokenise some text", {folder.string()});
  return open_token_shards(shards, verify_up_to_bytes);
}

}  // namespace lockstep::data
