#include "lockstep/tune/knob_nature.h"

#include <array>
#include <string>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

struct Named {
  std::string_view piece;  // of the lower-case name with separators taken out
  double memory;
  bool communication;
};

// The first piece found in the name decides.
constexpr std::array kNamed{Named{"nccl", 0, true},
                            Named{"accum", 0, false},
                            Named{"numworkers", 0, false},
                            Named{"loader", 0, false},
                            Named{"prefetch", 0, false},
                            Named{"pinmemory", 0, false},
                            Named{"ompnumthreads", 0, false},
                            Named{"threads", 0, false},
                            Named{"microbatch", 1, false},
                            Named{"batchmicro", 1, false},
                            Named{"batchsize", 1, false},
                            Named{"sequencelength", 1, false},
                            Named{"seqlen", 1, false},
                            Named{"zero", -1, false},
                            Named{"shard", -1, false},
                            Named{"tensorparallel", -1, false},
                            Named{"pipelineparallel", -1, false},
                            Named{"contextparallel", -1, false},
                            Named{"bucket", 0.2, false},
                            Named{"recompute", -1, false},
                            Named{"checkpointing", -1, false},
                            Named{"offload", -1, false},
                            Named{"precision", 0.4, false}};

std::string compact(std::string_view name) {
  std::string text;
  for (const char c : to_lower(name))
    if (c != '_' && c != '-' && c != '.') text.push_back(c);
  return text;
}

}  // namespace

KnobNature nature_of(const Knob& knob) {
  const std::string name = compact(knob.name);
  if (name == "tp" || name == "pp" || name == "cp" || name == "layouttp" || name == "layoutpp") return {-1.0, false};
  if (name == "mb" || name == "mbs") return {1.0, false};
  for (const Named& named : kNamed)
    if (name.find(named.piece) != std::string::npos) return {named.memory, named.communication};
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
