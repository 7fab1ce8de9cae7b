#include "lockstep/sim/operations.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/base/error.h"

namespace lockstep::sim {
namespace {

using Kind = OperationKind;

// Clocks of workers agree to about this, seconds.
constexpr double kClockError = 5e-5;

}  // namespace

bool is_compute(Kind kind) { return kind == Kind::kForwardCompute || kind == Kind::kBackwardCompute; }

bool is_communication(Kind kind) {
  return !is_compute(kind) && kind != Kind::kGarbageCollection && kind != Kind::kOptimizer;
}

StepReplay::StepReplay(std::vector<Operation> operations) : operations_(std::move(operations)) {
  std::map<std::pair<int, int>, std::vector<std::size_t>> workers;
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const Operation& one = operations_[i];
    workers[{one.data_rank, one.stage}].push_back(i);
    stages_ = std::max(stages_, one.stage + 1);
    chunks_ = std::max(chunks_, one.global_chunk + 1);
    replay_.add();
  }
  without_peer_.resize(operations_.size(), false);
  for (auto& [worker, own] : workers) {
    std::ranges::sort(own, [&](std::size_t a, std::size_t b) {
      const Operation &x = operations_[a], &y = operations_[b];
      return std::tie(x.begin, x.sequence, x.kind) < std::tie(y.begin, y.sequence, y.kind);
    });
    order_worker(own);
  }
  join_pairs();
  join_collectives();
  take_waiting_out();
  find_pauses();
}

std::vector<std::size_t> StepReplay::of_kind(const std::vector<std::size_t>& own, Kind kind) const {
  std::vector<std::size_t> found;
  for (const std::size_t i : own) {
    if (operations_[i].kind == kind) found.push_back(i);
  }
  std::ranges::stable_sort(found, {}, [&](std::size_t i) { return operations_[i].sequence; });
  return found;
}

void StepReplay::order_worker(const std::vector<std::size_t>& own) {
  std::vector<std::size_t> compute;
  for (const std::size_t i : own) {
    if (is_compute(operations_[i].kind)) compute.push_back(i);
  }
  for (std::size_t i = 1; i < compute.size(); ++i) replay_.after(compute[i], compute[i - 1]);
  // Weights are there before the first forward of their chunk.
  const std::vector<std::size_t> gathers = of_kind(own, Kind::kGatherParameters);
  for (std::size_t i = 0; i < gathers.size(); ++i) {
    if (i > 0) replay_.after(gathers[i], gathers[i - 1]);
    const auto first = std::ranges::find_if(compute, [&](std::size_t c) {
      return operations_[c].kind == Kind::kForwardCompute && operations_[c].chunk == operations_[gathers[i]].chunk;
    });
    if (first != compute.end()) replay_.after(*first, gathers[i]);
  }
  order_transfers(own, compute, true);
  order_transfers(own, compute, false);
  order_end_of_step(own, compute);
}

void StepReplay::order_transfers(const std::vector<std::size_t>& own, const std::vector<std::size_t>& compute,
                                 bool forward) {
  std::vector<std::size_t> work;
  for (const std::size_t i : compute) {
    if ((operations_[i].kind == Kind::kForwardCompute) == forward) work.push_back(i);
  }
  if (work.empty()) return;
  const double last_begin = operations_[work.back()].begin, first_end = end_of(work.front());
  for (const bool receive : {false, true}) {
    const Kind kind = forward ? (receive ? Kind::kForwardReceive : Kind::kForwardSend)
                              : (receive ? Kind::kBackwardReceive : Kind::kBackwardSend);
    std::vector<std::size_t> transfers = of_kind(own, kind);
    for (std::size_t i = 1; i < transfers.size(); ++i) replay_.after(transfers[i], transfers[i - 1]);
    // Recorders write down transfers at the ends of a step that never took place.
    std::erase_if(transfers, [&](std::size_t i) {
      const bool idle = receive ? operations_[i].begin > last_begin + kClockError : end_of(i) < first_end - kClockError;
      if (idle) without_peer_[i] = true;
      return idle;
    });
    // The first chunk of the model receives nothing forward, the last one sends nothing.
    const bool from_before = forward == receive;
    const auto has_peer = [&](std::size_t i) {
      const int chunk = operations_[i].global_chunk;
      return from_before ? chunk > 0 : chunk + 1 < chunks_;
    };
    std::vector<std::size_t> partners = work;
    if (transfers.size() != work.size()) {
      std::vector<std::size_t> needed;
      std::ranges::copy_if(work, std::back_inserter(needed), has_peer);
      if (transfers.size() == needed.size()) {
        partners = needed;
      } else if (receive && transfers.size() + 1 == work.size()) {
        partners.erase(partners.begin());
      }
    }
    for (std::size_t i = 0; i < std::min(transfers.size(), partners.size()); ++i) {
      if (!has_peer(partners[i])) without_peer_[transfers[i]] = true;
      if (!receive) {
        replay_.after(transfers[i], partners[i]);
        continue;
      }
      replay_.after(partners[i], transfers[i]);
      // It is asked for when the one before it has been used.
      const auto own_place = std::ranges::find(work, partners[i]);
      if (own_place != work.begin()) replay_.after(transfers[i], *(own_place - 1));
    }
    for (std::size_t i = partners.size(); i < transfers.size(); ++i) without_peer_[transfers[i]] = true;
  }
}

