#include "lockstep/serve/report_values.h"

#include "lockstep/diagnose/run.h"
#include "lockstep/report/goodput.h"
#include "lockstep/report/incidents.h"
#include "lockstep/report/memory_terms.h"
#include "lockstep/report/run_facts.h"
#include "lockstep/report/waterfall.h"

namespace lockstep::serve {

std::optional<nlohmann::json> report_json(const telemetry::RunStore& store, const std::string& run,
                                          const std::string& what, std::int64_t window_steps) {
  if (what == "diagnosis") return diagnose::to_json(diagnose::diagnose_run(store, run));
  if (what != "waterfall" && what != "memory" && what != "incidents" && what != "goodput") return std::nullopt;
  const report::RunFacts facts = report::read_run_facts(store, run, window_steps);
  nlohmann::json value;
  if (what == "waterfall") value = report::to_json(report::make_waterfall(facts, store));
  if (what == "memory") value = report::to_json(report::make_memory_terms(facts));
  if (what == "incidents") value = report::to_json(report::make_incidents(facts));
  if (what == "goodput") value = report::to_json(report::make_goodput(facts));
  value["schema"] = "lockstep.api." + what + "/1";
  return value;
}

}  // namespace lockstep::serve
