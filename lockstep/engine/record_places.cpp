#include "lockstep/engine/record_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/engine/exchange_text.h"

namespace lockstep::engine {

void record_places(RunContext& context) {
  if (context.world.size() == 1) return;
  std::vector<std::string> hosts;
  nlohmann::json nodes = nlohmann::json::array();
  for (const std::string& host : gather_texts(context.world, telemetry::host_name())) {
    const auto known = std::find(hosts.begin(), hosts.end(), host);
    nodes.push_back(known - hosts.begin());
    if (known == hosts.end()) hosts.push_back(host);
  }
  if (context.rank() != 0 || !context.recorder) return;
  context.recorder->event({.level = telemetry::Level::kDebug,
                           .kind = std::string(telemetry::event_kind::kPlacement),
                           .rank = -1,
                           .message = fmt::format("{} ranks on {} nodes", nodes.size(), hosts.size()),
                           .data = {{"nodes", nodes}, {"hosts", hosts}}});
}

}  // namespace lockstep::engine
