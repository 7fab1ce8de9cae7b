#include "lockstep/checkpoint/pieces.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <random>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/host_image.h"
#include "tests/checkpoint/sample_checkpoint.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

TEST(Series, rows_of_a_slice_become_one_series) {
  std::vector<Series> series;
  for (int row = 0; row < 100; ++row) append_run(series, 3 + row * 10, 4);
  EXPECT_EQ(series, (std::vector<Series>{{3, 4, 10, 100}}));
  append_run(series, 2000, 7);
  EXPECT_EQ(series.size(), 2u);
  EXPECT_EQ(elements_of(series), 407);
}

TEST(Series, runs_that_touch_become_one) {
  std::vector<Series> series;
  append_run(series, 5, 3);
  append_run(series, 8, 2);
  EXPECT_EQ(series, (std::vector<Series>{{5, 5, 5, 1}}));
}

TEST(Series, overlap_visits_exactly_the_elements_asked_for) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Series> series;
    std::vector<int> place(400, -1);  // element of the whole -> number in the piece
    int next = 0;
    for (int at = static_cast<int>(random() % 20); at < 380;) {
      const int count = 1 + static_cast<int>(random() % 12);
      append_run(series, at, std::min(count, 400 - at));
      for (int i = at; i < std::min(at + count, 400); ++i) place[static_cast<std::size_t>(i)] = next++;
      at += count + static_cast<int>(random() % 15);
    }
    const int begin = static_cast<int>(random() % 400), end = begin + static_cast<int>(random() % (401 - begin));
    std::vector<int> seen(400, -1);
    visit_overlap(series, begin, end, [&](std::int64_t from, std::int64_t before, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) seen[static_cast<std::size_t>(from + i)] = static_cast<int>(before + i);
    });
    for (int i = 0; i < 400; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(seen[at], i >= begin && i < end ? place[at] : -1) << "element " << i;
    }
  }
}

// Columns of a matrix on `world` ranks, and a vector cut in uneven stretches.
CheckpointPart sliced(int rank, int world, const torch::Tensor& matrix, const torch::Tensor& vector) {
  CheckpointPart part;
  part.facts.step = 5;
  const std::int64_t width = matrix.size(1) / world;
  TensorPiece columns{TensorKind::kModel, "matrix", matrix.sizes().vec(), {}, {}};
  columns.values = matrix.narrow(1, rank * width, width).contiguous();
  for (std::int64_t row = 0; row < matrix.size(0); ++row) {
    append_run(columns.series, row * matrix.size(1) + rank * width, width);
  }
  const std::int64_t first = vector.numel() * rank / world, last = vector.numel() * (rank + 1) / world;
  TensorPiece stretch{
      TensorKind::kOptimizer, "vector", vector.sizes().vec(), {}, vector.narrow(0, first, last - first)};
  append_run(stretch.series, first, last - first);
  part.pieces = {columns, stretch};
  return part;
}

