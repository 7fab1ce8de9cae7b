#include "lockstep/engine/chaos.h"

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/elastic/control.h"
#include "lockstep/engine/training_state.h"

namespace lockstep::engine {
namespace {

using elastic::ChaosKind;
using elastic::ChaosPhase;
using elastic::ChaosPlace;

constexpr double kForGood = std::numeric_limits<double>::infinity();

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Of a process that does not go on by itself; the agent ends it.
[[noreturn]] void sleep_for_good() {
  while (true) sleep_seconds(1.0);
}

double end_of(const elastic::ChaosEvent& event) {
  return event.seconds > 0.0 ? monotonic_seconds() + event.seconds : kForGood;
}

bool is_of_disk(ChaosKind kind) {
  return kind == ChaosKind::kFullDisk || kind == ChaosKind::kSlowDisk || kind == ChaosKind::kCorrupt;
}

// Turns the bits of one byte around.
void spoil_file(const std::filesystem::path& path, std::uintmax_t place) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(place));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(place));
  file.put(static_cast<char>(byte ^ 0xFF));
}

}  // namespace

// The file system, with what happens to it.
class Chaos::Files : public checkpoint::FileLayer {
 public:
  explicit Files(Chaos& chaos) : chaos_(chaos) {}

  UniqueFd create(const std::filesystem::path& path) const override {
    chaos_.file_call();
    return FileLayer::create(path);
  }
  void write(const UniqueFd& file, const std::filesystem::path& path, const void* data,
             std::size_t bytes) const override {
    chaos_.file_call();
    chaos_.write_call(path);
    FileLayer::write(file, path, data, bytes);
  }
  void sync(const UniqueFd& file, const std::filesystem::path& path) const override {
    chaos_.file_call();
    FileLayer::sync(file, path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) const override {
    chaos_.file_call();
    FileLayer::rename(from, to);
  }
  bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) const override {
    chaos_.file_call();
    return FileLayer::exchange(a, b);
  }
  void sync_folder(const std::filesystem::path& folder) const override {
    chaos_.file_call();
    FileLayer::sync_folder(folder);
  }

 private:
  Chaos& chaos_;
};

Chaos::Chaos(const Host& host) : host_(host), files_(std::make_unique<Files>(*this)) {}
Chaos::~Chaos() = default;

const checkpoint::FileLayer& Chaos::files() const { return *files_; }

void Chaos::enter(const std::vector<Event>& events, int generation) {
  const std::lock_guard lock(mutex_);
  generation_ = generation;
  step_ = 0;
  spoils_ = false;
  events_.clear();
  for (const Event& event : events) {
    if (!told_.contains(event.number)) events_.push_back(event);
  }
}

// The agent must have it even when this process ends now: the line is in its socket when send() returns.
void Chaos::tell(const Event& event) {
  told_.insert(event.number);
  host_.send({{"type", elastic::command::kChaos},
              {"event", event.number},
              {"rank", event.rank},
              {"step", step_.load()},
              {"generation", generation_}});
}

std::optional<Chaos::Event> Chaos::due(ChaosPlace place, std::int64_t call) {
  const std::lock_guard lock(mutex_);
  const bool outside = place == ChaosPlace::kJoin || place == ChaosPlace::kRecovery;
  const auto found = std::find_if(events_.begin(), events_.end(), [&](const Event& event) {
    const bool in_step = outside || (step_ > 0 && step_ >= event.step);
    const bool counts = place == ChaosPlace::kCollective || place == ChaosPlace::kSave;
    return event.place == place && !is_of_disk(event.kind) && in_step && (!counts || call >= event.at);
  });
  if (found == events_.end()) return std::nullopt;
  const Event event = *found;
  events_.erase(found);
  tell(event);
  return event;
}

std::optional<Chaos::Event> Chaos::due_of_kind(ChaosKind kind) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(events_.begin(), events_.end(), [&](const Event& event) {
    return event.kind == kind && step_ > 0 && step_ >= event.step;
  });
  if (found == events_.end()) return std::nullopt;
  const Event event = *found;
  events_.erase(found);
  tell(event);
  return event;
}

void Chaos::end_process(const Event& event) {
  if (event.kind == ChaosKind::kExit) _exit(1);
  const int number = event.kind == ChaosKind::kAbort ? SIGABRT : event.kind == ChaosKind::kSegfault ? SIGSEGV : SIGKILL;
  std::signal(number, SIG_DFL);
  ::kill(::getpid(), number);
  sleep_for_good();
}

void Chaos::joining() {
  if (generation_ < 2) return;
  if (const auto event = due(ChaosPlace::kJoin, 0)) end_process(*event);
}

void Chaos::recovering() {
  if (const auto event = due(ChaosPlace::kRecovery, 0)) end_process(*event);
}

void Chaos::operation_begins() {
  if (step_ == 0) return;
  if (const auto event = due(ChaosPlace::kCollective, ++operations_)) end_process(*event);
}

void Chaos::before_step(TrainingState& state) {
  spoils_ = false;
  operations_ = 0;
  file_calls_ = 0;
  step_ = state.step + 1;
  while (const auto event = due(ChaosPlace::kStep, 0)) happen(*event, state);
}

