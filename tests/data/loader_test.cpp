#include "lockstep/data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "testing.h"

namespace lockstep::data {
namespace {

// Sample i is the number i. `poison` throws; `delay` makes later samples quicker, so that workers finish out of order.
class Numbers final : public Dataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t poison = -1, bool delay = false)
      : size_(size), poison_(poison), delay_(delay) {}
  std::int64_t size() const override { return size_; }
  std::string describe() const override { return "numbers"; }
  Samples fetch(std::span<const std::int64_t> indices) const override {
    if (delay_) std::this_thread::sleep_for(std::chrono::microseconds(50 + 400 * (fetches_++ % 3 == 0)));
    Samples samples{torch::empty({static_cast<std::int64_t>(indices.size())}, torch::kInt64), {}};
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == poison_) throw bad_input("poisoned sample", "do not read it");
      samples.input.data_ptr<std::int64_t>()[i] = indices[i];
    }
    samples.target = samples.input;
    return samples;
  }

 private:
  std::int64_t size_;
  std::int64_t poison_;
  bool delay_;
  mutable std::atomic<int> fetches_{0};
};

// Blocks until it is let go: a file system that hangs.
class Stuck final : public Dataset {
 public:
  std::int64_t size() const override { return 10; }
  std::string describe() const override { return "stuck"; }
  Samples fetch(std::span<const std::int64_t>) const override {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {torch::empty({1}), torch::empty({1})};
  }
  mutable std::atomic<bool> go{false};
};

std::vector<std::int64_t> values(const Batch& batch) {
  const std::int64_t* data = batch.input.data_ptr<std::int64_t>();
  return {data, data + batch.input.numel()};
}

// All ranks of a run, stepped together; checks what every step must satisfy and gives its global batch in order.
class World {
 public:
  World(std::int64_t size, LoaderOptions options, std::int64_t ranks, Position start = {}) : options_(options) {
    options.data_world = ranks;
    for (options.data_rank = 0; options.data_rank < ranks; ++options.data_rank) {
      loaders_.push_back(std::make_unique<Loader>(std::make_shared<Numbers>(size), options, start));
    }
  }

  std::vector<std::int64_t> step() {
    std::vector<std::int64_t> global;
    const Position before = position();
    for (std::int64_t m = 0; m < options_.accumulation; ++m) {
      for (auto& loader : loaders_) {
        EXPECT_EQ(loader->position(), before) << "an unfinished step does not move the position";
        const Batch batch = loader->next();
        EXPECT_EQ(batch.first_index, static_cast<std::int64_t>(global.size()));
        EXPECT_EQ(batch.samples, batch.input.numel());
        EXPECT_LE(batch.samples, options_.micro);
        EXPECT_EQ(batch.micro_step, m);
        EXPECT_EQ(batch.last_of_step, m + 1 == options_.accumulation);
        EXPECT_EQ(batch.step_start, before);
        telemetry::SamplesRead read;
        for (const std::int64_t value : values(batch)) {
          global.push_back(value);
          read.add(before.epoch, value);
        }
        EXPECT_EQ(batch.read, read) << "a batch says which samples it has";
        global_samples_ = batch.global_samples;
        last_of_epoch_ = batch.last_of_epoch;
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(global.size()), global_samples_);
    for (auto& loader : loaders_) EXPECT_EQ(loader->position(), position());
    EXPECT_EQ(last_of_epoch_, position().epoch != before.epoch);
    return global;
  }

  Position position() const { return loaders_.front()->position(); }
  Loader& rank(int i) { return *loaders_[i]; }

 private:
  LoaderOptions options_;
  std::vector<std::unique_ptr<Loader>> loaders_;
  std::int64_t global_samples_ = 0;
  bool last_of_epoch_ = false;
};

LoaderOptions options(std::int64_t micro, std::int64_t accumulation, std::int64_t workers) {
  LoaderOptions o;
  o.micro = micro;
  o.accumulation = accumulation;
  o.num_workers = workers;
  o.seed = 42;
  return o;
}

TEST(Loader, gives_every_sample_once_per_epoch) {
  for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const auto& [micro, accumulation] : {std::pair{1, 1}, {3, 1}, {2, 3}, {50, 2}}) {
      for (const std::int64_t workers : {0, 1, 3}) {
        SCOPED_TRACE(::testing::Message()
                     << ranks << " ranks, micro " << micro << " x " << accumulation << ", workers " << workers);
        World world(101, options(micro, accumulation, workers), ranks);
        for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
          std::multiset<std::int64_t> seen;
          while (world.position().epoch == epoch) {
            for (const std::int64_t value : world.step()) seen.insert(value);
          }
          ASSERT_EQ(seen.size(), 101u);
          ASSERT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 101u);
        }
      }
    }
  }
}

