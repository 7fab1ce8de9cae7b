#include "lockstep/elastic/chaos.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::elastic {
namespace {

constexpr double kLongestSeconds = 3600.0, kLargestFactor = 1000.0, kLargestBytes = 1e12;
constexpr int kMostEvents = 10000;

// What may stand behind a kind. `needed`: what must.
struct KindFacts {
  std::string_view words, needed, help;
};

constexpr std::string_view kEnds = "rank step in at";

constexpr std::array<KindFacts, names_of(ChaosKind{}).size()> kFacts = {{
    {"rank step in at standby", "", "rank=2 step=20: SIGKILL; also `kill standby step=5`: a process that waits"},
    {kEnds, "rank", "rank=1 step=9: exit code 1 without a word"},
    {kEnds, "rank", "rank=1 step=9: SIGABRT"},
    {kEnds, "rank", "rank=1 step=9: SIGSEGV"},
    {"rank step for", "rank for", "rank=1 step=9 for=15s: SIGSTOP, then it goes on"},
    {"rank step", "rank", "rank=1 step=9: SIGSTOP for good"},
    {"rank step for", "rank", "rank=1 step=9: no step any more, heartbeats go on; with for=5s it goes on"},
    {"rank step x delay phase for", "rank",
     "rank=0 x3: every step takes 3 times as long; also phase=forward|backward|optimizer|loader|checkpoint, delay=5ms, "
     "for=5s"},
    {"rank step", "rank", "rank=1 step=9: its gradient is not a number"},
    {"rank step", "rank", "rank=1 step=9: a bit of one of its weights"},
    {"rank step", "rank", "rank=1 step=9: its connections are cut"},
    {"rank step for", "", "step=9: a write of a checkpoint fails; with for=5s all of them"},
    {"rank step for", "for", "step=9 for=2s: a write of a checkpoint takes that long"},
    {"checkpoint rank step", "", "checkpoint step=9: a byte of the next checkpoint that is complete"},
    {"rank step rate delay for", "rank", "rank=1 rate=50MB/s: its exchanges pass no faster; or delay=2ms: longer each"},
    {"rank step size for", "rank size", "rank=1 size=4MiB: every step holds that much more memory"},
}};

const KindFacts& facts_of(ChaosKind kind) { return kFacts[static_cast<std::size_t>(kind)]; }

template <class Enum>
std::vector<std::string> names() {
  const auto all = names_of(Enum{});
  return {all.begin(), all.end()};
}

// A word and where it stands.
struct Word {
  std::string text;
  int column = 1;
};

UserError wrong(const Word& word, const std::string& problem, const std::string& fix) {
  return bad_input(problem, fix, {"--chaos", 1, word.column});
}

// Events as words; a line end separates like `;`.
std::vector<std::vector<Word>> events_in(const std::string& text) {
  std::vector<std::vector<Word>> events(1);
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == ';' || letter == '\n') {
      events.emplace_back();
      inside = false;
    } else if (letter == ' ' || letter == '\t' || letter == '\r') {
      inside = false;
    } else {
      if (!inside) events.back().push_back({"", static_cast<int>(i) + 1});
      events.back().back().text += letter;
      inside = true;
    }
  }
  std::erase_if(events, [](const auto& words) { return words.empty(); });
  return events;
}

class EventReader {
 public:
  EventReader(const std::vector<Word>& words, int world) : words_(words), world_(world) {
    const auto kind = value_named<ChaosKind>(words.front().text);
    if (!kind) {
      throw wrong(words.front(), fmt::format("`{}` is not a kind of chaos", printable(words.front().text)),
                  did_you_mean(words.front().text, names<ChaosKind>()));
    }
    event_.kind = *kind;
    allowed_ = split(std::string(facts_of(*kind).words), ' ');
  }

  // One event for each rank.
  std::vector<ChaosEvent> read() {
    for (std::size_t i = 1; i < words_.size(); ++i) take(words_[i]);
    check();
    std::vector<ChaosEvent> events;
    for (const int rank : ranks_.empty() ? std::vector<int>{0} : ranks_) {
      event_.rank = rank;
      event_.text = text_for(rank);
      events.push_back(event_);
    }
    return events;
  }

