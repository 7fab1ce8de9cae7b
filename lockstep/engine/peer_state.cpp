#include "lockstep/engine/peer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/engine/run_context.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointPart;
using checkpoint::Series;
using checkpoint::TensorKind;
using nlohmann::json;

// Bytes that one rank sends or receives in a round, so that memory stays bounded.
constexpr std::int64_t kRoundBytes = 256 << 20;

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
std::string index_of(const std::vector<CheckpointPart>& held) {
  json all = json::array();
  for (const CheckpointPart& part : held) {
    json pieces = json::array();
    for (const auto& piece : part.pieces) pieces.push_back(to_json(piece));
    all.push_back({{"step", part.facts.step},
                   {"loader", part.facts.loader},
                   {"job", part.facts.job_yaml},
                   {"extra", part.facts.extra},
                   {"pieces", std::move(pieces)}});
  }
  const auto bytes = json::to_cbor(all);
  return {bytes.begin(), bytes.end()};
}

std::vector<json> gather(comm::Communicator& world, const std::string& mine) {
  std::vector<json> all;
  for (int root = 0; root < world.size(); ++root) {
    const std::string text = broadcast_text(world, mine, root);
    all.push_back(json::from_cbor(text.begin(), text.end()));
  }
  return all;
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

PeerState::PeerState(comm::Communicator world, const std::vector<CheckpointPart>& held) : world_(std::move(world)) {
  choose_step(gather(world_, index_of(held)), held);
}

void PeerState::choose_step(const std::vector<json>& told, const std::vector<CheckpointPart>& held) {
  std::set<std::int64_t, std::greater<>> steps;
  for (const json& member : told) {
    for (const json& part : member) steps.insert(part.at("step").get<std::int64_t>());
  }
  if (!steps.empty()) newest_seen_ = *steps.begin();
  for (const std::int64_t step : steps) {
    tensors_.clear();
    const json* facts = nullptr;
    for (int rank = 0; rank < world_.size(); ++rank) {
      for (const json& part : told[static_cast<std::size_t>(rank)]) {
        if (part.at("step") != step) continue;
        if (facts == nullptr) facts = &part;
        std::int64_t number = 0;
        for (const json& piece : part.at("pieces")) {
          const Key key(static_cast<TensorKind>(piece.at(0).get<int>()), piece.at(1).get<std::string>());
          if (key.first != TensorKind::kRank) {
            Tensor& tensor = tensors_[key];
            tensor.facts.sizes = piece.at(2).get<std::vector<std::int64_t>>();
            tensor.facts.dtype = static_cast<torch::ScalarType>(piece.at(3).get<int>());
            tensor.offers.push_back({rank, number, series_of(piece.at(4))});
          }
          ++number;
        }
      }
    }
    const bool whole = std::all_of(tensors_.begin(), tensors_.end(), [](const auto& entry) {
      return covers(entry.second.offers, entry.second.facts.elements());
    });
    if (!whole || facts == nullptr) continue;
    step_ = step;
    facts_ = {step, facts->at("loader"), facts->at("job"), facts->at("extra"), json::object()};
    for (const CheckpointPart& part : held) {
      if (part.facts.step == step) mine_ = &part;
    }
    return;
  }
  tensors_.clear();
}

const checkpoint::TensorSource::Facts* PeerState::find(TensorKind kind, const std::string& name) const {
  const auto found = tensors_.find({kind, name});
  return found == tensors_.end() ? nullptr : &found->second.facts;
}

// Own memory first; then the members from the next one on, so that all of them send.
std::vector<PeerState::Part> PeerState::plan_fetch(const std::vector<TensorRange>& ranges) const {
  std::vector<Part> parts;
  const int size = world_.size(), self = world_.rank();
  for (const TensorRange& range : ranges) {
    const auto found = tensors_.find({range.kind, range.name});
    if (found == tensors_.end()) continue;
    std::vector<const Offer*> offers;
    for (const Offer& offer : found->second.offers) offers.push_back(&offer);
    const int start = static_cast<int>(std::hash<std::string>()(range.name) % static_cast<std::size_t>(size));
    std::stable_sort(offers.begin(), offers.end(), [&](const Offer* a, const Offer* b) {
      const auto distance = [&](const Offer* offer) {
        return offer->rank == self ? -1 : (offer->rank - start + size) % size;
      };
      return distance(a) < distance(b);
    });
    // [first, end) pieces that nobody gives yet.
    std::vector<std::pair<std::int64_t, std::int64_t>> open = {{range.first, range.first + range.count}};
    for (const Offer* offer : offers) {
      std::vector<std::pair<std::int64_t, std::int64_t>> left;
      for (const auto& [begin, end] : open) {
        std::int64_t reached = begin;
        std::vector<Part> given;
        checkpoint::visit_overlap(offer->series, begin, end,
                                  [&](std::int64_t first, std::int64_t before, std::int64_t count) {
                                    given.push_back({offer->rank, offer->piece, before, count, first, &found->first});
                                  });
        std::sort(given.begin(), given.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
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
  return parts;
}

void PeerState::fetch(const std::vector<TensorRange>& ranges) {
  std::vector<Part> parts = plan_fetch(ranges);
  // Rounds of bounded size, the same number on every rank.
  std::vector<std::vector<Part>> rounds(1);
  std::int64_t bytes = 0;
  for (Part& part : parts) {
    const std::int64_t element = static_cast<std::int64_t>(c10::elementSize(tensors_.at(*part.key).facts.dtype));
    for (std::int64_t done = 0; done < part.count;) {
      const std::int64_t room = std::max<std::int64_t>(1, (kRoundBytes - bytes) / element);
      Part piece = part;
      piece.offset += done;
      piece.first += done;
      piece.count = std::min(part.count - done, room);
      rounds.back().push_back(piece);
      done += piece.count;
      bytes += piece.count * element;
      if (bytes >= kRoundBytes) {
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
  }
}

// Everybody says what it wants of whom (piece, first element, count), and then gets it.
void PeerState::exchange(const std::vector<Part>& parts) {
  const auto size = static_cast<std::size_t>(world_.size());
  std::vector<std::vector<const Part*>> of(size);
  for (const Part& part : parts) of[static_cast<std::size_t>(part.rank)].push_back(&part);
  const auto element = [&](const Part& part) {
    return static_cast<std::int64_t>(c10::elementSize(tensors_.at(*part.key).facts.dtype));
  };
  std::vector<std::int64_t> asked, ask_counts(size), told_counts(size), receive(size), send(size);
  for (std::size_t peer = 0; peer < size; ++peer) {
    ask_counts[peer] = 3 * static_cast<std::int64_t>(of[peer].size());
    for (const Part* part : of[peer]) {
      asked.insert(asked.end(), {part->piece, part->offset, part->count});
      receive[peer] += part->count * element(*part);
    }
  }
  const auto i64 = [](std::vector<std::int64_t>& values) {
    return comm::Buffer{values.data(), static_cast<std::int64_t>(values.size()), comm::DType::kI64};
  };
  world_.all_to_all(i64(ask_counts), i64(told_counts), comm::at_site("recovery: counts")).wait();
  std::vector<std::int64_t> told(
      static_cast<std::size_t>(std::accumulate(told_counts.begin(), told_counts.end(), std::int64_t{0})));
  world_.all_to_all(i64(asked), ask_counts, i64(told), told_counts, comm::at_site("recovery: wishes")).wait();

  std::vector<char> out;
  std::size_t at = 0;
  for (std::size_t peer = 0; peer < size; ++peer) {
    const std::size_t before = out.size();
    for (std::int64_t i = 0; i < told_counts[peer] / 3; ++i, at += 3) {
      LOCKSTEP_ASSERT(mine_ != nullptr, "asked for what this process does not hold");
      const torch::Tensor& values = mine_->pieces.at(static_cast<std::size_t>(told[at])).values;
      const auto width = static_cast<std::int64_t>(values.element_size());
      const char* const from = static_cast<const char*>(values.data_ptr()) + told[at + 1] * width;
      out.insert(out.end(), from, from + told[at + 2] * width);
    }
    send[peer] = static_cast<std::int64_t>(out.size() - before);
  }
  std::vector<char> in(static_cast<std::size_t>(std::accumulate(receive.begin(), receive.end(), std::int64_t{0})));
  world_
      .all_to_all({out.data(), static_cast<std::int64_t>(out.size()), comm::DType::kU8}, send,
                  {in.data(), static_cast<std::int64_t>(in.size()), comm::DType::kU8}, receive,
                  comm::at_site("recovery: state"))
      .wait();
  const char* next = in.data();
  for (std::size_t peer = 0; peer < size; ++peer) {
    for (const Part* part : of[peer]) {
      Chunk chunk{part->first, torch::empty({part->count}, tensors_.at(*part->key).facts.dtype)};
      const std::int64_t bytes = part->count * element(*part);
      std::memcpy(chunk.values.data_ptr(), next, static_cast<std::size_t>(bytes));
      next += bytes;
      fetched_[*part->key].push_back(std::move(chunk));
    }
  }
}

void PeerState::read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const {
  const auto found = fetched_.find({kind, name});
  std::int64_t done = 0;
  if (found != fetched_.end()) {
    for (const Chunk& chunk : found->second) {
      const std::int64_t from = std::max(first + done, chunk.first);
      const std::int64_t end = std::min(first + out.numel(), chunk.first + chunk.values.numel());
      if (from != first + done || from >= end) continue;
      out.narrow(0, done, end - from).copy_(chunk.values.narrow(0, from - chunk.first, end - from));
      done += end - from;
    }
  }
  LOCKSTEP_ASSERT(done == out.numel(), "elements of " + name + " that were not fetched");
}

void RecordingSource::read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const {
  ranges_.push_back({kind, name, first, out.numel()});
  out.fill_(1);  // what checks its values accepts it
}

}  // namespace lockstep::engine
