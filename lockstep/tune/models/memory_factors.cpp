#include "lockstep/tune/models/memory_factors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/tune/job/knob_nature.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kGrid = 16;  // slots of a knob with more values than that
constexpr double kUnknownDeviation = 0.2;
// Where no name speaks of memory, some knob whose name says nothing must be the one that fills it.
constexpr double kBlindDeviation = 0.4;
constexpr double kBlindSlopeDeviation = 2.0;  // over the range of an ordered knob
constexpr double kHarmlessDeviation = 0.06;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

bool has(const std::string& text, std::string_view piece) { return text.find(piece) != std::string::npos; }

// A standard normal number as a uniform one (the logistic curve is close enough to the normal distribution's).
double uniform(double latent, double low, double high) { return low + (high - low) / (1 + std::exp(-1.702 * latent)); }

void add_to_states(MemoryParts& parts, double log_factor) {
  for (const MemoryPart part : {kWeights, kGradients, kOptimizer}) parts[part] += log_factor;
}

// The values that stand for a knob: all of them, or a grid.
std::vector<Value> slot_values(const Knob& knob) {
  if (knob.kind == KnobKind::kChoice) return knob.choices;
  std::vector<Value> values;
  const bool whole = knob.kind == KnobKind::kInteger;
  const double span = knob.high - knob.low;
  const std::size_t count = whole && span < kGrid ? static_cast<std::size_t>(span) + 1 : kGrid;
  for (std::size_t i = 0; i < count; ++i) {
    const double share = count > 1 ? static_cast<double>(i) / static_cast<double>(count - 1) : 0;
    const double at =
        knob.log && knob.low > 0 ? knob.low * std::pow(knob.high / knob.low, share) : knob.low + share * span;
    if (whole)
      values.emplace_back(static_cast<std::int64_t>(std::llround(at)));
    else
      values.emplace_back(at);
  }
  return values;
}

}  // namespace

MemoryFactors::Role MemoryFactors::role_of(const Knob& knob) {
  const std::string name = compact_name(knob.name);
  const auto any = [&](std::initializer_list<std::string_view> pieces) {
    return std::any_of(pieces.begin(), pieces.end(), [&](std::string_view piece) { return has(name, piece); });
  };
  const auto axis = [&](const char* letters) { return name == letters || name == std::string("layout") + letters; };
  if (any({"nccl", "accum", "workers", "prefetch", "thread", "channel", "bucket", "pin"})) return Role::kHarmless;
  if (any({"sequenceparallel"})) return Role::kSequenceParallel;
  if (any({"microbatch", "batchmicro", "batchsize", "sequencelength", "seqlen"}) || name == "mbs" || name == "mb")
    return Role::kBatch;
  if (axis("tp") || axis("cp") || any({"tensorparallel", "contextparallel"})) return Role::kTensor;
  if (axis("pp") || any({"pipelineparallel"})) return Role::kPipeline;
  if (axis("dp") || any({"dataparallel"})) return Role::kData;
  if (any({"recompute", "checkpointing"})) return Role::kRecompute;
  if (any({"offload"})) return Role::kOffload;
  const bool numbers = !knob.choices.empty() && number_of(knob.choices.front()).has_value();
  if (any({"zero"})) return numbers || knob.kind != KnobKind::kChoice ? Role::kZeroStage : Role::kShardOptimizer;
  if (any({"shard", "distributedoptimizer"}))
    return numbers || knob.kind != KnobKind::kChoice ? Role::kShardCount : Role::kShardOptimizer;
  if (any({"precision", "dtype"})) return Role::kPrecision;
  return Role::kUnknown;
}

