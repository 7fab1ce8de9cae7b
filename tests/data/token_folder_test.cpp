// Text in several formats to token shards with an index: the same tokens whatever the shards, threads and
// interruptions.
#include "lockstep/data/token_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/crc32c.h"
#include "lockstep/data/token_cache.h"
#include "lockstep/data/token_shard.h"
#include "lockstep/data/unicode.h"
#include "lockstep/data/word_model.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;
using nlohmann::json;
using Ids = std::vector<TokenId>;
namespace fs = std::filesystem;

std::vector<std::int64_t> all_of(const TokenStream& stream) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.copy(0, tokens);
  return tokens;
}

class TokenFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    // Bytes, four merges and an end-of-text token, split as GPT-2 splits.
    json vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary[byte_stand_ins()[byte]] = byte;
    int next = 256;
    for (const char* token : {"he", "ll", "hell", "\u0120he"}) vocabulary[token] = next++;
    const json root{
        {"added_tokens", {{{"id", 300}, {"content", "<|endoftext|>"}, {"special", true}}}},
        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"h e", "l l", "he ll", "\u0120 he"}}}}};
    write(path("tokenizer.json"), root.dump());
  }

  fs::path path(const std::string& name) const { return folder_.path() / name; }

  TokenizeRequest request(const std::string& input, const std::string& output,
                          std::uint64_t unit_bytes = 1 << 20) const {
    TokenizeRequest asked{
        .inputs = {path(input)}, .tokenizer = path("tokenizer.json").string(), .output = path(output)};
    asked.corpus.unit_bytes = unit_bytes;
    asked.workers = 2;
    return asked;
  }

  // 300 lines, some with characters beyond ASCII.
  static std::string long_text() {
    std::string text;
    for (int i = 0; i < 300; ++i)
      text += "hello he " + std::to_string(i * 7919) + (i % 3 == 0 ? " \u00e9\u4e2d" : "") + " shell.\n";
    return text;
  }

  Ids expected(const std::string& text) const {
    Ids ids = open_tokenizer(path("tokenizer.json").string())->encode(text);
    ids.push_back(300);
    return ids;
  }

  TemporaryFolder folder_;
};

TEST_F(TokenFolders, tokens_do_not_depend_on_the_size_of_shards_or_on_threads) {
  write(path("t.txt"), long_text());
  const Ids whole = expected(long_text());
  for (const std::uint64_t unit : {std::uint64_t{100}, std::uint64_t{1000}, std::uint64_t{1} << 20}) {
    const std::string output = "out" + std::to_string(unit);
    const TokenizeResult result = tokenize_corpus(request("t.txt", output, unit));
    EXPECT_EQ(result.shards > 3, unit < 2000) << unit;
    EXPECT_EQ(result.documents, 1);
    const auto tokens = all_of(*open_token_folder(path(output)));
    EXPECT_EQ(Ids(tokens.begin(), tokens.end()), whole) << unit;
  }
}

TEST_F(TokenFolders, an_interrupted_run_goes_on_where_it_was) {
  write(path("t.txt"), long_text());
  TokenizeRequest asked = request("t.txt", "out", 1000);
  asked.workers = 1;
  asked.on_progress = [](const TokenizeProgress& progress) { return progress.shards < 3; };
  EXPECT_FALSE(tokenize_corpus(asked).finished);
  expect_user_error(ExitCode::kUsage, {"was not finished", "again"}, [&] { open_token_folder(path("out")); });
  // The second shard is cut off, as by a full disk of a file system that loses what it promised.
  fs::resize_file(path("out") / "tokens-00001.bin", 80);
  asked.on_progress = {};
  const TokenizeResult result = tokenize_corpus(asked);
  EXPECT_EQ(result.kept, 2u);
  const auto tokens = all_of(*open_token_folder(path("out")));
  EXPECT_EQ(Ids(tokens.begin(), tokens.end()), expected(long_text()));
  EXPECT_EQ(tokenize_corpus(asked).kept, result.shards);  // nothing is left to do
}

TEST_F(TokenFolders, a_folder_of_other_work_is_refused_and_what_differs_is_named) {
  write(path("t.txt"), long_text());
  tokenize_corpus(request("t.txt", "out"));
  write(path("t.txt"), long_text() + "more");
  expect_user_error(ExitCode::kUsage, {"other work", "input files"}, [&] { tokenize_corpus(request("t.txt", "out")); });
  write(path("t.txt"), "short");
  TokenizeRequest other = request("t.txt", "out2");
  tokenize_corpus(other);
  other.corpus.field = "body";
  expect_user_error(ExitCode::kUsage, {"field \"text\", now \"body\""}, [&] { tokenize_corpus(other); });
  fs::create_directory(path("own"));
  write(path("own") / "mine.txt", "x");
  expect_user_error(ExitCode::kUsage, {"not empty"}, [&] { tokenize_corpus(request("t.txt", "own")); });
}

