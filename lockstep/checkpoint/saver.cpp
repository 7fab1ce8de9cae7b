#include "lockstep/checkpoint/saver.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/part_files.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// After the time is over, what ranks need to notice and stop; then they hang in the file system.
constexpr double kGraceSeconds = 15.0;
constexpr double kThreadEndSeconds = 5.0;

}  // namespace

std::string new_session() { return fmt::format("{}-{:08x}", ::getpid(), std::random_device{}()); }

// Shared with the background thread, which may outlive the saver when the file system hangs.
struct Saver::Job {
  enum class Stage { kWriting, kWritten, kFailed, kPublishing, kPublished, kRefused };

  SaverOptions options;
  CheckpointFacts facts;
  fs::path target, temp;
  std::shared_ptr<HostImage> image;
  Stopwatch watch;
  double stall_seconds = 0.0;
  std::uint64_t bytes = 0;

  bool expired = false;  // the saver's thread alone looks at it
  std::atomic<bool> abandoned{false};
  UniqueFd lock;  // rank 0, of the directory
  mutable std::mutex mutex;
  std::condition_variable changed;
  Stage stage_now = Stage::kWriting;
  bool running = false;  // a thread works on it
  std::string problem;
  std::thread thread;

  Stage stage() const {
    const std::lock_guard guard(mutex);
    return stage_now;
  }
  void end_thread(Stage stage, const std::string& what) {
    const std::lock_guard guard(mutex);
    stage_now = stage;
    problem = what;
    running = false;
    changed.notify_all();
  }
  void write();
  void publish();
  FileEntries collect(int from) const;
};

void Saver::Job::write() {
  const telemetry::SpanScope span(
      options.log.get(),
      {.kind = telemetry::SpanKind::kCheckpoint, .lane = telemetry::SpanLane::kSaver, .name = "write a checkpoint"});
  const FileLayer& files = *options.files;
  make_durable_folders(options.directory, files);
  if (options.rank == 0) {
    lock = lock_directory(options.directory);
    remove_junk(options.directory, temp, files);
  }
  files.make_folder(temp);  // whoever comes first
  image->finish();
  bytes = write_part_files(temp, options.rank, *image, facts, files, abandoned);
  files.sync_folder(temp);
}

// What a rank wrote, by its own account, and its index as it is on the disk.
FileEntries Saver::Job::collect(int from) const {
  const std::string stem = rank_file_stem(from);
  const fs::path index_path = temp / (stem + ".json"), data_path = temp / (stem + ".safetensors");
  std::error_code error;
  if (!fs::exists(index_path, error) || !fs::exists(data_path, error)) {
    throw environment_error(fmt::format("rank {} wrote its part and this rank does not see it", from),
                            "checkpoint.directory must be the same shared folder on every node",
                            {options.directory.string()});
  }
  const std::string text = read_file(index_path);
  const PartIndex index = parse_part_index(text, index_path);
  const std::uint64_t size = fs::file_size(data_path);
  if (index.step != facts.step || size != index.file.bytes) {
    throw environment_error(fmt::format("the part of rank {} is not what it wrote", from), "check the file system",
                            {data_path.string()});
  }
  const auto* bytes_of_text = reinterpret_cast<const unsigned char*>(text.data());
  FileEntries entries;
  entries[stem + ".json"].digest = {text.size(), 0, block_checksums(bytes_of_text, text.size())};
  entries[stem + ".safetensors"].digest = index.file;
  return entries;
}

void Saver::Job::publish() {
  const telemetry::SpanScope span(
      options.log.get(),
      {.kind = telemetry::SpanKind::kCheckpoint, .lane = telemetry::SpanLane::kSaver, .name = "publish a checkpoint"});
  FileEntries entries;
  for (int from = 0; from < options.world; ++from) entries.merge(collect(from));
  const json manifest = {{"schema", "lockstep.checkpoint/2"},
                         {"step", facts.step},
                         {"world", options.world},
                         {"created_at", unix_seconds()},
                         {"job", facts.job_yaml},
                         {"loader", facts.loader},
                         {"extra", facts.extra},
                         {"block_bytes", kDigestBlockBytes},
                         {"files", to_json(entries)}};
  const FileLayer& files = *options.files;
  if (options.before_publish) options.before_publish();
  write_durable_file(temp / kManifestName, seal_manifest(manifest), files);
  files.sync_folder(temp);
  publish_folder(temp, target, files);
  try {
    retain_but(options.directory, options.keep, target, files);
  } catch (const std::exception&) {
    // It is saved; the next save deletes what is too many.
  }
}

