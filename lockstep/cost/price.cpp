#include "lockstep/cost/price.h"

#include "lockstep/cost/adapters.h"
#include "lockstep/cost/engine_memory.h"
#include "lockstep/cost/step_time.h"

namespace lockstep::cost {
namespace {

bool is_plain_data_parallel(const plan::Layout& layout) {
  return layout.world() == layout.dp && layout.zero == 0 && layout.recompute == plan::Recompute::kNone &&
         layout.ep == 1 && layout.offload == plan::Offload::kNone;
}

// A machine of ordinary memory holds what the engine counts and what a rank has before a model; nothing is fitted.
plan::MemoryBreakdown memory_on_cpu(const plan::Run& run, const Profile& profile) {
  plan::MemoryBreakdown memory = engine_memory(run);
  memory.overhead = profile.framework_bytes;
  return memory;
}

RunPrice price_by_tables(const plan::Run& run, const Profile& profile) {
  const Workload workload{run.model,
                          run.batch,
                          run.layout.precision,
                          run.optimizer.kind,
                          run.communication.bucket_mib,
                          trained_share(run.lora, run.model)};
  const StepPrediction predicted = predict_step(profile, workload, run.layout);
  RunPrice price;
  price.by = PricedBy::kTables;
  price.time = predicted.breakdown;
  price.prediction = predicted.prediction;
  price.time_sigma = correction_of(profile, run.model).half_width / kNinetyPercent;
  price.memory = memory_of(run, &profile);
  return price;
}

}  // namespace

PricedBy priced_by(const plan::Run& run, const Profile& profile) {
  const spec::Arch arch = run.model.arch;
  const bool operators_known =
      arch != spec::Arch::kBert && arch != spec::Arch::kMoe && arch != spec::Arch::kMamba && !run.model.is_scripted();
  if (run.executor == plan::Executor::kFused && profile.dense && run.cluster.groups.size() == 1) {
    return PricedBy::kFused;
  }
  const bool tables = !profile.fitted && operators_known && is_plain_data_parallel(run.layout);
  return tables ? PricedBy::kTables : PricedBy::kFormulas;
}

PricerOptions options_of(const plan::Run& run, const NcclKnobs& nccl) {
  return {.sequence_length = run.batch.sequence_length,
          .optimizer = run.optimizer.kind,
          .state_precision = run.optimizer.state_precision,
          .lora = run.lora,
          .communication = run.communication,
          .activation_offload = run.activation_offload,
          .nccl = nccl};
}

RunPrice price(const plan::Run& run, const Profile& profile, const NcclKnobs& nccl) {
  const PricedBy by = priced_by(run, profile);
  if (by == PricedBy::kTables) return price_by_tables(run, profile);
  const Pricer pricer(run.model, run.cluster, profile, options_of(run, nccl));
  RunPrice price{pricer.price(run.layout, run.batch), by, {}};
  price.prediction = pricer.predict(price, run.layout, run.batch);
  return price;
}

plan::MemoryBreakdown memory_of(const plan::Run& run, const Profile* profile) {
  if (profile == nullptr) return engine_memory(run);
  if (run.cluster.is_cpu() && is_of_this_engine(*profile)) return memory_on_cpu(run, *profile);
  return Pricer(run.model, run.cluster, *profile, options_of(run)).price(run.layout, run.batch).memory;
}

}  // namespace lockstep::cost
