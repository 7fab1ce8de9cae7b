#include "lockstep/engine/snapshots.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/snapshots.h"
#include "lockstep/engine/exchange_text.h"
#include "lockstep/engine/failure_domains.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointPart;
using checkpoint::StoredPiece;
using checkpoint::TensorKind;
using checkpoint::TensorPiece;
using nlohmann::json;

constexpr double kHostShare = 0.9;  // of the memory that is free, for the snapshots of all ranks of a node

std::string host_name() {
  std::array<char, 256> name = {};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

json to_json(const std::vector<checkpoint::Series>& series) {
  json runs = json::array();
  for (const auto& run : series) runs.push_back({run.first, run.count, run.stride, run.repeat});
  return runs;
}

// A number for what the piece is; of a rank's own state no other rank has the same.
std::uint64_t name_of(const TensorPiece& piece, int rank) {
  const json what = {static_cast<int>(piece.kind), piece.name, to_json(piece.series),
                     piece.kind == TensorKind::kRank ? rank : -1};
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const std::uint8_t byte : json::to_cbor(what)) hash = (hash ^ byte) * 0x100000001b3ULL;
  return hash;
}

// What a rank tells the others about itself: where it is and what it holds.
std::string introduction(const RunContext& context, const CheckpointPart& part) {
  std::vector<std::uint64_t> names;
  for (const TensorPiece& piece : part.pieces) names.push_back(name_of(piece, context.rank()));
  const auto text =
      json::to_cbor({{"host", host_name()}, {"local", context.request.ranks.local_rank}, {"names", names}});
  return {text.begin(), text.end()};
}

std::string index_text(const std::vector<StoredPiece>& pieces, std::int64_t bytes) {
  json all = json::array();
  for (const StoredPiece& piece : pieces) {
    all.push_back(
        {static_cast<int>(piece.kind), piece.name, piece.dtype, piece.sizes, to_json(piece.series), piece.offset});
  }
  const auto text = json::to_cbor({{"bytes", bytes}, {"pieces", std::move(all)}});
  return {text.begin(), text.end()};
}

std::vector<StoredPiece> read_pieces(const json& index) {
  std::vector<StoredPiece> pieces;
  for (const json& told : index) {
    StoredPiece piece{
        static_cast<TensorKind>(told.at(0).get<int>()), told.at(1), told.at(2), told.at(3), {}, told.at(5)};
    for (const json& run : told.at(4)) piece.series.push_back({run.at(0), run.at(1), run.at(2), run.at(3)});
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::int64_t bytes_of(const std::vector<TensorPiece>& pieces) {
  std::int64_t bytes = 0;
  for (const TensorPiece& piece : pieces) bytes += static_cast<std::int64_t>(piece.values.nbytes());
  return bytes;
}

// Whose it is, so that PeerState knows whose own state is in it.
CheckpointPart owned_by(int rank, CheckpointPart part) {
  part.facts.rank_state["rank"] = rank;
  return part;
}

double free_host_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return std::stod(line.substr(13)) * 1024.0;
  }
  return 0.0;
}

}  // namespace

Snapshots::Snapshots(RunContext& context, const TrainingState& state)
    : context_(context), cadence_(context.run.snapshots.every) {
  if (!is_wanted()) return;
  const CheckpointPart part = live_part(state, context.job, context.world.size());
  if (!find_work(part)) return;
  meet_wards(part);
  if (!has_room()) return;
  std::vector<int> everybody(static_cast<std::size_t>(context.world.size()));
  for (std::size_t i = 0; i < everybody.size(); ++i) everybody[i] = static_cast<int>(i);
  group_ = context.world.subgroup(everybody, "snapshots");
  for (auto& slot : slots_) {
    slot = std::make_shared<Slot>();
    slot->received.reset(new unsigned char[static_cast<std::size_t>(kept_bytes_)]);
  }
  active_ = true;
  if (!cadence_.is_chosen() && context.generation == 1) tell();
}

void Snapshots::begin(const TrainingState& state) {
  if (!active_) return;
  wait();
  const double begin = monotonic_seconds();
  take(state);
  wait();
  slots_[taken_ % 2]->complete = false;  // of what `state` does not follow from
  cadence_.took_alone(monotonic_seconds() - begin);
  step_after_snapshot_ = false;
}

// A rank that ends early takes its peers' exchange with it; after finish() there is none. Threads of the group end
// before the memory that they may use goes.
Snapshots::~Snapshots() {
  if (in_flight_ != nullptr) {
    group_.abort("this rank left the run");
    work_.settle();
    if (copying_.valid()) copying_.wait();
  }
  group_ = {};
}

