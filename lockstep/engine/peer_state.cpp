#include "lockstep/engine/peer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/engine/exchange_text.h"
#include "lockstep/engine/executor.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointPart;
using checkpoint::Series;
using checkpoint::TensorKind;
using nlohmann::json;

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Without values: they are overwritten, and there may be many.
std::unique_ptr<char[]> make_bytes(std::int64_t count) {
  return std::make_unique_for_overwrite<char[]>(static_cast<std::size_t>(count));
}

// Bytes that one rank sends or receives in a round, so that memory stays bounded.
constexpr std::int64_t kRoundBytes = 256 << 20;
constexpr std::int64_t kCheckedElements = 4096;
constexpr std::size_t kWishNumbers = 4;  // part, piece, first element, count

std::string rank_name(std::int64_t rank, const std::string& name) { return fmt::format("{}:{}", rank, name); }

json to_json(const checkpoint::TensorPiece& piece) {
  json runs = json::array();
  for (const Series& series : piece.series) {
    runs.push_back({series.first, series.count, series.stride, series.repeat});
  }
  return {static_cast<int>(piece.kind), piece.name, piece.sizes, static_cast<int>(piece.values.scalar_type()), runs};
}

std::vector<Series> series_of(const json& told) {
  std::vector<Series> all;
  for (const json& run : told) all.push_back({run.at(0), run.at(1), run.at(2), run.at(3)});
  return all;
}

// What one member holds, without the values.
std::string index_of(const std::vector<CheckpointPart>& held, const std::vector<TensorName>& needed) {
  json all = json::array();
  for (const CheckpointPart& part : held) {
    json pieces = json::array();
    for (const auto& piece : part.pieces) pieces.push_back(to_json(piece));
    all.push_back({{"step", part.facts.step},
                   {"rank", part.facts.rank_state.value("rank", -1)},
                   {"loader", part.facts.loader},
                   {"job", part.facts.job_yaml},
                   {"extra", part.facts.extra},
                   {"pieces", std::move(pieces)}});
  }
  json names = json::array();
  for (const auto& [kind, name] : needed) names.push_back({static_cast<int>(kind), name});
  const auto bytes = json::to_cbor({{"held", std::move(all)}, {"needed", std::move(names)}});
  return {bytes.begin(), bytes.end()};
}

// Whether the runs of all offers together cover [0, elements).
template <class Offers>
bool covers(const Offers& offers, std::int64_t elements) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  for (const auto& offer : offers) {
    for (const Series& series : offer.series) {
      for (std::int64_t i = 0; i < series.repeat; ++i) {
        const std::int64_t first = series.first + i * series.stride;
        runs.emplace_back(first, first + series.count);
      }
    }
  }
  std::sort(runs.begin(), runs.end());
  std::int64_t reached = 0;
  for (const auto& [first, end] : runs) {
    if (first > reached) return false;
    reached = std::max(reached, end);
  }
  return reached >= elements;
}

}  // namespace

std::vector<TensorName> tensors_of(const CheckpointPart& part) {
  std::vector<TensorName> names;
  for (const auto& piece : part.pieces) {
    if (piece.kind != TensorKind::kRank) names.emplace_back(piece.kind, piece.name);
  }
  return names;
}

PeerState::PeerState(comm::Communicator world, const std::vector<CheckpointPart>& held,
                     const std::vector<TensorName>& needed)
    : world_(std::move(world)), held_(held) {
  std::vector<json> told;
  for (const std::string& text : gather_texts(world_, index_of(held, needed))) {
    json member = json::from_cbor(text.begin(), text.end());
    for (const json& name : member.at("needed")) {
      needed_.emplace(static_cast<TensorKind>(name.at(0).get<int>()), name.at(1).get<std::string>());
    }
    told.push_back(std::move(member.at("held")));
  }
  choose_step(told);
}

