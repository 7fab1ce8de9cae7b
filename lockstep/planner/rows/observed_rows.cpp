#include "lockstep/planner/rows/observed_rows.h"

#include <cmath>
#include <memory>
#include <utility>

#include "lockstep/base/units.h"
#include "lockstep/cost/pricer/pricer.h"

namespace lockstep::planner {
namespace {

// Standard deviation of what one kind of hardware says about the same stack on another.
constexpr double kOtherHardwareSpread = 0.10;

bool are_alike(const cost::Profile& a, const cost::Profile& b) {
  if (!a.fitted || !b.fitted) return !a.fitted && !b.fitted;
  return a.fitted->hardware == b.fitted->hardware && a.fitted->stack == b.fitted->stack;
}

// `own` as it would be if it were off by what `now` is off from `then`.
cost::Profile carried_over(cost::Profile own, const cost::Profile& then, const cost::Profile& now) {
  if (!own.fitted || !then.fitted || !now.fitted) return own;
  for (const cost::ConstantInfo& info : cost::constant_table()) {
    own.fitted->constants.*info.member *= now.fitted->constants.*info.member / then.fitted->constants.*info.member;
  }
  return own;
}

double step_seconds_of(const RowQuestion& question) {
  if (!question.tokens_per_second_per_gpu) return 0;
  const double tokens =
      static_cast<double>(question.batch.global_sequences) * static_cast<double>(question.batch.sequence_length);
  return tokens / (*question.tokens_per_second_per_gpu * static_cast<double>(question.layout.world()));
}

}  // namespace

double memory_bytes_of(const RowQuestion& question, const cost::Pricer& pricer, const cost::Price& price) {
  plan::MemoryBreakdown memory = price.memory;
  if (question.memory_is_of_first_stage) {
    const std::vector<cost::StagePrice> stages = pricer.stages(question.layout, question.batch);
    if (!stages.empty()) memory = stages.front().memory;
  }
  return question.memory_is_reserved ? memory.total() : memory.total() - memory.overhead;
}

std::function<cost::RunFigures(const cost::Profile&)> figures_of(const RowQuestion& question,
                                                                 const cost::Profile& profile) {
  const cost::PricerOptions options{
      .sequence_length = question.batch.sequence_length, .lora = question.lora, .gradient_norm = false};
  std::shared_ptr<cost::Pricer> pricer;
  if (profile.fitted) {
    pricer = std::make_shared<cost::Pricer>(question.model, question.cluster, profile, options);
  }
  return [question, options, pricer](const cost::Profile& now) {
    std::shared_ptr<cost::Pricer> used = pricer;
    if (used && now.fitted) {
      used->recalibrate(now.fitted->constants);
    } else {
      used = std::make_shared<cost::Pricer>(question.model, question.cluster, now, options);
    }
    const cost::Price price = used->price(question.layout, question.batch);
    return cost::RunFigures{.seconds = price.step_seconds(),
                            .time_sigma = std::hypot(price.time_sigma, question.guess_sigma),
                            .bytes = memory_bytes_of(question, *used, price),
                            .memory_sigma = price.memory_sigma};
  };
}

cost::ObservedRun observed_row(std::string name, const RowQuestion& question, const cost::Profile& own,
                               const cost::Profile& target) {
  cost::ObservedRun run{.name = std::move(name), .seconds = step_seconds_of(question)};
  if (question.memory_gib) run.bytes = *question.memory_gib * kGiB;
  auto figures = figures_of(question, own);
  run.spread = question.guess_sigma;
  if (are_alike(own, target)) {
    run.predict = std::move(figures);
    return run;
  }
  run.spread = std::hypot(run.spread, kOtherHardwareSpread);
  run.predict = [figures = std::move(figures), own, target](const cost::Profile& now) {
    return figures(carried_over(own, target, now));
  };
  return run;
}

}  // namespace lockstep::planner