// Without an agent that replaces ranks nobody would use them.
bool Snapshots::is_wanted() const {
  const bool recovers = context_.held != nullptr && context_.job.recovery.restarts > 0;
  if (!recovers || context_.world.size() == 1 || context_.run.snapshots.every == 0) return false;
  const cost::SnapshotMemory memory = cost::snapshot_memory(context_.run);
  if (cadence_.is_chosen() && !memory.fits) {
    if (context_.rank() == 0 && context_.generation == 1) context_.host.note(cost::why_no_snapshots(memory));
    return false;
  }
  return true;
}

// Who holds what: false where every rank holds everything.
bool Snapshots::find_work(const CheckpointPart& part) {
  std::vector<RankPlace> places;
  std::vector<std::vector<std::uint64_t>> names;
  for (const std::string& text : gather_texts(context_.world, introduction(context_, part))) {
    const json told = json::from_cbor(text.begin(), text.end());
    places.push_back({told.at("host"), told.at("local")});
    names.push_back(told.at("names").get<std::vector<std::uint64_t>>());
  }
  std::int64_t alone = 0;  // what this rank holds and not every other does
  for (std::size_t i = 0; i < part.pieces.size(); ++i) {
    if (part.pieces[i].kind == TensorKind::kRank && part.pieces[i].name == state_name::kGenerator) continue;
    const std::uint64_t name = names[static_cast<std::size_t>(context_.rank())][i];
    const bool everywhere = std::all_of(names.begin(), names.end(), [&](const auto& of_rank) {
      return std::find(of_rank.begin(), of_rank.end(), name) != of_rank.end();
    });
    if (!everywhere) ++alone;
  }
  context_.world.all_reduce({&alone, 1, comm::DType::kI64}, comm::ReduceOp::kMax, comm::at_site("snapshots: need"))
      .wait();
  if (alone == 0) return false;
  const std::vector<int> domains = failure_domains(places);
  keeper_ = choose_keepers(domains)[static_cast<std::size_t>(context_.rank())];
  is_sent_ = unshared_pieces(names, domains)[static_cast<std::size_t>(context_.rank())];
  return true;
}

// Tells the keeper what it will get, and hears the same of those that this rank keeps copies of.
void Snapshots::meet_wards(const CheckpointPart& part) {
  std::vector<TensorPiece> sent;
  for (std::size_t i = 0; i < part.pieces.size(); ++i) {
    if (is_sent_[i]) sent.push_back(part.pieces[i]);
  }
  own_bytes_ = bytes_of(part.pieces);
  sent_bytes_ = bytes_of(sent);
  std::vector<std::string> texts(static_cast<std::size_t>(context_.world.size()));
  texts[static_cast<std::size_t>(keeper_)] = index_text(checkpoint::image_places(sent), sent_bytes_);
  const std::vector<std::string> told = exchange_texts(context_.world, texts);
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].empty()) continue;
    const json index = json::from_cbor(told[rank].begin(), told[rank].end());
    Ward ward{static_cast<int>(rank), kept_bytes_, index.at("bytes"), read_pieces(index.at("pieces"))};
    kept_bytes_ += ward.bytes;
    wards_.push_back(std::move(ward));
  }
}

// The same answer on every rank.
bool Snapshots::has_room() const {
  const double needed = 2.0 * static_cast<double>(own_bytes_ + kept_bytes_);
  const double room = kHostShare * free_host_memory() / std::max(1, context_.request.ranks.local_world);
  std::array<double, 2> lack = {needed - room, needed};
  context_.world.all_reduce({lack.data(), 2, comm::DType::kF64}, comm::ReduceOp::kMax, comm::at_site("snapshots: room"))
      .wait();
  if (lack[0] <= 0) return true;
  const std::string problem = fmt::format("snapshots need up to {} of host memory per rank, {} more than is free",
                                          format_bytes(lack[1]), format_bytes(lack[0]));
  if (!cadence_.is_chosen()) {
    throw does_not_fit(problem, "set recovery.snapshots.every to 0, run fewer ranks on a node or add memory");
  }
  if (context_.rank() == 0)
    context_.host.note(problem + ": none are taken, a lost rank costs steps since the last checkpoint");
  return false;
}

void Snapshots::take(const TrainingState& state) {
  const double begin = monotonic_seconds();
  Slot& slot = *slots_[taken_++ % 2];
  slot.complete = false;
  const CheckpointPart part = owned_by(context_.rank(), live_part(state, context_.job, context_.world.size()));
  std::vector<TensorPiece> sent, kept;
  for (std::size_t i = 0; i < part.pieces.size(); ++i) (is_sent_[i] ? sent : kept).push_back(part.pieces[i]);
  slot.facts = part.facts;
  slot.sent.take(sent);
  slot.kept.take(kept);
  LOCKSTEP_ASSERT(static_cast<std::int64_t>(slot.sent.size()) == sent_bytes_,
                  "a snapshot has the size it was told to have");
  in_flight_ = &slot;
  start_exchange(slot);
  last_step_ = state.step;
  step_after_snapshot_ = true;
  current_stall_ = monotonic_seconds() - begin;
  stall_seconds_ += current_stall_;
}

