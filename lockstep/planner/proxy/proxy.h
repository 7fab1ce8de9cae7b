// Proxies of a job: small copies of it that run on the machine at hand, so that predictions can be checked where the
// job itself cannot run. Which ones, and why, is a pure function of the job, its plan and the machine
// (docs/reference/validate.md has the rules).
//
//   const ProxyChoice choice = choose_proxies(job, plan.best, machine, limits);
//   for (const Proxy& proxy : choice.proxies) make_plan(proxy.job, &profile);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/plan/plan.h"
#include "lockstep/planner/proxy/layouts.h"
#include "lockstep/spec/job.h"

namespace lockstep::planner {

// Where proxies run: one node. Its devices_per_node are the most ranks; of processors, device.memory_bytes is a rank's
// share.
struct ProxyMachine {
  spec::NodeGroup node;
  double flops_per_second = 0;  // of a rank while training, assumed: nothing is measured yet
};

struct ProxyLimits {
  std::int64_t parameters = 0;   // of a proxy, at most; 0: a tenth of the job's, or the job itself where it fits
  double budget_seconds = 120;   // all runs together
  std::int64_t steps = 20;       // of a run
  std::int64_t repetitions = 3;  // runs of each proxy
  std::int64_t proxies = 0;      // at most; 0: until every kind of parallelism is checked
};

// What a proxy has other than the job.
struct Difference {
  std::string what, target, proxy, why;
  bool operator==(const Difference&) const = default;
};

struct Proxy {
  // Complete but for data.path: `lockstep train` trains it. Its layout is given.
  spec::Job job;
  plan::Layout layout;
  std::vector<Parallelism> checks;
  std::vector<Difference> differences;
  double assumed_step_seconds = 0;
  bool is_job = false;  // the job itself, with generated data
};

struct Unchecked {
  std::string what;  // a name of Parallelism
  std::string why;
};

struct ProxyChoice {
  std::vector<Proxy> proxies;
  std::vector<Unchecked> unchecked;
  double assumed_seconds = 0;  // of all runs
  bool over_budget = false;    // the smallest proxies there are take longer
};

// The largest proxies that keep the limits and take at most 70% of a rank's memory by the engine's own count. Throws
// UserError (exit code 3) where not even the smallest fits the memory, or none trains.
ProxyChoice choose_proxies(const spec::Job& job, const plan::Candidate& planned, const ProxyMachine& machine,
                           const ProxyLimits& limits);

// The dense relative of a model whose operators calibration can time one by one: the model itself for most.
spec::Model timed_relative(const spec::Model& model);

}  // namespace lockstep::planner
