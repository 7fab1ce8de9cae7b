#include "lockstep/engine/kept_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

using nlohmann::json;

json batch_facts(const spec::BatchSchedule& schedule, std::int64_t data_ranks, double rate_factor) {
  json phases = json::array();
  for (const auto& phase : schedule.phases) phases.push_back({phase.until_steps, phase.until_samples, phase.global});
  return {{"phases", phases}, {"data_ranks", data_ranks}, {"rate_factor", rate_factor}};
}

namespace {

std::optional<SavedBatch> read_batch(const json& told) {
  try {
    SavedBatch batch;
    batch.schedule.phases.clear();
    for (const json& phase : told.at("phases"))
      batch.schedule.phases.push_back({phase.at(0), phase.at(1), phase.at(2)});
    told.at("data_ranks").get_to(batch.data_ranks);
    told.at("rate_factor").get_to(batch.rate_factor);
    const auto& phases = batch.schedule.phases;
    const bool sound = !phases.empty() && batch.data_ranks >= 1 && batch.rate_factor > 0 &&
                       std::all_of(phases.begin(), phases.end(), [](const auto& phase) { return phase.global >= 1; });
    if (sound) return batch;
  } catch (const json::exception&) {
  }
  throw bad_input("the batch in the checkpoint's facts is malformed", "resume from another checkpoint");
}

double factor_of(spec::RateRule rule, double growth) {
  switch (rule) {
    case spec::RateRule::kLinear:
      return growth;
    case spec::RateRule::kSqrt:
      return std::sqrt(growth);
    case spec::RateRule::kNone:
      return 1.0;
  }
  return 1.0;
}

}  // namespace

std::optional<SavedBatch> saved_batch_of(const checkpoint::CheckpointFacts& facts) {
  const json& loader = facts.loader;
  if (loader.contains("batch")) return read_batch(loader.at("batch"));
  if (!loader.contains("global_batch")) return std::nullopt;
  SavedBatch batch;
  const std::int64_t global = loader.at("global_batch").get<std::int64_t>();
  if (global < 1) return std::nullopt;
  const spec::Batch before = spec::parse_job(facts.job_yaml, "checkpoint").batch;
  batch.schedule = spec::BatchSchedule::constant(global);
  batch.data_ranks = std::max<std::int64_t>(1, global / (before.micro * before.accumulation));
  return batch;
}

KeptBatch keep_batch(const spec::Job& job, const plan::Run& run, const std::optional<SavedBatch>& saved) {
  const std::int64_t ranks = run.layout.data_ranks();
  if (!saved) return {run.schedule, ranks, 1.0, ""};
  if (saved->data_ranks == ranks) return {run.schedule, ranks, saved->rate_factor, ""};
  const std::string moved = fmt::format("{} data ranks before, {} now", saved->data_ranks, ranks);
  const std::int64_t before = saved->schedule.final();
  if (job.batch.on_resize == spec::OnResize::kScale) {
    const std::int64_t now = run.schedule.final();
    const double factor =
        factor_of(job.batch.learning_rate_rule, static_cast<double>(now) / static_cast<double>(before));
    return {run.schedule, ranks, saved->rate_factor * factor,
            fmt::format("{}: a step has {} samples instead of {}, learning rate x {:.6g} (batch.on_resize: scale)",
                        moved, now, before, factor)};
  }
  const spec::BatchSchedule& kept = job.batch.global > 0 ? run.schedule : saved->schedule;
  const std::int64_t micro_steps = spec::micro_steps_of(kept.final(), run.batch.micro, ranks);
  return {kept, saved->data_ranks, saved->rate_factor,
          fmt::format("{}: a step {} {} samples, in {} micro-step{} of every data rank", moved,
                      kept == saved->schedule ? "keeps its" : "has", kept.final(), micro_steps,
                      micro_steps == 1 ? "" : "s")};
}

std::optional<SavedBatch> find_saved_batch(comm::Communicator& world,
                                           const std::vector<checkpoint::CheckpointPart>* held,
                                           const std::string& resume_from) {
  // The first that holds a state tells the others.
  const bool mine = held != nullptr && !held->empty();
  std::int64_t teller = mine ? world.rank() : world.size();
  if (world.size() > 1) world.all_reduce({&teller, 1, comm::DType::kI64}, comm::ReduceOp::kMin).wait();
  std::string text;
  if (teller < world.size()) {
    if (world.rank() == teller) {
      const auto batch = saved_batch_of(held->back().facts);
      if (batch) text = batch_facts(batch->schedule, batch->data_ranks, batch->rate_factor).dump();
    }
    text = broadcast_text(world, text, static_cast<int>(teller));
    if (text.empty()) return std::nullopt;
    return read_batch(json::parse(text));
  }
  if (resume_from.empty()) return std::nullopt;
  return saved_batch_of(checkpoint::CheckpointReader::open(resume_from).facts(world.rank()));
}

}  // namespace lockstep::engine