Saver::Saver(SaverOptions options) : options_(std::move(options)), image_(std::make_shared<HostImage>()) {
  if (options_.directory.empty()) throw bad_input("checkpoint.directory is empty", "name a folder");
  LOCKSTEP_ASSERT(options_.rank >= 0 && options_.rank < options_.world, "rank must be below world");
  LOCKSTEP_ASSERT(options_.session.find('/') == std::string::npos, "a session is one part of a path");
  LOCKSTEP_ASSERT(options_.world == 1 || !options_.session.empty(), "ranks agree on a session");
  if (options_.session.empty()) options_.session = new_session();
}

Saver::~Saver() {
  if (!job_) return;
  job_->abandoned = true;
  std::unique_lock guard(job_->mutex);
  const bool ended =
      job_->changed.wait_for(guard, std::chrono::duration<double>(kThreadEndSeconds), [&] { return !job_->running; });
  guard.unlock();
  if (!job_->thread.joinable()) return;
  ended ? job_->thread.join() : job_->thread.detach();
}

std::int64_t Saver::step() const {
  LOCKSTEP_ASSERT(job_, "a save is in flight");
  return job_->facts.step;
}

void Saver::start(void (*work)(Job&)) {
  if (job_->thread.joinable()) job_->thread.join();
  job_->running = true;
  job_->thread = std::thread([job = job_, work] { work(*job); });
}

void Saver::prepare(const CheckpointPart& part) {
  LOCKSTEP_ASSERT(!busy(), "the image is not in use");
  std::uint64_t bytes = 0;
  for (const TensorPiece& piece : part.pieces) bytes += piece.values.nbytes();
  preparing_ = std::async(std::launch::async, [image = image_, bytes] { image->prepare(bytes); });
}

