// Alerts of a run where its process on this machine speaks for it: the rules that look at ranks and nodes from outside,
// and the way of every alert to the terminal, the record and the people who do not look (docs/reference/alerts.md).
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/elastic/rank_request.h"
#include "lockstep/elastic/repeater.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {

// Thread-safe. Nothing waits: notifications go out by a thread of their own.
class AlertDesk {
 public:
  using Say = std::function<void(const std::string& line)>;
  // Throws UserError (environment) when the address of the webhook is not where the job says.
  AlertDesk(const elastic::RankRequest& request, Say say);
  AlertDesk(const AlertDesk&) = delete;
  AlertDesk& operator=(const AlertDesk&) = delete;
  ~AlertDesk();  // waits some seconds at most for notifications that are left

  // From now on this process's own rules look too, and what they say is recorded; `recorder` null: it is not.
  void watch_nodes(std::shared_ptr<telemetry::Recorder> recorder);
  // What ranks and agents say, whatever it is about; `rank` -1: an agent.
  void hear(int rank, const nlohmann::json& message);

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::optional<elastic::Repeater> ticks_;
};

}  // namespace lockstep::cli