TEST(Loader, global_batches_do_not_depend_on_ranks_accumulation_or_workers) {
  std::vector<std::vector<std::int64_t>> reference;
  World one(100, options(24, 1, 0), 1);
  for (int step = 0; step < 12; ++step) reference.push_back(one.step());
  for (const auto& [ranks, micro, accumulation] : {std::tuple{2, 12, 1}, {4, 3, 2}, {8, 1, 3}, {1, 2, 12}, {3, 4, 2}}) {
    World world(100, options(micro, accumulation, 2), ranks);
    for (int step = 0; step < 12; ++step) ASSERT_EQ(world.step(), reference[step]) << ranks << " ranks, step " << step;
  }
}

// The global batches of the next steps over any number of ranks.
std::vector<std::vector<std::int64_t>> global_batches(LoaderOptions o, std::int64_t ranks, Position start,
                                                      std::int64_t step, int steps) {
  std::vector<std::unique_ptr<Loader>> loaders;
  o.data_world = ranks;
  for (o.data_rank = 0; o.data_rank < ranks; ++o.data_rank) {
    loaders.push_back(std::make_unique<Loader>(std::make_shared<Numbers>(100), o));
    loaders.back()->seek(start, step);
  }
  std::vector<std::vector<std::int64_t>> all;
  for (int i = 0; i < steps; ++i) {
    std::vector<std::int64_t> global;
    for (bool last = false; !last;) {
      for (auto& loader : loaders) {
        const Batch batch = loader->next();
        EXPECT_LE(batch.samples, o.micro);
        EXPECT_EQ(batch.first_index, static_cast<std::int64_t>(global.size()));
        for (const std::int64_t value : values(batch)) global.push_back(value);
        last = batch.last_of_step;
      }
    }
    all.push_back(global);
  }
  return all;
}

TEST(Loader, a_global_batch_that_does_not_divide_is_the_same_on_any_number_of_ranks) {
  LoaderOptions o = options(2, 1, 1);
  o.schedule = spec::BatchSchedule::constant(8);
  const auto one = global_batches(o, 1, {}, 0, 30);
  for (const std::int64_t ranks : {2, 3, 4, 5, 7}) EXPECT_EQ(global_batches(o, ranks, {}, 0, 30), one) << ranks;
}

TEST(Loader, a_phase_goes_on_where_it_was_on_another_number_of_ranks) {
  LoaderOptions o = options(2, 1, 2);
  o.schedule = spec::BatchSchedule{{{5, 0, 2}, {0, 40, 6}, {0, 0, 10}}};
  const auto whole = global_batches(o, 2, {}, 0, 25);
  EXPECT_EQ(whole[4].size(), 2u);
  EXPECT_EQ(whole[5].size(), 6u);
  EXPECT_EQ(whole[10].size(), 10u);  // 5 x 2 + 5 x 6 samples
  std::int64_t used = 0;
  for (std::int64_t step = 0; step < 25; ++step) {
    const auto rest = global_batches(o, 3, {used / 100, used % 100}, step, 25 - static_cast<int>(step));
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + step)) << "from step " << step;
    used += static_cast<std::int64_t>(whole[static_cast<std::size_t>(step)].size());
  }
}

