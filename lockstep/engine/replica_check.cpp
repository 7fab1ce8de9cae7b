#include "lockstep/engine/replica_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/clock.h"
#include "lockstep/base/crc32c.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/run_context.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointPart;
using checkpoint::TensorPiece;

// FNV-1a over what says which elements a piece is. Never 0, which means that there is none.
std::int64_t key_of(const TensorPiece& piece) {
  std::string text = fmt::format("{} {}", static_cast<int>(piece.kind), piece.name);
  for (const checkpoint::Series& series : piece.series) {
    text += fmt::format(" {},{},{},{}", series.first, series.count, series.stride, series.repeat);
  }
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  return hash == 0 ? 1 : static_cast<std::int64_t>(hash);
}

// One changed bit changes it.
std::int64_t checksum(const torch::Tensor& values) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor flat = values.contiguous();
  if (flat.is_cpu()) return crc32c(flat.data_ptr(), flat.nbytes());
  const torch::ScalarType word = flat.element_size() == 2   ? torch::kInt16
                                 : flat.element_size() == 4 ? torch::kInt32
                                 : flat.element_size() == 8 ? torch::kInt64
                                                            : torch::kUInt8;
  return flat.reshape({-1}).view(word).sum(torch::kInt64).item<std::int64_t>();
}

std::vector<std::int64_t> gather(comm::Communicator& world, std::vector<std::int64_t> own, std::int64_t count) {
  own.resize(static_cast<std::size_t>(count), 0);
  std::vector<std::int64_t> all(static_cast<std::size_t>(count * world.size()), 0);
  if (count == 0) return all;
  world
      .all_gather({own.data(), count, comm::DType::kI64},
                  {all.data(), static_cast<std::int64_t>(all.size()), comm::DType::kI64},
                  comm::at_site("world: checksums of replicas"))
      .wait();
  return all;
}

// One piece in the lists of the ranks that hold it.
struct Held {
  std::vector<int> ranks;
  std::vector<std::int64_t> sums;

  bool agrees() const { return std::adjacent_find(sums.begin(), sums.end(), std::not_equal_to<>()) == sums.end(); }
  // Ranks that more than half of the holders contradict with one voice; empty where there is no such majority.
  std::vector<int> odd() const {
    std::map<std::int64_t, std::size_t> votes;
    for (const std::int64_t sum : sums) ++votes[sum];
    const auto most =
        std::max_element(votes.begin(), votes.end(), [](auto& a, auto& b) { return a.second < b.second; });
    if (2 * most->second <= sums.size()) return {};
    std::vector<int> found;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i] != most->first) found.push_back(ranks[i]);
    }
    return found;
  }
};

bool meets(const std::vector<int>& ranks, const std::set<int>& others) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return others.contains(rank); });
}

}  // namespace

void ReplicaCheck::learn(const CheckpointPart& part) {
  most_ = static_cast<std::int64_t>(part.pieces.size());
  world_.all_reduce({&most_, 1, comm::DType::kI64}, comm::ReduceOp::kMax).wait();
  std::vector<std::int64_t> own;
  for (const TensorPiece& piece : part.pieces) own.push_back(key_of(piece));
  keys_ = gather(world_, own, most_);
  std::map<std::int64_t, int> holders;
  for (const std::int64_t key : keys_) ++holders[key];
  for (const std::int64_t key : own) shared_.push_back(holders[key] > 1 ? 1 : 0);
  learnt_ = true;
}

ReplicaReport ReplicaCheck::judge(const std::vector<std::int64_t>& sums, const CheckpointPart& part) {
  std::map<std::int64_t, Held> held;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i] == 0) continue;
    Held& piece = held[keys_[i]];
    piece.ranks.push_back(static_cast<int>(static_cast<std::int64_t>(i) / most_));
    piece.sums.push_back(sums[i]);
  }
  ReplicaReport report;
  std::set<int> odd;
  std::vector<std::size_t> differing;  // places in keys_, in order
  std::set<std::int64_t> seen;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i] == 0 || held[keys_[i]].agrees() || !seen.insert(keys_[i]).second) continue;
    differing.push_back(i);
    for (const int rank : held[keys_[i]].odd()) odd.insert(rank);
  }
  if (differing.empty()) return report;
  // What no majority decides is explained where a rank that was found out holds it; else nobody knows who is right.
  const auto open = std::find_if(differing.begin(), differing.end(),
                                 [&](std::size_t i) { return !meets(held[keys_[i]].ranks, odd); });
  const std::size_t first = open != differing.end() ? *open : differing.front();
  if (open == differing.end()) report.odd_ranks = {odd.begin(), odd.end()};
  report.holders = held[keys_[first]].ranks;
  const int teller = report.holders.front();
  const std::int64_t place = static_cast<std::int64_t>(first) - teller * most_;
  const std::string name =
      world_.rank() == teller ? part.pieces.at(static_cast<std::size_t>(place)).name : std::string();
  report.tensor = broadcast_text(world_, name, teller);
  return report;
}

ReplicaReport ReplicaCheck::compare(const Executor& executor) {
  if (world_.size() == 1) return {};
  const Stopwatch watch;
  CheckpointPart part;
  executor.add_replicas(part);
  if (!learnt_) learn(part);
  std::vector<std::int64_t> own;
  std::int64_t tensors = 0;
  double bytes = 0;
  for (std::size_t i = 0; i < part.pieces.size(); ++i) {
    own.push_back(shared_[i] != 0 ? checksum(part.pieces[i].values) : 0);
    if (shared_[i] == 0) continue;
    ++tensors;
    bytes += static_cast<double>(part.pieces[i].values.nbytes());
  }
  ReplicaReport report = judge(gather(world_, own, most_), part);
  report.tensors = tensors;
  report.bytes = bytes;
  report.seconds = watch.seconds();
  return report;
}

std::string describe(const ReplicaReport& report, std::int64_t step, const std::vector<std::string>& hosts) {
  const auto named = [&](const std::vector<int>& ranks) {
    std::vector<std::string> names;
    for (const int rank : ranks) {
      names.push_back(fmt::format("{} ({})", rank, hosts.at(static_cast<std::size_t>(rank))));
    }
    return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", join(names, ", "));
  };
  if (report.odd_ranks.empty()) {
    return fmt::format("silent corruption: {} hold different values of {} after step {}, and nobody knows who is right",
                       named(report.holders), report.tensor, step);
  }
  return fmt::format("silent corruption: {} hold{} other values than the other replicas after step {}, first in {}",
                     named(report.odd_ranks), report.odd_ranks.size() == 1 ? "s" : "", step, report.tensor);
}

}  // namespace lockstep::engine