const json* PeerState::collect(const std::vector<json>& told, std::int64_t step) {
  tensors_.clear();
  const json* facts = nullptr;
  for (int rank = 0; rank < world_.size(); ++rank) {
    std::int64_t part_number = -1;
    for (const json& part : told[static_cast<std::size_t>(rank)]) {
      ++part_number;
      if (part.at("step") != step) continue;
      if (facts == nullptr) facts = &part;
      const int told_owner = part.at("rank"), owner = told_owner < 0 ? rank : told_owner;
      std::int64_t number = -1;
      for (const json& piece : part.at("pieces")) {
        ++number;
        const auto kind = static_cast<TensorKind>(piece.at(0).get<int>());
        const auto name = piece.at(1).get<std::string>();
        const Key key(kind, kind == TensorKind::kRank ? rank_name(owner, name) : name);
        Tensor& tensor = tensors_[key];
        tensor.facts.sizes = piece.at(2).get<std::vector<std::int64_t>>();
        tensor.facts.dtype = static_cast<torch::ScalarType>(piece.at(3).get<int>());
        tensor.offers.push_back({{rank, part_number, number}, series_of(piece.at(4))});
      }
    }
  }
  return facts;
}

bool PeerState::is_whole() const {
  const bool all_there =
      std::all_of(needed_.begin(), needed_.end(), [&](const TensorName& name) { return tensors_.contains(name); });
  return all_there && std::all_of(tensors_.begin(), tensors_.end(), [](const auto& entry) {
           return covers(entry.second.offers, entry.second.facts.elements());
         });
}

// Error feedback is of use when every rank has its own back. A generator may begin anew.
bool PeerState::finds_rank_state(const std::vector<json>& told, std::int64_t step) const {
  std::set<std::string> names;
  std::int64_t world = 0;
  for (const json& member : told) {
    for (const json& part : member) {
      if (part.at("step") != step) continue;
      world = part.at("extra").value("world", world_.size());
      for (const json& piece : part.at("pieces")) {
        const auto name = piece.at(1).get<std::string>();
        if (piece.at(0) == static_cast<int>(TensorKind::kRank) && name != state_name::kGenerator) names.insert(name);
      }
    }
  }
  for (const std::string& name : names) {
    for (std::int64_t rank = 0; rank < world; ++rank) {
      if (!tensors_.contains({TensorKind::kRank, rank_name(rank, name)})) return false;
    }
  }
  return true;
}

// A step with everything of the ranks' own comes first; without, the newest that is whole.
void PeerState::choose_step(const std::vector<json>& told) {
  std::set<std::int64_t, std::greater<>> steps;
  for (const json& member : told) {
    for (const json& part : member) steps.insert(part.at("step").get<std::int64_t>());
  }
  if (!steps.empty()) newest_seen_ = *steps.begin();
  for (const bool with_rank_state : {true, false}) {
    for (const std::int64_t step : steps) {
      const json* facts = collect(told, step);
      if (facts == nullptr || !is_whole()) continue;
      if (with_rank_state && !finds_rank_state(told, step)) continue;
      step_ = step;
      has_rank_state_ = with_rank_state;
      facts_ = {step, facts->at("loader"), facts->at("job"), facts->at("extra"), json::object()};
      if (!has_rank_state_) facts_.extra["world"] = 0;
      return;
    }
  }
  tensors_.clear();
}

const checkpoint::TensorSource::Facts* PeerState::find(TensorKind kind, const std::string& name) const {
  const auto found = tensors_.find({kind, name});
  return found == tensors_.end() ? nullptr : &found->second.facts;
}

