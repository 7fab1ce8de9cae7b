// The record of a run by the process that owns it: the local agent, or the first rank where a foreign launcher started
// the ranks. Begun when it is made and ended once, whatever becomes of the ranks.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/elastic/rank_request.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::elastic {

class RunRecord {
 public:
  // `recorder` null: nothing is recorded. Waits until the begin is in the store, for some seconds at most.
  RunRecord(std::shared_ptr<telemetry::Recorder> recorder, const RankRequest& request, const nlohmann::json& versions);
  RunRecord(std::shared_ptr<telemetry::Recorder> recorder, const telemetry::RunInfo& info);
  // As failed, unless end() was called.
  ~RunRecord();
  RunRecord(const RunRecord&) = delete;
  RunRecord& operator=(const RunRecord&) = delete;

  // `exit_code` of the run (0: done, 130: interrupted, else failed), `reason` one line, `summary` null when there is
  // none, `failed_rank` the rank that is the cause.
  void end(int exit_code, std::string reason, nlohmann::json summary, std::optional<int> failed_rank = {});
  // Another process goes on with the run and will end it.
  void hand_over();

 private:
  std::shared_ptr<telemetry::Recorder> recorder_;
};

}  // namespace lockstep::elastic
