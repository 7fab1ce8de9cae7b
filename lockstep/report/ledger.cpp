#include "lockstep/report/ledger.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/enum_names.h"

namespace lockstep::report {
namespace {

using telemetry::LedgerEntry;
using telemetry::LedgerSection;
using Kind = LedgerProblem::Kind;

constexpr std::size_t kMostShown = 20;

const char* name_of(Kind kind) { return named<Kind::kSteps>(kind, "lost", "twice", "count", "others", "steps"); }

std::string steps_text(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {}-{}", first, last);
}

// "epoch 2, samples 17-48 of its order", counted from 0.
std::string places_text(const LedgerSection& section, std::int64_t first, std::int64_t places) {
  const std::int64_t n = section.order.samples, last = first + places - 1;
  if (first / n == last / n) return fmt::format("epoch {}, places {}-{}", first / n, first % n, last % n);
  return fmt::format("epoch {}, place {} to epoch {}, place {}", first / n, first % n, last / n, last % n);
}

// Walks one section: where the next step must begin, and what it must have read.
class SectionProof {
 public:
  SectionProof(const LedgerSection& section, LedgerProof& proof)
      : section_(section), proof_(proof), step_(section.after_step), place_(section.start) {}

  void walk() {
    for (const LedgerEntry& entry : section_.entries) {
      check_steps(entry);
      check_places(entry);
      check_samples(entry);
      proof_.steps += entry.last_step - entry.first_step + 1;
      proof_.samples += entry.kind == LedgerEntry::Kind::kLeftOut ? 0 : entry.places;
      step_ = std::max(step_, entry.last_step);
      place_ = std::max(place_, entry.end());
    }
    check_whole_epochs();
  }

 private:
  void found(Kind kind, const LedgerEntry& entry, std::int64_t first, std::int64_t places, const std::string& text) {
    proof_.problems.push_back({kind, entry.first_step, entry.last_step, first, places, text});
  }

  void check_steps(const LedgerEntry& entry) {
    if (entry.first_step == step_ + 1) return;
    const bool gap = entry.first_step > step_ + 1;
    const std::int64_t first = gap ? step_ + 1 : entry.first_step;
    const std::int64_t last = gap ? entry.first_step - 1 : std::min(step_, entry.last_step);
    found(Kind::kSteps, {.first_step = first, .last_step = last}, entry.first, 0,
          fmt::format("{} {}", steps_text(first, last), gap ? "left no record" : "counted twice"));
  }

  void check_places(const LedgerEntry& entry) {
    const std::string steps = steps_text(entry.first_step, entry.last_step);
    if (entry.first > place_) {
      const std::int64_t places = entry.first - place_;
      found(Kind::kLost, entry, place_, places,
            fmt::format("{}: no step read them; {} began behind", places_text(section_, place_, places), steps));
    }
    if (entry.first < place_) {
      const std::int64_t places = std::min(place_, entry.end()) - entry.first;
      found(Kind::kTwice, entry, entry.first, places,
            fmt::format("{}: read before, and again by {}", places_text(section_, entry.first, places), steps));
    }
  }

  void check_samples(const LedgerEntry& entry) {
    const std::int64_t steps = entry.last_step - entry.first_step + 1;
    if (entry.kind == LedgerEntry::Kind::kLeftOut) {
      proof_.left_out += entry.places;
      return;
    }
    if (entry.kind == LedgerEntry::Kind::kUnconfirmed) {
      proof_.unconfirmed_steps += steps;
      whole_ = false;
      return;
    }
    read_ += entry.read;
    replicas_ = replicas_ == 0 || replicas_ == entry.replicas ? entry.replicas : -1;
    const std::string where = fmt::format("{} ({})", steps_text(entry.first_step, entry.last_step),
                                          places_text(section_, entry.first, entry.places));
    const std::int64_t wanted = entry.places * entry.replicas;
    if (entry.read.samples != wanted) {
      found(Kind::kCount, entry, entry.first, entry.places,
            fmt::format("{}: the ranks read {} samples, {} belong to it", where, entry.read.samples, wanted));
      return;
    }
    const telemetry::SamplesRead expected = samples_at(section_.order, entry.first, entry.places);
    if (entry.read.digest == expected.digest * static_cast<std::uint64_t>(entry.replicas)) return;
    found(Kind::kOthers, entry, entry.first, entry.places,
          fmt::format("{}: the ranks read other samples than those of these places", where));
  }