TEST_F(TokenFolders, records_of_json_lines_and_tables_are_documents) {
  write(path("a.jsonl"), "{\"text\": \"hello\"}\n\n{\"text\": \"he\\nll\", \"id\": 3}\n");
  write(path("b.csv"), "id,Text\n1,\"hello, \"\"he\"\"\nll\"\n2,he\n");
  write(path("c.tsv"), "text\tid\nhe ll\t1\n");
  const std::vector<std::string> texts[] = {{"hello", "he\nll"}, {"hello, \"he\"\nll", "he"}, {"he ll"}};
  int number = 0;
  for (const char* name : {"a.jsonl", "b.csv", "c.tsv"}) {
    Ids wanted;
    std::vector<std::uint64_t> ends;
    for (const std::string& text : texts[number++]) {
      const Ids document = expected(text);
      wanted.insert(wanted.end(), document.begin(), document.end());
      ends.push_back(wanted.size());
    }
    const std::string output = std::string("out-") + name;
    EXPECT_EQ(tokenize_corpus(request(name, output)).documents, static_cast<std::int64_t>(ends.size()));
    const auto tokens = all_of(*open_token_folder(path(output)));
    EXPECT_EQ(Ids(tokens.begin(), tokens.end()), wanted) << name;
    const TokenShard shard(path(output) / "tokens-00000.bin");
    EXPECT_EQ(std::vector<std::uint64_t>(shard.document_ends().begin(), shard.document_ends().end()), ends) << name;
  }
}

TEST_F(TokenFolders, a_bad_record_is_named_by_line_or_skipped_and_counted) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"hello\"}\n";
  write(path("a.jsonl"), lines + "{\"text\": 3}\n{\"txt\": \"he\"}\n{\"text\": \"he\n" + lines);
  const auto run = [&](spec::OnBad policy) {
    TokenizeRequest asked = request("a.jsonl", "out", 500);
    asked.corpus.on_bad = policy;
    return tokenize_corpus(asked);
  };
  expect_user_error(ExitCode::kUsage, {"a.jsonl:101", "`text` is no string", "--field"},
                    [&] { run(spec::OnBad::kRefuse); });
  fs::remove_all(path("out"));
  const TokenizeResult result = run(spec::OnBad::kSkip);
  EXPECT_EQ(result.skipped, 3);
  EXPECT_EQ(result.documents, 200);
  ASSERT_EQ(result.bad.size(), 3u);
  EXPECT_NE(result.bad[1].find("a.jsonl:102"), std::string::npos) << result.bad[1];
}

TEST_F(TokenFolders, an_open_quote_of_a_table_is_refused_or_ends_it) {
  write(path("b.csv"), "text\nhe\n\"hello\nhe\n");
  TokenizeRequest asked = request("b.csv", "out");
  expect_user_error(ExitCode::kUsage, {"b.csv:3", "never closed"}, [&] { tokenize_corpus(asked); });
  fs::remove_all(path("out"));
  asked.corpus.on_bad = spec::OnBad::kSkip;
  EXPECT_EQ(tokenize_corpus(asked).documents, 1);
}

TEST_F(TokenFolders, what_is_no_text_is_refused_by_what_it_is) {
  const std::pair<std::string, const char*> wrong[] = {
      {"PAR1" + std::string(100, 'x'), "a Parquet file"},
      {std::string("abc\0def", 7), "zero byte at 3"},
      {"\x1F\x8B rest", "a gzip file"},
      {std::string(257, 'a') + "ustar  ", "a tar archive"},
      {std::string(60, '\xE9') + std::string(100, 'a'), "no UTF-8 text"},
  };
  for (const auto& [bytes, what] : wrong) {
    write(path("t.txt"), bytes);
    expect_user_error(ExitCode::kUsage, {"t.txt", what}, [&] { tokenize_corpus(request("t.txt", "out")); });
    fs::remove_all(path("out"));
  }
  write(path("t.csv"), "id,body\n1,2\n");
  expect_user_error(ExitCode::kUsage, {"t.csv:1", "no column `text`"},
                    [&] { tokenize_corpus(request("t.csv", "out")); });
}

TEST_F(TokenFolders, a_lying_index_is_refused) {
  write(path("t.txt"), long_text());
  tokenize_corpus(request("t.txt", "out", 1000));
  json index = json::parse(read_file(path("out") / "index.json"));
  fs::copy_file(path("out") / "tokens-00000.bin", path("out") / "tokens-00001.bin",
                fs::copy_options::overwrite_existing);
  expect_user_error(ExitCode::kUsage, {"tokens-00001.bin", "not the shard"}, [&] { open_token_folder(path("out")); });
  index["shards"][0]["file"] = "../tokens-00000.bin";
  write(path("out") / "index.json", index.dump());
  expect_user_error(ExitCode::kUsage, {"no file name"}, [&] { open_token_folder(path("out")); });
}

