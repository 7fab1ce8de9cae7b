// What a user knows of a stack's memory, in words: "selective=every_second_product; logits_share=0.125". The column
// memory_facts of rows, and `plan --memory-facts`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/cost/profile/constants.h"

namespace lockstep::planner {

// Entries KEY=VALUE, separated by semicolons; keys and values are listed in docs/reference/prediction.md. Returns what
// is wrong with `text`, with the keys or the values that are allowed; `facts` are then as they were.
std::optional<std::string> apply_memory_facts(std::string_view text, cost::StackFacts& facts);

}  // namespace lockstep::planner
