#include "lockstep/planner/rows/memory_facts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/text.h"

namespace lockstep::planner {
namespace {

struct Amount {
  const char* key;
  double cost::StackFacts::*member;
  double least, most;
};
constexpr std::array<Amount, 5> kAmounts{{
    {"logits_share", &cost::StackFacts::logits_share, 0, 1},
    {"fp8_copy_bytes", &cost::StackFacts::fp8_copy_bytes, 0, 4},
    {"frozen_weight_bytes", &cost::StackFacts::frozen_weight_bytes, 0.1, 4},
    {"gradient_bytes", &cost::StackFacts::kept_gradient_bytes, 0, 8},
    {"bucket_bytes", &cost::StackFacts::bucket_gradient_bytes, 0, 8},
}};

struct Switch {
  const char* key;
  bool cost::StackFacts::*member;
};
constexpr std::array<Switch, 5> kSwitches{{
    {"flash_attention", &cost::StackFacts::flash_attention},
    {"fused_pointwise", &cost::StackFacts::fused_pointwise},
    {"narrow_weights", &cost::StackFacts::keeps_narrow_weights},
    {"master_copy", &cost::StackFacts::master_copy},
    {"gathered_inputs", &cost::StackFacts::keeps_gathered_inputs},
}};

// What selective recompute does again: the scores of attention (or norms and activations where those are not kept),
// the attention block, or every second product and all pointwise work.
constexpr const char* kSelective = "selective";
constexpr std::array kSelectiveWords{"scores", "attention_block", "every_second_product"};

std::string all_keys() {
  std::string keys = kSelective;
  for (const Amount& amount : kAmounts) keys += std::string(", ") + amount.key;
  for (const Switch& choice : kSwitches) keys += std::string(", ") + choice.key;
  return keys;
}

std::optional<std::string> apply_entry(std::string_view key, std::string_view value, cost::StackFacts& facts) {
  if (key == kSelective) {
    const auto word = std::find(kSelectiveWords.begin(), kSelectiveWords.end(), value);
    if (word == kSelectiveWords.end()) {
      return fmt::format("selective={}: expected one of {}", printable(value, 30), fmt::join(kSelectiveWords, ", "));
    }
    facts.recomputes_attention_block = value == kSelectiveWords[1];
    facts.recomputes_every_second_product = value == kSelectiveWords[2];
    return std::nullopt;
  }
  for (const Amount& amount : kAmounts) {
    if (key != amount.key) continue;
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool whole = error == std::errc() && end == value.data() + value.size();
    if (!whole || !(number >= amount.least && number <= amount.most)) {
      return fmt::format("{}={}: expected a number from {} to {}", key, printable(value, 30), amount.least,
                         amount.most);
    }
    facts.*amount.member = number;
    return std::nullopt;
  }
  for (const Switch& choice : kSwitches) {
    if (key != choice.key) continue;
    if (value != "yes" && value != "no") return fmt::format("{}={}: expected yes or no", key, printable(value, 30));
    facts.*choice.member = value == "yes";
    return std::nullopt;
  }
  return fmt::format("`{}` is none of {}", printable(key, 30), all_keys());
}

}  // namespace

std::optional<std::string> apply_memory_facts(std::string_view text, cost::StackFacts& facts) {
  cost::StackFacts changed = facts;
  for (const std::string& part : split(std::string(text), ';')) {
    const std::string_view entry = trim(part);
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) return fmt::format("`{}` is not KEY=VALUE", printable(entry, 30));
    if (auto problem = apply_entry(trim(entry.substr(0, equals)), trim(entry.substr(equals + 1)), changed)) {
      return problem;
    }
  }
  facts = changed;
  return std::nullopt;
}

}  // namespace lockstep::planner
