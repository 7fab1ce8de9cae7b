// The proof that a run read every sample of its epochs once: what its ledger recorded against the order of its data.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/report/terminal/draw.h"
#include "lockstep/telemetry/ledger.h"

namespace lockstep::report {

struct LedgerProblem {
  enum class Kind {
    kLost,    // places that no step read
    kTwice,   // places that were read before
    kCount,   // the ranks read more or fewer samples than the step has
    kOthers,  // they read other samples than those of its places
    kSteps,   // steps that are missing or recorded twice
  };
  Kind kind = Kind::kLost;
  std::int64_t first_step = 0, last_step = 0;  // where it was found
  std::int64_t first = 0, places = 0;          // in the stream of samples
  std::string text;                            // one line for people
};

struct LedgerProof {
  std::int64_t steps = 0;              // that the ledger has
  std::int64_t samples = 0;            // places they took
  std::int64_t epochs_complete = 0;    // of the last section
  std::int64_t unconfirmed_steps = 0;  // done, with a rank that was lost before it told what it read
  std::int64_t left_out = 0;           // places that the run left out on purpose
  std::int64_t unrecorded_steps = 0;   // before the ledger began
  std::vector<telemetry::Ledger::Again> again;
  std::vector<LedgerProblem> problems;
  std::int64_t sections = 0;

  bool exact() const { return problems.empty(); }
};

// `steps`: that the run says it did; nothing: it does not say.
LedgerProof prove(const telemetry::Ledger& ledger, std::optional<std::int64_t> steps);

std::string to_text(const LedgerProof& proof, const std::string& run, const TerminalStyle& style = {});
// Schema "lockstep.ledger-proof/1" (docs/reference/ledger.md).
nlohmann::json to_json(const LedgerProof& proof, const std::string& run);

}  // namespace lockstep::report
