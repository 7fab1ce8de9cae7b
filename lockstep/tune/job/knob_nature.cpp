#include "lockstep/tune/job/knob_nature.h"

#include <array>
#include <string>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

struct Named {
  std::string_view piece;  // of the lower-case name with separators taken out
  double memory;
};

// The first piece found in the name decides.
constexpr std::array kNamed{Named{"nccl", 0},
                            Named{"accum", 0},
                            Named{"numworkers", 0},
                            Named{"loader", 0},
                            Named{"prefetch", 0},
                            Named{"pinmemory", 0},
                            Named{"ompnumthreads", 0},
                            Named{"threads", 0},
                            Named{"microbatch", 1},
                            Named{"batchmicro", 1},
                            Named{"batchsize", 1},
                            Named{"sequencelength", 1},
                            Named{"seqlen", 1},
                            Named{"zero", -1},
                            Named{"shard", -1},
                            Named{"tensorparallel", -1},
                            Named{"pipelineparallel", -1},
                            Named{"contextparallel", -1},
                            Named{"bucket", 0.2},
                            Named{"recompute", -1},
                            Named{"checkpointing", -1},
                            Named{"offload", -1},
                            Named{"precision", 0.4}};

}  // namespace

std::string compact_name(std::string_view name) {
  std::string text;
  for (const char c : to_lower(name))
    if (c != '_' && c != '-' && c != '.') text.push_back(c);
  return text;
}

bool is_on(const std::string& word) { return word == "true" || word == "on" || word == "1" || word == "yes"; }

std::optional<double> number_of(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

KnobNature nature_of(const Knob& knob) {
  const std::string name = compact_name(knob.name);
  if (name == "tp" || name == "pp" || name == "cp" || name == "layouttp" || name == "layoutpp") return {-1.0};
  if (name == "mb" || name == "mbs") return {1.0};
  for (const Named& named : kNamed)
    if (name.find(named.piece) != std::string::npos) return {named.memory};
  return {};
}

std::optional<double> memory_of_choice(const Knob& knob, const Value& value) {
  const KnobNature nature = nature_of(knob);
  if (!nature.memory) return std::nullopt;
  if (*nature.memory == 0) return 0.0;
  const std::string word = to_lower(to_text(value));
  if (word == "none" || word == "off" || word == "false" || word == "fp32" || word == "float32") return 0.5;
  if (word == "selective" || word == "bf16" || word == "fp16" || word == "bfloat16" || word == "float16") return 0.0;
  if (word == "full" || word == "true" || word == "on" || word == "fp8") return -0.5;
  return std::nullopt;
}

}  // namespace lockstep::tune