 private:
  // "x3" is `x`, "for=5s" is `for`.
  static std::pair<std::string, std::string> key_and_value(const std::string& word) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) return {word.substr(0, equals), word.substr(equals + 1)};
    const bool factor = word.size() > 1 && word.front() == 'x' &&
                        std::string_view("0123456789.").find(word[1]) != std::string_view::npos;
    if (factor) return {"x", word.substr(1)};
    return {word, ""};
  }

  void take(const Word& word) {
    const auto [key, value] = key_and_value(word.text);
    if (std::find(allowed_.begin(), allowed_.end(), key) == allowed_.end()) {
      throw wrong(word, fmt::format("`{}` is not a word of `{}`", printable(word.text), to_string(event_.kind)),
                  did_you_mean(key, allowed_));
    }
    if (!given_.insert(key).second) throw wrong(word, fmt::format("`{}` was given already", key), "leave one out");
    if (key == "standby") {
      event_.standby = true;
      return;
    }
    if (key == "checkpoint") return;
    if (value.empty()) throw wrong(word, fmt::format("`{}` has no value", key), fmt::format("write {}=...", key));
    if (key == "rank") take_ranks(word, value);
    if (key == "step") event_.step = whole(word, value);
    if (key == "at") event_.at = whole(word, value);
    if (key == "for") event_.seconds = within(word, parse_seconds(value, place(word)), kLongestSeconds);
    if (key == "x") event_.factor = within(word, parse_real(value, place(word)), kLargestFactor);
    if (key == "delay") event_.delay_seconds = within(word, parse_seconds(value, place(word)), kLongestSeconds);
    if (key == "size") event_.bytes = within(word, parse_bytes(value, place(word)), kLargestBytes);
    if (key == "rate")
      event_.bytes_per_second = within(word, parse_bytes_per_second(value, place(word)), kLargestBytes);
    if (key == "in") event_.place = named<ChaosPlace>(word, value, "place");
    if (key == "phase") event_.phase = named<ChaosPhase>(word, value, "phase");
  }

  static SourcePlace place(const Word& word) { return {"--chaos", 1, word.column}; }

  static std::int64_t whole(const Word& word, const std::string& value) {
    const std::int64_t number = parse_integer(value, place(word));
    if (number < 1) throw wrong(word, fmt::format("{} is below 1", number), "count from 1");
    return number;
  }

  static double within(const Word& word, double value, double most) {
    if (value > 0.0 && value <= most) return value;
    throw wrong(word, fmt::format("`{}` is out of range", printable(word.text)),
                fmt::format("use more than 0 and at most {}", most));
  }

  void take_ranks(const Word& word, const std::string& value) {
    for (const std::string& one : split(value, ',')) {
      const std::int64_t rank = parse_integer(one, place(word));
      if (rank < 0 || rank >= world_) {
        throw wrong(word, fmt::format("rank {} is not one of the run's {}", rank, world_),
                    fmt::format("use 0 to {}", world_ - 1));
      }
      ranks_.push_back(static_cast<int>(rank));
    }
  }

  template <class Enum>
  static Enum named(const Word& word, const std::string& value, std::string_view what) {
    const auto found = value_named<Enum>(value);
    if (found) return *found;
    throw wrong(word, fmt::format("`{}` is not a {}", printable(value), what), did_you_mean(value, names<Enum>()));
  }

  void check() const {
    const Word& first = words_.front();
    for (const std::string& key : split(std::string(facts_of(event_.kind).needed), ' ')) {
      if (key.empty() || given_.contains(key)) continue;
      throw wrong(first, fmt::format("`{}` lacks `{}`", first.text, key),
                  fmt::format("for example: {} {}", first.text,
                              facts_of(event_.kind).help.substr(0, facts_of(event_.kind).help.find(':'))));
    }
    if (event_.kind == ChaosKind::kKill && event_.standby == given_.contains("rank")) {
      throw wrong(first, "`kill` takes a rank or `standby`", "for example: kill rank=2 step=20");
    }
    if (event_.standby && event_.place != ChaosPlace::kStep) {
      throw wrong(first, "a process that waits is in no place of a run", "leave `in` out");
    }
    if (event_.kind == ChaosKind::kSlow && !given_.contains("x") && !given_.contains("delay")) {
      throw wrong(first, "`slow` lacks `x` or `delay`", "for example: slow rank=0 x3, or delay=5ms");
    }
    if (event_.kind == ChaosKind::kSlowLink && !given_.contains("rate") && !given_.contains("delay")) {
      throw wrong(first, "`slow-link` lacks `rate` or `delay`", "for example: slow-link rank=1 rate=50MB/s");
    }
    const bool counted = event_.place == ChaosPlace::kCollective || event_.place == ChaosPlace::kSave;
    if (given_.contains("at") && !counted) {
      throw wrong(first, "`at` counts operations", "add in=collective or in=save, or leave it out");
    }
  }

  std::string text_for(int rank) const {
    std::vector<std::string> parts;
    for (const Word& word : words_) {
      parts.push_back(word.text.rfind("rank=", 0) == 0 ? fmt::format("rank={}", rank) : word.text);
    }
    return join(parts, " ");
  }

  const std::vector<Word>& words_;
  const int world_;
  std::vector<std::string> allowed_;
  std::set<std::string> given_;
  std::vector<int> ranks_;
  ChaosEvent event_;
};

}  // namespace

