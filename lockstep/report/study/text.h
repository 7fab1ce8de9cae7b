// A study of the tuner as people read it in a terminal, and as a document for dashboards. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/report/terminal/draw.h"
#include "lockstep/telemetry/study_store.h"
#include "lockstep/tune/study/conclusion.h"
#include "lockstep/tune/study/store_journal.h"

namespace lockstep::report {

struct StudyTextOptions {
  TerminalStyle style;
  bool all = false;  // every trial, in order, with everything that differs from the default; else the fastest few
};

// What `lockstep tune --show` prints: where and when, what the budget went to, the best setting beside the default, the
// gain with its interval, what reverting each knob costs, shares of variance, convergence, failures, trials, and
// the next command. `conclusion` is of `study`.
std::string study_text(const tune::StoredStudy& study, const tune::Conclusion& conclusion,
                       const StudyTextOptions& options = {});

// Schema lockstep.study/1: the document of `lockstep tune --json` and beside it `study` (id, name, status, times, host,
// versions, unit, options, interrupted), `space` (YAML), `spent` (GPU seconds by what they went to) and `history`
// (every trial, docs/reference/run-store.md).
nlohmann::json study_json(const tune::StoredStudy& study, const tune::Conclusion& conclusion);

// `lockstep tune --list`, and the same as schema lockstep.studies/1. Newest first, as given.
std::string study_list_text(const std::vector<telemetry::StudyRow>& studies, const TerminalStyle& style);
nlohmann::json study_list_json(const std::vector<telemetry::StudyRow>& studies);

// Where a study's GPU seconds went.
struct StudySpending {
  struct Share {
    std::int64_t trials = 0;
    double gpu_seconds = 0;
  };
  Share search;     // baseline, explore, replicate
  Share confirm;    // confirm, control
  Share set_backs;  // set_back
  Share failures;   // whatever they were for
  Share cut_off;    // attempts that a stop or a crash ended
  double total() const;
};
StudySpending spending_of(const tune::StoredStudy& study);

}  // namespace lockstep::report
