// What one rank is told: the same text whether the local agent spawned it or an external launcher did.
// Written as JSON by the command line, read once at the engine's door.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/elastic/rank_environment.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/backends.h"
#include "lockstep/spec/job.h"

namespace lockstep::elastic {

// Whether a run goes on from the newest checkpoint of its folder: never, where there is one, or as an order.
enum class Resume { kNever, kAuto, kAlways };
constexpr auto names_of(Resume) { return enum_names<Resume::kAlways>("never", "auto", "always"); }

// What the command line was told beside the job.
struct RankOptions {
  Resume resume = Resume::kNever;  // train
  bool accept_changes = false;     // train: resume although other samples come than the checkpoint's
  bool report_steps = false;       // train: a message for every step
  bool general_step = false;       // train: never the fused step
  std::string export_folder;       // train: weights for transformers at the end; "": none
  bool quick = false;              // calibrate
  bool cuda = false;               // calibrate: the first GPU
  bool fused = false;              // calibrate: the products of the fused step alone
  bool operator==(const RankOptions&) const = default;
};

struct RankRequest {
  std::string verb = "train";  // or "calibrate", "calibrate_shapes": those of the job alone, as its tp cuts them too
  spec::Job job;
  std::optional<plan::Plan> plan;
  std::vector<plan::Plan> resized;  // the plan for other numbers of ranks, which the world may get
  RankEnvironment ranks;
  std::string backend = spec::kUsualCpuBackend;
  std::string run_id;
  std::string home;                  // telemetry::home_directory() of the first rank; "": do not record
  std::string run_directory;         // logs, JSON lines
  std::string checkpoint_directory;  // "": no checkpoints
  std::string resume_from;           // a checkpoint folder; "": start fresh
  bool owns_run = false;             // this process creates and closes the run in the store (no agent does)
  int threads = 1;                   // compute threads of this rank
  RankOptions options;
};

// The request of a world with `ranks` ranks: its plan, and the job as that plan changes it.
RankRequest with_world(RankRequest request, int ranks);

nlohmann::json to_json(const RankRequest& request);

// Throws UserError naming the field that is missing or of the wrong type.
RankRequest rank_request_from_json(const nlohmann::json& value);

}  // namespace lockstep::elastic