std::size_t MemoryFactors::latents_of(const Entry& entry) {
  switch (entry.role) {
    case Role::kBatch:
      return 0;
    case Role::kTensor:
    case Role::kPipeline:
    case Role::kRecompute:
      return 2;
    case Role::kData:
    case Role::kSequenceParallel:
    case Role::kShardCount:
    case Role::kOffload:
    case Role::kShardOptimizer:
      return 1;
    case Role::kZeroStage:
    case Role::kPrecision:
      return 3;
    case Role::kHarmless:
    case Role::kUnknown:
      break;
  }
  return entry.ordered ? 1 : entry.values.size();
}

MemoryFactors::MemoryFactors(const Space& space) {
  for (const Knob& knob : space.knobs()) {
    Entry entry{.role = role_of(knob), .values = slot_values(knob)};
    entry.choice = knob.kind == KnobKind::kChoice;
    entry.ordered = knob.ordered;
    for (const Value& value : entry.values) {
      entry.words.push_back(to_lower(to_text(value)));
      entry.numbers.push_back(number_of(value).value_or(kNoNumber));
    }
    entry.first_slot = slot_count_;
    entry.first_latent = latent_size_;
    slot_count_ += entry.values.size();
    latent_size_ += latents_of(entry);
    if (entry.role == Role::kData) data_entry_ = entries_.size();
    if (entry.role == Role::kShardOptimizer) sharded_entry_ = entries_.size();
    entries_.push_back(std::move(entry));
  }
  const auto speaks = [](const Entry& entry) { return entry.role != Role::kHarmless && entry.role != Role::kUnknown; };
  const bool blind = std::none_of(entries_.begin(), entries_.end(), speaks);
  for (Entry& entry : entries_) {
    const double blindly = entry.ordered ? kBlindSlopeDeviation : kBlindDeviation;
    entry.deviation = entry.role == Role::kHarmless ? kHarmlessDeviation : blind ? blindly : kUnknownDeviation;
  }
  if (data_entry_ == kNone || sharded_entry_ == kNone) return;
  pair_slot_ = slot_count_;
  slot_count_ += entries_[data_entry_].values.size();
}

std::size_t MemoryFactors::place(const Entry& entry, const Value& value) const {
  if (entry.choice)
    return static_cast<std::size_t>(std::find(entry.values.begin(), entry.values.end(), value) - entry.values.begin());
  const double number = number_of(value).value_or(kNoNumber);
  std::size_t nearest = 0;
  for (std::size_t i = 1; i < entry.numbers.size(); ++i)
    if (std::fabs(entry.numbers[i] - number) < std::fabs(entry.numbers[nearest] - number)) nearest = i;
  return nearest;
}

std::vector<std::size_t> MemoryFactors::slots(const Config& config) const {
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (is_active(config.values[i])) list.push_back(entries_[i].first_slot + place(entries_[i], config.values[i]));
  if (data_entry_ == kNone || sharded_entry_ == kNone) return list;
  const Value& data = config.values[data_entry_];
  const Value& sharded = config.values[sharded_entry_];
  if (is_active(data) && is_active(sharded) && is_on(to_lower(to_text(sharded))))
    list.push_back(pair_slot_ + place(entries_[data_entry_], data));
  return list;
}

void MemoryFactors::fill_sharding(const Entry& entry, std::span<const double> latent, std::span<MemoryParts> slots) {
  // ZeRO over n ranks: stage 1 shards the optimizer, 2 the gradients too, 3 the weights too, a little of which is
  // always gathered.
  const double share = entry.role == Role::kZeroStage ? std::exp(-uniform(latent[0], 0.5, 4.2)) : 0;
  const double gathered = entry.role == Role::kZeroStage ? uniform(latent[1], 0.0, 0.3) : 0;
  for (std::size_t i = 0; i < entry.values.size(); ++i) {
    const double number = entry.numbers[i];
    if (entry.role == Role::kZeroStage) {
      if (number >= 1) slots[i][kOptimizer] = std::log(share);
      if (number >= 2) slots[i][kGradients] = std::log(std::min(1.0, share + 0.1 * uniform(latent[2], 0, 1)));
      if (number >= 3) slots[i][kWeights] = std::log(std::min(1.0, share + gathered));
    } else {
      add_to_states(slots[i], -uniform(latent[0], 0.3, 1) * std::log(std::max(number, 1.0)));
    }
  }
}

