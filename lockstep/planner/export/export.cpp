#include "lockstep/planner/export/export.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/capabilities.h"

namespace lockstep::planner {
namespace {

struct Kind {
  const char* name;
  const char* stack;  // of capabilities.h
};
constexpr std::array<Kind, 6> kKinds{{{"job", "lockstep"},
                                      {"torchrun", "fsdp"},
                                      {"deepspeed", "deepspeed"},
                                      {"megatron", "megatron"},
                                      {"nemo", "nemo"},
                                      {"torchtitan", "torchtitan"}}};

UserError cannot_run(const Kind& kind, const std::string& problem, const std::string& stack) {
  return {ExitCode::kAnswerIsNo, fmt::format("{} cannot run this plan: it has no {}", kind.name, problem),
          fmt::format("plan for it with --stack {}", stack)};
}

void require_runnable(const SearchRequest& request, const plan::Candidate& plan, const Kind& kind) {
  const plan::Layout& layout = plan.layout;
  if (kind.name == std::string_view("job")) {
    const auto refusal = plan::first_refusal(run_of(request, layout, plan.batch));
    if (refusal)
      throw UserError(ExitCode::kAnswerIsNo, "lockstep cannot train this plan: " + refusal->text, refusal->fix);
    return;
  }
  const Capabilities& can = *find_capabilities(kind.stack);
  // Plain replicas of FSDP's file are DDP's.
  const bool is_ddp = kind.name == std::string_view("torchrun") && layout.zero == 0;
  const Capabilities& asked = is_ddp ? *find_capabilities("ddp") : can;
  if (const auto problem = asked.find_problem(layout, request.model)) throw cannot_run(kind, *problem, kind.stack);
  if (kind.name == std::string_view("deepspeed") && layout.world() != layout.data_ranks()) {
    throw cannot_run(kind, "configuration file for pipelines, experts and sequences (they are code)",
                     "deepspeed, without --layout");
  }
}

}  // namespace

PlanExport parse_plan_export(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (text == kKinds[i].name) return static_cast<PlanExport>(i);
    names.emplace_back(kKinds[i].name);
  }
  throw bad_input(fmt::format("there is no export `{}`", printable(text)), did_you_mean(std::string(text), names));
}

void keep_to_export(SearchRequest& request, PlanExport kind) {
  const bool is_deepspeed = request.framework != nullptr && request.framework->name == "deepspeed";
  if (kind != PlanExport::kDeepspeed || !is_deepspeed) return;
  for (const char* axis : {"pp", "cp", "ep"}) request.constraints.fixed.try_emplace(axis, 1);
}

std::vector<ExportedFile> export_plan(const SearchRequest& request, const plan::Candidate& plan, PlanExport kind) {
  require_runnable(request, plan, kKinds[static_cast<std::size_t>(kind)]);
  switch (kind) {
    case PlanExport::kJob:
      return {{.name = "job.yaml", .text = export_job(request, plan)}};
    case PlanExport::kTorchrun:
      return export_torchrun(request, plan);
    case PlanExport::kDeepspeed:
      return {{.name = "ds_config.json", .text = export_deepspeed(request, plan)}};
    case PlanExport::kMegatron:
      return {{.name = "megatron.sh", .text = export_megatron(request, plan), .executable = true}};
    case PlanExport::kNemo:
      return {{.name = "nemo.yaml", .text = export_nemo(request, plan)}};
    case PlanExport::kTorchtitan:
      return {{.name = "torchtitan_plan.py", .text = export_torchtitan(request, plan)}};
  }
  return {};
}

std::int64_t steps_of(const SearchRequest& request, const plan::Candidate& plan) {
  const auto per_step =
      static_cast<double>(plan.batch.global_sequences * std::max<std::int64_t>(1, plan.batch.sequence_length));
  return request.tokens > 0 ? static_cast<std::int64_t>(std::ceil(request.tokens / per_step)) : 0;
}

std::string plan_summary(const SearchRequest& request, const plan::Candidate& plan, std::string_view mark) {
  const bool tokens = plan.batch.sequence_length > 0;
  const plan::Interval& rate = tokens ? plan.prediction->tokens_per_second : plan.prediction->samples_per_second;
  std::string text = fmt::format("{0} {1} on {2}: {3}\n", mark, printable(request.model.name, 200),
                                 printable(request.cluster.name, 200), plan::to_string(plan.layout));
  text += fmt::format("{} Planned by lockstep: {} {}/s ({} to {}), {} of {} per GPU.\n", mark,
                      format_count(rate.expected), tokens ? "tokens" : "samples", format_count(rate.low),
                      format_count(rate.high), format_bytes(plan.memory.total()), format_bytes(plan.memory.capacity));
  return text;
}

std::string torchrun_command(const spec::Cluster& cluster) {
  std::int64_t nodes = 0;
  for (const spec::NodeGroup& group : cluster.groups) nodes += group.nodes;
  const std::int64_t per_node = cluster.groups.front().devices_per_node;
  const std::string size = fmt::format("torchrun --nnodes={} --nproc-per-node={}", nodes, per_node);
  if (nodes == 1) return size + " --standalone";
  return size +
         " --rdzv-backend=c10d --rdzv-id=\"${RDZV_ID:-lockstep}\" \\\n"
         "  --rdzv-endpoint=\"${MASTER_ADDR:?address of the first node}:${MASTER_PORT:-29500}\"";
}

}  // namespace lockstep::planner
