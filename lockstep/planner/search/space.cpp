#include "lockstep/planner/search/space.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/fused_limits.h"
#include "lockstep/planner/capabilities.h"
#include "lockstep/planner/search/stage_split.h"

namespace lockstep::planner {
namespace {

// The axes of a layout in their order, and the two of the batch.
constexpr std::array<const char*, Bounds::kKeys> kKeyNames = [] {
  std::array<const char*, Bounds::kKeys> names{};
  for (std::size_t i = 0; i < spec::kLayoutAxes; ++i) names[i] = spec::kLayoutKeys[i].name;
  names[Bounds::kMicro] = "micro";
  names[Bounds::kAccumulation] = "accumulation";
  return names;
}();
static_assert(Bounds::kMicro == spec::kLayoutAxes);

Bounds::Key key_of(const std::string& name) {
  const auto found = std::find(kKeyNames.begin(), kKeyNames.end(), name);
  if (found == kKeyNames.end()) {
    throw bad_input(fmt::format("constraint: unknown key \"{}\"", printable(name)),
                    did_you_mean(name, {kKeyNames.begin(), kKeyNames.end()}));
  }
  return static_cast<Bounds::Key>(found - kKeyNames.begin());
}

std::int64_t least(Bounds::Key key) { return key == Bounds::kZero ? 0 : 1; }

void require_at_least(Bounds::Key key, std::int64_t value) {
  if (value < least(key)) {
    throw bad_input(fmt::format("constraint: {}={} is out of range", kKeyNames[key], value),
                    fmt::format("use at least {}", least(key)));
  }
}

// Chunks per rank that a remainder may be dealt out over; more only add traffic to a split that stays uneven.
constexpr std::int64_t kMostUnevenChunks = 16;
constexpr std::int64_t kMostStages = 1024;  // of an interleaved pipeline

constexpr std::array<bool, 2> kBothWays{false, true};
constexpr std::array<plan::ContextExchange, 2> kExchanges{plan::ContextExchange::kRing,
                                                          plan::ContextExchange::kAllToAll};
constexpr std::array<plan::Recompute, 3> kRecomputes{plan::Recompute::kNone, plan::Recompute::kSelective,
                                                     plan::Recompute::kFull};

// The one-element part of `all` that holds `wanted`.
template <class Value, std::size_t N>
std::span<const Value> only(const std::array<Value, N>& all, Value wanted) {
  return std::span<const Value>(all).subspan(
      static_cast<std::size_t>(std::find(all.begin(), all.end(), wanted) - all.begin()), 1);
}

}  // namespace

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> small, large;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    small.push_back(i);
    if (i != number / i) large.push_back(number / i);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

Bounds::Bounds(const Constraints& constraints) {
  fixed_.fill(-1);
  at_most_.fill(std::numeric_limits<std::int64_t>::max());
  for (const auto& [name, value] : constraints.fixed) {
    require_at_least(key_of(name), value);
    fixed_[key_of(name)] = value;
  }
  for (const auto& [name, value] : constraints.at_most) {
    require_at_least(key_of(name), value);
    at_most_[key_of(name)] = value;
  }
  for (int key = 0; key < kKeys; ++key) {
    if (fixed_[key] > at_most_[key]) {
      throw bad_input(fmt::format("constraint: {} is fixed to {} and at most {}",
                                  kKeyNames[static_cast<std::size_t>(key)], fixed_[key], at_most_[key]),
                      "drop one of the two");
    }
  }
}

std::optional<std::int64_t> Bounds::fixed(Key key) const {
  return fixed_[key] < 0 ? std::nullopt : std::optional(fixed_[key]);
}

std::string_view Bounds::name(Key key) { return kKeyNames[key]; }

Space::Space(const SearchRequest& request)
    : request_(request), bounds_(request.constraints), worlds_(find_worlds()), recomputes_(find_recomputes()) {
  for (const std::int64_t world : worlds_) {
    for (const std::int64_t divisor : divisors(world)) {
      if (!batches_.contains(divisor)) batches_.emplace(divisor, find_batches(divisor));
      pipelines_.emplace(std::pair(world, divisor), find_pipelines(world, divisor));
    }
  }
}

std::vector<std::int64_t> Space::find_worlds() const {
  const std::int64_t devices = request_.cluster.devices();
  const bool idle = request_.constraints.allow_idle_devices || request_.objective == Objective::kDollars ||
                    request_.objective == Objective::kDeadline;
  if (!idle) return {devices};
  std::vector<std::int64_t> worlds = divisors(devices);
  const std::int64_t per_node = request_.cluster.groups.front().devices_per_node;
  for (std::int64_t nodes = 1; nodes * per_node < devices; nodes *= 2) worlds.push_back(nodes * per_node);
  std::sort(worlds.rbegin(), worlds.rend());
  worlds.erase(std::unique(worlds.begin(), worlds.end()), worlds.end());
  return worlds;
}

std::vector<plan::Layout> Space::meshes(std::span<const plan::Offload> offloads) const {
  std::vector<plan::Layout> meshes;
  for (const std::int64_t world : worlds_) {
    for (const spec::Precision precision : request_.precisions) {
      for (const plan::Offload offload : offloads) append_meshes(world, offload, precision, meshes);
    }
  }
  return meshes;
}

void Space::append_meshes(std::int64_t world, plan::Offload offload, spec::Precision precision,
                          std::vector<plan::Layout>& meshes) const {
  const std::vector<std::int64_t> expert_splits = divisors(std::max<std::int64_t>(1, request_.model.experts));
  plan::Layout mesh;
  mesh.offload = offload;
  mesh.precision = precision;
  const auto append_state_splits = [&](std::int64_t data_ranks) {
    for (const std::int64_t shard : divisors(data_ranks)) {
      mesh.shard = shard;
      mesh.dp = data_ranks / shard;
      for (mesh.zero = shard > 1 ? 1 : 0; mesh.zero <= (mesh.sharding_ranks() > 1 ? 3 : 0); ++mesh.zero) {
        for (const std::int64_t ep : expert_splits) {
          mesh.ep = ep;
          meshes.push_back(mesh);
        }
      }
    }
  };
  for (const std::int64_t tp : divisors(world)) {
    if (!divides_model(tp)) continue;
    mesh.tp = tp;
    for (const std::int64_t pp : divisors(world / tp)) {
      if (pipelines(world, pp).empty()) continue;
      mesh.pp = pp;
      mesh.schedule = pp > 1 ? plan::Schedule::kOneForwardOneBackward : plan::Schedule::kNone;
      for (const std::int64_t cp : divisors(world / tp / pp)) {
        const std::int64_t data_ranks = world / tp / pp / cp;
        if (request_.sequence_length % cp != 0 || batches(data_ranks).empty()) continue;
        mesh.cp = cp;
        append_state_splits(data_ranks);
      }
    }
  }
}

bool Space::divides_model(std::int64_t tp) const {
  plan::Layout layout;
  layout.tp = tp;
  return !plan::find_layout_problem(layout, &request_.model).has_value();
}

std::optional<std::string> Space::find_problem(const plan::Layout& mesh) const {
  if (auto problem = find_bound_problem(mesh)) return problem;
  const Capabilities* framework = request_.framework;
  if (framework != nullptr) {
    if (auto problem = framework->find_mesh_problem(mesh, request_.model)) return problem;
  }
  if (auto problem = plan::find_layout_problem(mesh, &request_.model)) return problem;
  if (mesh.offload == plan::Offload::kParameters && mesh.zero != 3 && (request_.is_job || mesh.sharding_ranks() > 1)) {
    return fmt::format("offload=parameters needs zero=3, not zero={}", mesh.zero);
  }
  if (request_.communication.compression != spec::Compression::kNone && mesh.zero > 0) {
    return fmt::format("compressed gradients need zero=0, not zero={}", mesh.zero);
  }
  return find_batch_problem(mesh);
}

std::optional<std::string> Space::find_bound_problem(const plan::Layout& mesh) const {
  for (std::size_t key = 0; key < Bounds::kVirtualStages; ++key) {  // virtual stages are a choice of the mesh
    const plan::LayoutField& field = plan::layout_fields()[key];
    if (!bounds_.allow(static_cast<Bounds::Key>(key), field.get(mesh))) {
      return fmt::format("{}={} breaks a constraint", field.name(), field.get(mesh));
    }
  }
  return std::nullopt;
}

std::optional<std::string> Space::find_batch_problem(const plan::Layout& mesh) const {
  if (request_.global_sequences % mesh.data_ranks() != 0) {
    return fmt::format("a global batch of {} has no equal shares for {} data ranks", request_.global_sequences,
                       mesh.data_ranks());
  }
  if (sequence_cuts(mesh) == 0) {
    return fmt::format("no pieces of cp={} and tp={} divide the sequence of {}", mesh.cp, mesh.tp,
                       request_.sequence_length);
  }
  if (count(mesh) == 0) {
    return fmt::format("no schedule and micro-batch of pp={} with {} data ranks keeps to the constraints", mesh.pp,
                       mesh.data_ranks());
  }
  return std::nullopt;
}

std::vector<plan::BatchPlan> Space::find_batches(std::int64_t data_ranks) const {
  std::vector<plan::BatchPlan> batches;
  if (request_.global_sequences % data_ranks != 0) return batches;
  const std::int64_t share = request_.global_sequences / data_ranks;
  for (const std::int64_t micro : divisors(share)) {
    if (!bounds_.allow(Bounds::kMicro, micro) || !bounds_.allow(Bounds::kAccumulation, share / micro)) continue;
    batches.push_back({.micro = micro,
                       .accumulation = share / micro,
                       .global_sequences = request_.global_sequences,
                       .sequence_length = request_.sequence_length});
  }
  return batches;
}

std::span<const plan::BatchPlan> Space::batches(std::int64_t data_ranks) const { return batches_.at(data_ranks); }

std::span<const Pipeline> Space::pipelines(std::int64_t world, std::int64_t pp) const {
  return pipelines_.at({world, pp});
}

// Chunk counts that deal the layers out evenly, with or without embedding and head as layers; where pp leaves a
// remainder anyway, every count up to kMostUnevenChunks.
std::vector<std::int64_t> Space::virtual_stages_of(std::int64_t pp) const {
  const std::int64_t layers = request_.model.layers;
  const bool remainder = layers % pp != 0 && (layers + 2) % pp != 0;
  std::vector<std::int64_t> counts;
  for (std::int64_t v = 2; v * pp <= std::min(layers, kMostStages); ++v) {
    if (!bounds_.allow(Bounds::kVirtualStages, v)) continue;
    if ((remainder && v <= kMostUnevenChunks) || layers % (pp * v) == 0 || (layers + 2) % (pp * v) == 0)
      counts.push_back(v);
  }
  return counts;
}

std::vector<Pipeline> Space::find_pipelines(std::int64_t world, std::int64_t pp) const {
  const Constraints& constraints = request_.constraints;
  std::vector<Pipeline> pipelines;
  const auto append = [&](plan::Schedule schedule, std::int64_t virtual_stages) {
    if (constraints.schedule && pp > 1 && *constraints.schedule != schedule) return;
    if (!bounds_.allow(Bounds::kVirtualStages, virtual_stages)) return;
    if (constraints.stage_layers) {
      pipelines.push_back({schedule, virtual_stages, *constraints.stage_layers});
      return;
    }
    for (auto& split : stage_splits(request_.model, request_.cluster, request_.sequence_length, world, pp,
                                    virtual_stages, schedule)) {
      pipelines.push_back({schedule, virtual_stages, std::move(split)});
    }
  };
  if (pp == 1) {
    append(plan::Schedule::kNone, 1);
  } else if (pp <= request_.model.layers) {
    append(plan::Schedule::kOneForwardOneBackward, 1);
    for (const std::int64_t v : virtual_stages_of(pp)) append(plan::Schedule::kInterleaved, v);
    append(plan::Schedule::kZeroBubble, 1);
    // ZB-V has two chunks per rank (Qi et al. 2023); no published schedule has more.
    if (2 * pp <= request_.model.layers) append(plan::Schedule::kZeroBubble, 2);
    append(plan::Schedule::kGpipe, 1);
  }
  std::erase_if(pipelines, [&](const Pipeline& pipeline) {
    plan::Layout layout;
    layout.pp = pp;
    layout.schedule = pipeline.schedule;
    layout.virtual_stages = pipeline.virtual_stages;
    layout.stage_layers = pipeline.stage_layers;
    if (request_.framework != nullptr && request_.framework->find_pipeline_problem(layout)) return true;
    return plan::find_layout_problem(layout, &request_.model).has_value();
  });
  return pipelines;
}

std::span<const bool> Space::sequence_parallels(const plan::Layout& mesh) const {
  const std::optional<bool> wanted = request_.constraints.sequence_parallel;
  if (mesh.tp == 1) return only(kBothWays, false);
  if (!wanted && request_.framework != nullptr && !request_.framework->tensor_without_sequence) {
    return only(kBothWays, true);
  }
  return wanted ? only(kBothWays, *wanted) : std::span<const bool>(kBothWays);
}

std::span<const plan::ContextExchange> Space::context_exchanges(const plan::Layout& mesh) const {
  const std::optional<plan::ContextExchange> wanted = request_.constraints.context_exchange;
  const bool heads_divide = plan::can_exchange_heads(mesh, request_.model);
  if (mesh.cp == 1) return only(kExchanges, plan::ContextExchange::kRing);
  const Capabilities* framework = request_.framework;
  if (!wanted && framework != nullptr && framework->ring != framework->all_to_all) {
    if (framework->ring) return only(kExchanges, plan::ContextExchange::kRing);
    return heads_divide ? only(kExchanges, plan::ContextExchange::kAllToAll) : std::span<const plan::ContextExchange>();
  }
  if (wanted == plan::ContextExchange::kAllToAll && !heads_divide) return {};
  if (wanted) return only(kExchanges, *wanted);
  return heads_divide ? std::span<const plan::ContextExchange>(kExchanges)
                      : only(kExchanges, plan::ContextExchange::kRing);
}

std::vector<plan::Recompute> Space::find_recomputes() const {
  if (const auto wanted = request_.constraints.recompute) return {*wanted};
  std::vector<plan::Recompute> found;
  const bool selective = request_.framework == nullptr || request_.framework->selective;
  for (const plan::Recompute recompute : kRecomputes) {
    if (recompute == plan::Recompute::kSelective && !selective) continue;
    plan::Layout layout;
    layout.recompute = recompute;
    if (!plan::find_layout_problem(layout, &request_.model)) found.push_back(recompute);
  }
  return found;
}

std::int64_t Space::row_unit(spec::Precision precision) const {
  const bool narrow = request_.state_precision != spec::Precision::kFp32;
  if (!request_.is_job || request_.cluster.devices() > 1) return 1;
  if (precision == spec::Precision::kFp8) return plan::fused::kSizeUnitFp8;
  return narrow ? plan::fused::kSizeUnit : 1;
}

// Ways to cut the sequence: pairs of sequence parallelism and context exchange.
std::int64_t Space::sequence_cuts(const plan::Layout& mesh) const {
  std::int64_t ways = 0;
  plan::Layout layout;  // without the mesh's stages: nothing is allocated
  layout.tp = mesh.tp;
  layout.cp = mesh.cp;
  for (const bool sequence_parallel : sequence_parallels(mesh)) {
    layout.sequence_parallel = sequence_parallel;
    for (const plan::ContextExchange exchange : context_exchanges(mesh)) {
      layout.context_exchange = exchange;
      ways += cuts_sequence(layout) ? 1 : 0;
    }
  }
  return ways;
}

std::int64_t Space::count(const plan::Layout& mesh) const {
  std::int64_t cut = 0;
  for (const Pipeline& pipeline : pipelines(mesh.world(), mesh.pp)) {
    for (const plan::BatchPlan& batch : batches(mesh.data_ranks())) cut += agree(pipeline, mesh, batch) ? 1 : 0;
  }
  return cut * sequence_cuts(mesh) * static_cast<std::int64_t>(recomputes().size());
}

// Most sequence parallel first, of these the first exchange that cuts the sequence.
void Space::choose_lean_cut(plan::Layout mesh, Choice& choice) const {
  const std::span<const bool> parallels = sequence_parallels(mesh);
  for (auto parallel = parallels.rbegin(); parallel != parallels.rend(); ++parallel) {
    mesh.sequence_parallel = choice.sequence_parallel = *parallel;
    for (const plan::ContextExchange exchange : context_exchanges(mesh)) {
      mesh.context_exchange = choice.context_exchange = exchange;
      if (cuts_sequence(mesh)) return;
    }
  }
}

Choice Space::leanest(const plan::Layout& mesh) const {
  Choice choice;
  const auto pipelines = this->pipelines(mesh.world(), mesh.pp);
  const auto batches = this->batches(mesh.data_ranks());
  for (std::size_t p = 0; p < pipelines.size(); ++p) {
    for (std::size_t b = 0; b < batches.size(); ++b) {
      if (!agree(pipelines[p], mesh, batches[b])) continue;
      choice.pipeline = static_cast<std::uint16_t>(p);
      choice.batch = static_cast<std::uint16_t>(b);
      choose_lean_cut(mesh, choice);
      choice.recompute = recomputes().back();
      return choice;
    }
  }
  return choice;
}

std::pair<plan::Layout, plan::BatchPlan> Space::expand(const plan::Layout& mesh, const Choice& choice) const {
  const Pipeline& pipeline = pipelines(mesh.world(), mesh.pp)[choice.pipeline];
  plan::Layout layout = mesh;
  layout.schedule = pipeline.schedule;
  layout.virtual_stages = pipeline.virtual_stages;
  layout.stage_layers = pipeline.stage_layers;
  layout.sequence_parallel = choice.sequence_parallel;
  layout.context_exchange = choice.context_exchange;
  layout.recompute = choice.recompute;
  return {std::move(layout), batches(mesh.data_ranks())[choice.batch]};
}

}  // namespace lockstep::planner
