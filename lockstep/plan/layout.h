// Layout: how the ranks of a run are arranged. A plain value; the mesh of the engine and every cost formula read it.
//
// world = pp x dp x shard x cp x tp. Rank order, fastest axis first: tp, cp, shard, dp, pp.
// `dp` counts replicas, `shard` the ranks that the state of one replica is sharded over; data ranks = dp x shard.
// `ep` is not an axis of its own: it divides dp x shard x cp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/spec/job.h"
#include "lockstep/spec/layout_keys.h"

namespace lockstep::plan {

enum class Schedule { kNone, kGpipe, kOneForwardOneBackward, kInterleaved, kZeroBubble };
enum class Recompute { kNone, kSelective, kFull };
// How the cp ranks see each other's keys and values: passed around a ring, or heads exchanged for sequence.
enum class ContextExchange { kRing, kAllToAll };
// What lives in host memory between its uses: nothing, the optimizer's state (and master weights), or parameters too.
enum class Offload { kNone, kOptimizer, kParameters };

struct Layout {
  std::int64_t pp = 1;
  std::int64_t dp = 1;
  std::int64_t shard = 1;
  std::int64_t zero = 0;  // ZeRO stage 0..3; 0 means shard = 1
  std::int64_t cp = 1;
  std::int64_t tp = 1;
  std::int64_t ep = 1;
  bool sequence_parallel = false;   // with tp: activations outside the tensor-parallel blocks are split too
  std::int64_t virtual_stages = 1;  // pipeline chunks per rank
  std::vector<std::int64_t>
      stage_layers;  // layers of each of the pp x virtual_stages stages; empty: as even as possible
  Schedule schedule = Schedule::kNone;
  Recompute recompute = Recompute::kNone;
  ContextExchange context_exchange = ContextExchange::kRing;
  Offload offload = Offload::kNone;
  spec::Precision precision = spec::Precision::kFp32;

  std::int64_t world() const { return pp * dp * shard * cp * tp; }
  std::int64_t data_ranks() const { return dp * shard; }
  // Ranks that hold the same weights and so share the state under ZeRO.
  std::int64_t sharding_ranks() const { return shard * cp; }
  bool operator==(const Layout&) const = default;
};

// One of spec::kLayoutKeys as a field of a Layout. Values are whole numbers: of an axis its size, of a choice its place
// among key->choices.
struct LayoutField {
  const spec::LayoutKey* key;
  std::int64_t (*get)(const Layout& layout);
  void (*set)(Layout& layout, std::int64_t value);
  // Whether the rest of the layout gives it a meaning: sequence_parallel has none without tp.
  bool (*matters)(const Layout& layout);
  // What a field that is absent is, the rest given: zero is 3 with shard > 1 (plain FSDP), schedule 1f1b with pp > 1,
  // or interleaved with virtual stages.
  std::int64_t (*usual)(const Layout& layout);

  const char* name() const { return key->name; }
  bool is_axis() const { return key->is_axis(); }
  std::string text(const Layout& layout) const;  // "8", "full", "true"
};

// In the order of spec::kLayoutKeys.
std::span<const LayoutField> layout_fields();
const LayoutField* find_layout_field(std::string_view name);

// The first rule that `layout` breaks, as one line that names the axes and their values; nothing when it is valid.
// With a model the rules that depend on it are checked too (heads divide by tp, layers suffice for the stages,
// experts divide by ep; image models have dp, shard and zero only).
std::optional<std::string> find_layout_problem(const Layout& layout, const spec::Model* model = nullptr);

// Throws UserError (exit code 2) with that line.
void require_valid_layout(const Layout& layout, const spec::Model* model = nullptr);

// Whether context_exchange=all_to_all can deal the heads of a tensor-parallel rank out over its cp ranks: they divide
// by cp, and so do key/value heads, or several ranks share one. No for models without attention.
bool can_exchange_heads(const Layout& layout, const spec::Model& model);

// Equal pieces that context ranks and sequence parallel ranks cut a sequence into: its length is a multiple. 1 for
// models without a sequence.
std::int64_t sequence_pieces(const Layout& layout, const spec::Model& model);

// "dp=4,shard=8,tp=1": axes by name, absent ones keep their default. Also zero, virtual_stages, sequence_parallel
// (true or false), schedule, recompute, context_exchange, offload, precision, stage_layers=8+8+7+9 (8x3+7 is 8+8+8+7).
// Where `zero` is absent and shard > 1, zero is 3 (plain FSDP); where `schedule` is absent and pp > 1, it is 1f1b, or
// interleaved with virtual stages. Throws UserError naming the nearest right key. The result is valid without a model.
Layout parse_layout(std::string_view text);

// The same for the `layout:` of a job file; what does not work is the verdict's to say (verdict.h).
Layout layout_from_request(const spec::LayoutRequest& request, spec::Precision precision);

// What layout_from_request() reads back to the same value, but for the precision.
spec::LayoutRequest request_from_layout(const Layout& layout);

// Text that parse_layout() reads back to the same value; axes that are 1 and choices at their default are left out
// (a layout of one rank prints "dp=1").
std::string to_string(const Layout& layout);

const char* to_string(Schedule schedule);
const char* to_string(Recompute recompute);
const char* to_string(ContextExchange exchange);
const char* to_string(Offload offload);
std::optional<spec::Precision> parse_precision(std::string_view text);

// Bytes of one number in `precision`.
std::int64_t bytes_per_element(spec::Precision precision);

}  // namespace lockstep::plan