  // Beside the order: whole epochs must have every sample once, whatever their order is said to be.
  void check_whole_epochs() {
    const std::int64_t n = section_.order.samples;
    const bool from_start = section_.start % n == 0, to_end = place_ % n == 0;
    proof_.epochs_complete += std::max<std::int64_t>(0, place_ / n - (section_.start + n - 1) / n);
    if (!whole_ || !from_start || !to_end || replicas_ < 1 || proof_.left_out > 0 || place_ == section_.start) return;
    telemetry::SamplesRead expected;
    for (std::int64_t epoch = section_.start / n; epoch < place_ / n; ++epoch) {
      expected += whole_epoch(section_.order, epoch);
    }
    if (read_.digest == expected.digest * static_cast<std::uint64_t>(replicas_)) return;
    found(Kind::kOthers, {.first_step = section_.after_step + 1, .last_step = step_}, section_.start,
          place_ - section_.start, "the samples read are not every sample of these epochs once");
  }

  const LedgerSection& section_;
  LedgerProof& proof_;
  std::int64_t step_;
  std::int64_t place_;
  telemetry::SamplesRead read_;
  std::int64_t replicas_ = 0;  // of all entries; -1: they differ
  bool whole_ = true;
};

}  // namespace

LedgerProof prove(const telemetry::Ledger& ledger, std::optional<std::int64_t> steps) {
  LedgerProof proof;
  proof.again = ledger.again();
  proof.sections = static_cast<std::int64_t>(ledger.sections().size());
  if (!ledger.sections().empty()) proof.unrecorded_steps = ledger.sections().front().after_step;
  for (const LedgerSection& section : ledger.sections()) SectionProof(section, proof).walk();
  if (steps && *steps > ledger.last_step()) {
    proof.problems.push_back({Kind::kSteps, ledger.last_step() + 1, *steps, 0, 0,
                              steps_text(ledger.last_step() + 1, *steps) + " left no record"});
  }
  return proof;
}

std::string to_text(const LedgerProof& proof, const std::string& run, const TerminalStyle& style) {
  std::string text = inked("ledger of " + run, Ink::kBold, style) + "\n";
  const auto line = [&](const std::string& what) { text += "  " + what + "\n"; };
  line(fmt::format("{} steps read {} samples, {} whole epochs among them", proof.steps, proof.samples,
                   proof.epochs_complete));
  if (proof.unrecorded_steps > 0) {
    line(fmt::format("the first {} steps were done without a ledger and are not judged", proof.unrecorded_steps));
  }
  if (proof.sections > 1) {
    line(fmt::format("data, seed or shuffling changed {} times: each part is judged by its own order",
                     proof.sections - 1));
  }
  for (const telemetry::Ledger::Again& steps : proof.again) {
    line(steps_text(steps.first_step, steps.last_step) + ": done again after a failure; the last time counts");
  }
  if (proof.unconfirmed_steps > 0) {
    line(fmt::format("{} steps: a rank was lost after the step, before it told what it had read; by their places",
                     proof.unconfirmed_steps));
  }
  if (proof.left_out > 0) line(fmt::format("{} samples were left out on purpose", proof.left_out));
  for (std::size_t i = 0; i < std::min(proof.problems.size(), kMostShown); ++i) {
    line(inked(proof.problems[i].text, Ink::kRed, style));
  }
  if (proof.problems.size() > kMostShown) {
    line(fmt::format("... and {} more; `--json` has all", proof.problems.size() - kMostShown));
  }
  line(proof.exact() ? inked("exact: no sample was lost, none was read twice", Ink::kGreen, style)
                     : inked("NOT exact", Ink::kRed, style));
  return text;
}

nlohmann::json to_json(const LedgerProof& proof, const std::string& run) {
  nlohmann::json problems = nlohmann::json::array(), again = nlohmann::json::array();
  for (const LedgerProblem& problem : proof.problems) {
    problems.push_back({{"kind", name_of(problem.kind)},
                        {"steps", {problem.first_step, problem.last_step}},
                        {"first", problem.first},
                        {"places", problem.places},
                        {"text", problem.text}});
  }
  for (const telemetry::Ledger::Again& steps : proof.again) again.push_back({steps.first_step, steps.last_step});
  return {{"schema", "lockstep.ledger-proof/1"},
          {"run", run},
          {"exact", proof.exact()},
          {"steps", proof.steps},
          {"samples", proof.samples},
          {"epochs_complete", proof.epochs_complete},
          {"unconfirmed_steps", proof.unconfirmed_steps},
          {"unrecorded_steps", proof.unrecorded_steps},
          {"left_out", proof.left_out},
          {"sections", proof.sections},
          {"done_again", again},
          {"problems", problems}};
}

}  // namespace lockstep::report