// Own memory first; then the members from some place on that the name decides, so that all of them send.
void PeerState::plan_range(const TensorRange& range, std::vector<Part>& parts) const {
  const auto found = tensors_.find({range.kind, range.name});
  if (found == tensors_.end()) return;
  const int size = world_.size(), self = world_.rank();
  const int start = static_cast<int>(std::hash<std::string>()(range.name) % static_cast<std::size_t>(size));
  std::vector<const Offer*> offers;
  for (const Offer& offer : found->second.offers) offers.push_back(&offer);
  const auto distance = [&](const Offer* offer) {
    return offer->place.rank == self ? -1 : (offer->place.rank - start + size) % size;
  };
  std::stable_sort(offers.begin(), offers.end(),
                   [&](const Offer* a, const Offer* b) { return distance(a) < distance(b); });
  const auto width = static_cast<std::int64_t>(c10::elementSize(found->second.facts.dtype));
  // [first, end) pieces that nobody gives yet.
  std::vector<std::pair<std::int64_t, std::int64_t>> open = {{range.first, range.first + range.count}};
  for (const Offer* offer : offers) {
    std::vector<std::pair<std::int64_t, std::int64_t>> left;
    for (const auto& [begin, end] : open) {
      std::vector<Part> given;
      checkpoint::visit_overlap(offer->series, begin, end,
                                [&](std::int64_t first, std::int64_t before, std::int64_t count) {
                                  given.push_back({offer->place, before, count, first, &found->first, width});
                                });
      std::sort(given.begin(), given.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
      std::int64_t reached = begin;
      for (const Part& part : given) {
        if (part.first > reached) left.emplace_back(reached, part.first);
        reached = part.first + part.count;
        parts.push_back(part);
      }
      if (reached < end) left.emplace_back(reached, end);
    }
    open = std::move(left);
    if (open.empty()) break;
  }
  LOCKSTEP_ASSERT(open.empty(), "a range that no member holds");
}

std::vector<PeerState::Part> PeerState::plan_fetch(const std::vector<TensorRange>& ranges) const {
  std::vector<Part> parts;
  for (const TensorRange& range : ranges) plan_range(range, parts);
  for (auto own = tensors_.lower_bound({TensorKind::kRank, rank_name(world_.rank(), "")}); own != tensors_.end();
       ++own) {
    if (!own->first.second.starts_with(rank_name(world_.rank(), ""))) break;
    plan_range({TensorKind::kRank, own->first.second, 0, own->second.facts.elements()}, parts);
  }
  return parts;
}

const char* PeerState::memory_of(std::int64_t part, std::int64_t piece, std::int64_t offset) const {
  const CheckpointPart& held = held_.at(static_cast<std::size_t>(part));
  const torch::Tensor& values = held.pieces.at(static_cast<std::size_t>(piece)).values;
  return static_cast<const char*>(values.data_ptr()) + offset * static_cast<std::int64_t>(values.element_size());
}

void PeerState::put(const Part& part, const char* values) {
  fetched_[*part.key].push_back({part.first, part.count, values});
}

void PeerState::fetch(const std::vector<TensorRange>& ranges) {
  // Rounds of bounded size, the same number on every rank. All others may ask the same member.
  const std::int64_t most_bytes = kRoundBytes / std::max(1, world_.size() - 1);
  std::vector<std::vector<Part>> rounds(1);
  std::int64_t bytes = 0;
  for (const Part& part : plan_fetch(ranges)) {
    if (part.place.rank == world_.rank()) {
      put(part, memory_of(part.place.part, part.place.piece, part.offset));
      continue;
    }
    for (std::int64_t done = 0; done < part.count;) {
      const std::int64_t room = std::max<std::int64_t>(1, (most_bytes - bytes) / part.width);
      Part piece = part;
      piece.offset += done;
      piece.first += done;
      piece.count = std::min(part.count - done, room);
      rounds.back().push_back(piece);
      done += piece.count;
      bytes += piece.count * part.width;
      if (bytes >= most_bytes) {
        rounds.emplace_back();
        bytes = 0;
      }
    }
  }
  auto most = static_cast<std::int64_t>(rounds.size());
  world_.all_reduce({&most, 1, comm::DType::kI64}, comm::ReduceOp::kMax, comm::at_site("recovery: rounds")).wait();
  rounds.resize(static_cast<std::size_t>(most));
  for (const auto& round : rounds) exchange(round);
  for (auto& [key, chunks] : fetched_) {
    std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.first < b.first; });
    // Of ranges that overlapped, what adds nothing goes: ends then grow as beginnings do.
    std::int64_t reached = 0;
    std::erase_if(chunks, [&](const Chunk& chunk) {
      const std::int64_t end = chunk.first + chunk.count;
      return end <= std::exchange(reached, std::max(reached, end));
    });
  }
}

// What the others want of this process, in their order: (part, piece, first element, count) each.
PeerState::Bytes PeerState::answer(const std::vector<std::int64_t>& told, const std::vector<std::int64_t>& told_counts,
                                   std::vector<std::int64_t>& send) const {
  const auto width = [&](std::size_t at) {
    const CheckpointPart& held = held_.at(static_cast<std::size_t>(told[at]));
    return static_cast<std::int64_t>(held.pieces.at(static_cast<std::size_t>(told[at + 1])).values.element_size());
  };
  std::size_t at = 0;
  for (std::size_t peer = 0; peer < told_counts.size(); ++peer) {
    for (const std::size_t end = at + static_cast<std::size_t>(told_counts[peer]); at < end; at += kWishNumbers) {
      send[peer] += told[at + 3] * width(at);
    }
  }
  Bytes out = make_bytes(sum_of(send));
  char* to = out.get();
  for (at = 0; at < told.size(); at += kWishNumbers) {
    const auto bytes = static_cast<std::size_t>(told[at + 3] * width(at));
    std::memcpy(to, memory_of(told[at], told[at + 1], told[at + 2]), bytes);
    to += bytes;
  }
  return out;
}

