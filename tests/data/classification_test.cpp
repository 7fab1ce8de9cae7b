// Labelled sentences: tables and JSON lines, column names, framing, padding, and damaged files.
#include "lockstep/data/classification.h"

#include <gtest/gtest.h>

#include "lockstep/data/labelled_sentences.h"
#include "lockstep/data/open_datasets.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;
using Rows = std::vector<std::pair<std::int64_t, std::string>>;

class Sentences : public ::testing::Test {
 protected:
  Rows read(const std::string& name, const std::string& text) {
    write(folder_.path() / name, text);
    Rows rows;
    for_each_labelled_sentence(MappedFile(folder_.path() / name),
                               [&](std::int64_t label, std::string_view sentence, const SourcePlace&) {
                                 rows.emplace_back(label, std::string(sentence));
                               });
    return rows;
  }

  void expect_error(const std::string& name, const std::string& text, std::initializer_list<std::string> parts) {
    expect_user_error(ExitCode::kUsage, parts, [&] { read(name, text); });
  }

  TemporaryFolder folder_;
};

const Rows kTwo = {{1, "good film"}, {0, "bad"}};

TEST_F(Sentences, of_tables_with_tabs) {
  EXPECT_EQ(read("a.tsv", "1\tgood film\n0\tbad\n"), kTwo);
  for (const char* name : {"content", "sentence", "text", "Sentence"}) {
    EXPECT_EQ(read("a.tsv", std::string("label\t") + name + "\n1\tgood film\n0\tbad"), kTwo) << name;
  }
  EXPECT_EQ(read("a.tsv", "sentence\tlabel\ngood film\t1\r\n\nbad\t0\r\n"), kTwo);  // as GLUE writes SST-2
  EXPECT_EQ(read("a.tsv", "\xEF\xBB\xBFidx\tlabel\tnote\ttext\n7\t1\tx\tgood film\n8\t0\t\tbad\n"), kTwo);
  EXPECT_EQ(read("a.txt", "1\ta\tb\n0\t\"c\n"), (Rows{{1, "a\tb"}, {0, "\"c"}}));  // tabs and quotes are text
  EXPECT_EQ(read("a.tsv", "label\ttext\n1\ta\tb\n"), (Rows{{1, "a\tb"}}));
}

TEST_F(Sentences, of_tables_with_commas_and_quotes) {
  EXPECT_EQ(read("a.csv", "1,good film\n0,bad\n"), kTwo);
  EXPECT_EQ(read("a.csv", "text,label\n\"good film\",1\r\nbad,0"), kTwo);
  EXPECT_EQ(read("a.csv", "label,content\n1,\"a, \"\"b\"\"\nc\"\n0,\n"), (Rows{{1, "a, \"b\"\nc"}, {0, ""}}));
  EXPECT_EQ(read("A.CSV", "label,content\n\n1,x\n"), (Rows{{1, "x"}}));
}

TEST_F(Sentences, of_json_lines) {
  EXPECT_EQ(read("a.jsonl", "{\"label\": 1, \"text\": \"good film\"}\n\n{\"sentence\": \"bad\", \"label\": \"0\"}\n"),
            kTwo);
}

TEST_F(Sentences, that_are_wrong_are_refused_with_their_line) {
  expect_error("a.tsv", "1\ta\nb\n", {"a.tsv:2", "no tab"});
  expect_error("a.tsv", "1\ta\nx\tb\n", {"a.tsv:2", "label `x` is not a whole number"});
  expect_error("a.tsv", "good film\t1\n", {"a.tsv:1", "names no columns"});
  expect_error("a.tsv", "label\tidx\n1\t2\n", {"a.tsv:1", "names no columns"});
  expect_error("a.tsv", "label\tidx\ttext\n1\t2\ta\n1\t2\n", {"a.tsv:3", "2 columns instead of 3"});
  expect_error("a.csv", "1,a\n1,b, c\n", {"a.csv:2", "3 columns instead of 2", "quotes"});
  expect_error("a.csv", "1,a\n1,\"b\n\n", {"a.csv:2", "never closed"});
  expect_error("a.csv", "1,\"a\nb\"\nx,c\n", {"a.csv:3", "not a whole number"});
  expect_error("a.jsonl", "{\"label\": 1, \"text\": \"a\"}\n{\"label\": 0.5, \"text\": \"b\"}\n",
               {"a.jsonl:2", "whole number"});
  expect_error("a.jsonl", "{\"label\": 1, \"text\": 5}\n", {"a.jsonl:1", "`text` is a JSON number"});
  expect_error("a.jsonl", "{\"label\": 1, \"txt\": \"b\"}\n", {"a.jsonl:1", "no `sentence`, `text` or `content`"});
  expect_error("a.jsonl", "{\"label\": 1, \n", {"a.jsonl:1", "bad JSON"});
}

