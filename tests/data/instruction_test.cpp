// Instruction data: counted targets, packing, evaluation, templates of tokenizers, and damaged files.
#include "lockstep/data/instruction.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "lockstep/data/json_lines.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/data/packing.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;
using spec::ChatTemplate;
namespace fs = std::filesystem;

TEST(Packing, puts_every_item_into_the_first_bin_with_room) {
  const std::vector<std::int64_t> lengths = {6, 5, 4, 10, 3, 2, 1};
  const std::vector<std::vector<std::int64_t>> expected = {{0, 2}, {1, 4, 5}, {3}, {6}};
  EXPECT_EQ(pack_first_fit(lengths, 10), expected);
  EXPECT_TRUE(pack_first_fit({}, 10).empty());
}

TEST(Packing, agrees_with_the_quadratic_search_and_loses_nothing) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const std::int64_t capacity = 1 + random() % 40;
    std::vector<std::int64_t> lengths(random() % 200);
    for (std::int64_t& length : lengths) length = 1 + random() % capacity;
    std::vector<std::vector<std::int64_t>> naive;
    std::vector<std::int64_t> room;
    for (std::size_t item = 0; item < lengths.size(); ++item) {
      std::size_t bin = 0;
      while (bin < room.size() && room[bin] < lengths[item]) ++bin;
      if (bin == room.size()) {
        room.push_back(capacity);
        naive.emplace_back();
      }
      room[bin] -= lengths[item];
      naive[bin].push_back(static_cast<std::int64_t>(item));
    }
    ASSERT_EQ(pack_first_fit(lengths, capacity), naive);
  }
}

class Instructions : public ::testing::Test {
 protected:
  spec::Job job(std::int64_t sequence_length, const std::string& name = "d.jsonl") const {
    spec::Job job;
    job.data.kind = spec::DataKind::kInstruction;
    job.data.path = (folder_.path() / name).string();
    job.data.chat_template = ChatTemplate::kPlain;
    job.data.holdout = 0.0;
    job.batch.sequence_length = sequence_length;
    job.model.vocab = 256;
    return job;
  }

  void put(const std::string& text, const std::string& name = "d.jsonl") { write(folder_.path() / name, text); }

  // `count` exchanges that differ, of varying length.
  static std::string exchanges(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text +=
          fmt::format(R"({{"prompt": "{}", "completion": "{}"}})", fmt::format("q{:03}", i) + std::string(i % 7, '?'),
                      fmt::format("a{:03}", i) + std::string((i * 5) % 11, '!')) +
          "\n";
    }
    return text;
  }

  // Everything counted in a data set, as text, example by example; and checks what holds for every sample.
  static std::multiset<std::string> answers(const Dataset& dataset) {
    std::multiset<std::string> found;
    for (std::int64_t index = 0; index < dataset.size(); ++index) {
      const Samples samples = dataset.fetch(std::span(&index, 1));
      EXPECT_EQ(samples.input.sizes(), (std::vector<std::int64_t>{1, dataset.tokens_per_sample()}));
      std::string answer;
      for (std::int64_t i = 0; i < dataset.tokens_per_sample(); ++i) {
        const std::int64_t target = samples.target[0][i].item<std::int64_t>();
        if (target == kIgnoredTarget) continue;
        // A counted target is the next input, except where the sample ends.
        if (i + 1 < dataset.tokens_per_sample()) {
          EXPECT_EQ(samples.input[0][i + 1].item<std::int64_t>(), target);
        }
        if (target == 0) {
          found.insert(std::exchange(answer, {}));
        } else {
          answer.push_back(static_cast<char>(target));
        }
      }
      EXPECT_EQ(answer, "");  // every answer ended
    }
    return found;
  }

  TemporaryFolder folder_;
};

TEST_F(Instructions, count_the_answer_and_its_end_and_nothing_else) {
  put(R"({"prompt": "ab", "completion": "cd"})"
      "\n");
  const auto train = open_datasets(job(8)).train;
  ASSERT_EQ(train->size(), 1);
  const std::int64_t zero = 0;
  const Samples samples = train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.input[0].equal(torch::tensor({97, 98, 10, 99, 100, 0, 0, 0}, torch::kInt64)));
  EXPECT_TRUE(samples.target[0].equal(torch::tensor({-100, -100, 99, 100, 0, -100, -100, -100}, torch::kInt64)));
  EXPECT_EQ(train->describe(), "1 examples in 1 packed sequences of 8 tokens, 3 tokens of answers");
  EXPECT_EQ(train->padding_id(), -1);
  EXPECT_EQ(train->fetch({}).input.sizes(), (std::vector<std::int64_t>{0, 8}));
}