// Everybody says what it wants of whom, and then gets it.
void PeerState::exchange(const std::vector<Part>& parts) {
  const auto size = static_cast<std::size_t>(world_.size());
  std::vector<std::vector<const Part*>> of(size);
  for (const Part& part : parts) of[static_cast<std::size_t>(part.place.rank)].push_back(&part);
  std::vector<std::int64_t> asked, ask_counts(size), told_counts(size), receive(size), send(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    ask_counts[peer] = static_cast<std::int64_t>(kWishNumbers * of[peer].size());
    for (const Part* part : of[peer]) {
      asked.insert(asked.end(), {part->place.part, part->place.piece, part->offset, part->count});
      receive[peer] += part->count * part->width;
    }
  }
  const auto i64 = [](std::vector<std::int64_t>& values) {
    return comm::Buffer{values.data(), static_cast<std::int64_t>(values.size()), comm::DType::kI64};
  };
  world_.all_to_all(i64(ask_counts), i64(told_counts), comm::at_site("recovery: counts")).wait();
  std::vector<std::int64_t> told(static_cast<std::size_t>(sum_of(told_counts)));
  world_.all_to_all(i64(asked), ask_counts, i64(told), told_counts, comm::at_site("recovery: wishes")).wait();
  const Bytes out = answer(told, told_counts, send);
  const Bytes& in = received_.emplace_back(make_bytes(sum_of(receive)));
  world_
      .all_to_all({out.get(), sum_of(send), comm::DType::kU8}, send, {in.get(), sum_of(receive), comm::DType::kU8},
                  receive, comm::at_site("recovery: state"))
      .wait();
  const char* next = in.get();
  for (const auto& of_peer : of) {
    for (const Part* part : of_peer) {
      put(*part, next);
      next += part->count * part->width;
    }
  }
}

void PeerState::read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const {
  const auto found = fetched_.find({kind, name});
  const std::int64_t end = first + out.numel();
  std::int64_t reached = first;
  if (found != fetched_.end()) {
    const auto options = torch::TensorOptions().dtype(tensors_.at({kind, name}).facts.dtype);
    const auto width = static_cast<std::int64_t>(options.dtype().itemsize());
    const auto& chunks = found->second;
    auto chunk = std::upper_bound(chunks.begin(), chunks.end(), first,
                                  [](std::int64_t value, const Chunk& one) { return value < one.first; });
    while (chunk != chunks.begin() && std::prev(chunk)->first + std::prev(chunk)->count > first) --chunk;
    for (; chunk != chunks.end() && reached < end && chunk->first <= reached; ++chunk) {
      const std::int64_t stop = std::min(end, chunk->first + chunk->count);
      if (stop <= reached) continue;
      char* const values = const_cast<char*>(chunk->values + (reached - chunk->first) * width);
      out.narrow(0, reached - first, stop - reached).copy_(torch::from_blob(values, {stop - reached}, options));
      reached = stop;
    }
  }
  LOCKSTEP_ASSERT(reached == end, "elements of " + name + " that were not fetched");
}

checkpoint::TensorMap PeerState::rank_tensors() const {
  checkpoint::TensorMap tensors;
  const std::string prefix = rank_name(world_.rank(), "");
  for (auto own = fetched_.lower_bound({TensorKind::kRank, prefix}); own != fetched_.end(); ++own) {
    const auto& [kind, name] = own->first;
    if (!name.starts_with(prefix)) break;
    tensors[name.substr(prefix.size())] = read_whole(kind, name);
  }
  return tensors;
}

void restore(TrainingState& state, PeerState& peers, const spec::Job& job, int world) {
  const RecordingSource wanted(peers);
  state.executor->read_state(SavedState{peers.facts(), wanted, {}});
  peers.fetch(wanted.ranges());
  const checkpoint::TensorMap own = peers.rank_tensors();
  restore(state, SavedState{peers.facts(), peers, own}, job, world);
}

void RecordingSource::read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const {
  ranges_.push_back({kind, name, first, out.numel()});
  // What checks values accepts ones; weights and moments are not looked at, and are too many to write for nothing.
  if (out.numel() <= kCheckedElements) out.fill_(1);
}

}  // namespace lockstep::engine
