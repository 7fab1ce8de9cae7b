// The fields of a layout by the names that job files, plans, spaces and the command line share. plan/layout.h says what
// they are.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "lockstep/spec/job.h"

namespace lockstep::spec {

namespace names {
inline constexpr std::array kSchedules{"none", "gpipe", "1f1b", "interleaved", "zero_bubble"};
inline constexpr std::array kRecomputes{"none", "selective", "full"};
inline constexpr std::array kContextExchanges{"ring", "all_to_all"};
inline constexpr std::array kOffloads{"none", "optimizer", "parameters"};
inline constexpr auto kPrecisions = names_of(Precision{});
inline constexpr std::array kTruth{"false", "true"};
}  // namespace names

struct LayoutKey {
  const char* name;
  std::int64_t least = 1;                     // of a whole number
  std::int64_t most = 1 << 24;                // of a whole number
  std::span<const char* const> choices = {};  // words, in the order of the enum in plan/layout.h; none: a whole number
  bool is_axis() const { return choices.empty(); }
};

// In the order in which layouts are written; `stage_layers`, a list, is beside them.
inline constexpr std::array kLayoutKeys{LayoutKey{"pp"},
                                        LayoutKey{"dp"},
                                        LayoutKey{"shard"},
                                        LayoutKey{"zero", 0, 3},
                                        LayoutKey{"cp"},
                                        LayoutKey{"tp"},
                                        LayoutKey{"ep"},
                                        LayoutKey{"virtual_stages"},
                                        LayoutKey{"schedule", 0, 0, names::kSchedules},
                                        LayoutKey{"sequence_parallel", 0, 0, names::kTruth},
                                        LayoutKey{"recompute", 0, 0, names::kRecomputes},
                                        LayoutKey{"context_exchange", 0, 0, names::kContextExchanges},
                                        LayoutKey{"offload", 0, 0, names::kOffloads},
                                        LayoutKey{"precision", 0, 0, names::kPrecisions}};
inline constexpr std::size_t kLayoutAxes = 8;  // the whole numbers, which come first

}  // namespace lockstep::spec