TEST_F(Instructions, packed_lose_nothing_and_stay_in_order) {
  put(exchanges(200));
  spec::Job packed = job(40), single = packed;
  single.data.packing = spec::Packing::kNone;
  const auto train = open_datasets(packed).train;
  const auto one_by_one = open_datasets(single).train;
  EXPECT_EQ(one_by_one->size(), 200);
  EXPECT_LT(train->size(), 130);
  const auto expected = answers(*one_by_one);
  EXPECT_EQ(expected.size(), 200u);
  EXPECT_EQ(answers(*train), expected);
  EXPECT_EQ(train->describe().substr(0, 16), "200 examples in ");
  EXPECT_EQ(open_datasets(packed).train->describe(), train->describe());
}

TEST_F(Instructions, kept_apart_say_where_each_begins_and_so_does_the_padding) {
  put(R"({"prompt": "ab", "completion": "cd"})"
      "\n"
      R"({"prompt": "e", "completion": "f"})"
      "\n");
  spec::Job apart = job(12);
  apart.data.packing = spec::Packing::kDocuments;
  const std::int64_t zero = 0;
  const auto train = open_datasets(apart).train;
  ASSERT_EQ(train->size(), 1);
  const Samples samples = train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.documents[0].equal(torch::tensor({0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 10, 10}, torch::kInt64)))
      << samples.documents[0];
  const Samples together = open_datasets(job(12)).train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.input.equal(together.input));
  EXPECT_TRUE(samples.target.equal(together.target));
  EXPECT_FALSE(together.documents.defined());
}

TEST_F(Instructions, of_one_sample_do_not_predict_the_start_of_the_next_example) {
  put(R"({"messages": [{"role": "assistant", "content": "xy"}]})"
      "\n"
      R"({"messages": [{"role": "assistant", "content": "zw"}]})"
      "\n");
  const auto train = open_datasets(job(6)).train;
  ASSERT_EQ(train->size(), 1);
  const std::int64_t zero = 0;
  const Samples samples = train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.input[0].equal(torch::tensor({'x', 'y', 0, 'z', 'w', 0}, torch::kInt64)));
  EXPECT_TRUE(samples.target[0].equal(torch::tensor({'y' + 0, 0, -100, 'w' + 0, 0, -100}, torch::kInt64)));
}

TEST_F(Instructions, too_long_lose_their_end_and_are_reported) {
  put(R"({"prompt": "ab", "completion": "cdefghi"})"
      "\n"
      R"({"prompt": "0123456789", "completion": "x"})"
      "\n"
      R"({"prompt": "a", "completion": "b"})"
      "\n");
  const auto train = open_datasets(job(6)).train;
  EXPECT_EQ(train->describe(),
            "2 examples in 2 packed sequences of 6 tokens, 6 tokens of answers; 1 cut at the end; 1 dropped, "
            "because their answers lie beyond");
  const std::int64_t zero = 0;
  const Samples samples = train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.target[0].equal(torch::tensor({-100, -100, 'c' + 0, 'd' + 0, 'e' + 0, 'f' + 0}, torch::kInt64)));
  spec::Job narrow = job(1);
  expect_user_error(ExitCode::kUsage, {"no answer within 1 tokens"}, [&] { open_datasets(narrow); });
}

TEST_F(Instructions, keep_the_last_ones_for_evaluation) {
  put(exchanges(100));
  spec::Job held = job(40);
  held.data.holdout = 0.1;
  const Datasets datasets = open_datasets(held);
  auto seen = answers(*datasets.train);
  const auto evaluated = answers(*datasets.evaluation);
  EXPECT_EQ(seen.size(), 90u);
  EXPECT_EQ(evaluated.size(), 10u);
  EXPECT_TRUE(
      std::all_of(evaluated.begin(), evaluated.end(), [](const std::string& a) { return a.starts_with("a09"); }));
  put(exchanges(5), "e.jsonl");
  held.data.evaluation_path = (folder_.path() / "e.jsonl").string();
  EXPECT_EQ(answers(*open_datasets(held).train).size(), 100u);
  EXPECT_EQ(answers(*open_datasets(held).evaluation).size(), 5u);
}

