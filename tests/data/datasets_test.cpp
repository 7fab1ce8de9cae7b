// Token shards, language-model windows, sentence classification, and open_datasets over all kinds.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include "lockstep/base/crc32c.h"
#include "lockstep/data/classification.h"
#include "lockstep/data/image_files.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/data/token_shard.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;

std::vector<TokenId> counting(int count, TokenId first = 0) {
  std::vector<TokenId> ids(count);
  for (int i = 0; i < count; ++i) ids[i] = first + i;
  return ids;
}

spec::Job job_of(spec::DataKind kind, const std::filesystem::path& path, std::int64_t sequence_length = 0) {
  spec::Job job;
  job.data.kind = kind;
  job.data.path = path.string();
  job.batch.sequence_length = sequence_length;
  return job;
}

class Shards : public ::testing::Test {
 protected:
  std::filesystem::path path(const char* name) const { return folder_.path() / name; }

  // Changes the header, with a CRC that fits again, as a hostile writer would.
  void forge(const std::filesystem::path& file, std::size_t offset, std::uint64_t value, std::size_t size) {
    std::string bytes = read_file(file);
    std::memcpy(bytes.data() + offset, &value, size);
    const std::uint32_t crc = crc32c(bytes.data(), 60);
    std::memcpy(bytes.data() + 60, &crc, 4);
    write(file, bytes);
  }

  TemporaryFolder folder_;
};