void MemoryFactors::fill_entry(const Entry& entry, std::span<const double> latent, std::span<MemoryParts> slots) {
  const auto power = [&](double states, double activations) {
    for (std::size_t i = 0; i < entry.values.size(); ++i) {
      const double ratio = std::isnan(entry.numbers[i]) ? 0 : std::log(std::max(entry.numbers[i], 1e-3));
      add_to_states(slots[i], states * ratio);
      slots[i][kActivations] += activations * ratio;
    }
  };
  const auto when = [&](auto&& holds, auto&& apply) {
    for (std::size_t i = 0; i < entry.values.size(); ++i)
      if (holds(entry.words[i])) apply(slots[i]);
  };
  switch (entry.role) {
    case Role::kBatch:
      return power(0, 1);
    case Role::kTensor:
      return power(-uniform(latent[0], 0.8, 1), -uniform(latent[1], 0.3, 1));
    case Role::kPipeline:
      return power(-uniform(latent[0], 0.8, 1), -uniform(latent[1], -0.1, 0.5));
    case Role::kData:
      return power(0, uniform(latent[0], -0.15, 0.15));
    case Role::kRecompute:
      when([](const std::string& word) { return word == "selective"; },
           [&](MemoryParts& parts) { parts[kActivations] = std::log(uniform(latent[0], 0.35, 0.75)); });
      return when([](const std::string& word) { return word == "full" || is_on(word); },
                  [&](MemoryParts& parts) { parts[kActivations] = std::log(uniform(latent[1], 0.05, 0.25)); });
    case Role::kSequenceParallel:
      return when(is_on, [&](MemoryParts& parts) { parts[kActivations] = std::log(uniform(latent[0], 0.45, 1)); });
    case Role::kZeroStage:
    case Role::kShardCount:
      return fill_sharding(entry, latent, slots);
    case Role::kShardOptimizer:
      return when(is_on, [&](MemoryParts& parts) { parts[kOptimizer] = std::log(uniform(latent[0], 0.5, 1)); });
    case Role::kOffload:
      return when(is_on, [&](MemoryParts& parts) { parts[kOptimizer] = std::log(uniform(latent[0], 0.01, 0.2)); });
    case Role::kPrecision:
      when([](const std::string& word) { return has(word, "32"); },
           [&](MemoryParts& parts) {
             parts[kActivations] = std::log(uniform(latent[0], 1.3, 2));
             parts[kWeights] = parts[kGradients] = std::log(uniform(latent[1], 1, 2));
           });
      return when([](const std::string& word) { return has(word, "fp8"); },
                  [&](MemoryParts& parts) { parts[kActivations] = std::log(uniform(latent[2], 0.6, 1)); });
    case Role::kHarmless:
    case Role::kUnknown:
      break;
  }
  for (std::size_t i = 0; i < entry.values.size(); ++i)
    slots[i][kActivations] =
        entry.ordered ? entry.deviation * latent[0] * static_cast<double>(i) / static_cast<double>(entry.values.size())
                      : entry.deviation * latent[i];
}

void MemoryFactors::fill(std::span<const double> latent, std::span<MemoryParts> slots) const {
  std::fill(slots.begin(), slots.end(), MemoryParts{});
  for (const Entry& entry : entries_)
    fill_entry(entry, latent.subspan(entry.first_latent), slots.subspan(entry.first_slot, entry.values.size()));
  if (data_entry_ == kNone || sharded_entry_ == kNone) return;
  const Entry& data = entries_[data_entry_];
  for (std::size_t i = 0; i < data.values.size(); ++i)
    slots[pair_slot_ + i][kOptimizer] = -std::log(std::max(data.numbers[i], 1.0));
}

}  // namespace lockstep::tune