TEST_F(TokenFolders, shards_with_lying_tables_of_documents_are_refused) {
  const auto forge = [&](std::size_t offset, std::uint64_t value) {
    const Ids ids(100, 7);
    const std::uint64_t ends[] = {40, 100};
    write_token_shard(path("s"), ids, 1000, ends);
    std::string bytes = read_file(path("s"));
    std::memcpy(bytes.data() + offset, &value, 8);
    const std::uint32_t crc = crc32c(bytes.data(), 60);
    std::memcpy(bytes.data() + 60, &crc, 4);
    write(path("s"), bytes);
  };
  const auto open = [&] { TokenShard(path("s")).verify(); };
  forge(16, 100);
  EXPECT_EQ(TokenShard(path("s")).document_ends().size(), 2u);
  open();
  forge(40, 3);
  expect_user_error(ExitCode::kUsage, {"3 documents"}, open);
  forge(40, std::uint64_t{1} << 61);  // times 8 wraps to nothing
  expect_user_error(ExitCode::kUsage, {"documents"}, open);
  forge(16, (std::uint64_t{1} << 63) + 100);
  expect_user_error(ExitCode::kUsage, {"announces"}, open);
  forge(64 + 200, 101);  // the first end lies behind the last token
  expect_user_error(ExitCode::kUsage, {"ends of documents are damaged"}, open);
}

TEST_F(TokenFolders, text_that_is_unknown_to_the_tokenizer_is_counted_and_mostly_unknown_text_refused) {
  const json words{{"[UNK]", 0}, {"rain", 1}};
  write(path("tokenizer.json"), json{{"added_tokens", json::array()},
                                     {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                                     {"model", {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", words}}}}
                                    .dump());
  const auto text_of = [](int known, int unknown) {
    std::string text;
    for (int i = 0; i < known; ++i) text += "rain ";
    for (int i = 0; i < unknown; ++i) text += "snow ";
    return text;
  };
  write(path("some.txt"), text_of(60, 40));
  const TokenizeResult some = tokenize_corpus(request("some.txt", "some"));
  EXPECT_EQ(some.tokens, 100);
  EXPECT_EQ(some.unknown, 40);
  EXPECT_EQ(tokenize_corpus(request("some.txt", "some")).unknown, 40);  // read from the index
  write(path("most.txt"), text_of(40, 60));
  expect_user_error(ExitCode::kUsage, {"tokenizer.json", "60 of 100 tokens", "use the tokenizer of the model"},
                    [&] { tokenize_corpus(request("most.txt", "most")); });
  write(path("short.txt"), text_of(0, 5));
  EXPECT_EQ(tokenize_corpus(request("short.txt", "short")).unknown, 5);
}

class TokenCache : public TokenFolders {
 protected:
  void SetUp() override {
    TokenFolders::SetUp();
    setenv("LOCKSTEP_CACHE", path("cache").c_str(), 1);
  }
  void TearDown() override { unsetenv("LOCKSTEP_CACHE"); }

  std::vector<std::int64_t> open() const {
    return all_of(*open_cached_text(path("t.txt"), path("tokenizer.json").string(), {}, [](std::int64_t) {}));
  }
  std::size_t folders() const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(path("cache") / "tokens")) count += entry.is_directory() ? 1 : 0;
    return count;
  }
};

TEST_F(TokenCache, text_is_tokenised_once_by_all_who_ask_at_the_same_time) {
  write(path("t.txt"), long_text());
  std::vector<std::vector<std::int64_t>> seen(4);
  std::vector<std::thread> ranks;
  for (auto& tokens : seen) ranks.emplace_back([&] { tokens = open(); });
  for (std::thread& rank : ranks) rank.join();
  const Ids wanted = expected(long_text());
  for (const auto& tokens : seen) EXPECT_EQ(Ids(tokens.begin(), tokens.end()), wanted);
  EXPECT_EQ(folders(), 1u);
  const auto entry = *fs::directory_iterator(path("cache") / "tokens");
  const auto written = fs::last_write_time(entry.path() / "index.json");
  open();
  EXPECT_EQ(fs::last_write_time(entry.path() / "index.json"), written);
}

TEST_F(TokenCache, changed_text_or_tokenizer_is_tokenised_again) {
  write(path("t.txt"), long_text());
  open();
  write(path("t.txt"), "hello");
  EXPECT_EQ(open().size(), expected("hello").size());
  EXPECT_EQ(folders(), 2u);
  json root = json::parse(read_file(path("tokenizer.json")));
  root["model"]["merges"] = json::array();
  write(path("tokenizer.json"), root.dump());
  EXPECT_EQ(open().size(), 6u);
  EXPECT_EQ(folders(), 3u);
}

TEST_F(TokenCache, a_vocabulary_that_does_not_fit_is_refused_before_the_work) {
  write(path("t.txt"), long_text());
  const auto refuse = [](std::int64_t size) { throw bad_input("too large " + std::to_string(size), "fix"); };
  expect_user_error(ExitCode::kUsage, {"too large 301"},
                    [&] { open_cached_text(path("t.txt"), path("tokenizer.json").string(), {}, refuse); });
  EXPECT_FALSE(fs::exists(path("cache") / "tokens"));
}

}  // namespace
}  // namespace lockstep::data
