// Capacity of experts (GShard, Lepikhin et al. 2020): an expert takes at most so many tokens of a micro-step, and what
// comes later is dropped. First choices of all tokens go before second ones; among equals the earlier token goes first.
// Plain integers on the host, no communication.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::nn {

inline constexpr std::int32_t kDropped = -1;

// What one rank brings to a micro-step. The memory is the caller's.
struct RankChoices {
  std::int64_t samples = 0;
  std::int64_t rows = 0;                    // of each sample
  const std::int32_t* positions = nullptr;  // [rows], in the whole sequence
  std::int32_t* experts = nullptr;          // [samples, rows, choices]
};

// Tokens that each expert takes: `factor` times an even share, rounded up.
std::int64_t expert_capacity(double factor, std::int64_t tokens, std::int64_t choices, std::int64_t experts);

// Writes kDropped over the choices that find their expert full. Every `cp` consecutive ranks hold rows of the same
// samples; samples of later ranks come later.
void drop_over_capacity(std::vector<RankChoices>& ranks, std::int64_t cp, std::int64_t choices, std::int64_t experts,
                        std::int64_t capacity);

}  // namespace lockstep::nn
