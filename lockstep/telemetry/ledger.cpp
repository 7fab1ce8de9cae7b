#include "lockstep/telemetry/ledger.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/permutation.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::telemetry {
namespace {

constexpr const char* kSchema = "lockstep.ledger/1";
constexpr std::size_t kMostEntries = 256;
constexpr std::size_t kMostAgain = 256;
constexpr std::string_view kKinds = "ruo";  // in text, in the order of LedgerEntry::Kind

UserError damaged(const std::string& what) {
  return bad_input("the ledger of samples is damaged: " + what, "use another checkpoint or copy of the run");
}

// "r 7 7 192 32 1 32 9f3c...;": one entry.
std::string entries_text(const std::vector<LedgerEntry>& entries) {
  std::string text;
  for (const LedgerEntry& entry : entries) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {} {} {} {} {:x};", kKinds[static_cast<std::size_t>(entry.kind)],
                   entry.first_step, entry.last_step, entry.first, entry.places, entry.replicas, entry.read.samples,
                   entry.read.digest);
  }
  return text;
}

// Cuts the next word off.
std::string_view next_word(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(text.size(), end + 1));
  return word;
}

template <class Number>
Number number_in(std::string_view word, int base = 10) {
  Number value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  if (word.empty() || error != std::errc() || end != word.data() + word.size()) throw damaged("a number is not one");
  return value;
}

LedgerEntry entry_of(std::string_view text) {
  LedgerEntry entry;
  const std::string_view kind = next_word(text);
  const std::size_t number = kind.size() == 1 ? kKinds.find(kind.front()) : std::string_view::npos;
  if (number == std::string_view::npos) throw damaged("an entry is of an unknown kind");
  entry.kind = static_cast<LedgerEntry::Kind>(number);
  for (std::int64_t* field :
       {&entry.first_step, &entry.last_step, &entry.first, &entry.places, &entry.replicas, &entry.read.samples}) {
    *field = number_in<std::int64_t>(next_word(text));
    if (*field < 0) throw damaged("a number is negative");
  }
  entry.read.digest = number_in<std::uint64_t>(next_word(text), 16);
  if (!text.empty()) throw damaged("an entry is too long");
  return entry;
}

std::vector<LedgerEntry> entries_of(std::string_view text) {
  std::vector<LedgerEntry> entries;
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    if (end == std::string_view::npos) throw damaged("an entry has no end");
    entries.push_back(entry_of(text.substr(0, end)));
    text.remove_prefix(end + 1);
  }
  return entries;
}

}  // namespace

std::array<double, SamplesRead::kFields> SamplesRead::numbers() const {
  constexpr std::uint64_t kLow = 0xFFFFFFFFULL;
  return {static_cast<double>(samples), static_cast<double>(digest & kLow), static_cast<double>(digest >> 32)};
}

SamplesRead SamplesRead::of(const double* numbers) {
  const auto low = static_cast<std::uint64_t>(numbers[1]), high = static_cast<std::uint64_t>(numbers[2]);
  return {static_cast<std::int64_t>(numbers[0]), low + (high << 32)};
}

SamplesRead samples_at(const SampleOrder& order, std::int64_t first, std::int64_t places) {
  SamplesRead read;
  for (std::int64_t at = first; at < first + places;) {
    const std::int64_t epoch = at / order.samples;
    const std::int64_t end = std::min(first + places, (epoch + 1) * order.samples);
    const Permutation permutation(order.samples, order.seed, static_cast<std::uint64_t>(epoch));
    for (; at < end; ++at) {
      const std::int64_t place = at % order.samples;
      read.add(epoch, order.shuffled ? permutation(place) : place);
    }
  }
  return read;
}

SamplesRead whole_epoch(const SampleOrder& order, std::int64_t epoch) {
  SamplesRead read;
  for (std::int64_t sample = 0; sample < order.samples; ++sample) read.add(epoch, sample);
  return read;
}

std::int64_t Ledger::last_step() const {
  if (sections_.empty()) return 0;
  const LedgerSection& section = sections_.back();
  return section.entries.empty() ? section.after_step : section.entries.back().last_step;
}

std::int64_t Ledger::next_place() const {
  const LedgerSection& section = sections_.back();
  return section.entries.empty() ? section.start : section.entries.back().end();
}

void Ledger::leave_out(std::int64_t places) {
  LedgerEntry entry;
  entry.kind = LedgerEntry::Kind::kLeftOut;
  entry.last_step = last_step();
  entry.first_step = entry.last_step + 1;  // it belongs to no step
  entry.first = next_place();
  entry.places = places;
  add(entry);
}