void Snapshots::start_exchange(Slot& slot) {
  if (context_.device.is_cpu()) {
    work_ = exchange(slot);
    return;
  }
  copying_ = std::async(std::launch::async, [this, &slot] {
    slot.sent.finish();
    slot.kept.finish();
    exchange(slot).wait();
  });
}

comm::Work Snapshots::exchange(Slot& slot) {
  std::vector<std::int64_t> send(static_cast<std::size_t>(context_.world.size())), receive(send.size());
  send[static_cast<std::size_t>(keeper_)] = sent_bytes_;
  for (const Ward& ward : wards_) receive[static_cast<std::size_t>(ward.rank)] = ward.bytes;
  return group_.all_to_all({slot.sent.data(), sent_bytes_, comm::DType::kU8}, send,
                           {slot.received.get(), kept_bytes_, comm::DType::kU8}, receive, comm::at_site("snapshots"));
}

void Snapshots::wait() {
  if (in_flight_ == nullptr) return;
  const double begin = monotonic_seconds();
  if (copying_.valid()) copying_.get();
  work_.wait();
  in_flight_->complete = true;
  in_flight_ = nullptr;
  const double waited = monotonic_seconds() - begin;
  current_stall_ += waited;
  stall_seconds_ += waited;
}

void Snapshots::after_step(const TrainingState& state, const StepResult& result) {
  if (!active_) return;
  const telemetry::SpanScope span({.kind = telemetry::SpanKind::kSnapshot});
  context_.held->clear();  // a step was done, so this generation has a whole snapshot of its own
  const bool after_snapshot = std::exchange(step_after_snapshot_, false);
  const auto agree = [&](SnapshotCadence::Figures mine) {
    context_.world
        .all_reduce({mine.data(), static_cast<std::int64_t>(mine.size()), comm::DType::kF64}, comm::ReduceOp::kMax,
                    comm::at_site("snapshots: cost"))
        .wait();
    return mine;
  };
  if (cadence_.stepped(result.seconds, after_snapshot, current_stall_, agree)) tell();
  const bool last = state.step >= state.total_steps;
  if (!last && state.step - last_step_ >= cadence_.every()) take(state);
}

void Snapshots::finish() {
  if (in_flight_ == nullptr) return;
  wait();
  context_.world.barrier().wait();  // nobody leaves while a peer still receives
}

void Snapshots::give(std::int64_t live_step, std::vector<CheckpointPart>& held) {
  for (const std::shared_ptr<Slot>& slot : slots_) {
    if (slot == nullptr || !slot->complete) continue;
    if (slot->facts.step != live_step) {
      CheckpointPart own{slot->facts, checkpoint::pieces_at(slot->sent.pieces(), slot->sent.data(), slot)};
      for (auto& piece : checkpoint::pieces_at(slot->kept.pieces(), slot->kept.data(), slot)) {
        own.pieces.push_back(std::move(piece));
      }
      held.push_back(std::move(own));
    }
    for (const Ward& ward : wards_) {
      CheckpointPart copy{slot->facts, checkpoint::pieces_at(ward.pieces, slot->received.get() + ward.offset, slot)};
      held.push_back(owned_by(ward.rank, std::move(copy)));
    }
  }
}

void hold_state(RunContext& context, const TrainingState& state, Snapshots* snapshots) {
  std::vector<CheckpointPart>& held = *context.held;
  CheckpointPart live = owned_by(context.rank(), left_part(state, context.job, context.world.size()));
  std::erase_if(held, [&](const CheckpointPart& part) { return part.facts.step != live.facts.step; });
  if (snapshots != nullptr) snapshots->give(live.facts.step, held);
  held.push_back(std::move(live));
}

void Snapshots::tell() const {
  if (context_.rank() != 0) return;
  const std::string text =
      fmt::format("snapshots: every {} steps, {} per rank in memory and {} of it with a peer{}", cadence_.every(),
                  format_bytes(static_cast<double>(own_bytes_)), format_bytes(static_cast<double>(sent_bytes_)),
                  cadence_.is_chosen() ? fmt::format(", {:.1f}% of the time", 100 * cadence_.cost_share()) : "");
  context_.host.note(text);
  if (!context_.recorder) return;
  context_.recorder->event({.kind = std::string(telemetry::event_kind::kSnapshots),
                            .rank = 0,
                            .step = last_step_,
                            .message = text,
                            .data = summary()});
}

json Snapshots::summary() const {
  if (!active_) return nullptr;
  return {{"every", cadence_.every()},    {"own_bytes", own_bytes_}, {"sent_bytes", sent_bytes_},
          {"kept_bytes", kept_bytes_},    {"taken", taken_},         {"stall_seconds", stall_seconds_},
          {"cost", cadence_.cost_share()}};
}

}  // namespace lockstep::engine
