// All ranks of a run in Chrome's trace format, with flows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "lockstep/report/export/trace_steps.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Span;
using telemetry::SpanBatch;
using telemetry::SpanKind;
using telemetry::SpanLane;

constexpr int kMainTrack = 1;
constexpr std::size_t kStepsToAlign = 20;

// A collective or message of one rank.
struct Part {
  int rank = 0, track = 0;
  double begin = 0.0, end = 0.0;  // seconds, aligned
  std::string name;
};

// Spans that run beside each other need tracks of their own: viewers nest what is on one.
class Tracks {
 public:
  int of(int rank, SpanLane lane, const std::string& label, double begin, double end, TraceWriter& out) {
    auto& same = ends_[{rank, lane, label}];
    for (auto& [track, until] : same) {
      if (until > begin + kTouching) continue;
      until = end;
      return track;
    }
    int& last = last_.try_emplace(rank, kMainTrack).first->second;
    same.emplace_back(++last, end);
    std::string name = to_string(lane);
    if (!label.empty()) name += " " + label;
    if (same.size() > 1) name += fmt::format(" #{}", same.size());
    out.name_thread(rank, last, name);
    return last;
  }

 private:
  static constexpr double kTouching = 1e-7;
  std::map<std::tuple<int, SpanLane, std::string>, std::vector<std::pair<int, double>>> ends_;
  std::map<int, int> last_;
};

class PerfettoTrace {
 public:
  PerfettoTrace(std::ostream& out, const json& head, double origin, std::map<int, double> offsets)
      : out_(out, head), origin_(origin), offsets_(std::move(offsets)) {}

  void step(const std::vector<SpanBatch>& batches) {
    parts_.clear();
    messages_.clear();
    for (const SpanBatch& batch : batches) find_last(batch);
    for (const SpanBatch& batch : batches) write(batch);
    for (const auto& [key, members] : parts_) connect(members);
    for (const auto& [key, ends] : messages_) {
      for (std::size_t i = 0; i < std::min(ends.sent.size(), ends.received.size()); ++i)
        flow("message", ends.sent[i], ends.received[i]);
    }
    last_.clear();
  }
  void end() { out_.end(); }

 private:
  using Key = std::pair<std::string, std::int64_t>;  // group, sequence
  struct Ends {
    std::vector<Part> sent, received;
  };

  double begin_of(const SpanBatch& batch, const Span& span) const {
    const auto offset = offsets_.find(batch.rank);
    return batch.time - (offset == offsets_.end() ? 0.0 : offset->second) + static_cast<double>(span.begin) - origin_;
  }

  static bool is_collective(const SpanBatch& batch, const Span& span) {
    return telemetry::is_communication(span) && span.sequence >= 0 &&
           message_kind(batch.text(span.name)) == Message::kNone;
  }

  // When the last member of each collective came: the others waited until then.
  void find_last(const SpanBatch& batch) {
    for (const Span& span : batch.spans) {
      if (!is_collective(batch, span)) continue;
      const double begin = begin_of(batch, span);
      const auto place = last_.try_emplace({std::string(batch.text(span.group)), span.sequence}, begin).first;
      place->second = std::max(place->second, begin);
    }
  }

  void write(const SpanBatch& batch) {
    if (!named_[batch.rank]) {
      named_[batch.rank] = true;
      out_.name_process(batch.rank, fmt::format("rank {}", batch.rank));
      out_.name_thread(batch.rank, kMainTrack, "main");
    }
    std::vector<double> parents;  // ends of the spans around this one, on the main track
    for (const Span& span : batch.spans) {
      const double begin = begin_of(batch, span);
      // Durations are kept as floats. A step that was rounded up would reach into the next one.
      const float seconds = span.kind == SpanKind::kStep ? std::nextafter(span.seconds, 0.0F) : span.seconds;
      double end = begin + std::max(0.0, static_cast<double>(seconds));
      int track = kMainTrack;
      if (span.lane == SpanLane::kMain) {
        while (!parents.empty() && parents.back() <= begin) parents.pop_back();
        if (!parents.empty()) end = std::min(end, parents.back());  // rounding must not break the nesting
        parents.push_back(end);
      } else {
        track = tracks_.of(batch.rank, span.lane, track_label(batch, span), begin, end, out_);
      }
      write_span(batch, span, begin, end, track);
    }
  }

  static std::string track_label(const SpanBatch& batch, const Span& span) {
    std::string label(batch.text(span.group));
    const Message kind = message_kind(batch.text(span.name));
    if (kind != Message::kNone) label += fmt::format(" {} {}", kind == Message::kSend ? "to" : "from", span.peer);
    return label;
  }