class Pieces : public ::testing::Test {
 protected:
  void save(int world, const std::function<CheckpointPart(int)>& make) {
    SumOfThreads sum(world);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back([&, rank] {
        save_checkpoint(make(rank), {.directory = folder_.path(), .rank = rank, .world = world, .session = "s"},
                        [&](const SaveProgress& own) { return sum(rank, own); });
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  fs::path checkpoint() const { return folder_.path() / "step-00000005"; }

  TemporaryFolder folder_;
  const torch::Tensor matrix_ = torch::arange(600 * 64, torch::kFloat32).view({600, 64});
  const torch::Tensor vector_ = torch::arange(1001, torch::kFloat64);
};

TEST_F(Pieces, any_range_comes_back_whatever_the_slices_were) {
  save(4, [&](int rank) { return sliced(rank, 4, matrix_, vector_); });
  EXPECT_TRUE(verify_checkpoint(checkpoint()).empty());
  const auto reader = CheckpointReader::open(checkpoint());
  EXPECT_TRUE(torch::equal(reader.read_whole(TensorKind::kModel, "matrix"), matrix_));
  EXPECT_TRUE(torch::equal(reader.read_whole(TensorKind::kOptimizer, "vector"), vector_));
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const auto first = static_cast<std::int64_t>(random() % 38400);
    const std::int64_t count = 1 + static_cast<std::int64_t>(random() % (38400 - first));
    torch::Tensor out = torch::empty({count}, round % 2 ? torch::kFloat32 : torch::kFloat64);
    reader.read(TensorKind::kModel, "matrix", first, out);
    EXPECT_TRUE(torch::equal(out, matrix_.view({-1}).narrow(0, first, count).to(out.scalar_type())));
  }
}

TEST_F(Pieces, a_rank_reads_the_bytes_that_it_needs) {
  const torch::Tensor large = torch::rand({16 << 20});  // 64 MiB: 16 MiB on each rank
  save(4, [&](int rank) { return sliced(rank, 4, matrix_, large); });
  const auto reader = CheckpointReader::open(checkpoint());
  reader.prefer(2);
  torch::Tensor out = torch::empty({4 << 20});
  reader.read(TensorKind::kOptimizer, "vector", 8 << 20, out);
  EXPECT_TRUE(torch::equal(out, large.narrow(0, 8 << 20, 4 << 20)));
  EXPECT_LT(reader.bytes_read(), 21u << 20) << "a quarter, and the blocks that it shares";
}

TEST_F(Pieces, a_missing_part_is_named) {
  save(2, [&](int rank) { return sliced(rank, 2, matrix_, vector_); });
  fs::remove(checkpoint() / "rank-00001.safetensors");
  const auto damage = verify_checkpoint(checkpoint());
  ASSERT_FALSE(damage.empty());
  EXPECT_EQ(damage[0].file, "rank-00001.safetensors");
  const auto reader = CheckpointReader::open(checkpoint());
  try {
    reader.read_whole(TensorKind::kModel, "matrix");
    FAIL() << "half of it is missing";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("rank-00001.safetensors"), std::string::npos) << error.what();
  }
}

TEST_F(Pieces, a_hole_between_the_parts_is_found) {
  save(2, [&](int rank) {
    CheckpointPart part = sliced(rank, 2, matrix_, vector_);
    if (rank == 1) part.pieces.erase(part.pieces.begin());
    return part;
  });
  EXPECT_FALSE(verify_checkpoint(checkpoint()).empty());
  const auto reader = CheckpointReader::open(checkpoint());
  EXPECT_THROW(reader.read_whole(TensorKind::kModel, "matrix"), UserError);
}

TEST(HostImage, gives_back_the_pieces_that_were_copied_into_it) {
  const auto image = std::make_shared<HostImage>(HostImage::Front::kNone);
  torch::Tensor narrow = torch::arange(5, torch::kUInt8), wide = torch::arange(7, torch::kFloat64);
  const std::vector<TensorPiece> given = {whole_piece(TensorKind::kRank, "narrow", narrow),
                                          whole_piece(TensorKind::kModel, "wide", wide)};
  image->take(given);
  image->finish();
  wide.zero_();  // the image has a copy
  EXPECT_EQ(image->size(), 5 + 7 * 8);
  EXPECT_EQ(image_places(given).front().name, "wide") << "widest first, so that all are aligned";
  const std::vector<TensorPiece> back = pieces_at(image->pieces(), image->data(), image);
  ASSERT_EQ(back.size(), 2);
  EXPECT_TRUE(torch::equal(back[0].values, torch::arange(7, torch::kFloat64)));
  EXPECT_TRUE(torch::equal(back[1].values, narrow));
}

TEST(HostImage, has_what_a_device_held_when_it_was_taken) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU here";
  const auto image = std::make_shared<HostImage>(HostImage::Front::kNone);
  const torch::Device gpu(torch::kCUDA, 0);
  for (const std::int64_t count : {20'000'003, 17, 20'000'003}) {  // more and less than what travels at once
    torch::Tensor large = torch::rand({count}, gpu), small = torch::arange(5, torch::kUInt8).to(gpu);
    const torch::Tensor before = large.cpu(), here = torch::arange(3, torch::kInt64);
    const std::vector<TensorPiece> given = {whole_piece(TensorKind::kModel, "small", small),
                                            whole_piece(TensorKind::kModel, "large", large),
                                            whole_piece(TensorKind::kOptimizer, "here", here)};
    image->take(given);
    large.add_(1);
    small.zero_();
    image->finish();
    const std::vector<TensorPiece> back = pieces_at(image->pieces(), image->data(), image);
    ASSERT_EQ(back.size(), 3);
    EXPECT_TRUE(torch::equal(back[0].values, here));
    EXPECT_TRUE(torch::equal(back[1].values, before));
    EXPECT_TRUE(torch::equal(back[2].values, torch::arange(5, torch::kUInt8)));
  }
}

TEST(HostImage, pieces_keep_the_memory_they_lie_in) {
  std::vector<TensorPiece> back;
  {
    const auto image = std::make_shared<HostImage>(HostImage::Front::kNone);
    image->take({whole_piece(TensorKind::kModel, "w", torch::ones({1000}))});
    back = pieces_at(image->pieces(), image->data(), image);
  }
  EXPECT_EQ(back[0].values.sum().item<double>(), 1000);
}

}  // namespace
}  // namespace lockstep::checkpoint