class ClassificationJob : public ::testing::Test {
 protected:
  ClassificationJob() {
    std::filesystem::create_directory(folder_.path() / "encoder");
    write(folder_.path() / "train.tsv", "label\tcontent\n1\ta b\n0\ta a a a a a a\n1\tA, b!\n");
    write(folder_.path() / "dev.csv", "sentence,label\n\"b, a\",0\n");
    job_.data.kind = spec::DataKind::kClassification;
    job_.data.path = "train.tsv";
    job_.data.evaluation_path = "dev.csv";
    job_.data.tokenizer = "encoder";
    job_.batch.sequence_length = 6;
    job_.model.classes = 2;
    job_.model.arch = spec::Arch::kBert;
  }

  // Both forms of the same tokenizer give the same samples.
  void expect_samples(const Datasets& datasets) {
    const std::int64_t indices[] = {0, 1, 2};
    const Samples train = datasets.train->fetch(indices);
    EXPECT_TRUE(
        train.input.equal(torch::tensor({{2, 6, 7, 3, 5, 5}, {2, 6, 6, 6, 6, 3}, {2, 6, 8, 7, 9, 3}}, torch::kInt64)))
        << train.input;
    EXPECT_TRUE(train.target.equal(torch::tensor({1, 0, 1}, torch::kInt64)));
    EXPECT_EQ(datasets.train->padding_id(), 5);
    EXPECT_EQ(datasets.train->targets_per_sample(), 1);
    const Samples held = datasets.evaluation->fetch(std::span(indices, 1));
    EXPECT_TRUE(held.input.equal(torch::tensor({{2, 7, 8, 6, 3, 5}}, torch::kInt64))) << held.input;
    EXPECT_TRUE(held.target.equal(torch::tensor({0}, torch::kInt64)));
  }

  TemporaryFolder folder_;
  spec::Job job_;
};

TEST_F(ClassificationJob, frames_cuts_and_pads_with_a_vocabulary) {
  write(folder_.path() / "encoder/vocab.txt", "x\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PAD]\na\nb\n,\n!\n");
  expect_samples(open_datasets(job_, folder_.path().string()));
}

TEST_F(ClassificationJob, frames_cuts_and_pads_with_a_tokenizer_json) {
  // As the fast BERT tokenizers are saved: with a post-processor, truncation and padding of their own, which are ours.
  write(folder_.path() / "encoder/tokenizer.json",
        R"({"version": "1.0", "truncation": {"max_length": 128, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 128}, "pad_id": 0, "pad_token": "[PAD]"},
            "added_tokens": [{"id": 2, "content": "[CLS]", "special": true}, {"id": 3, "content": "[SEP]", "special": true},
                             {"id": 5, "content": "[PAD]", "special": true}],
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                           "strip_accents": null, "lowercase": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100,
                      "vocab": {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[PAD]": 5, "a": 6, "b": 7, ",": 8, "!": 9}}})");
  expect_samples(open_datasets(job_, folder_.path().string()));
}

TEST_F(ClassificationJob, pads_with_the_token_that_the_files_name) {
  write(folder_.path() / "encoder/vocab.txt", "x\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PAD]\na\nb\n,\n!\n");
  write(folder_.path() / "encoder/tokenizer_config.json", R"({"pad_token": "x"})");
  EXPECT_EQ(open_datasets(job_, folder_.path().string()).train->padding_id(), 0);
  write(folder_.path() / "encoder/tokenizer_config.json", R"({"pad_token": null, "do_lower_case": true})");
  EXPECT_EQ(open_datasets(job_, folder_.path().string()).train->padding_id(), 5);
}

TEST_F(ClassificationJob, labels_may_be_names_whose_order_numbers_them) {
  write(folder_.path() / "encoder/vocab.txt", "x\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PAD]\na\nb\n,\n!\n");
  write(folder_.path() / "train.tsv", "label\tcontent\npos\ta b\nneg\ta\npos\tb\n");
  write(folder_.path() / "dev.csv", "sentence,label\n\"b, a\",neg\n");
  const Datasets datasets = open_datasets(job_, folder_.path().string());
  const std::vector<std::int64_t> all = {0, 1, 2};
  EXPECT_TRUE(torch::equal(datasets.train->fetch(all).target, torch::tensor({1, 0, 1}, torch::kInt64)));
  EXPECT_EQ(datasets.evaluation->fetch(std::span(all).first(1)).target.item<std::int64_t>(), 0);
  write(folder_.path() / "dev.csv", "sentence,label\n\"b, a\",negg\n");
  expect_user_error(ExitCode::kUsage, {"dev.csv:2", "`negg` is not in the training set", "did you mean `neg`"},
                    [&] { open_datasets(job_, folder_.path().string()); });
}

TEST_F(ClassificationJob, refuses_labels_beyond_the_classes_and_ids_beyond_the_model) {
  write(folder_.path() / "encoder/vocab.txt", "x\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PAD]\na\nb\n,\n!\n");
  job_.model.classes = 1;
  expect_user_error(ExitCode::kUsage, {"train.tsv:2", "label 1 out of range 0..0"},
                    [&] { open_datasets(job_, folder_.path().string()); });
  job_.model.classes = 2;
  job_.model.vocab = 9;
  expect_user_error(ExitCode::kUsage, {"ids up to 9"}, [&] { open_datasets(job_, folder_.path().string()); });
}

}  // namespace
}  // namespace lockstep::data