TEST(Loader, order_does_not_depend_on_workers_that_finish_out_of_order) {
  std::vector<std::vector<std::int64_t>> reference;
  for (const std::int64_t workers : {0, 1, 2, 5}) {
    Loader loader(std::make_shared<Numbers>(200, -1, true), options(3, 2, workers));
    std::vector<std::vector<std::int64_t>> got;
    for (int i = 0; i < 150; ++i) got.push_back(values(loader.next()));
    if (reference.empty()) reference = got;
    ASSERT_EQ(got, reference) << workers << " workers";
  }
}

TEST(Loader, shuffles_differently_every_epoch_and_by_seed) {
  World world(64, options(64, 1, 1), 1);
  LoaderOptions other = options(64, 1, 1);
  other.seed = 43;
  World seeded(64, other, 1);
  const auto first = world.step();
  EXPECT_NE(first, world.step());
  EXPECT_NE(first, seeded.step());
}

TEST(Loader, keeps_the_order_of_the_data_set_without_shuffle) {
  LoaderOptions o = options(4, 1, 2);
  o.shuffle = false;
  World world(10, o, 2);
  EXPECT_EQ(world.step(), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(world.step(), (std::vector<std::int64_t>{8, 9}));
}

TEST(Loader, spreads_a_short_batch_over_the_ranks_even_when_some_get_nothing) {
  LoaderOptions o = options(4, 2, 0);
  o.shuffle = false;
  o.data_world = 4;
  std::int64_t total = 0;
  for (o.data_rank = 0; o.data_rank < 4; ++o.data_rank) {
    Loader loader(std::make_shared<Numbers>(5), o);
    for (int m = 0; m < 2; ++m) {
      const Batch batch = loader.next();
      EXPECT_LE(batch.samples, 1);
      EXPECT_EQ(batch.global_samples, 5);
      total += batch.samples;
    }
    EXPECT_EQ(loader.position(), (Position{1, 0}));
  }
  EXPECT_EQ(total, 5);
}

// The remaining global stream after a resume must be the old one, cut into batches of the new size.
TEST(Loader, resumes_at_random_places_with_other_numbers_of_ranks) {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 60; ++trial) {
    const std::int64_t size = 40 + static_cast<std::int64_t>(rng() % 100);
    const auto pick = [&](int n) { return static_cast<std::int64_t>(1 + rng() % n); };
    World before(size, options(pick(3), pick(3), rng() % 3), pick(8));
    const int steps = static_cast<int>(rng() % 30);
    for (int i = 0; i < steps; ++i) before.step();
    const Position saved = before.position();
    World after(size, options(pick(3), pick(3), rng() % 3), pick(8), saved);
    World seeking(size, options(pick(3), pick(3), rng() % 3), 1);
    seeking.step();
    seeking.rank(0).seek(saved);

    World whole(size, options(size, 1, 0), 1);  // one step per epoch: the order of the epochs
    std::vector<std::int64_t> order;
    for (std::int64_t epoch = 0; epoch <= saved.epoch; ++epoch) order = whole.step();
    const std::vector<std::int64_t> rest(order.begin() + saved.samples, order.end());
    for (World* world : {&after, &seeking}) {
      std::vector<std::int64_t> got;
      while (world->position().epoch == saved.epoch) {
        for (const std::int64_t value : world->step()) got.push_back(value);
      }
      ASSERT_EQ(got, rest) << "trial " << trial;
    }
    ASSERT_EQ(after.position(), (Position{saved.epoch + 1, 0}));
  }
}

TEST(Loader, resumes_with_the_same_ranks_in_the_same_batches) {
  World undisturbed(77, options(2, 2, 2), 3);
  for (int i = 0; i < 9; ++i) undisturbed.step();
  World resumed(77, options(2, 2, 2), 3, undisturbed.position());
  for (int i = 0; i < 20; ++i) ASSERT_EQ(resumed.step(), undisturbed.step());
}

TEST(Loader, position_counts_only_what_was_handed_out_not_what_was_prefetched) {
  LoaderOptions o = options(1, 2, 3);
  o.prefetch_factor = 8;
  Loader loader(std::make_shared<Numbers>(1000), o);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(loader.position(), (Position{0, 0}));
  loader.next();
  EXPECT_EQ(loader.position(), (Position{0, 0})) << "in the middle of a step";
  loader.next();
  EXPECT_EQ(loader.position(), (Position{0, 2}));
}