TEST_F(Instructions, of_a_folder_come_from_all_its_files) {
  fs::create_directory(folder_.path() / "many");
  put(exchanges(3), "many/b.jsonl");
  put(exchanges(4), "many/a.jsonl");
  EXPECT_EQ(answers(*open_datasets(job(40, "many")).train).size(), 7u);
}

TEST_F(Instructions, that_are_damaged_name_file_and_line) {
  const std::string good = R"({"prompt": "a", "completion": "b"})"
                           "\n";
  const std::pair<std::string, const char*> rows[] = {
      {R"({"prompt": "a", "compl)", "bad JSON"},
      {R"({"prompt": "a)"
       "\n"
       R"(", "completion": "b"})",
       "bad JSON"},
      {"[" + good, "begins a JSON list"},
      {"7", "not an object"},
      {R"({"prompt": "\xff", "completion": "b"})", "bad JSON"},
      {"{\"prompt\": \"\xff\", \"completion\": \"b\"}", "bad JSON"},
      {R"({"prompt": )" + std::string(5000, '[') + "}", "nested too deeply"},
      {R"({"prompt": 1e999, "completion": "b"})", "bad JSON"},
      {R"({"prompt": {}, "completion": "b"})", "`prompt` is a JSON object"}};
  for (const auto& [line, message] : rows) {
    put(good + "\n" + line + "\n" + good);
    expect_user_error(ExitCode::kUsage, {"d.jsonl:3", message}, [&] { open_datasets(job(8)); });
  }
  put("");
  expect_user_error(ExitCode::kUsage, {"no answer"}, [&] { open_datasets(job(8)); });
  expect_user_error(ExitCode::kEnvironment, {"absent"}, [&] { open_datasets(job(8, "absent")); });
}

TEST_F(Instructions, in_a_line_of_100_megabytes_are_refused_before_it_is_parsed) {
  put(R"({"prompt": "a", "completion": "b"})"
      "\n"
      R"({"prompt": ")" +
      std::string(100'000'000, 'x') + "\"}\n");
  expect_user_error(ExitCode::kUsage, {"d.jsonl:2", "a line of 95.4 MiB"}, [&] { open_datasets(job(8)); });
  put(R"({"prompt": ")" + std::string(kLongestJsonLine - 100, 'x') +
      R"(", "completion": "b"})"
      "\n" +
      exchanges(1));
  EXPECT_EQ(open_datasets(job(40)).train->size(), 1);  // long, but not too long; its answer lies beyond 40 tokens
}

TEST_F(Instructions, survive_any_damage_or_say_what_is_wrong) {
  const std::string good =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})"
      "\n"
      R"({"instruction": "Add.", "input": "2 and 3", "output": "5"})"
      "\n" +
      exchanges(3);
  std::mt19937 random(3);
  int read = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = good;
    for (int edit = 1 + static_cast<int>(random() % 2); edit > 0 && !text.empty(); --edit) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        case 2:
          text.insert(at, std::string(1 + random() % 3, "{}[]\",:\\\n0"[random() % 10]));
          break;
        case 3:
          text.resize(at);
          break;
      }
    }
    put(text);
    try {
      answers(*open_datasets(job(400)).train);
      ++read;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(read, 50);
  EXPECT_GT(refused, 500);
}

// A WordPiece tokenizer of letters with the markers of chatml.
class ChatTokenizer : public Instructions {
 protected:
  ChatTokenizer() {
    std::string added, vocabulary = R"("[UNK]": 0)";
    int id = 1;
    for (const char* token : {"a", "b", "user", "assistant", "##b"})
      vocabulary += fmt::format(R"(, "{}": {})", token, id++);
    for (const char* token : {"<|im_start|>", "<|im_end|>", "<eos>", "<bos>", "<fill>"}) {
      added +=
          fmt::format(R"({}{{"id": {}, "content": "{}", "special": true}})", added.empty() ? "" : ", ", id++, token);
    }
    fs::create_directory(folder_.path() / "tok");
    put(fmt::format(R"({{"added_tokens": [{}], "normalizer": null, "pre_tokenizer": {{"type": "BertPreTokenizer"}},
      "decoder": null, "model": {{"type": "WordPiece", "unk_token": "[UNK]", "vocab": {{{}}}}}}})",
                    added, vocabulary),
        "tok/tokenizer.json");
    put(R"({"prompt": "a", "completion": "b a"})"
        "\n");
  }

  spec::Job job_with(const std::string& config) {
    put(config, "tok/tokenizer_config.json");
    spec::Job result = job(10);
    result.data.tokenizer = (folder_.path() / "tok").string();
    result.data.chat_template = ChatTemplate::kAuto;
    return result;
  }

  TemporaryFolder& folder() { return folder_; }
};

