// plan_model MODEL CLUSTER: the best way to train a model on a cluster, from C++. MODEL and CLUSTER are what `lockstep
// plan` takes: presets, files, 4x8xH100.
#include <cstdio>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/plan/plan.h"
#include "lockstep/planner/planner.h"
#include "lockstep/spec/job.h"

namespace {

lockstep::plan::Plan plan_of(const std::string& model, const std::string& cluster) {
  lockstep::spec::Job job;
  job.model = lockstep::spec::load_model(model);
  job.cluster = lockstep::spec::load_cluster(cluster);
  job.precision = lockstep::spec::Precision::kBf16;
  job.batch = {.micro = 1, .accumulation = 8, .sequence_length = 2048};
  job.steps = 1000;
  return lockstep::planner::make_plan(job);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: plan_model MODEL CLUSTER, for example: plan_model llama2-13b 2x8xH100\n");
    return 2;
  }
  try {
    const lockstep::plan::Plan plan = plan_of(argv[1], argv[2]);
    const lockstep::plan::Candidate& best = plan.best;
    std::printf("layout %s\n", lockstep::plan::to_string(best.layout).c_str());
    std::printf("micro-batch %lld, accumulation %lld\n", static_cast<long long>(best.batch.micro),
                static_cast<long long>(best.batch.accumulation));
    std::printf("memory %.1f of %.1f GiB\n", best.memory.total() / (1 << 30), best.memory.capacity / (1 << 30));
    if (best.prediction) std::printf("%.0f tokens per second\n", best.prediction->tokens_per_second.expected);
    for (const std::string& reason : best.reasons) std::printf("- %s\n", reason.c_str());
    return 0;
  } catch (const lockstep::UserError& error) {
    std::fprintf(stderr, "plan_model: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
