// The job file of a plan.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"
#include "lockstep/planner/export/export.h"

namespace lockstep::planner {

std::string job_layout_line(const plan::Layout& layout) {
  std::vector<std::string> parts;
  for (const plan::LayoutField& field : plan::layout_fields()) {
    const std::string_view name = field.name();
    if (name == "precision") continue;  // the job's
    const bool always = name == "schedule" || name == "context_exchange";
    const std::int64_t plain = name == "zero" ? 0 : field.usual(layout);
    if (field.matters(layout) && (always || field.get(layout) != plain)) {
      parts.push_back(fmt::format("{}: {}", name, field.text(layout)));
    }
  }
  if (!layout.stage_layers.empty()) {
    parts.push_back(fmt::format("stage_layers: [{}]", fmt::join(layout.stage_layers, ", ")));
  }
  if (parts.empty()) parts.emplace_back("dp: 1");
  return fmt::format("layout: {{{}}}\n", join(parts, ", "));
}

std::string export_job(const SearchRequest& request, const plan::Candidate& plan) {
  const bool language = request.model.is_language_model();
  std::string text = plan_summary(request, plan, "#");
  text +=
      "# `lockstep plan` of this file gives the same plan; to train it, bring the data (the path is a placeholder).\n";
  text += "model:\n" + spec::to_yaml(request.model, 2);
  text += "cluster:\n" + spec::to_yaml(request.cluster, 2);
  text += language ? "data: {kind: tokens, path: data/tokens}\n" : "data: {kind: images, path: data/images}\n";
  text += job_layout_line(plan.layout);
  text += fmt::format("precision: {}\n", spec::to_string(plan.layout.precision));
  text += fmt::format("batch: {{micro: {}, global: {}{}}}\n", plan.batch.micro, plan.batch.global_sequences,
                      language ? fmt::format(", sequence_length: {}", plan.batch.sequence_length) : std::string());
  if (request.lora.rank > 0) {
    text += fmt::format("lora: {{rank: {}, alpha: {:g}, targets: [{}]}}\n", request.lora.rank, request.lora.alpha,
                        join(request.lora.targets, ", "));
  }
  text += fmt::format("optimizer: {{kind: {}}}\n", spec::to_string(request.optimizer));
  const std::int64_t steps = steps_of(request, plan);
  if (steps > 0)
    text += fmt::format("{}: {:.0f}\n", language ? "tokens" : "steps",
                        language ? request.tokens : static_cast<double>(steps));
  return text;
}

}  // namespace lockstep::planner