std::vector<ChaosEvent> parse_chaos(const std::string& text, int world) {
  std::vector<ChaosEvent> events;
  for (const std::vector<Word>& words : events_in(text)) {
    for (ChaosEvent& event : EventReader(words, world).read()) {
      event.number = static_cast<int>(events.size());
      events.push_back(std::move(event));
    }
    if (events.size() > kMostEvents) {
      throw wrong(words.front(), fmt::format("more than {} events", kMostEvents), "leave some out");
    }
  }
  if (events.empty()) throw bad_input("--chaos has no event", "for example: --chaos \"kill rank=1 step=20\"");
  return events;
}

std::string chaos_help() {
  std::string text;
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    text += fmt::format("  {} {}\n", names_of(ChaosKind{})[i], kFacts[i].help);
  }
  return text + "  those that end a rank also take in=collective|save (at=N: its N-th call), in=join, in=recovery";
}

// Only what differs from the default: a rank may be told of many.
nlohmann::json to_json(const std::vector<ChaosEvent>& events) {
  nlohmann::json list = nlohmann::json::array();
  const ChaosEvent plain;
  for (const ChaosEvent& event : events) {
    nlohmann::json one = {{"number", event.number}, {"kind", to_string(event.kind)}, {"text", event.text}};
    if (event.standby) one["standby"] = true;
    if (event.rank != plain.rank) one["rank"] = event.rank;
    if (event.step != plain.step) one["step"] = event.step;
    if (event.place != plain.place) one["place"] = to_string(event.place);
    if (event.at != plain.at) one["at"] = event.at;
    if (event.seconds != plain.seconds) one["seconds"] = event.seconds;
    if (event.factor != plain.factor) one["factor"] = event.factor;
    if (event.phase != plain.phase) one["phase"] = to_string(event.phase);
    if (event.delay_seconds != plain.delay_seconds) one["delay_seconds"] = event.delay_seconds;
    if (event.bytes != plain.bytes) one["bytes"] = event.bytes;
    if (event.bytes_per_second != plain.bytes_per_second) one["bytes_per_second"] = event.bytes_per_second;
    list.push_back(std::move(one));
  }
  return list;
}

std::vector<ChaosEvent> chaos_events_from_json(const nlohmann::json& value) {
  std::vector<ChaosEvent> events;
  for (const nlohmann::json& one : value) {
    ChaosEvent event;
    event.number = one.at("number");
    event.kind = value_named<ChaosKind>(one.at("kind").get<std::string>()).value();
    event.text = one.at("text");
    event.standby = one.value("standby", event.standby);
    event.rank = one.value("rank", event.rank);
    event.step = one.value("step", event.step);
    event.place = value_named<ChaosPlace>(one.value("place", to_string(event.place))).value();
    event.at = one.value("at", event.at);
    event.seconds = one.value("seconds", event.seconds);
    event.factor = one.value("factor", event.factor);
    event.phase = value_named<ChaosPhase>(one.value("phase", to_string(event.phase))).value();
    event.delay_seconds = one.value("delay_seconds", event.delay_seconds);
    event.bytes = one.value("bytes", event.bytes);
    event.bytes_per_second = one.value("bytes_per_second", event.bytes_per_second);
    events.push_back(std::move(event));
  }
  return events;
}

}  // namespace lockstep::elastic