TEST_F(Shards, are_read_back_across_files_in_both_widths) {
  for (const std::int64_t vocabulary : {std::int64_t{60'000}, std::int64_t{200'000}}) {
    const TokenId first = vocabulary == 60'000 ? 100 : 150'000;
    write_token_shard(path("a"), counting(70, first), vocabulary);
    write_token_shard(path("b"), {}, vocabulary);
    write_token_shard(path("c"), counting(30, first + 70), vocabulary);
    EXPECT_EQ(std::filesystem::file_size(path("a")), 64 + 70 * (vocabulary == 60'000 ? 2 : 4));
    const auto stream = open_token_shards({path("a"), path("b"), path("c")});
    ASSERT_EQ(stream->size(), 100);
    EXPECT_EQ(stream->vocab_size(), vocabulary);
    std::vector<std::int64_t> tokens(50);
    stream->copy(45, tokens);
    for (int i = 0; i < 50; ++i) ASSERT_EQ(tokens[i], first + 45 + i);
  }
}

TEST_F(Shards, say_where_documents_begin_across_files) {
  const std::vector<std::uint64_t> first = {4, 10}, second = {3, 3, 20};  // the third goes on in the second file
  write_token_shard(path("a"), counting(12), 1000, first);
  write_token_shard(path("b"), counting(20, 12), 1000, second);
  const auto stream = open_token_shards({path("a"), path("b")});
  EXPECT_TRUE(stream->knows_documents());
  EXPECT_EQ(stream->document_starts(0, 32), (std::vector<std::int64_t>{4, 10, 15, 32}));
  EXPECT_EQ(stream->document_starts(4, 6), std::vector<std::int64_t>{10}) << "its own first token is no start in it";
  EXPECT_EQ(stream->document_starts(11, 3), std::vector<std::int64_t>{});
  const auto windows = language_model_windows(stream, 0, 32, 10, "tokens", /*documents=*/true);
  const std::vector<std::int64_t> all = {0, 1};
  const Samples samples = windows->fetch(all);
  const auto row = [](std::vector<std::int64_t> values) { return torch::tensor(values, torch::kInt64); };
  EXPECT_TRUE(samples.documents[0].equal(row({0, 0, 0, 0, 4, 4, 4, 4, 4, 4}))) << samples.documents[0];
  EXPECT_TRUE(samples.target[0].equal(row({1, 2, 3, -100, 5, 6, 7, 8, 9, -100}))) << samples.target[0];
  EXPECT_TRUE(samples.documents[1].equal(row({0, 0, 0, 0, 0, 5, 5, 5, 5, 5}))) << samples.documents[1];
  EXPECT_TRUE(samples.target[1].equal(row({11, 12, 13, 14, -100, 16, 17, 18, 19, 20}))) << samples.target[1];
  EXPECT_FALSE(language_model_windows(stream, 0, 32, 10, "tokens")->fetch(all).documents.defined());
}

TEST_F(Shards, that_do_not_know_their_documents_do_not_keep_them_apart) {
  write_token_shard(path("a"), counting(40), 1000);
  spec::Job job = job_of(spec::DataKind::kTokens, path("a"), 8);
  job.data.packing = spec::Packing::kDocuments;
  expect_user_error(ExitCode::kUsage, {"does not say where documents end", "lockstep tokenize"},
                    [&] { open_datasets(job); });
}

TEST_F(Shards, writer_refuses_ids_outside_the_vocabulary) {
  expect_user_error(ExitCode::kUsage, {"token 2 is 2"}, [&] { write_token_shard(path("a"), counting(3), 2); });
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

TEST_F(Shards, lying_and_damaged_ones_are_refused) {
  const auto open = [&] { open_token_shards({path("a")}); };
  const auto fresh = [&] { write_token_shard(path("a"), counting(100), 1000); };
  expect_user_error(ExitCode::kEnvironment, {path("a").string()}, open);
  fresh();
  forge(path("a"), 16, 0xFFFFFFFF, 8);
  expect_user_error(ExitCode::kUsage, {"announces 4294967295 tokens", "200 bytes"}, open);
  fresh();
  forge(path("a"), 16, (std::uint64_t{1} << 63) + 100, 8);  // times 2 wraps to the right size
  expect_user_error(ExitCode::kUsage, {"announces"}, open);
  fresh();
  std::filesystem::resize_file(path("a"), 64 + 199);
  expect_user_error(ExitCode::kUsage, {"199 bytes"}, open);
  fresh();
  forge(path("a"), 12, 3, 4);
  expect_user_error(ExitCode::kUsage, {"3 bytes per token"}, open);
  fresh();
  forge(path("a"), 8, 3, 4);
  expect_user_error(ExitCode::kUsage, {"version 3"}, open);
  fresh();
  std::string bytes = read_file(path("a"));
  bytes[64 + 10] ^= 1;
  write(path("a"), bytes);
  expect_user_error(ExitCode::kUsage, {"tokens are damaged"}, open);
  bytes[20] ^= 1;
  write(path("a"), bytes);
  expect_user_error(ExitCode::kUsage, {"header is damaged"}, open);
  write(path("a"), "LKSTTOKS");
  expect_user_error(ExitCode::kUsage, {"truncated"}, open);
  write(path("a"), std::string(100, 'x'));
  expect_user_error(ExitCode::kUsage, {"not a token shard"}, open);
}

TEST_F(Shards, token_beyond_the_headers_vocabulary_is_refused_when_it_is_read) {
  write_token_shard(path("a"), counting(100), 1000);
  forge(path("a"), 24, 50, 8);
  const TokenShard shard(path("a"));
  std::vector<std::int64_t> tokens(20);
  shard.copy(30, tokens);
  expect_user_error(ExitCode::kUsage, {"not below the vocabulary size 50"}, [&] { shard.copy(31, tokens); });
}

TEST_F(Shards, of_different_vocabularies_are_refused) {
  write_token_shard(path("a"), counting(10), 100);
  write_token_shard(path("b"), counting(10), 101);
  expect_user_error(ExitCode::kUsage, {"vocabulary size 101"}, [&] { open_token_shards({path("a"), path("b")}); });
}

TEST_F(Shards, train_and_evaluation_share_no_token) {
  write_token_shard(path("a"), counting(150), 300);
  write_token_shard(path("b"), counting(150, 150), 300);
  spec::Job job = job_of(spec::DataKind::kTokens, folder_.path(), 8);
  job.data.holdout = 0.2;
  const Datasets datasets = open_datasets(job);
  EXPECT_EQ(datasets.train->size(), (240 - 1) / 8);
  EXPECT_EQ(datasets.evaluation->size(), (60 - 1) / 8);
  EXPECT_EQ(datasets.train->tokens_per_sample(), 8);
  std::vector<int> uses(300, 0);
  std::int64_t largest_of_training = 0;
  for (std::int64_t i = 0; i < datasets.train->size(); ++i) {
    const Samples samples = datasets.train->fetch(std::span(&i, 1));
    for (int t = 0; t < 8; ++t) {
      ++uses[samples.input[0][t].item<std::int64_t>()];
      EXPECT_EQ(samples.target[0][t].item<std::int64_t>(), samples.input[0][t].item<std::int64_t>() + 1);
    }
    largest_of_training = samples.target.max().item<std::int64_t>();
  }
  for (int token = 0; token < 29 * 8; ++token) EXPECT_EQ(uses[token], 1) << token;
  const std::int64_t zero = 0;
  EXPECT_EQ(datasets.evaluation->fetch(std::span(&zero, 1)).input[0][0].item<std::int64_t>(), 240);
  EXPECT_LT(largest_of_training, 240);
}

TEST_F(Shards, larger_vocabulary_than_the_models_is_refused) {
  write_token_shard(path("a"), counting(100), 300);
  spec::Job job = job_of(spec::DataKind::kTokens, folder_.path(), 8);
  job.model.vocab = 256;
  expect_user_error(ExitCode::kUsage, {"ids up to 299", "vocab is 256"}, [&] { open_datasets(job); });
}

TEST_F(Shards, any_mutation_of_any_data_file_gives_a_data_set_or_a_user_error) {
  write_token_shard(path("seed.tokens"), counting(200), 1000);
  write(path("seed.images"), mnist_images(5));
  write(path("seed.labels"), mnist_labels(5));
  write(path("seed.cifar"), cifar_records(0, 3));
  write(path("seed.tsv"), "label\tsentence\n1\tgood\n0\tbad\n");
  write(path("labels"), mnist_labels(5));
  write(path("images"), mnist_images(5));
  write(path("seed.json"), R"({"added_tokens":[{"id":5,"content":"<s>","special":true}],"normalizer":{"type":"NFC"},)"
                           R"("pre_tokenizer":{"type":"BertPreTokenizer"},"decoder":null,"model":{"type":"WordPiece",)"
                           R"("unk_token":"[UNK]","vocab":{"[UNK]":0,"a":1,"##b":2,"c":3}}})");
  const auto read_all = [](const Dataset& dataset) {
    for (std::int64_t i = 0; i < dataset.size(); ++i) dataset.fetch(std::span(&i, 1));
  };
  const auto tokenizer = open_tokenizer("bytes");
  const auto mutant = path("mutant");
  const std::vector<std::pair<std::string, std::function<void()>>> readers = {
      {"seed.tokens",
       [&] {
         const auto stream = open_token_shards({mutant}, 0);
         read_all(*language_model_windows(stream, 0, stream->size(), 16, "the shard"));
       }},
      {"seed.images", [&] { read_all(*open_mnist_files(mutant, path("labels"))); }},
      {"seed.labels", [&] { read_all(*open_mnist_files(path("images"), mutant)); }},
      {"seed.cifar", [&] { read_all(*open_cifar10_files({mutant})); }},
      {"seed.tsv", [&] { read_all(*open_classification(mutant, *tokenizer, 8, 2, 0)); }},
      {"seed.json", [&] { open_tokenizer((folder_.path() / "mutant.json").string())->encode("abc <s> d\u00e9"); }}};
  std::mt19937 rng(99);
  int refused = 0;
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto& [seed, reader] = readers[rng() % readers.size()];
    std::string bytes = read_file(path(seed.c_str()));
    for (int edits = 1 + static_cast<int>(rng() % 3); edits > 0 && !bytes.empty(); --edits) {
      // Half of the edits go to the first bytes, where the headers are.
      const std::size_t at = rng() % (rng() % 2 ? bytes.size() : std::min<std::size_t>(bytes.size(), 72));
      switch (rng() % 5) {
        case 0:
          bytes[at] = static_cast<char>(rng());
          break;
        case 1:
          bytes[at] ^= static_cast<char>(1 << (rng() % 8));
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.insert(at, 1 + rng() % 40, static_cast<char>(rng()));
          break;
        case 4:
          bytes.replace(at, std::min<std::size_t>(4, bytes.size() - at), "\xFF\xFF\xFF\xFF");
          break;
      }
    }
    if (seed == "seed.tokens" && bytes.size() >= 64 && rng() % 2) {  // else the CRC stops nearly all of them
      const std::uint32_t crc = crc32c(bytes.data(), 60);
      std::memcpy(bytes.data() + 60, &crc, 4);
    }
    write(seed == "seed.json" ? folder_.path() / "mutant.json" : mutant, bytes);
    try {
      reader();
      ++accepted;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 50);
}

class Text : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(Text, folder_is_read_by_name_each_real_file_once) {
  write(folder_.path() / "b.txt", "world");
  write(folder_.path() / "a.txt", "hello ");
  write(folder_.path() / ".hidden", "secret");
  std::filesystem::create_symlink("a.txt", folder_.path() / "c.txt");
  spec::Job job = job_of(spec::DataKind::kText, folder_.path(), 5);
  job.data.holdout = 0;
  const Datasets datasets = open_datasets(job);
  EXPECT_EQ(datasets.evaluation, nullptr);
  ASSERT_EQ(datasets.train->size(), 2);
  const std::int64_t indices[] = {0, 1};
  const Samples samples = datasets.train->fetch(indices);
  std::string input;
  std::string target;
  for (int i = 0; i < 10; ++i) {
    input.push_back(static_cast<char>(samples.input.flatten()[i].item<std::int64_t>()));
    target.push_back(static_cast<char>(samples.target.flatten()[i].item<std::int64_t>()));
  }
  EXPECT_EQ(input, "hello worl");
  EXPECT_EQ(target, "ello world");
}

TEST_F(Text, relative_paths_are_taken_from_the_base_folder) {
  write(folder_.path() / "train.txt", std::string(100, 'a'));
  write(folder_.path() / "held.txt", std::string(50, 'b'));
  spec::Job job = job_of(spec::DataKind::kText, "train.txt", 9);
  job.data.evaluation_path = "held.txt";
  const Datasets datasets = open_datasets(job, folder_.path().string());
  EXPECT_EQ(datasets.train->size(), 11);
  EXPECT_EQ(datasets.evaluation->size(), 5);
}

TEST_F(Text, a_file_of_bytes_is_a_document) {
  std::filesystem::create_directory(folder_.path() / "texts");
  write(folder_.path() / "texts/1", "abc");
  write(folder_.path() / "texts/2", "defgh");
  spec::Job job = job_of(spec::DataKind::kText, folder_.path() / "texts", 7);
  job.data.holdout = 0;
  job.data.packing = spec::Packing::kDocuments;
  const std::int64_t zero = 0;
  const Samples samples = open_datasets(job).train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.documents[0].equal(torch::tensor({0, 0, 0, 3, 3, 3, 3}, torch::kInt64)));
  EXPECT_TRUE(samples.target[0].equal(torch::tensor({98, 99, -100, 101, 102, 103, 104}, torch::kInt64)));
}

TEST_F(Text, too_short_for_one_window_is_refused) {
  write(folder_.path() / "t", std::string(100, 'a'));
  spec::Job job = job_of(spec::DataKind::kText, folder_.path() / "t", 40);
  expect_user_error(ExitCode::kUsage, {"held-out part", "5 tokens", "needs 41", "data.holdout"},
                    [&] { open_datasets(job); });
  job.batch.sequence_length = 95;
  expect_user_error(ExitCode::kUsage, {"training part"}, [&] { open_datasets(job); });
}

TEST_F(Text, missing_path_is_an_environment_error) {
  expect_user_error(ExitCode::kEnvironment, {"/absent/text"},
                    [] { open_datasets(job_of(spec::DataKind::kText, "/absent/text", 4)); });
  expect_user_error(ExitCode::kEnvironment, {"holds no files"},
                    [&] { open_datasets(job_of(spec::DataKind::kText, folder_.path(), 4)); });
  expect_user_error(ExitCode::kUsage, {"data.path is not set"},
                    [] { open_datasets(job_of(spec::DataKind::kText, "", 4)); });
}

TEST_F(Text, with_a_tokenizer_ends_every_file_with_end_of_text) {
  write(folder_.path() / "vocab.txt", "[UNK]\n[SEP]\na\nb\n");
  std::filesystem::create_directory(folder_.path() / "texts");
  write(folder_.path() / "texts/1", "a b");
  write(folder_.path() / "texts/2", "b a");
  spec::Job job = job_of(spec::DataKind::kText, "texts", 5);
  job.data.holdout = 0;
  job.data.tokenizer = "vocab.txt";
  const Datasets datasets = open_datasets(job, folder_.path().string());
  const std::int64_t zero = 0;
  const Samples samples = datasets.train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.input[0].equal(torch::tensor({2, 3, 1, 3, 2}, torch::kInt64)));
  EXPECT_TRUE(samples.target[0].equal(torch::tensor({3, 1, 3, 2, 1}, torch::kInt64)));
}

TEST_F(Text, classification_pads_cuts_and_checks_labels) {
  write(folder_.path() / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n");
  write(folder_.path() / "s.tsv", "label\tsentence\n1\ta b\r\n\n0\ta a a a a a\n");
  spec::Job job = job_of(spec::DataKind::kClassification, "s.tsv", 5);
  job.data.tokenizer = "vocab.txt";
  job.model.classes = 2;
  const auto train = open_datasets(job, folder_.path().string()).train;
  ASSERT_EQ(train->size(), 2);
  EXPECT_EQ(train->padding_id(), 0);
  const std::int64_t indices[] = {0, 1};
  const Samples samples = train->fetch(indices);
  EXPECT_TRUE(samples.input[0].equal(torch::tensor({2, 4, 5, 3, 0}, torch::kInt64)));
  EXPECT_TRUE(samples.input[1].equal(torch::tensor({2, 4, 4, 4, 3}, torch::kInt64)));
  EXPECT_TRUE(samples.target.equal(torch::tensor({1, 0}, torch::kInt64)));
  write(folder_.path() / "s.tsv", "1\ta\n7\tb\n");
  expect_user_error(ExitCode::kUsage, {"s.tsv:2", "label 7"}, [&] { open_datasets(job, folder_.path().string()); });
  write(folder_.path() / "s.tsv", "1\ta\nb\n");
  expect_user_error(ExitCode::kUsage, {"s.tsv:2", "no tab"}, [&] { open_datasets(job, folder_.path().string()); });
}

TEST_F(Text, image_jobs_open_their_own_test_files) {
  write(folder_.path() / "data_batch_1.bin", cifar_records(0, 4));
  write(folder_.path() / "test_batch.bin", cifar_records(4, 2));
  const Datasets datasets = open_datasets(job_of(spec::DataKind::kCifar10, folder_.path()));
  EXPECT_EQ(datasets.train->size(), 4);
  EXPECT_EQ(datasets.evaluation->size(), 2);
  const Datasets one = open_datasets(job_of(spec::DataKind::kCifar10, folder_.path() / "test_batch.bin"));
  EXPECT_EQ(one.train->size(), 2);
  EXPECT_EQ(one.evaluation, nullptr);
}

}  // namespace
}  // namespace lockstep::data