void Chaos::happen(const Event& event, TrainingState& state) {
  if (event.standby) return;  // the agent does it
  switch (event.kind) {
    case ChaosKind::kStop:  // the agent wakes it up
    case ChaosKind::kFreeze:
      ::raise(SIGSTOP);
      return;
    case ChaosKind::kHang:
      if (event.seconds == 0.0) sleep_for_good();
      return sleep_seconds(event.seconds);
    case ChaosKind::kSlow:
    case ChaosKind::kSlowLink:
      return slow(event);
    case ChaosKind::kLeak:
      leak_bytes_ = event.bytes;
      leaks_until_ = end_of(event);
      return;
    case ChaosKind::kNan:
      spoils_ = true;
      return;
    case ChaosKind::kFlip:
      return flip(state);
    case ChaosKind::kSever:
      return sever();
    default:
      return end_process(event);
  }
}

void Chaos::after_step(double step_seconds) {
  spoils_ = false;
  const double more = slow_phases_[static_cast<std::size_t>(ChaosPhase::kStep)].more_seconds(step_seconds, 0);
  if (more > 0.0) sleep_seconds(more);
  // Written to, or the kernel would not give any.
  if (monotonic_seconds() < leaks_until_) {
    leaked_.push_back(torch::ones({static_cast<std::int64_t>(leak_bytes_)}, torch::kUInt8));
  }
}

double Chaos::Slowness::more_seconds(double seconds, std::int64_t bytes) const {
  if (monotonic_seconds() >= until) return 0.0;
  return std::max(0.0, factor - 1.0) * seconds + delay_seconds + seconds_per_byte * static_cast<double>(bytes);
}

void Chaos::slow(const Event& event) {
  const bool link = event.kind == ChaosKind::kSlowLink;
  Slowness& slowness = link ? slow_link_ : slow_phases_[static_cast<std::size_t>(event.phase)];
  slowness.factor = event.factor;
  slowness.delay_seconds = event.delay_seconds;
  slowness.seconds_per_byte = event.bytes_per_second > 0.0 ? 1.0 / event.bytes_per_second : 0.0;
  slowness.until = end_of(event);
}

void Chaos::slow_down(telemetry::SpanLog& log) {
  log.disturb([this](const telemetry::SpanMark& mark, double seconds) { disturb(mark, seconds); });
}

void Chaos::disturb(const telemetry::SpanMark& mark, double seconds) const {
  using telemetry::SpanKind;
  const auto phase = [&]() -> std::optional<ChaosPhase> {
    const bool main = mark.lane == telemetry::SpanLane::kMain;
    if (mark.kind == SpanKind::kLoad && !main) return ChaosPhase::kLoader;
    if (!main) return std::nullopt;
    if (mark.kind == SpanKind::kForward) return ChaosPhase::kForward;
    if (mark.kind == SpanKind::kBackward || mark.kind == SpanKind::kWeightGradient) return ChaosPhase::kBackward;
    if (mark.kind == SpanKind::kOptimizer) return ChaosPhase::kOptimizer;
    if (mark.kind == SpanKind::kCheckpoint && mark.name != nullptr) return ChaosPhase::kCheckpoint;  // of a save
    return std::nullopt;
  }();
  double more = phase ? slow_phases_[static_cast<std::size_t>(*phase)].more_seconds(seconds, 0) : 0.0;
  if (mark.kind == SpanKind::kCollective) more = slow_link_.more_seconds(0.0, mark.bytes);
  if (more > 0.0) sleep_seconds(more);
}

// Every connection of the network; the line to the agent is not one.
void Chaos::sever() {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    if (fd < 3 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.ss_family == AF_INET || address.ss_family == AF_INET6) ::shutdown(fd, SHUT_RDWR);
  }
  ::closedir(folder);
}

// The lowest bit of the exponent of one weight in the middle: twice or half its value.
void Chaos::flip(TrainingState& state) {
  checkpoint::CheckpointPart part;
  state.executor->hold(part);
  for (checkpoint::TensorPiece& piece : part.pieces) {
    if (piece.kind != checkpoint::TensorKind::kModel || piece.values.scalar_type() != torch::kFloat32) continue;
    if (piece.values.numel() == 0 || !piece.values.is_cpu()) continue;
    auto* const bits = reinterpret_cast<std::uint32_t*>(piece.values.data_ptr<float>());
    bits[piece.values.numel() / 2] ^= std::uint32_t{1} << 23;
    return;
  }
}

void Chaos::file_call() {
  if (step_ == 0) return;
  if (const auto event = due(ChaosPlace::kSave, ++file_calls_)) end_process(*event);
}

void Chaos::write_call(const std::filesystem::path& path) {
  if (const auto event = due_of_kind(ChaosKind::kSlowDisk)) sleep_seconds(event->seconds);
  if (const auto event = due_of_kind(ChaosKind::kFullDisk)) {
    full_until_ = monotonic_seconds() + event->seconds;
    throw checkpoint::io_error("write", path, ENOSPC);
  }
  if (monotonic_seconds() < full_until_) throw checkpoint::io_error("write", path, ENOSPC);
}

void Chaos::saved(const std::filesystem::path& checkpoint) {
  if (!due_of_kind(ChaosKind::kCorrupt)) return;
  std::error_code gone;  // a later save may rotate it out meanwhile
  std::filesystem::path largest;
  std::uintmax_t size = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint, gone)) {
    const std::uintmax_t bytes = entry.is_regular_file(gone) ? entry.file_size(gone) : 0;
    if (gone || bytes <= size) continue;
    size = bytes;
    largest = entry.path();
  }
  if (!largest.empty()) spoil_file(largest, size / 2);
}

}  // namespace lockstep::engine