void StepReplay::order_end_of_step(const std::vector<std::size_t>& own, const std::vector<std::size_t>& compute) {
  std::vector<std::size_t> before;
  if (!compute.empty()) {
    before.push_back(*std::ranges::max_element(compute, {}, [&](std::size_t i) { return end_of(i); }));
  }
  const auto chain = [&](Kind kind) {
    for (const std::size_t i : of_kind(own, kind)) {
      for (const std::size_t earlier : before) replay_.after(i, earlier);
      before = {i};
    }
  };
  const std::vector<std::size_t> scatters = of_kind(own, Kind::kReduceScatterGradients);
  const bool overlapped = !of_kind(own, Kind::kReduceSeparateGradients).empty();
  chain(Kind::kGarbageCollection);
  if (overlapped) {  // gradients of a chunk are reduced behind the backward of the next
    for (std::size_t i = 0; i < scatters.size(); ++i) {
      if (i > 0) replay_.after(scatters[i], scatters[i - 1]);
      const auto last = std::ranges::find_if(compute.rbegin(), compute.rend(), [&](std::size_t c) {
        return operations_[c].kind == Kind::kBackwardCompute && operations_[c].chunk == operations_[scatters[i]].chunk;
      });
      if (last != compute.rend()) replay_.after(scatters[i], *last);
    }
    if (!scatters.empty()) before.push_back(scatters.back());
  }
  chain(Kind::kReduceNormGradients);
  chain(Kind::kReduceEmbeddingGradients);
  chain(overlapped ? Kind::kReduceSeparateGradients : Kind::kReduceScatterGradients);
  chain(Kind::kClipGradients);
  chain(Kind::kOptimizer);
}

void StepReplay::join_pairs() {
  // The n-th send to the next stage meets its n-th receive; with several chunks per worker the last stage sends to the
  // first.
  std::map<std::tuple<int, int, Kind>, std::vector<std::size_t>> by_worker;
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const Operation& one = operations_[i];
    const bool transfer = one.kind >= Kind::kForwardSend && one.kind <= Kind::kBackwardReceive;
    if (transfer && !without_peer_[i]) by_worker[{one.data_rank, one.stage, one.kind}].push_back(i);
  }
  for (auto& [key, list] : by_worker) {
    std::ranges::sort(list, {}, [&](std::size_t i) { return operations_[i].sequence; });
  }
  for (const auto& [key, sends] : by_worker) {
    const auto& [data_rank, stage, kind] = key;
    if (kind != Kind::kForwardSend && kind != Kind::kBackwardSend) continue;
    const bool forward = kind == Kind::kForwardSend;
    const int peer = (stage + (forward ? 1 : stages_ - 1)) % stages_;
    const auto found = by_worker.find({data_rank, peer, forward ? Kind::kForwardReceive : Kind::kBackwardReceive});
    if (found == by_worker.end()) continue;
    for (std::size_t i = 0; i < std::min(sends.size(), found->second.size()); ++i) {
      replay_.together(sends[i], found->second[i]);
    }
  }
}

void StepReplay::join_collectives() {
  std::map<std::tuple<Kind, int, int, int>, std::size_t>
      first;  // kind, data rank, stage, sequence: -1 where all take part
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const Operation& one = operations_[i];
    std::tuple<Kind, int, int, int> key{one.kind, -1, -1, one.sequence};
    switch (one.kind) {
      case Kind::kGatherParameters:
      case Kind::kReduceScatterGradients:
      case Kind::kReduceSeparateGradients:
        std::get<2>(key) = one.stage;
        break;
      case Kind::kReduceEmbeddingGradients:
        std::get<1>(key) = one.data_rank;
        break;
      case Kind::kClipGradients:
        break;
      default:
        continue;
    }
    const auto [place, is_new] = first.try_emplace(key, i);
    if (!is_new) replay_.together(i, place->second);
  }
}

void StepReplay::take_waiting_out() {
  seconds_.resize(operations_.size());
  for (const std::vector<std::size_t>& group : replay_.groups()) {
    double last = operations_[group.front()].begin;
    for (const std::size_t i : group) last = std::max(last, operations_[i].begin);
    for (const std::size_t i : group) seconds_[i] = std::max(0.0, end_of(i) - last);
  }
}

void StepReplay::find_pauses() {
  if (operations_.empty()) return;
  double first = operations_.front().begin;
  std::vector<double> ends(operations_.size());
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    first = std::min(first, operations_[i].begin);
    ends[i] = end_of(i);
  }
  pauses_ = replay_.released(ends, first);
  for (std::size_t i = 0; i < operations_.size(); ++i) pauses_[i] = std::max(0.0, operations_[i].begin - pauses_[i]);
}

double StepReplay::recorded_seconds() const {
  if (operations_.empty()) return 0.0;
  double first = operations_.front().begin, last = end_of(0);
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    first = std::min(first, operations_[i].begin);
    last = std::max(last, end_of(i));
  }
  return last - first;
}

}  // namespace lockstep::sim