  void write_span(const SpanBatch& batch, const Span& span, double begin, double end, int track) {
    std::string name(batch.text(span.name));
    if (name.empty()) name = span.kind == SpanKind::kStep ? fmt::format("step {}", batch.step) : to_string(span.kind);
    json args = {{"step", batch.step}};
    if (span.micro >= 0) args["micro"] = span.micro;
    if (span.stage >= 0) args["stage"] = span.stage;
    if (span.peer >= 0) args["peer"] = span.peer;
    if (span.bytes > 0) args["bytes"] = span.bytes;
    if (span.sequence >= 0) args["sequence"] = span.sequence;
    if (span.group >= 0) args["group"] = batch.text(span.group);
    if (is_collective(batch, span)) {
      const Key key(batch.text(span.group), span.sequence);
      args["wait_us"] = to_microseconds(std::max(0.0, last_.at(key) - begin));
      parts_[key].push_back({batch.rank, track, begin, end, name});
    } else if (telemetry::is_communication(span) && span.peer >= 0) {
      const bool sends = message_kind(name) == Message::kSend;
      Ends& ends = messages_[{std::string(batch.text(span.group)), sends ? batch.rank : span.peer,
                              sends ? span.peer : batch.rank}];
      (sends ? ends.sent : ends.received).push_back({batch.rank, track, begin, end, name});
    }
    out_.event(
        {{"ph", "X"},
         {"name", name},
         {"cat", to_string(span.kind)},
         {"pid", batch.rank},
         {"tid", track},
         {"ts", to_microseconds(begin)},
         {"dur", std::round(1e3 * (to_microseconds(end) - to_microseconds(begin))) / 1e3},  // ends as the next begins
         {"args", args}});
  }

  // From the member that came last to the others.
  void connect(const std::vector<Part>& members) {
    if (members.size() < 2) return;
    const auto last = std::max_element(members.begin(), members.end(),
                                       [](const Part& a, const Part& b) { return a.begin < b.begin; });
    for (auto member = members.begin(); member != members.end(); ++member) {
      if (member != last) flow("collective", *last, *member);
    }
  }

  // Ends of flows lie inside of their spans: that is how viewers find these.
  void flow(const char* category, const Part& from, const Part& to) {
    const double inside = 0.001 * (to.end - to.begin);
    json event = {{"ph", "s"},
                  {"id", ++flows_},
                  {"name", from.name},
                  {"cat", category},
                  {"pid", from.rank},
                  {"tid", from.track},
                  {"ts", to_microseconds(from.begin)}};
    out_.event(event);
    event.update({{"ph", "f"},
                  {"bp", "e"},
                  {"pid", to.rank},
                  {"tid", to.track},
                  {"ts", to_microseconds(std::max(to.begin, to.end - inside))}});
    out_.event(event);
  }

  TraceWriter out_;
  double origin_;
  std::map<int, double> offsets_;
  std::map<int, bool> named_;
  Tracks tracks_;
  std::map<Key, double> last_;
  std::map<Key, std::vector<Part>> parts_;
  std::map<std::tuple<std::string, int, int>, Ends> messages_;  // by group, sender, receiver: in order
  std::int64_t flows_ = 0;
};

}  // namespace

TraceResult export_perfetto(const telemetry::RunStore& store, const telemetry::RunRow& run,
                            const ExportSelection& selection, std::ostream& out, std::int64_t most_bytes) {
  TraceResult result;
  choose_steps(store, run.info.id, selection, most_bytes, result);
  std::vector<std::vector<SpanBatch>> first;
  for (std::size_t i = 0; i < std::min(result.steps.size(), kStepsToAlign); ++i)
    first.push_back(batches_of(store, run.info.id, result.steps[i], selection));
  std::map<int, double> offsets = clock_offsets(first);
  double origin = std::numeric_limits<double>::infinity();
  for (const auto& batches : first) {
    for (const SpanBatch& batch : batches) {
      const auto offset = offsets.find(batch.rank);
      origin = std::min(origin, batch.time - (offset == offsets.end() ? 0.0 : offset->second));
    }
  }
  if (first.empty()) origin = 0.0;
  const json head = {{"displayTimeUnit", "ms"},
                     {"otherData",
                      {{"run", utf8_text(run.info.id)},
                       {"name", utf8_text(run.info.name)},
                       {"began", origin},
                       {"producer", "lockstep"}}}};
  PerfettoTrace trace(out, head, origin, std::move(offsets));
  for (const std::int64_t step : result.steps) trace.step(batches_of(store, run.info.id, step, selection));
  trace.end();
  return result;
}

}  // namespace lockstep::report
