// The rules that a layout keeps: each axis by itself, axes with each other, and with the model.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/plan/layout.h"
#include "lockstep/plan/stage_layers.h"

namespace lockstep::plan {
namespace {

// Far beyond any machine; keeps world() inside 63 bits for whatever a file says.
constexpr std::int64_t kLargestAxis = 1 << 20;
constexpr double kLargestWorld = 1 << 24;

bool divide_each_other(std::int64_t a, std::int64_t b) { return a % b == 0 || b % a == 0; }

std::optional<std::string> find_axis_problem(const Layout& layout) {
  if (layout.zero < 0 || layout.zero > 3) {
    return fmt::format("zero={} is not a ZeRO stage; use 0, 1, 2 or 3", layout.zero);
  }
  for (const LayoutField& field : layout_fields().first(spec::kLayoutAxes)) {
    const std::int64_t value = field.get(layout);
    if (value < field.key->least || value > kLargestAxis) {
      return fmt::format("{}={} is out of range; use 1 to {}", field.name(), value, kLargestAxis);
    }
  }
  double world = 1;
  for (const std::int64_t axis : {layout.pp, layout.dp, layout.shard, layout.cp, layout.tp})
    world *= static_cast<double>(axis);
  if (world > kLargestWorld) return fmt::format("a world of {:.0f} ranks is out of range", world);
  return std::nullopt;
}

std::optional<std::string> find_state_problem(const Layout& layout) {
  if (layout.zero == 0 && layout.shard > 1) {
    return fmt::format("shard={} shards nothing with zero=0; set zero to 1, 2 or 3, or use dp={} and shard=1",
                       layout.shard, layout.dp * layout.shard);
  }
  if (layout.zero > 0 && layout.sharding_ranks() == 1) {
    return fmt::format("zero={} needs ranks to shard over; set shard (or cp) above 1, or zero=0", layout.zero);
  }
  const std::int64_t expert_ranks = layout.dp * layout.shard * layout.cp;
  if (expert_ranks % layout.ep != 0) {
    return fmt::format("ep={} does not divide dp x shard x cp = {}", layout.ep, expert_ranks);
  }
  // Ranks that share the state of an expert are those of a sharding group that hold it, or the replicas of its one
  // rank.
  if (layout.zero > 0 && !divide_each_other(layout.ep, layout.sharding_ranks())) {
    return fmt::format("ep={} and shard x cp = {} do not divide each other", layout.ep, layout.sharding_ranks());
  }
  if (layout.context_exchange != ContextExchange::kRing && layout.cp == 1) return "context_exchange needs cp above 1";
  if (layout.sequence_parallel && layout.tp == 1) return "sequence_parallel needs tp above 1";
  return std::nullopt;
}

std::optional<std::string> find_pipeline_problem(const Layout& layout) {
  if (layout.pp == 1) {
    if (layout.schedule != Schedule::kNone) {
      return fmt::format("schedule={} needs pp above 1", to_string(layout.schedule));
    }
    if (layout.virtual_stages > 1) return fmt::format("virtual_stages={} needs pp above 1", layout.virtual_stages);
    if (!layout.stage_layers.empty()) return "stage_layers needs pp above 1";
    return std::nullopt;
  }
  if (layout.schedule == Schedule::kNone) {
    return fmt::format("pp={} needs a schedule; use gpipe, 1f1b, interleaved or zero_bubble", layout.pp);
  }
  const bool interleaved = layout.schedule == Schedule::kInterleaved;
  if (interleaved && layout.virtual_stages == 1) return "schedule=interleaved needs virtual_stages above 1";
  if (layout.virtual_stages > 1 &&
      (layout.schedule == Schedule::kGpipe || layout.schedule == Schedule::kOneForwardOneBackward)) {
    return fmt::format("virtual_stages={} needs schedule=interleaved or zero_bubble", layout.virtual_stages);
  }
  if (layout.virtual_stages > 2 && layout.schedule == Schedule::kZeroBubble) {
    return fmt::format("virtual_stages={}: schedule=zero_bubble has one chunk per rank or two", layout.virtual_stages);
  }
  const std::size_t stages = static_cast<std::size_t>(layout.pp * layout.virtual_stages);
  if (!layout.stage_layers.empty() && layout.stage_layers.size() != stages) {
    return fmt::format("stage_layers has {} entries for pp x virtual_stages = {} stages", layout.stage_layers.size(),
                       stages);
  }
  for (const std::int64_t layers : layout.stage_layers) {
    if (layers < 0 || layers > kLargestAxis) return fmt::format("stage_layers has a stage of {} layers", layers);
  }
  return std::nullopt;
}

std::int64_t kv_heads_of_rank(const Layout& layout, const spec::Model& model) {
  const std::int64_t all = model.kv_heads > 0 ? model.kv_heads : model.heads;
  return std::max<std::int64_t>(1, all / layout.tp);
}

std::optional<std::string> find_image_problem(const Layout& layout, const spec::Model& model) {
  if (layout.tp > 1) return fmt::format("tp={}: {} has no tensor-parallel layers", layout.tp, model.name);
  if (layout.cp > 1) return fmt::format("cp={}: {} has no sequence", layout.cp, model.name);
  if (layout.pp > 1) return fmt::format("pp={}: {} has no pipeline stages", layout.pp, model.name);
  if (layout.ep > 1) return fmt::format("ep={}: {} has no experts", layout.ep, model.name);
  return std::nullopt;
}

std::optional<std::string> find_tensor_problem(const Layout& layout, const spec::Model& model) {
  const std::int64_t tp = layout.tp;
  if (model.arch == spec::Arch::kMamba) {
    const std::int64_t inner = model.expand * model.hidden;
    if (inner % tp == 0) return std::nullopt;
    return fmt::format("tp={} does not divide the {} inner channels of {}", tp, inner, model.name);
  }
  if (model.heads > 0 && model.heads % tp != 0) {
    return fmt::format("tp={} does not divide the {} heads of {}", tp, model.heads, model.name);
  }
  // Fewer key/value heads than ranks are replicated, so one of the two must divide the other.
  if (model.heads > 0 && model.kv_heads > 0 && !divide_each_other(model.kv_heads, tp)) {
    return fmt::format("tp={} and the {} key/value heads of {} do not divide each other", tp, model.kv_heads,
                       model.name);
  }
  if (model.ffn_hidden % tp != 0) {
    return fmt::format("tp={} does not divide the MLP width {} of {}", tp, model.ffn_hidden, model.name);
  }
  if (model.decoder.dense_ffn_hidden % tp != 0) {
    return fmt::format("tp={} does not divide the MLP width {} of the dense layers of {}", tp,
                       model.decoder.dense_ffn_hidden, model.name);
  }
  return std::nullopt;
}

std::optional<std::string> find_context_problem(const Layout& layout, const spec::Model& model) {
  if (layout.cp == 1) return std::nullopt;
  if (model.classes > 0) {
    return fmt::format("cp={}: {} classifies by one token, which one rank has", layout.cp, model.name);
  }
  if (layout.context_exchange == ContextExchange::kRing) return std::nullopt;
  if (model.heads == 0) {
    return fmt::format("context_exchange=all_to_all exchanges heads; {} has none, it hands its state on: use ring",
                       model.name);
  }
  if (can_exchange_heads(layout, model)) return std::nullopt;
  return fmt::format("cp={} with all_to_all: {} heads and {} key/value heads of a rank (tp={}) of {} do not go over {}",
                     layout.cp, model.heads / layout.tp, kv_heads_of_rank(layout, model), layout.tp, model.name,
                     layout.cp);
}

std::optional<std::string> find_stage_problem(const Layout& layout, const spec::Model& model) {
  if (layout.pp == 1) return std::nullopt;
  if (layout.pp * layout.virtual_stages > model.layers) {
    return fmt::format("pp x virtual_stages = {} stages for the {} layers of {}", layout.pp * layout.virtual_stages,
                       model.layers, model.name);
  }
  const std::int64_t placed = std::accumulate(layout.stage_layers.begin(), layout.stage_layers.end(), std::int64_t{0});
  if (!layout.stage_layers.empty() && placed != model.layers) {
    return fmt::format("stage_layers places {} layers, {} has {}", placed, model.name, model.layers);
  }
  return std::nullopt;
}

std::optional<std::string> find_script_stage_problem(const Layout& layout, const spec::Model& model) {
  if (layout.pp == 1) return std::nullopt;
  const spec::ScriptFacts& facts = model.script.facts;
  const std::int64_t stages = layout.pp * layout.virtual_stages;
  if (!facts.known()) return fmt::format("pp={}: nothing is known of the inside of {}", layout.pp, model.name);
  if (layout.schedule == Schedule::kZeroBubble) {
    return fmt::format("schedule=zero_bubble splits backward inside layers, which {} hides; use 1f1b", model.name);
  }
  if (facts.shares) return fmt::format("pp={}: {} uses a weight in several of its parts", layout.pp, model.name);
  if (stages > most_positions(facts)) {
    return fmt::format("pp x virtual_stages = {} stages: {} has {} part{} with one tensor between them", stages,
                       model.name, most_positions(facts), most_positions(facts) == 1 ? "" : "s");
  }
  std::size_t unit = 0;
  for (const std::int64_t units : layout.stage_layers) {
    const bool inside = unit > 0 && unit < facts.units.size();
    if (inside && facts.units[unit].entering.empty()) {
      return fmt::format("stage_layers cuts {} before {}, where several tensors go on", model.name,
                         facts.units[unit].name);
    }
    if (units < 1) return fmt::format("stage_layers has a stage without units of {}", model.name);
    unit += static_cast<std::size_t>(units);
  }
  if (unit > 0 && unit != facts.units.size()) {
    return fmt::format("stage_layers places {} units, {} has {}", unit, model.name, facts.units.size());
  }
  return std::nullopt;
}

std::optional<std::string> find_script_recompute_problem(const Layout& layout, const spec::Model& model) {
  if (layout.recompute == Recompute::kNone) return std::nullopt;
  const spec::ScriptFacts& facts = model.script.facts;
  const auto refuse = [&](const char* why) {
    return fmt::format("recompute={}: {} {}", to_string(layout.recompute), model.name, why);
  };
  if (layout.recompute == Recompute::kSelective) return refuse("does not show its attention; use full");
  if (facts.draws) return refuse("draws random numbers (dropout), which would be others the second time");
  if (facts.updates) return refuse("updates buffers (running statistics), which would happen twice");
  if (facts.known() && facts.units.size() < 2) return refuse("is one unit, of which nothing can be freed early");
  return std::nullopt;
}

// What needs knowledge of the inside of a model.
std::optional<std::string> find_script_problem(const Layout& layout, const spec::Model& model) {
  const std::string why = std::string(spec::origin_of(model)) + ", which hides them; use dp, shard or pp";
  if (layout.tp > 1) return fmt::format("tp={} cuts layers, and {} is {}", layout.tp, model.name, why);
  if (layout.cp > 1) return fmt::format("cp={} cuts attention, and {} is {}", layout.cp, model.name, why);
  if (layout.ep > 1) return fmt::format("ep={} places experts, and {} is {}", layout.ep, model.name, why);
  if (auto problem = find_script_stage_problem(layout, model)) return problem;
  return find_script_recompute_problem(layout, model);
}

std::optional<std::string> find_model_problem(const Layout& layout, const spec::Model& model) {
  if (model.is_scripted()) return find_script_problem(layout, model);
  if (model.is_image_model()) return find_image_problem(layout, model);
  if (auto problem = find_tensor_problem(layout, model)) return problem;
  if (auto problem = find_context_problem(layout, model)) return problem;
  if (layout.ep > 1 && (model.experts == 0 || model.experts % layout.ep != 0)) {
    return fmt::format("ep={} does not divide the {} experts of {}", layout.ep, model.experts, model.name);
  }
  return find_stage_problem(layout, model);
}

}  // namespace

bool can_exchange_heads(const Layout& layout, const spec::Model& model) {
  return model.heads > 0 && (model.heads / layout.tp) % layout.cp == 0 &&
         divide_each_other(kv_heads_of_rank(layout, model), layout.cp);
}

// A ring of causal attention is balanced by giving every rank two pieces, one early and one late.
std::int64_t sequence_pieces(const Layout& layout, const spec::Model& model) {
  if (!model.is_language_model()) return 1;
  const bool balanced = layout.context_exchange == ContextExchange::kRing && model.arch != spec::Arch::kMamba;
  const std::int64_t held = layout.cp > 1 && balanced ? 2 * layout.cp : layout.cp;
  return held * (layout.sequence_parallel ? layout.tp : 1);
}

std::optional<std::string> find_layout_problem(const Layout& layout, const spec::Model* model) {
  if (auto problem = find_axis_problem(layout)) return problem;
  if (auto problem = find_state_problem(layout)) return problem;
  if (auto problem = find_pipeline_problem(layout)) return problem;
  return model != nullptr ? find_model_problem(layout, *model) : std::nullopt;
}

void require_valid_layout(const Layout& layout, const spec::Model* model) {
  if (const auto problem = find_layout_problem(layout, model)) throw bad_input("layout: " + *problem);
}

}  // namespace lockstep::plan
