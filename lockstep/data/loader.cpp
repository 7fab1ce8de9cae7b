#include "lockstep/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/permutation.h"

namespace lockstep::data {
namespace {

// The place of one micro-batch in the stream, and how to come to the next one.
struct Cursor {
  Position start;         // of the step
  std::int64_t step = 0;  // steps done before it
  std::int64_t micro_step = 0;
};

struct Geometry {
  std::int64_t size;  // of the data set
  std::int64_t micro;
  std::int64_t world;
  std::int64_t rank;
  spec::BatchSchedule schedule;

  std::int64_t global_batch(const Cursor& at) const {
    return schedule.global_at(at.step, at.start.epoch * size + at.start.samples);
  }
  std::int64_t global_samples(const Cursor& at) const { return std::min(global_batch(at), size - at.start.samples); }
  std::int64_t micro_steps(const Cursor& at) const { return spec::micro_steps_of(global_batch(at), micro, world); }

  // Where part `part` of a step begins inside the global batch.
  std::int64_t part_begin(const Cursor& at, std::int64_t part) const {
    const auto product = static_cast<__int128>(part) * global_samples(at);
    const std::int64_t parts = micro_steps(at) * world;
    return static_cast<std::int64_t>(product / parts);
  }

  bool last_of_step(const Cursor& at) const { return at.micro_step + 1 == micro_steps(at); }
  bool last_of_epoch(const Cursor& at) const { return at.start.samples + global_batch(at) >= size; }

