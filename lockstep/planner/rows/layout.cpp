// Layout and batch of a published row: its own degrees where it states them, the usual ones where it does not.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/planner/rows/parts.h"

namespace lockstep::planner {
namespace {

using plan::Layout;
using plan::Recompute;
using plan::Schedule;

spec::Precision precision_of(const PublishedRow& row, RowNotes& notes) {
  if (auto problem = find_unknown_word(row)) throw CannotPrice{std::move(*problem)};
  const std::string word = to_lower(row.precision);
  if (const auto precision = plan::parse_precision(word)) return *precision;
  if (word == "mxfp8" || word == "nvfp4") {
    notes.add(word + " is priced as fp8");
    return spec::Precision::kFp8;
  }
  if (word == "tf32") return spec::Precision::kFp32;
  notes.guess("precision unknown: bf16", 0.1);
  return spec::Precision::kBf16;
}

Recompute recompute_of(const PublishedRow& row, RowNotes& notes) {
  const auto& words = spec::names::kRecomputes;
  const auto found = std::find(words.begin(), words.end(), std::string_view(row.act_ckpt));
  if (found != words.end()) return static_cast<plan::Recompute>(found - words.begin());
  notes.guess("recompute unknown: none", 0.1);
  return Recompute::kNone;
}

std::int64_t zero_stage(const PublishedRow& row, RowNotes& notes) {
  if (row.sharding == "none") return 0;
  if (row.sharding == "zero1") return 1;
  if (row.sharding == "zero2") return 2;
  if (row.sharding == "zero3" || row.sharding == "fsdp" || row.sharding == "hsdp") return 3;
  notes.guess(row.sharding.empty() ? "sharding unknown: zero1" : fmt::format("sharding {}: zero1", row.sharding), 0.05);
  return 1;
}

// The degrees the row leaves open, as its users would set them: tensor parallel up to a node, then pipeline stages,
// until weights and gradients take half of the device.
void guess_model_parallel(const PublishedRow& row, const spec::Model& model, const spec::NodeGroup& group,
                          std::int64_t zero, Layout& layout, RowNotes& notes) {
  layout.tp = row.tp.value_or(number_after(row.notes, "TP").value_or(1));
  layout.pp = row.pp.value_or(number_after(row.notes, "/PP").value_or(1));
  const std::int64_t gpus = *row.gpus / layout.cp;
  if (!row.tp && zero < 3 && !number_after(row.notes, "TP")) {
    const double weights_and_gradients = 6.0 * static_cast<double>(spec::parameter_count(model));
    const auto too_large = [&] {
      return weights_and_gradients / static_cast<double>(layout.tp * layout.pp) > group.device.memory_bytes / 2;
    };
    while (too_large() && layout.tp < group.devices_per_node && model.heads % (2 * layout.tp) == 0) layout.tp *= 2;
    while (!row.pp && too_large() && gpus % (2 * layout.tp * layout.pp) == 0 && 2 * layout.pp <= model.layers) {
      layout.pp *= 2;
    }
  }
  notes.guess(fmt::format("degrees unknown: tp={}, pp={}", layout.tp, layout.pp), 0.08);
}

// dp of the row counts every data rank; the table's product may be wrong, the number of GPUs is not.
std::int64_t data_ranks(const PublishedRow& row, const Layout& layout, RowNotes& notes) {
  const std::int64_t model_ranks = layout.tp * layout.pp * layout.cp;
  if (*row.gpus % model_ranks != 0) {
    throw CannotPrice{fmt::format("tp x pp x cp = {} does not divide {} GPUs", model_ranks, *row.gpus)};
  }
  const std::int64_t ranks = *row.gpus / model_ranks;
  if (row.dp && *row.dp != ranks) {
    notes.add(fmt::format("dp={} contradicts {} GPUs: dp={}", *row.dp, *row.gpus, ranks));
  }
  return ranks;
}

// Published dp=N under ZeRO is one replica on N ranks, unless hybrid sharding is stated.
void split_data_ranks(const PublishedRow& row, std::int64_t ranks, std::int64_t zero, const spec::NodeGroup& group,
                      Layout& layout, RowNotes& notes) {
  layout.zero = zero;
  layout.dp = 1;
  layout.shard = ranks;
  if (row.sharding == "hsdp") {
    std::int64_t shard = number_after(row.compile_or_notes, "FSDP=").value_or(group.devices_per_node);
    if (ranks % shard != 0) shard = std::min(ranks, group.devices_per_node);
    if (ranks % shard != 0) shard = ranks;
    layout.shard = shard;
    layout.dp = ranks / shard;
    if (!number_after(row.compile_or_notes, "FSDP=")) notes.add(fmt::format("hybrid sharding within {} ranks", shard));
  }
  if (zero == 0 || layout.sharding_ranks() == 1) {
    layout.zero = 0;
    layout.dp = layout.dp * layout.shard;
    layout.shard = 1;
  }
}

void choose_schedule(const PublishedRow& row, const spec::Model& model, Layout& layout, RowNotes& notes) {
  const std::int64_t wanted = row.vpp.value_or(1);
  if (layout.pp == 1) {
    if (wanted > 1) notes.add(fmt::format("vpp={} means nothing with pp=1", wanted));
    return;
  }
  if (layout.pp > model.layers) {
    throw CannotPrice{fmt::format("pp={} stages for the {} layers of {}", layout.pp, model.layers, model.name), true};
  }
  const std::int64_t most = model.layers / layout.pp;
  layout.virtual_stages = std::min(wanted, most);
  if (layout.virtual_stages != wanted) {
    notes.add(fmt::format("vpp={} x pp={} for {} layers: vpp={}", wanted, layout.pp, model.layers, most));
  }
  layout.schedule = layout.virtual_stages > 1 ? Schedule::kInterleaved : Schedule::kOneForwardOneBackward;
}

// nanotron deals its blocks (layers, final norm, LM head, cast, loss) out by cumulative cost, of which norm, cast and
// loss have none. In the grid a model with tied embeddings never ran with an inner stage that is left with neither
// layer nor head (45 of 46 failed, at any memory), one with untied embeddings did: a rule read off the grid, not a
// prediction.
void note_stages_without_parameters(const spec::Model& model, const cost::StackFacts& facts, const Layout& layout,
                                    RowNotes& notes) {
  if (facts.stage_split != cost::StageSplit::kByCost || layout.pp == 1 || !model.tied_embeddings) return;
  const double around = static_cast<double>(model.vocab * model.hidden);
  const double layer = (static_cast<double>(spec::parameter_count(model)) - around) / static_cast<double>(model.layers);
  const double share = (layer * static_cast<double>(model.layers) + around) / static_cast<double>(layout.pp);
  // The stage that takes the head is the one the layers end in; those between it and the last hold nothing.
  const std::int64_t head_stage = static_cast<std::int64_t>(layer * static_cast<double>(model.layers) / share);
  if (head_stage + 1 < layout.pp - 1) {
    notes.add(fmt::format("does not start: stage {} of {} would hold no parameters", head_stage + 1, layout.pp));
    notes.cannot_run = true;
  }
}

// Embedding and head take the place of one layer each on the first and the last stage.
void place_embeddings_as_layers(const PublishedRow& row, const spec::Model& model, Layout& layout) {
  const bool stated = contains(row.notes, "embeddings partitioned as layers") ||
                      contains(row.compile_or_notes, "layers partitioned with embeddings");
  if (!stated || layout.pp == 1 || layout.virtual_stages > 1 || (model.layers + 2) % layout.pp != 0) return;
  layout.stage_layers.assign(static_cast<std::size_t>(layout.pp), (model.layers + 2) / layout.pp);
  --layout.stage_layers.front();
  --layout.stage_layers.back();
}

bool sequence_parallel(const PublishedRow& row, const Layout& layout, const cost::StackFacts& facts) {
  if (layout.tp == 1) return false;
  const std::string& text = row.compile_or_notes;
  if (contains(text, "without SP")) return false;
  if (contains(text, "sequence parallel") || text.find("SP,") != std::string::npos ||
      text.find("(SP)") != std::string::npos) {
    return true;
  }
  // Korthikanti et al. 2022 introduce selective recompute and sequence parallel together.
  if (contains(row.source, "Korthikanti")) return layout.recompute == Recompute::kSelective;
  return facts.sequence_parallel;
}

void choose_experts(const PublishedRow& row, const spec::Model& model, Layout& layout, RowNotes& notes) {
  const std::int64_t wanted = row.ep.value_or(1);
  if (model.experts == 0) return;
  const std::int64_t ranks = layout.dp * layout.shard * layout.cp;
  layout.ep = std::min({wanted, ranks, model.experts});
  while (layout.ep > 1 && plan::find_layout_problem(layout, &model)) --layout.ep;
  if (layout.ep != wanted) {
    notes.add(fmt::format("ep={} over {} data ranks and {} experts: ep={}", wanted, ranks, model.experts, layout.ep));
  }
}

// The sequences one data rank takes in a step, where the row has a global batch.
std::optional<double> sequences_per_rank(const PublishedRow& row, std::int64_t ranks) {
  if (row.global_batch_seqs) return static_cast<double>(*row.global_batch_seqs) / static_cast<double>(ranks);
  if (const auto per_rank = number_after(row.compile_or_notes, "batch/DP ")) return static_cast<double>(*per_rank);
  if (const auto global = number_after(row.notes, "GBS ")) {
    return static_cast<double>(*global) / static_cast<double>(ranks);
  }
  return std::nullopt;
}

// The largest that divides; with pipeline stages one, which is what keeps their bubble small. At most 16384 tokens,
// about what recipes give a rank.
std::int64_t guess_micro(double per_rank, std::int64_t sequence, std::int64_t pp) {
  if (pp > 1) return 1;
  const std::int64_t whole = std::max<std::int64_t>(1, std::llround(per_rank));
  for (std::int64_t micro = std::min(whole, std::max<std::int64_t>(1, 16384 / sequence)); micro > 1; --micro) {
    if (whole % micro == 0) return micro;
  }
  return 1;
}

}  // namespace

std::optional<std::string> find_unknown_word(const PublishedRow& row) {
  const std::string word = to_lower(row.precision);
  constexpr std::array kOthers{"tf32", "mxfp8", "nvfp4"};
  const bool known = word.empty() || plan::parse_precision(word) ||
                     std::any_of(kOthers.begin(), kOthers.end(), [&](const char* other) { return word == other; });
  if (known) return std::nullopt;
  return fmt::format("line {}, column precision: `{}` is none of fp64, fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4",
                     row.line, printable(row.precision, 30));
}

plan::Layout layout_of(const PublishedRow& row, const spec::Model& model, const spec::Cluster& cluster,
                       const cost::StackFacts& facts, RowNotes& notes) {
  const spec::NodeGroup& group = cluster.groups.at(0);
  Layout layout;
  layout.precision = precision_of(row, notes);
  layout.recompute = recompute_of(row, notes);
  layout.cp = row.cp.value_or(1);
  const std::int64_t zero = zero_stage(row, notes);
  if (row.tp && row.pp) {
    layout.tp = *row.tp;
    layout.pp = *row.pp;
  } else {
    guess_model_parallel(row, model, group, zero, layout, notes);
  }
  split_data_ranks(row, data_ranks(row, layout, notes), zero, group, layout, notes);
  choose_schedule(row, model, layout, notes);
  note_stages_without_parameters(model, facts, layout, notes);
  place_embeddings_as_layers(row, model, layout);
  layout.sequence_parallel = sequence_parallel(row, layout, facts);
  choose_experts(row, model, layout, notes);
  if (const auto problem = plan::find_layout_problem(layout, &model)) throw CannotPrice{*problem, true};
  return layout;
}

plan::BatchPlan batch_of(const PublishedRow& row, const plan::Layout& layout, const std::string& stack,
                         RowNotes& notes) {
  plan::BatchPlan batch;
  batch.sequence_length = row.seq_len.value_or(2048);
  const std::int64_t ranks = layout.data_ranks();
  std::optional<double> per_rank = sequences_per_rank(row, ranks);
  if (row.micro_batch && row.grad_accum && (stack == "nanotron-0.5" || !per_rank)) {
    // The grid names the accumulation of every run beside the study's global batch. Where they contradict each other,
    // runs that accumulate less show the bubble of that in their rates; runs that accumulate more show no larger batch.
    const double stated = static_cast<double>(*row.micro_batch) * static_cast<double>(*row.grad_accum);
    if (per_rank && std::abs(stated - *per_rank) > 1e-9) {
      notes.add(fmt::format("accumulation {} contradicts the global batch: the smaller is taken", *row.grad_accum));
    }
    per_rank = per_rank ? std::min(stated, *per_rank) : stated;
  }
  if (!per_rank) {
    // A usual batch of 4M tokens.
    per_rank = std::max(1.0, 4194304.0 / static_cast<double>(batch.sequence_length) / static_cast<double>(ranks));
    notes.guess("global batch unknown: 4M tokens", 0.05);
  }
  if (row.micro_batch) {
    batch.micro = *row.micro_batch;
  } else {
    batch.micro = guess_micro(*per_rank, batch.sequence_length, layout.pp);
    notes.guess(fmt::format("micro-batch unknown: {}", batch.micro), 0.05);
  }
  const double steps = *per_rank / static_cast<double>(batch.micro);
  batch.accumulation = std::max<std::int64_t>(1, std::llround(steps));
  if (row.global_batch_seqs && std::abs(steps - static_cast<double>(batch.accumulation)) > 1e-9) {
    notes.add(fmt::format("the global batch is not a multiple of micro-batch x data ranks: accumulation {}",
                          batch.accumulation));
  }
  batch.global_sequences = batch.micro * batch.accumulation * ranks;
  return batch;
}

}  // namespace lockstep::planner
