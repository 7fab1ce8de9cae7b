// Ledger: which samples every optimizer step of a run read, small enough to travel with its state.
//
// The samples of a run are one stream: those of epoch 0 in their order (SampleOrder), then those of epoch 1, ...; place
// p of the stream is sample p % n of epoch p / n. A step takes the next places. What is recorded of a step is its
// places, and how many samples the ranks read and the digest of their numbers: of what the loaders fetched, not of what
// they should have. Steps are merged into blocks as the run grows, so that a ledger has some hundred entries at most.
//
//   Ledger ledger;
//   ledger.go_on({n, seed, true}, 0, 0);                                       // order, steps done, place
//   ledger.add({.first_step = 1, .last_step = 1, .first = 0, .places = 32, .replicas = 1, .read = sums});
//
// It is part of a run's state (checkpoints, the memory of peers): a step that is lost and done again has one entry.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/counter_random.h"

namespace lockstep::telemetry {

// Samples and a digest of their numbers that does not depend on their order. Those of several ranks add up.
struct SamplesRead {
  std::int64_t samples = 0;
  std::uint64_t digest = 0;

  void add(std::int64_t epoch, std::int64_t sample) {
    ++samples;
    digest += combine(static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(sample));
  }
  SamplesRead& operator+=(const SamplesRead& other) {
    samples += other.samples;
    digest += other.digest;
    return *this;
  }
  bool operator==(const SamplesRead&) const = default;

  // As numbers that ranks may sum: exact for up to a million of them.
  static constexpr int kFields = 3;
  std::array<double, kFields> numbers() const;
  static SamplesRead of(const double* numbers);
};

// The order of the samples in every epoch.
struct SampleOrder {
  std::int64_t samples = 1;  // of the data set
  std::uint64_t seed = 0;
  bool shuffled = true;
  bool operator==(const SampleOrder&) const = default;
};

// The samples of places [first, first + places).
SamplesRead samples_at(const SampleOrder& order, std::int64_t first, std::int64_t places);
// Every sample of one epoch, whatever their order.
SamplesRead whole_epoch(const SampleOrder& order, std::int64_t epoch);

struct LedgerEntry {
  enum class Kind {
    kRead,
    kUnconfirmed,  // the step was done, and a rank was lost before it told what it had read
    kLeftOut,      // no step was to read these
  };
  Kind kind = Kind::kRead;
  std::int64_t first_step = 1, last_step = 1;  // counted from 1
  std::int64_t first = 0, places = 0;          // in the stream
  std::int64_t replicas = 1;                   // ranks that read each sample
  SamplesRead read;                            // by all ranks together

  std::int64_t end() const { return first + places; }
  bool operator==(const LedgerEntry&) const = default;
};

// Steps in one order of the samples.
struct LedgerSection {
  SampleOrder order;
  std::int64_t after_step = 0;  // steps done before
  std::int64_t start = 0;       // place of its first sample
  std::vector<LedgerEntry> entries;
  bool operator==(const LedgerSection&) const = default;
};

class Ledger {
 public:
  // A run begins or goes on after `step` steps at `place`. A ledger that ends there in the same order is continued;
  // else a new section begins.
  void go_on(const SampleOrder& order, std::int64_t step, std::int64_t place);
  void add(const LedgerEntry& entry);
  // No step reads the next `places` of the stream: the run leaves them out.
  void leave_out(std::int64_t places);
  // Steps that were done, lost, and are done again.
  void add_again(std::int64_t first_step, std::int64_t last_step);

  struct Again {
    std::int64_t first_step = 0, last_step = 0;
    bool operator==(const Again&) const = default;
  };
  const std::vector<LedgerSection>& sections() const { return sections_; }
  const std::vector<Again>& again() const { return again_; }
  std::int64_t last_step() const;  // 0: none
  bool operator==(const Ledger&) const = default;

 private:
  friend nlohmann::json to_json(const Ledger& ledger);
  friend Ledger ledger_from_json(const nlohmann::json& value);
  std::int64_t next_place() const;
  bool merge(LedgerEntry& before, const LedgerEntry& next) const;
  void shrink();

  std::vector<LedgerSection> sections_;
  std::vector<Again> again_;
  std::int64_t block_ = 1;  // steps of one block are one entry, where nothing speaks against it
};

// Schema "lockstep.ledger/1".
nlohmann::json to_json(const Ledger& ledger);
// Throws UserError for what is not one.
Ledger ledger_from_json(const nlohmann::json& value);

// home/runs/<id>/ledger.json, which the first rank of a run writes now and then and at its end.
std::filesystem::path ledger_file(const std::filesystem::path& home, const std::string& run);
// Throws UserError when it is not there or damaged.
Ledger read_ledger(const std::filesystem::path& home, const std::string& run);

}  // namespace lockstep::telemetry