constexpr int kStart = 6, kEnd = 7, kEos = 8, kBos = 9, kFill = 10;

TEST_F(ChatTokenizer, chooses_the_template_that_its_files_name) {
  const spec::Job chat =
      job_with(R"({"chat_template": "{{ '<|im_start|>' }} {{ '<|im_end|>' }}", "pad_token": "<fill>"})");
  const std::int64_t zero = 0;
  const Samples samples = open_datasets(chat).train->fetch(std::span(&zero, 1));
  const auto row = [](std::initializer_list<std::int64_t> values) {
    return torch::tensor(std::vector<std::int64_t>(values), torch::kInt64);
  };
  EXPECT_TRUE(samples.input[0].equal(row({kStart, 3, 1, kEnd, kStart, 4, 2, 1, kEnd, kFill}))) << samples.input;
  EXPECT_TRUE(samples.target[0].equal(row({-100, -100, -100, -100, -100, 2, 1, kEnd, -100, -100}))) << samples.target;
  const spec::Job listed = job_with(
      R"({"chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": "<|im_start|><|im_end|>"}]})");
  EXPECT_EQ(open_datasets(listed).train->size(), 1);
  spec::Job by_file = job_with("{}");
  put("{{ '<|im_start|>' }}<|im_end|>", "tok/chat_template.jinja");
  EXPECT_EQ(open_datasets(by_file).train->size(), 1);
}

TEST_F(ChatTokenizer, begins_and_ends_plain_text_as_its_files_say) {
  spec::Job plain = job_with(R"({"eos_token": {"content": "<eos>", "special": true}, "bos_token": "<bos>"})");
  plain.data.chat_template = ChatTemplate::kPlain;
  const std::int64_t zero = 0;
  Samples samples = open_datasets(plain).train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.input[0].slice(0, 0, 5).equal(torch::tensor({kBos, 1, 2, 1, kEos}, torch::kInt64)));
  plain = job_with(R"({"eos_token": "<eos>", "bos_token": "<bos>", "add_bos_token": false})");
  plain.data.chat_template = ChatTemplate::kPlain;
  samples = open_datasets(plain).train->fetch(std::span(&zero, 1));
  EXPECT_TRUE(samples.input[0].slice(0, 0, 4).equal(torch::tensor({1, 2, 1, kEos}, torch::kInt64)));
}

TEST_F(ChatTokenizer, that_cannot_write_the_template_is_refused) {
  const auto open = [](const spec::Job& wrong) { return [wrong] { open_datasets(wrong); }; };
  expect_user_error(ExitCode::kUsage, {"name no chat template", "set data.chat_template"}, open(job_with("{}")));
  expect_user_error(ExitCode::kUsage, {"not a known one", "set data.chat_template"},
                    open(job_with(R"({"chat_template": "[INST] {{ x }}"})")));
  spec::Job llama = job_with("{}");
  llama.data.chat_template = ChatTemplate::kLlama3;
  expect_user_error(ExitCode::kUsage, {"no token <|begin_of_text|>", "data.chat_template llama3"}, open(llama));
  llama.data.chat_template = ChatTemplate::kPlain;
  expect_user_error(ExitCode::kUsage, {"no token that ends a text", "eos_token"}, open(llama));
  expect_user_error(ExitCode::kUsage, {"tokenizer_config.json", "chat_template"},
                    open(job_with(R"({"chat_template": 7})")));
  expect_user_error(ExitCode::kUsage, {"tokenizer_config.json:1", "bad JSON"}, open(job_with("{")));
}

}  // namespace
}  // namespace lockstep::data
