// What people see of a study: a line per trial while it runs, and the result at its end.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "lockstep/telemetry/progress.h"
#include "lockstep/tune/study/store_journal.h"
#include "lockstep/tune/study/study.h"

namespace lockstep::cli {

// A line per trial that ends, and on terminals a live line below.
class TuneProgress {
 public:
  // `out` null: silent. The study outlives this.
  TuneProgress(std::FILE* out, const tune::StoredStudy& study);

  void begin();  // the heading, and how far an earlier session came
  void update(const tune::StudyProgress& progress);
  void finish();

 private:
  std::FILE* out_;
  const tune::StoredStudy& study_;
  double best_ = 0;  // before the trial that is shown
  std::unique_ptr<telemetry::ProgressRenderer> renderer_;
};

// "  7  explore    51.2 k tokens/s   +2.1%      61 s  micro_batch=8 NCCL_ALGO=Tree   expected +1.8%": vs best so far.
std::string trial_line(const tune::Trial& trial, const tune::Space& space, const std::string& unit, double best_before,
                       const std::string& reason);

// "51.2 k tokens/s": a throughput in the study's unit.
std::string rate_text(double value, const std::string& unit);

// "12.5 GPU-minutes", of ranks on processors "12.5 rank-minutes".
std::string gpu_time_text(double gpu_seconds, const tune::StudySetup& setup);

// The compact result with the next command.
std::string result_text(const tune::StoredStudy& study, const tune::StudyResult& result);

}  // namespace lockstep::cli
