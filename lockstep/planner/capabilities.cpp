#include "lockstep/planner/capabilities.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::planner {
namespace {

// Sources: the frameworks' documentation and argument parsers of 2026. Lockstep's own row is what plan/verdict.h lets
// through. DDP and FSDP stand for plain PyTorch (torchrun, Accelerate, llm-foundry).
constexpr std::array kTable{
    Capabilities{.name = "lockstep",
                 .title = "Lockstep",
                 .zero = {true, true, true, true},
                 .some_of_data_ranks = true,
                 .tensor = true,
                 .pipeline = true,
                 .context = true,
                 .expert = true,
                 .zero3_with_pipeline = true,
                 .interleaved = true,
                 .zero_bubble = true,
                 .uneven_stages = true,
                 .selective = true,
                 .tensor_without_sequence = true,
                 .ring = true,
                 .all_to_all = true,
                 .offload_optimizer = true,
                 .offload_parameters = true,
                 .images = true,
                 .state_space = true},
    // DistributedDataParallel.
    Capabilities{.name = "ddp",
                 .title = "PyTorch DDP",
                 .zero = {true, false, false, false},
                 .images = true,
                 .state_space = true},
    // fully_shard over a mesh; reshard_after_forward False is ZeRO-2. Offload moves weights and optimizer together.
    Capabilities{.name = "fsdp",
                 .title = "PyTorch FSDP",
                 .zero = {true, false, true, true},
                 .some_of_data_ranks = true,
                 .offload_parameters = true,
                 .images = true,
                 .state_space = true},
    // ZeRO over all data ranks; its pipeline engine takes ZeRO-1 alone and one chunk per rank; sequences by Ulysses.
    Capabilities{.name = "deepspeed",
                 .title = "DeepSpeed",
                 .zero = {true, true, true, true},
                 .pipeline = true,
                 .context = true,
                 .expert = true,
                 .all_to_all = true,
                 .offload_optimizer = true,
                 .offload_parameters = true,
                 .images = true,
                 .state_space = true},
    // 3D parallelism with the distributed optimizer; --recompute-activations and --recompute-granularity full.
    Capabilities{.name = "megatron",
                 .title = "Megatron-LM",
                 .zero = {true, true, false, false},
                 .some_of_data_ranks = true,
                 .tensor = true,
                 .pipeline = true,
                 .context = true,
                 .expert = true,
                 .interleaved = true,
                 .selective = true,
                 .tensor_without_sequence = true,
                 .ring = true,
                 .all_to_all = true,
                 .offload_optimizer = true,
                 .state_space = true},
    Capabilities{.name = "nemo",
                 .title = "NeMo",
                 .zero = {true, true, false, false},
                 .some_of_data_ranks = true,
                 .tensor = true,
                 .pipeline = true,
                 .context = true,
                 .expert = true,
                 .interleaved = true,
                 .selective = true,
                 .tensor_without_sequence = true,
                 .ring = true,
                 .all_to_all = true,
                 .state_space = true},
    // FSDP2 x TP x PP x CP x EP; sequence parallel comes with tp.
    Capabilities{.name = "torchtitan",
                 .title = "torchtitan",
                 .zero = {true, false, true, true},
                 .some_of_data_ranks = true,
                 .tensor = true,
                 .pipeline = true,
                 .context = true,
                 .expert = true,
                 .zero3_with_pipeline = true,
                 .interleaved = true,
                 .zero_bubble = true,
                 .selective = true,
                 .ring = true},
    Capabilities{.name = "nanotron",
                 .title = "nanotron",
                 .zero = {true, true, false, false},
                 .tensor = true,
                 .pipeline = true,
                 .expert = true},
};

// First match wins; of a stack's name in a profile.
struct Evidence {
  std::string_view stack;  // its beginning
  std::string_view framework;
};
constexpr std::array kEvidence{Evidence{"llm-foundry", "fsdp"},
                               Evidence{"fsdp", "fsdp"},
                               Evidence{"apex-ddp", "ddp"},
                               Evidence{"nanogpt", "ddp"},
                               Evidence{"megatron-deepspeed", "megatron"},
                               Evidence{"megatron", "megatron"},
                               Evidence{"nemo", "nemo"},
                               Evidence{"nanotron", "nanotron"},
                               Evidence{"torchtitan", "torchtitan"},
                               Evidence{"deepspeed", "deepspeed"},
                               Evidence{"lockstep", "lockstep"}};

std::optional<std::string> find_offload_problem(const Capabilities& can, const plan::Layout& layout) {
  if (layout.offload == plan::Offload::kOptimizer && !can.offload_optimizer) return "the optimizer in host memory";
  if (layout.offload == plan::Offload::kParameters && !can.offload_parameters) return "weights in host memory";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> Capabilities::find_pipeline_problem(const plan::Layout& layout) const {
  if (layout.pp == 1) return std::nullopt;
  if (layout.schedule == plan::Schedule::kZeroBubble && !zero_bubble) return "zero-bubble pipelines";
  if (layout.virtual_stages > 1 && !interleaved) return "several chunks of a pipeline per rank";
  if (!layout.stage_layers.empty() && !uneven_stages) return "stages of unequal layers";
  return std::nullopt;
}

std::optional<std::string> Capabilities::find_mesh_problem(const plan::Layout& layout, const spec::Model& model) const {
  if (name == "lockstep" && !spec::why_only_planned(model).empty()) return "network of this model";
  if (!model.is_language_model() && !images) return "models of images";
  if (model.arch == spec::Arch::kMamba && !state_space) return "state-space models";
  if (layout.tp > 1 && !tensor) return "tensor parallelism";
  if (layout.pp > 1 && !pipeline) return "pipelines";
  if (layout.cp > 1 && !context) return "context parallelism";
  if (layout.ep > 1 && !expert) return "expert parallelism";
  if (!zero[static_cast<std::size_t>(layout.zero)]) return fmt::format("zero={}", layout.zero);
  if (layout.pp > 1 && layout.zero >= 2 && !zero3_with_pipeline)
    return fmt::format("zero={} in a pipeline", layout.zero);
  if (layout.dp > 1 && layout.shard > 1 && !some_of_data_ranks) return "state sharded over some of the data ranks";
  return find_offload_problem(*this, layout);
}

std::optional<std::string> Capabilities::find_problem(const plan::Layout& layout, const spec::Model& model) const {
  if (auto problem = find_mesh_problem(layout, model)) return problem;
  if (layout.tp > 1 && !layout.sequence_parallel && !tensor_without_sequence) {
    return "tensor parallelism without sequence parallelism";
  }
  const bool by_heads = layout.context_exchange == plan::ContextExchange::kAllToAll;
  if (layout.cp > 1 && !(by_heads ? all_to_all : ring)) {
    return by_heads ? "context parallelism by all-to-all" : "context parallelism by a ring";
  }
  if (layout.recompute == plan::Recompute::kSelective && !selective) return "selective recompute";
  return find_pipeline_problem(layout);
}

std::span<const Capabilities> all_capabilities() { return kTable; }

const Capabilities* find_capabilities(std::string_view name) {
  if (name.empty()) return nullptr;
  std::vector<std::string> names;
  for (const Capabilities& each : kTable) {
    if (each.name == name) return &each;
    names.emplace_back(each.name);
  }
  throw bad_input(fmt::format("no stack is called \"{}\"", printable(name)), did_you_mean(std::string(name), names));
}

std::vector<std::string> who_can_run(const plan::Layout& layout, const spec::Model& model) {
  std::vector<std::string> titles;
  for (const Capabilities& each : kTable) {
    if (!each.find_problem(layout, model)) titles.emplace_back(each.title);
  }
  return titles;
}

const Capabilities* framework_of(const cost::Fitted& fitted) {
  for (const auto& [stack, framework] : kEvidence) {
    if (fitted.stack.starts_with(stack)) return find_capabilities(framework);
  }
  return nullptr;
}

std::string evidence_for(const Capabilities& capabilities, const std::string& device_kind) {
  std::string best;
  std::int64_t runs = 0;
  for (const std::string& name : cost::profile_names()) {
    if (!name.starts_with(device_kind + "-")) continue;
    const cost::Profile profile = cost::find_profile(name);
    if (!profile.fitted || profile.fitted->hardware != device_kind) continue;
    if (framework_of(*profile.fitted) != &capabilities || profile.fitted->runs <= runs) continue;
    runs = profile.fitted->runs;
    best = name;
  }
  return best;
}

}  // namespace lockstep::planner