  void advance(Cursor& at) const {
    if (!last_of_step(at)) {
      ++at.micro_step;
      return;
    }
    at.micro_step = 0;
    if (last_of_epoch(at)) {
      at.start = {at.start.epoch + 1, 0};
    } else {
      at.start.samples += global_batch(at);
    }
    ++at.step;
  }
};

Geometry check(const Dataset& dataset, const LoaderOptions& o) {
  LOCKSTEP_ASSERT(o.micro >= 1 && o.accumulation >= 1 && o.data_world >= 1, "batch sizes must be at least 1");
  LOCKSTEP_ASSERT(o.data_rank >= 0 && o.data_rank < o.data_world, "data_rank out of range");
  LOCKSTEP_ASSERT(o.num_workers >= 0 && o.prefetch_factor >= 1 && o.epochs >= 0, "loader options out of range");
  const auto usual = static_cast<__int128>(o.micro) * o.accumulation * o.data_world;
  const auto global = o.schedule ? static_cast<__int128>(o.schedule->largest()) : usual;
  if (global > (std::int64_t{1} << 40)) {
    throw bad_input("the global batch (micro x accumulation x data ranks) is beyond 2^40 samples",
                    "lower batch.micro or batch.accumulation");
  }
  if (dataset.size() < 1) throw bad_input("the data set is empty", "check data.path in the job file");
  return {dataset.size(), o.micro, o.data_world, o.data_rank,
          o.schedule.value_or(spec::BatchSchedule::constant(static_cast<std::int64_t>(usual)))};
}

}  // namespace

// Workers draw tickets in stream order; a finished micro-batch waits in `ready_` under its ticket until next() asks
// for exactly that one. A worker stops drawing once `capacity_` tickets are ahead of the consumer, which bounds memory.
// seek() starts a new generation: what a worker brings back from an older one is thrown away.
//
// `mutex_` guards everything below it except what is const; no fetch runs under it.
class Loader::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, Position start)
      : dataset_(std::move(dataset)),
        options_(options),
        geometry_(check(*dataset_, options)),
        capacity_(options.num_workers * options.prefetch_factor) {
    seek(start, 0);
    try {
      for (std::int64_t i = 0; i < options_.num_workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Impl() { stop(); }

  Batch next() {
    LOCKSTEP_ASSERT(!done(), "next() called on a loader that is done");
    const Stopwatch watch;
    Batch batch = options_.num_workers == 0 ? fetch(consumer_) : take();
    const std::lock_guard lock(mutex_);
    statistics_.stall_seconds += watch.seconds();
    ++statistics_.micro_batches;
    return batch;
  }

  bool done() const {
    const std::lock_guard lock(mutex_);
    return beyond_end(consumer_);
  }

  Position position() const {
    const std::lock_guard lock(mutex_);
    return consumer_.start;
  }

  std::int64_t global_batch() const {
    const std::lock_guard lock(mutex_);
    return geometry_.global_batch(consumer_);
  }

  void seek(Position position, std::int64_t step) {
    if (position.epoch < 0 || position.samples < 0 || position.samples >= geometry_.size) {
      throw bad_input(fmt::format("the saved position (epoch {}, sample {}) lies outside the data set of {} samples",
                                  position.epoch, position.samples, geometry_.size),
                      "resume with the data set that the run was started with");
    }
    const std::lock_guard lock(mutex_);
    ++generation_;
    ready_.clear();
    consumer_ = producer_ = Cursor{position, step, 0};
    consumed_ = drawn_ = 0;
    room_.notify_all();
  }

  LoaderStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

  const Dataset& dataset() const { return *dataset_; }
  const Geometry& geometry() const { return geometry_; }

 private:
  struct Slot {
    Batch batch;
    std::exception_ptr error;
  };

  bool beyond_end(const Cursor& at) const { return options_.epochs > 0 && at.start.epoch >= options_.epochs; }

  // The micro-batch at `at`; needs no lock.
  Batch produce(const Cursor& at) const {
    const telemetry::SpanScope span(options_.log.get(), {.kind = telemetry::SpanKind::kLoad,
                                                         .lane = telemetry::SpanLane::kLoader,
                                                         .micro = static_cast<std::int16_t>(at.micro_step),
                                                         .name = "make a batch"});
    const std::int64_t part = at.micro_step * geometry_.world + geometry_.rank;
    const std::int64_t begin = geometry_.part_begin(at, part);
    const std::int64_t end = geometry_.part_begin(at, part + 1);
    std::vector<std::int64_t> indices(static_cast<std::size_t>(end - begin));
    const Permutation permutation(geometry_.size, options_.seed, static_cast<std::uint64_t>(at.start.epoch));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t place = at.start.samples + i;
      indices[static_cast<std::size_t>(i - begin)] = options_.shuffle ? permutation(place) : place;
    }
    Samples samples = dataset_->fetch_in_epoch(indices, at.start.epoch);
    Batch batch;
    for (const std::int64_t sample : indices) batch.read.add(at.start.epoch, sample);
    batch.input = options_.pinned ? samples.input.pin_memory() : std::move(samples.input);
    batch.target = options_.pinned ? samples.target.pin_memory() : std::move(samples.target);
    for (torch::Tensor& tensor : samples.more_inputs) {
      batch.more_inputs.push_back(options_.pinned ? tensor.pin_memory() : std::move(tensor));
    }
    batch.documents = std::move(samples.documents);
    batch.samples = end - begin;
    batch.global_samples = geometry_.global_samples(at);
    batch.first_index = begin;
    batch.micro_step = at.micro_step;
    batch.last_of_step = geometry_.last_of_step(at);
    batch.last_of_epoch = geometry_.last_of_epoch(at);
    batch.step_start = at.start;
    return batch;
  }

  // num_workers == 0. The cursor moves only when the fetch succeeded.
  Batch fetch(const Cursor& at) {
    Batch batch = produce(at);
    const std::lock_guard lock(mutex_);
    geometry_.advance(consumer_);
    return batch;
  }

  // num_workers > 0: waits for the ticket whose turn it is.
  Batch take() {
    std::unique_lock lock(mutex_);
    const auto limit = std::chrono::duration<double>(std::clamp(options_.timeout_seconds, 0.0, 1e8));
    if (!arrived_.wait_for(lock, limit, [this] { return ready_.contains(consumed_); })) {
      throw Fault(FaultKind::kTimeout, -1,
                  fmt::format("no data for {} s: the workers of the loader are stuck reading {}",
                              options_.timeout_seconds, dataset_->describe()));
    }
    const auto slot = ready_.find(consumed_);
    if (slot->second.error) std::rethrow_exception(slot->second.error);
    Batch batch = std::move(slot->second.batch);
    ready_.erase(slot);
    ++consumed_;
    geometry_.advance(consumer_);
    room_.notify_one();
    return batch;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [this] { return stopping_ || (drawn_ < consumed_ + capacity_ && !beyond_end(producer_)); });
      if (stopping_) return;
      const Cursor at = producer_;
      const std::int64_t ticket = drawn_++;
      const std::int64_t generation = generation_;
      geometry_.advance(producer_);
      lock.unlock();
      Slot slot;
      try {
        slot.batch = produce(at);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      if (generation != generation_) continue;
      ready_.emplace(ticket, std::move(slot));
      arrived_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      room_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  const std::shared_ptr<const Dataset> dataset_;
  const LoaderOptions options_;
  const Geometry geometry_;
  const std::int64_t capacity_;
  std::vector<std::thread> workers_;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;  // a slot became ready
  std::condition_variable room_;     // a ticket may be drawn, or stopping
  bool stopping_ = false;
  std::int64_t generation_ = 0;
  Cursor consumer_;            // the micro-batch that next() gives
  Cursor producer_;            // the micro-batch of the next ticket
  std::int64_t consumed_ = 0;  // ticket of consumer_
  std::int64_t drawn_ = 0;     // ticket of producer_
  std::map<std::int64_t, Slot> ready_;
  LoaderStatistics statistics_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, Position start)
    : impl_(std::make_unique<Impl>(std::move(dataset), options, start)) {}
Loader::~Loader() = default;

Batch Loader::next() { return impl_->next(); }
bool Loader::done() const { return impl_->done(); }
Position Loader::position() const { return impl_->position(); }
void Loader::seek(Position position, std::int64_t step) { impl_->seek(position, step); }
std::int64_t Loader::global_batch() const { return impl_->global_batch(); }
const spec::BatchSchedule& Loader::schedule() const { return impl_->geometry().schedule; }
std::int64_t Loader::steps_per_epoch() const {
  const Geometry& g = impl_->geometry();
  const std::int64_t global = g.schedule.final();
  return (g.size + global - 1) / global;
}
LoaderStatistics Loader::statistics() const { return impl_->statistics(); }
const Dataset& Loader::dataset() const { return impl_->dataset(); }

}  // namespace lockstep::data
