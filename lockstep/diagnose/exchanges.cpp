#include "lockstep/diagnose/exchanges.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

using telemetry::Span;
using telemetry::SpanBatch;
using telemetry::SpanKind;
using telemetry::SpanLane;

using Key = std::tuple<std::int64_t, std::string, std::int64_t>;  // step, group, sequence

std::map<int, double> clock_offsets(const std::vector<Exchange>& exchanges) {
  std::map<int, std::vector<double>> distances;
  for (const Exchange& exchange : exchanges) {
    if (exchange.is_message()) continue;  // their ends need not be simultaneous
    std::vector<double> ends;
    for (const Member& member : exchange.members) ends.push_back(member.end);
    const double middle = median(ends);
    for (const Member& member : exchange.members) distances[member.rank].push_back(member.end - middle);
  }
  std::map<int, double> offsets;
  for (const auto& [rank, values] : distances) offsets[rank] = median(values);
  return offsets;
}

}  // namespace

bool Exchange::is_message() const { return name.starts_with("send") || name.starts_with("recv"); }

double Exchange::last_begin() const {
  double last = members.front().begin;
  for (const Member& member : members) last = std::max(last, member.begin);
  return last;
}

int Exchange::last_rank() const {
  return std::max_element(members.begin(), members.end(),
                          [](const Member& a, const Member& b) { return a.begin < b.begin; })
      ->rank;
}

double Exchange::lateness() const {
  std::vector<double> begins;
  for (const Member& member : members) begins.push_back(member.begin);
  std::sort(begins.begin(), begins.end());
  return begins.back() - begins[begins.size() - 2];
}

double Exchange::transfer_seconds() const {
  double last = members.front().end;
  for (const Member& member : members) last = std::max(last, member.end);
  return std::max(0.0, last - last_begin());
}

std::vector<Exchange> match_exchanges(std::span<const SpanBatch> batches, bool align) {
  std::map<Key, Exchange> found;
  for (const SpanBatch& batch : batches) {
    for (const Span& span : batch.spans) {
      if (span.kind != SpanKind::kCollective || span.lane != SpanLane::kComm || span.sequence < 0) continue;
      Exchange& exchange = found[{batch.step, std::string(batch.text(span.group)), span.sequence}];
      exchange.step = batch.step;
      exchange.name = batch.text(span.name);
      exchange.group = batch.text(span.group);
      exchange.bytes = std::max(exchange.bytes, span.bytes);
      exchange.members.push_back({batch.rank, batch.time + span.begin, batch.time + span.begin + span.seconds});
    }
  }
  std::vector<Exchange> exchanges;
  for (auto& [key, exchange] : found) {
    if (exchange.members.size() > 1) exchanges.push_back(std::move(exchange));
  }
  if (!align) return exchanges;
  for (const auto& [rank, offset] : clock_offsets(exchanges)) {
    for (Exchange& exchange : exchanges) {
      for (Member& member : exchange.members) {
        if (member.rank != rank) continue;
        member.begin -= offset;
        member.end -= offset;
      }
    }
  }
  return exchanges;
}

std::vector<Part> parts_by_rank(std::span<const Exchange> exchanges, int world) {
  std::vector<Part> parts(static_cast<std::size_t>(world));
  std::set<std::int64_t> steps;
  for (const Exchange& exchange : exchanges) {
    steps.insert(exchange.step);
    const double began = exchange.last_begin();
    const int last = exchange.last_rank();
    for (const Member& member : exchange.members) {
      if (member.rank < 0 || member.rank >= world) continue;
      std::vector<double> other_ends;
      for (const Member& other : exchange.members) {
        if (other.rank != member.rank) other_ends.push_back(other.end);
      }
      Part& part = parts[static_cast<std::size_t>(member.rank)];
      ++part.exchanges;
      part.waited += std::max(0.0, std::min(began, member.end) - member.begin);
      part.moved += std::max(0.0, member.end - began);
      part.moved_beyond += std::max(0.0, member.end - std::max(began, median(other_ends)));
      if (member.rank == last && !exchange.is_message()) part.late += exchange.lateness();
    }
  }
  const double count = std::max<double>(1.0, static_cast<double>(steps.size()));
  for (Part& part : parts) {
    for (double* seconds : {&part.late, &part.waited, &part.moved, &part.moved_beyond}) *seconds /= count;
  }
  return parts;
}

}  // namespace lockstep::diagnose
