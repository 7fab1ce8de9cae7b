// Memory factors: what each value of each knob does to the parts of a training step's memory, as far as names show.
//
// A slot is a knob at one of its values (or two knobs together, where one without the other says nothing). Given a
// vector of standard normal numbers, fill() writes the logarithm of the factor of every slot. Immutable; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

enum MemoryPart : std::size_t { kWeights, kGradients, kOptimizer, kActivations, kMemoryPartCount };
using MemoryParts = std::array<double, kMemoryPartCount>;  // logarithms

class MemoryFactors {
 public:
  explicit MemoryFactors(const Space& space);

  std::size_t latent_size() const { return latent_size_; }
  std::size_t slot_count() const { return slot_count_; }
  // Slots of a configuration: one per active knob, and one per pair.
  std::vector<std::size_t> slots(const Config& config) const;
  // `latent` has latent_size() numbers, `slots` slot_count() entries.
  void fill(std::span<const double> latent, std::span<MemoryParts> slots) const;

 private:
  enum class Role {
    kBatch,
    kTensor,
    kPipeline,
    kData,
    kRecompute,
    kSequenceParallel,
    kZeroStage,
    kShardCount,
    kShardOptimizer,
    kOffload,
    kPrecision,
    kHarmless,
    kUnknown
  };
  struct Entry {
    Role role;
    std::vector<Value> values;
    std::vector<std::string> words;  // of the values, lower case
    std::vector<double> numbers;     // of the values, or NaN
    bool choice = true;              // slots are found by value, else by the nearest number
    bool ordered = false;
    double deviation = 0;  // of the factors of a knob whose name says nothing
    std::size_t first_slot = 0;
    std::size_t first_latent = 0;
  };

  static Role role_of(const Knob& knob);
  static std::size_t latents_of(const Entry& entry);
  std::size_t place(const Entry& entry, const Value& value) const;
  static void fill_entry(const Entry& entry, std::span<const double> latent, std::span<MemoryParts> slots);
  static void fill_sharding(const Entry& entry, std::span<const double> latent, std::span<MemoryParts> slots);

  std::vector<Entry> entries_;
  // A sharded optimizer is as small as there are data ranks: slots by level of dp, taken when the other knob is on.
  std::size_t data_entry_ = kNone, sharded_entry_ = kNone, pair_slot_ = 0, pair_latent_ = 0;
  std::size_t latent_size_ = 0, slot_count_ = 0;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
};

}  // namespace lockstep::tune