void Ledger::go_on(const SampleOrder& order, std::int64_t step, std::int64_t place) {
  if (!sections_.empty() && sections_.back().order == order && last_step() == step && next_place() == place) return;
  sections_.push_back({order, step, place, {}});
}

// Only what a reader could tell apart again is kept apart: blocks, gaps, and entries that did not read what they
// should.
bool Ledger::merge(LedgerEntry& before, const LedgerEntry& next) const {
  const auto block_of = [&](std::int64_t step) { return (step - 1) / block_; };
  const auto complete = [](const LedgerEntry& entry) {
    return entry.kind == LedgerEntry::Kind::kRead && entry.read.samples == entry.places * entry.replicas;
  };
  if (!complete(before) || !complete(next) || before.replicas != next.replicas) return false;
  if (next.first_step != before.last_step + 1 || next.first != before.end()) return false;
  if (block_of(before.first_step) != block_of(next.last_step)) return false;
  before.last_step = next.last_step;
  before.places += next.places;
  before.read += next.read;
  return true;
}

void Ledger::add(const LedgerEntry& entry) {
  LOCKSTEP_ASSERT(!sections_.empty(), "a ledger begins with an order");
  std::vector<LedgerEntry>& entries = sections_.back().entries;
  if (entries.empty() || !merge(entries.back(), entry)) entries.push_back(entry);
  if (entries.size() > kMostEntries) shrink();
}

void Ledger::shrink() {
  if (block_ > sections_.back().entries.back().last_step) return;  // nothing there can be merged
  block_ *= 2;
  for (LedgerSection& section : sections_) {
    std::vector<LedgerEntry> merged;
    for (const LedgerEntry& entry : section.entries) {
      if (merged.empty() || !merge(merged.back(), entry)) merged.push_back(entry);
    }
    section.entries = std::move(merged);
  }
}

void Ledger::add_again(std::int64_t first_step, std::int64_t last_step) {
  if (last_step < first_step) return;
  if (again_.size() == kMostAgain) again_.erase(again_.begin());
  again_.push_back({first_step, last_step});
}

nlohmann::json to_json(const Ledger& ledger) {
  nlohmann::json sections = nlohmann::json::array(), again = nlohmann::json::array();
  for (const LedgerSection& section : ledger.sections_) {
    sections.push_back({{"samples", section.order.samples},
                        {"seed", section.order.seed},
                        {"shuffled", section.order.shuffled},
                        {"after_step", section.after_step},
                        {"start", section.start},
                        {"entries", entries_text(section.entries)}});
  }
  for (const Ledger::Again& steps : ledger.again_) again.push_back({steps.first_step, steps.last_step});
  return {{"schema", kSchema}, {"block", ledger.block_}, {"sections", sections}, {"again", again}};
}

Ledger ledger_from_json(const nlohmann::json& value) {
  try {
    if (value.at("schema") != kSchema) throw damaged("it is not of schema " + std::string(kSchema));
    Ledger ledger;
    ledger.block_ = value.at("block");
    for (const nlohmann::json& section : value.at("sections")) {
      ledger.sections_.push_back({{section.at("samples"), section.at("seed"), section.at("shuffled")},
                                  section.at("after_step"),
                                  section.at("start"),
                                  entries_of(section.at("entries").get<std::string>())});
      if (ledger.sections_.back().order.samples < 1) throw damaged("a data set without samples");
    }
    for (const nlohmann::json& steps : value.at("again")) ledger.again_.push_back({steps.at(0), steps.at(1)});
    if (ledger.block_ < 1) throw damaged("a block of steps is less than one");
    return ledger;
  } catch (const nlohmann::json::exception& error) {
    throw damaged(error.what());
  }
}

std::filesystem::path ledger_file(const std::filesystem::path& home, const std::string& run) {
  return run_folder(home, run) / "ledger.json";
}

Ledger read_ledger(const std::filesystem::path& home, const std::string& run) {
  const std::filesystem::path file = ledger_file(home, run);
  if (!std::filesystem::exists(file)) {
    throw environment_error("run " + printable(run) + " has no ledger",
                            "look on the node of its first rank; runs of older versions and those that did no step "
                            "have none");
  }
  return ledger_from_json(nlohmann::json::parse(read_file(file), nullptr, false));
}

}  // namespace lockstep::telemetry
