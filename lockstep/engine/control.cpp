#include "lockstep/engine/control.h"

#include "lockstep/base/clock.h"
#include "lockstep/base/enum_names.h"
#include "lockstep/elastic/control.h"

namespace lockstep::engine {
namespace {

namespace command = elastic::command;

constexpr int kListenMilliseconds = 100;
constexpr double kBeatSeconds = 0.5;
constexpr double kLongSeconds = 1.0;
constexpr std::size_t kMostOperations = 4;

// Exchanges that take long; in a run that gets on there are none.
void add_operations(const comm::Communicator& world, nlohmann::json& message) {
  for (const comm::RunningOperation& operation : world.running()) {
    if (operation.seconds < kLongSeconds || message["operations"].size() == kMostOperations) break;
    message["operations"].push_back({{"kind", to_string(operation.kind)},
                                     {"group", operation.group},
                                     {"members", operation.members},
                                     {"sequence", operation.sequence},
                                     {"bytes", operation.bytes},
                                     {"site", operation.site},
                                     {"peer", operation.peer},
                                     {"seconds", operation.seconds},
                                     {"timeout_seconds", operation.timeout_seconds}});
  }
}

}  // namespace

Control::Control(const Host& host) : host_(host), thread_([this] { run(); }) {}

Control::~Control() {
  closing_ = true;
  thread_.join();
}

void Control::run() {
  double beaten = 0.0;
  while (!closing_) {
    if (const auto heard = host_.next_command(kListenMilliseconds)) obey(*heard);
    if (const double now = monotonic_seconds(); now - beaten >= kBeatSeconds) {
      beaten = now;
      beat();
    }
    const std::lock_guard lock(mutex_);
    if (ended_) return;
  }
}

void Control::beat() {
  nlohmann::json message = {{"type", command::kHeartbeat},
                            {"step", step_.load()},
                            {"marks", marks_.load()},
                            {"busy_seconds", busy_seconds_.load()}};
  std::optional<comm::Communicator> world;
  std::shared_ptr<telemetry::SpanLog> log;
  {
    const std::lock_guard lock(mutex_);
    message["generation"] = generation_;
    world = world_;
    log = log_;
  }
  if (log) {
    const telemetry::SpanLog::Doing doing = log->doing();
    message["phase"] = to_string(doing.phase);
    message["phase_seconds"] = monotonic_seconds() - doing.since;
  }
  if (world) add_operations(*world, message);
  host_.send(message);
}

void Control::watch(std::shared_ptr<telemetry::SpanLog> log) {
  const std::lock_guard lock(mutex_);
  log_ = std::move(log);
}

void Control::obey(const nlohmann::json& command) {
  const std::string type = command.value("type", "");
  std::optional<comm::Communicator> broken;
  {
    const std::lock_guard lock(mutex_);
    if (type == command::kJoin) {
      join_ = Join{.generation = command.value("generation", 0),
                   .rank = command.value("rank", 0),
                   .world = command.value("world", 1),
                   .local_rank = command.value("local_rank", 0),
                   .local_world = command.value("local_world", 1),
                   .master_host = command.value("master_host", "127.0.0.1"),
                   .master_port = command.value("master_port", 0),
                   .one_node = command.value("one_node", true),
                   .towards = command.value("towards", ""),
                   .chaos = elastic::chaos_events_from_json(command.value("chaos", nlohmann::json::array())),
                   .endured = {command.value("restarts", std::int64_t{0}), command.value("running_seconds", 0.0)}};
    } else if (type == command::kAbort) {
      aborted_ = std::max(aborted_, command.value("generation", 0));
      abort_reason_ = command.value("reason", "");
      if (aborted_ >= generation_) broken = world_;
    } else if (type == command::kEnd) {
      ended_ = true;
      broken = world_;
    }
    changed_.notify_all();
  }
  if (broken) broken->abort(abort_reason_);
}

std::optional<Control::Join> Control::next_join() {
  host_.send({{"type", command::kReady}});
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || (join_ && join_->generation > aborted_); });
  if (ended_) return std::nullopt;
  generation_ = join_->generation;
  step_ = -1;
  return std::exchange(join_, std::nullopt);
}

std::optional<std::string> Control::why_not(int generation) const {
  if (!ended_ && aborted_ < generation) return std::nullopt;
  return "the agent ended this group of ranks: " + abort_reason_;
}

std::optional<std::string> Control::aborted(int generation) {
  const std::lock_guard lock(mutex_);
  return why_not(generation);
}

void Control::entered(int generation, comm::Communicator world) {
  const std::lock_guard lock(mutex_);
  if (const auto reason = why_not(generation)) throw Fault(FaultKind::kAborted, -1, *reason);
  world_ = std::move(world);
}

void Control::left(int generation, const Fault& fault) {
  std::optional<comm::Communicator> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = std::exchange(world_, std::nullopt);
  }
  if (gone) gone->abort(fault.what());
  host_.send({{"type", command::kLost},
              {"generation", generation},
              {"message", fault.what()},
              {"kind", named<FaultKind::kAborted>(fault.kind(), "peer_lost", "timeout", "aborted")},
              {"exit_code", 1},
              {"suspect_rank", fault.rank()}});
}

void Control::recovered(std::int64_t lost_steps, std::int64_t step) {
  host_.send({{"type", command::kRecovered}, {"lost_steps", lost_steps}, {"step", step}});
}

void Control::stepped(std::int64_t step) {
  if (step_.exchange(step) < 0) beat();
  const std::lock_guard lock(mutex_);
  if (!ended_ && aborted_ < generation_) return;
  throw Fault(FaultKind::kAborted, -1, "the agent ended this group of ranks: " + abort_reason_);
}

}  // namespace lockstep::engine