void Saver::begin(const CheckpointPart& part, const Accept& accept) {
  LOCKSTEP_ASSERT(!busy(), "one save at a time");
  LOCKSTEP_ASSERT(part.facts.step >= 0, "steps count from 0");
  auto job = std::make_shared<Job>();
  job->options = options_;
  job->facts = part.facts;
  job->target = options_.directory / step_folder_name(part.facts.step);
  job->temp = temporary_folder(job->target, fmt::format("{}-{}", options_.session, ++attempts_));
  job->image = image_;
  // A copy that fails has failed on this rank alone: the others must hear of it as of a failed write.
  std::string problem;
  std::optional<std::string> not_finite;
  try {
    if (preparing_.valid()) preparing_.get();
    job->image->take(part.pieces);
    if (accept) not_finite = job->image->not_finite();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (accept) accept(not_finite);
  job->stall_seconds = job->watch.seconds();
  job_ = std::move(job);
  if (!problem.empty()) return job_->end_thread(Job::Stage::kFailed, problem);
  start([](Job& own) {
    try {
      own.write();
      own.end_thread(Job::Stage::kWritten, "");
    } catch (const std::exception& error) {
      own.end_thread(Job::Stage::kFailed, error.what());
    }
  });
}

SaveProgress Saver::progress(bool give_up) const {
  SaveProgress progress;
  if (!job_) return progress;
  const Job::Stage stage = job_->stage();
  progress.failed = stage == Job::Stage::kFailed;
  progress.written = stage != Job::Stage::kFailed && stage != Job::Stage::kWriting;
  progress.published = stage == Job::Stage::kPublished;
  progress.refused = stage == Job::Stage::kRefused;
  if (options_.rank != 0) return progress;
  const double seconds = job_->watch.seconds();
  progress.expired = seconds > options_.timeout_seconds;
  progress.given_up = give_up && seconds > options_.timeout_seconds + kGraceSeconds;
  return progress;
}

std::optional<SaveOutcome> Saver::advance(const SaveProgress& sums) {
  if (!job_) return std::nullopt;
  if (sums.published > 0) return end(true, 0);
  if (sums.expired > 0) job_->expired = job_->abandoned = true;
  if (sums.given_up > 0) return end(false, options_.world - static_cast<int>(sums.written));
  if (sums.refused > 0) return end(false, 1);
  // Only when nobody writes any more is the folder free to be removed.
  if (sums.written + sums.failed < options_.world) return std::nullopt;
  if (sums.failed > 0) return end(false, static_cast<int>(sums.failed));
  if (options_.rank == 0 && job_->stage() == Job::Stage::kWritten) {
    job_->stage_now = Job::Stage::kPublishing;  // no thread runs
    start([](Job& own) {
      try {
        own.publish();
        own.end_thread(Job::Stage::kPublished, "");
      } catch (const std::exception& error) {
        own.end_thread(Job::Stage::kRefused, error.what());
      }
    });
  }
  return std::nullopt;
}

SaveOutcome Saver::end(bool saved, int failed_ranks) {
  const std::shared_ptr<Job> job = std::exchange(job_, nullptr);
  SaveOutcome outcome{saved, job->facts.step, job->target, 0, job->watch.seconds(), job->stall_seconds,
                      {},    failed_ranks,    job->expired};
  std::unique_lock guard(job->mutex);
  const bool hangs = job->running;
  outcome.bytes = hangs ? 0 : job->bytes;
  outcome.problem = hangs ? fmt::format("still writing after {:.0f} s", outcome.seconds) : job->problem;
  guard.unlock();
  if (hangs) {
    job->thread.detach();
    image_ = std::make_shared<HostImage>();  // the thread still reads the old one
    return outcome;
  }
  if (job->thread.joinable()) job->thread.join();
  if (!saved && options_.rank == 0) discard(job->temp, *options_.files);
  return outcome;
}

SaveOutcome finish_save(Saver& saver, const Exchange& exchange) {
  LOCKSTEP_ASSERT(saver.options().world == 1 || exchange, "several ranks need an exchange");
  for (int round = 0;; ++round) {
    const SaveProgress own = saver.progress(true);
    if (const auto outcome = saver.advance(exchange ? exchange(own) : own)) return *outcome;
    std::this_thread::sleep_for(std::chrono::milliseconds(round < 20 ? 2 : 20));
  }
}

SaveOutcome save_checkpoint(const CheckpointPart& part, const SaverOptions& options, const Exchange& exchange) {
  Saver saver(options);
  saver.begin(part);
  SaveOutcome outcome = finish_save(saver, exchange);
  if (outcome.saved) return outcome;
  throw environment_error(outcome.problem.empty()
                              ? fmt::format("{} of {} ranks could not save", outcome.failed_ranks, options.world)
                              : outcome.problem,
                          "the previous checkpoint is untouched", {options.directory.string()});
}

namespace {

std::string probe_text(const SaverOptions& options, int rank) { return fmt::format("{} {}\n", options.session, rank); }

fs::path probe_path(const SaverOptions& options, int rank) {
  return options.directory / fmt::format(".probe-{}-{}", options.session, rank);
}

// What a rank finds wrong; "" for nothing.
template <class Body>
std::string problem_of(const Body& body) {
  try {
    body();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void probe_directory(const SaverOptions& options, const std::function<double(double)>& sum) {
  const fs::path own = probe_path(options, options.rank);
  std::string problem = problem_of([&] {
    make_durable_folders(options.directory, *options.files);
    write_durable_file(own, probe_text(options, options.rank), *options.files);
  });
  const double unwritable = sum(problem.empty() ? 0.0 : 1.0);
  const int other = (options.rank + 1) % options.world;
  if (unwritable == 0) {
    problem = problem_of([&] {
      if (read_file(probe_path(options, other)) != probe_text(options, other)) {
        throw environment_error("another content", "");
      }
    });
    if (!problem.empty()) problem = fmt::format("what rank {} wrote there is not what this rank reads", other);
  }
  const double unreadable = sum(unwritable == 0 && !problem.empty() ? 1.0 : 0.0);
  options.files->remove_all(own);
  if (unwritable + unreadable == 0) return;
  if (problem.empty())
    problem = fmt::format("{:.0f} of {} ranks cannot use it", unwritable + unreadable, options.world);
  throw environment_error(fmt::format("checkpoints cannot be saved: {}", problem),
                          unwritable > 0 ? "make it writable on every node or set checkpoint.directory"
                                         : "set checkpoint.directory to a folder that all nodes share",
                          {options.directory.string()});
}

}  // namespace lockstep::checkpoint
