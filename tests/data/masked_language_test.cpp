// Masked language modelling: what is hidden, how often, and that nothing but (seed, epoch, sample) decides it.
#include "lockstep/data/masked_language.h"

#include <gtest/gtest.h>

#include "lockstep/data/loader.h"
#include "lockstep/data/open_datasets.h"
#include "testing.h"

namespace lockstep::data {
namespace {

using namespace lockstep::data::testing;

class CountingStream final : public TokenStream {
 public:
  explicit CountingStream(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t vocab_size() const override { return 1000; }
  void copy(std::int64_t first, std::span<std::int64_t> out) const override {
    for (std::int64_t& token : out) token = 100 + first++ % 800;
  }

 private:
  std::int64_t size_;
};

constexpr TokenId kMask = 3, kClass = 1, kSeparator = 2;

std::shared_ptr<const Dataset> masked(std::int64_t tokens, std::int64_t length, std::uint64_t seed = 7) {
  const MaskedLanguageOptions options{
      .sequence_length = length, .seed = seed, .mask = kMask, .first = kClass, .last = kSeparator};
  return masked_language_windows(std::make_shared<CountingStream>(tokens), 0, tokens, options, "the stream");
}

std::int64_t at(const torch::Tensor& tensor, std::int64_t row, std::int64_t column) {
  return tensor[row][column].item<std::int64_t>();
}

TEST(MaskedLanguage, frames_windows_and_asks_for_what_it_hid) {
  const auto dataset = masked(1000, 42);
  EXPECT_EQ(dataset->size(), 25);
  EXPECT_EQ(dataset->targets_per_sample(), 6);
  for (std::int64_t index = 0; index < dataset->size(); ++index) {
    const Samples samples = dataset->fetch(std::span(&index, 1));
    EXPECT_EQ(at(samples.input, 0, 0), kClass);
    EXPECT_EQ(at(samples.input, 0, 41), kSeparator);
    EXPECT_EQ(at(samples.target, 0, 0), kIgnoredTarget);
    EXPECT_EQ(at(samples.target, 0, 41), kIgnoredTarget);
    int chosen = 0;
    for (std::int64_t i = 1; i < 41; ++i) {
      const std::int64_t original = 100 + (index * 40 + i - 1) % 800;
      if (at(samples.target, 0, i) == kIgnoredTarget) {
        EXPECT_EQ(at(samples.input, 0, i), original);
      } else {
        EXPECT_EQ(at(samples.target, 0, i), original);
        ++chosen;
      }
    }
    EXPECT_EQ(chosen, 6);
  }
}

TEST(MaskedLanguage, hides_eight_of_ten_changes_one_and_keeps_one) {
  const auto dataset = masked(200'000, 102);
  std::vector<std::int64_t> indices(1900);
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  const Samples samples = dataset->fetch(indices);
  const torch::Tensor chosen = samples.target != kIgnoredTarget;
  const double count = chosen.sum().item<double>();
  EXPECT_EQ(count, 1900 * 15);
  const double hidden = (chosen & (samples.input == kMask)).sum().item<double>();
  const double kept = (chosen & (samples.input == samples.target)).sum().item<double>();
  EXPECT_NEAR(hidden / count, 0.8, 0.01);
  EXPECT_NEAR(kept / count, 0.1, 0.01);
  // Every place of the window is chosen about as often as any other.
  const torch::Tensor places = chosen.slice(1, 1, 101).sum(0).to(torch::kFloat64) / 1900.0;
  EXPECT_NEAR(places.mean().item<double>(), 0.15, 1e-9);
  EXPECT_GT(places.min().item<double>(), 0.11);
  EXPECT_LT(places.max().item<double>(), 0.19);
  // Random tokens come from the whole vocabulary.
  const torch::Tensor random = chosen & (samples.input != kMask) & (samples.input != samples.target);
  const torch::Tensor words = samples.input.masked_select(random).to(torch::kFloat64);
  EXPECT_NEAR(words.mean().item<double>(), 499.5, 25.0);
  EXPECT_LT(words.min().item<double>(), 20);
  EXPECT_GT(words.max().item<double>(), 980);
}

TEST(MaskedLanguage, depends_on_seed_epoch_and_sample_alone) {
  const auto dataset = masked(10'000, 50);
  const std::int64_t together[] = {5, 9, 5}, alone = 9;
  const Samples both = dataset->fetch_in_epoch(together, 2);
  const Samples one = dataset->fetch_in_epoch(std::span(&alone, 1), 2);
  EXPECT_TRUE(both.input[1].equal(one.input[0]));
  EXPECT_TRUE(both.input[0].equal(both.input[2]));
  EXPECT_TRUE(masked(10'000, 50)->fetch_in_epoch(together, 2).input.equal(both.input));
  EXPECT_FALSE(dataset->fetch_in_epoch(together, 3).input.equal(both.input));
  EXPECT_FALSE(masked(10'000, 50, 8)->fetch_in_epoch(together, 2).input.equal(both.input));
  EXPECT_TRUE(dataset->fetch(together).input.equal(dataset->fetch_in_epoch(together, 0).input));
  EXPECT_FALSE((both.target[0] != kIgnoredTarget).equal(both.target[1] != kIgnoredTarget));
}

TEST(MaskedLanguage, reaches_every_rank_the_same_and_changes_from_epoch_to_epoch) {
  const auto dataset = masked(4 * 18, 20);  // four samples
  const auto inputs = [&](std::int64_t world, std::int64_t workers) {
    std::vector<torch::Tensor> rows;
    for (std::int64_t step = 0; step < 4; ++step) rows.emplace_back();
    for (std::int64_t rank = 0; rank < world; ++rank) {
      Loader loader(
          dataset,
          {.micro = 4 / world, .data_rank = rank, .data_world = world, .shuffle = false, .num_workers = workers});
      for (torch::Tensor& row : rows) {
        const torch::Tensor mine = loader.next().input;
        row = row.defined() ? torch::cat({row, mine}) : mine;
      }
    }
    return rows;
  };
  const auto expected = inputs(1, 0);
  EXPECT_FALSE(expected[0].equal(expected[1]));
  for (const auto& [world, workers] : {std::pair{1, 3}, {2, 1}, {4, 2}}) {
    const auto found = inputs(world, workers);
    for (std::size_t step = 0; step < expected.size(); ++step) EXPECT_TRUE(found[step].equal(expected[step]));
  }
}

TEST(MaskedLanguage, never_hides_a_separator_inside_the_text) {
  class Separators final : public TokenStream {
   public:
    std::int64_t size() const override { return 4000; }
    std::int64_t vocab_size() const override { return 1000; }
    void copy(std::int64_t, std::span<std::int64_t> out) const override {
      std::fill(out.begin(), out.end(), std::int64_t{kSeparator});
      out[3] = 500;
    }
  };
  const MaskedLanguageOptions options{.sequence_length = 40, .mask = kMask, .first = kClass, .last = kSeparator};
  const auto dataset = masked_language_windows(std::make_shared<Separators>(), 0, 4000, options, "the stream");
  for (std::int64_t index = 0; index < dataset->size(); ++index) {
    const Samples samples = dataset->fetch(std::span(&index, 1));
    EXPECT_EQ((samples.target != kIgnoredTarget).sum().item<std::int64_t>(), 1);
    EXPECT_EQ(at(samples.target, 0, 4), 500);
  }
}

class MaskedJob : public ::testing::Test {
 protected:
  MaskedJob() {
    write(folder_.path() / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
    std::string text;
    for (int i = 0; i < 200; ++i) text += "a b ";
    write(folder_.path() / "text", text);
    job_.model.arch = spec::Arch::kBert;
    job_.data.path = "text";
    job_.data.tokenizer = "vocab.txt";
    job_.batch.sequence_length = 12;
    job_.model.vocab = 7;
  }

  Datasets open() { return open_datasets(job_, folder_.path().string()); }

  TemporaryFolder folder_;
  spec::Job job_;
};

TEST_F(MaskedJob, of_bert_hides_tokens_and_of_others_does_not) {
  const Datasets datasets = open();
  EXPECT_EQ(datasets.train->size(), (401 - 20) / 10);
  EXPECT_EQ(datasets.evaluation->size(), 2);
  const std::int64_t indices[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const Samples samples = datasets.train->fetch(indices);
  EXPECT_EQ(at(samples.input, 0, 0), 2);
  EXPECT_EQ(at(samples.input, 0, 11), 3);
  EXPECT_GT((samples.input == 4).sum().item<std::int64_t>(), 5);
  job_.model.arch = spec::Arch::kGpt;
  EXPECT_EQ(open().train->fetch(indices).input.max().item<std::int64_t>(), 6);
  EXPECT_EQ((open().train->fetch(indices).input == 4).sum().item<std::int64_t>(), 0);
}

TEST_F(MaskedJob, of_bytes_takes_the_last_id_of_the_model_as_the_mask) {
  job_.data.tokenizer = "bytes";
  job_.model.vocab = 256;
  expect_user_error(ExitCode::kUsage, {"needs a mask token", "model.vocab above 256"}, [&] { open(); });
  job_.model.vocab = 300;
  const std::int64_t indices[] = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(open().train->fetch(indices).input.max().item<std::int64_t>(), 299);
}

TEST_F(MaskedJob, that_fits_no_window_is_refused) {
  job_.batch.sequence_length = 2;
  expect_user_error(ExitCode::kUsage, {"no room between [CLS] and [SEP]"}, [&] { open(); });
  job_.batch.sequence_length = 50;
  expect_user_error(ExitCode::kUsage, {"held-out part", "20 tokens", "needs 48"}, [&] { open(); });
}

}  // namespace
}  // namespace lockstep::data