TEST(Loader, surfaces_a_workers_exception_at_its_place_and_again_until_seek) {
  for (const std::int64_t workers : {0, 1, 4}) {
    LoaderOptions o = options(2, 1, workers);
    o.shuffle = false;
    Loader loader(std::make_shared<Numbers>(20, 9), o);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(loader.next().samples, 2);
    EXPECT_THROW(loader.next(), UserError);
    EXPECT_THROW(loader.next(), UserError);
    EXPECT_EQ(loader.position(), (Position{0, 8}));
    loader.seek({0, 10});
    EXPECT_EQ(values(loader.next()), (std::vector<std::int64_t>{10, 11}));
  }
}

TEST(Loader, seek_while_workers_are_busy_drops_what_they_bring) {
  Loader loader(std::make_shared<Numbers>(500, -1, true), [] {
    LoaderOptions o = options(2, 1, 4);
    o.shuffle = false;
    return o;
  }());
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::int64_t place = (i * 37) % 490;
    loader.seek({i, place});
    for (std::int64_t k = place; k < place + 8; k += 2) {
      ASSERT_EQ(values(loader.next()), (std::vector<std::int64_t>{k, k + 1}));
    }
  }
}

TEST(Loader, refuses_a_position_outside_the_data_set) {
  Loader loader(std::make_shared<Numbers>(10), options(1, 1, 0));
  for (const Position position : {Position{0, 10}, Position{0, -1}, Position{-1, 0}}) {
    testing::expect_user_error(ExitCode::kUsage, {"outside the data set of 10 samples"},
                               [&] { loader.seek(position); });
  }
}

TEST(Loader, refuses_an_empty_data_set) {
  testing::expect_user_error(ExitCode::kUsage, {"empty"},
                             [] { Loader loader(std::make_shared<Numbers>(0), LoaderOptions{}); });
}

TEST(Loader, is_done_after_its_epochs) {
  for (const std::int64_t workers : {0, 2}) {
    LoaderOptions o = options(3, 1, workers);
    o.epochs = 2;
    Loader loader(std::make_shared<Numbers>(10), o);
    EXPECT_EQ(loader.steps_per_epoch(), 4);
    int steps = 0;
    for (; !loader.done(); ++steps) loader.next();
    EXPECT_EQ(steps, 8);
    EXPECT_THROW(loader.next(), InternalError);
  }
}

TEST(Loader, times_out_when_the_data_never_comes) {
  const auto stuck = std::make_shared<Stuck>();
  LoaderOptions o = options(1, 1, 1);
  o.timeout_seconds = 0.05;
  Loader loader(stuck, o);
  try {
    loader.next();
    ADD_FAILURE() << "no Fault";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.kind(), FaultKind::kTimeout);
  }
  stuck->go = true;
}

TEST(Loader, counts_the_seconds_the_trainer_waited) {
  const auto stuck = std::make_shared<Stuck>();
  Loader loader(stuck, options(1, 1, 1));
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stuck->go = true;
  });
  loader.next();
  release.join();
  EXPECT_GT(loader.statistics().stall_seconds, 0.05);
  EXPECT_EQ(loader.statistics().micro_batches, 1);
}

TEST(LoaderTiming, the_trainers_own_time_is_no_stall) {
  const auto stuck = std::make_shared<Stuck>();
  stuck->go = true;
  Loader loader(stuck, options(1, 1, 1));
  loader.next();
  const double before = loader.statistics().stall_seconds;
  std::this_thread::sleep_for(std::chrono::milliseconds(150));  // now prefetched
  loader.next();
  EXPECT_LT(loader.statistics().stall_seconds - before, 0.1);
}

TEST(Loader, can_be_destroyed_at_any_moment) {
  for (int i = 0; i < 200; ++i) {
    Loader loader(std::make_shared<Numbers>(50, i % 50, true), options(2, 2, 1 + i % 4));
    if (i % 3 == 0) {
      try {
        for (int k = 0; k < i % 7; ++k) loader.next();
      } catch (const UserError&) {
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
