// A run small enough to count by hand.
#pragma once

#include <string>

#include "lockstep/plan/run.h"

namespace lockstep::cost {

// Llama of four layers, 64 wide, 4 heads, MLP 128, 4,096 tokens, not tied. A layer: 4 x 64 x 64 + 3 x 64 x 128 + 2 x 64
// = 41,088, and a quarter of the last norm, 16: 41,104. Table and head: 262,144 each.
inline constexpr double kTinyLayer = 41104, kTinyTable = 262144;

inline spec::Model tiny_llama() {
  spec::Model model;
  model.name = "tiny";
  model.arch = spec::Arch::kLlama;
  model.layers = 4;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.head_dim = 16;
  model.ffn_hidden = 128;
  model.vocab = 4096;
  model.bias = false;
  model.max_sequence = 16;
  return model;
}

// Two sequences of 16 tokens in fp32 on as many processors as the layout has ranks.
inline plan::Run tiny_run(const std::string& layout, spec::Model model = tiny_llama()) {
  plan::Run run;
  run.model = std::move(model);
  run.layout = plan::parse_layout(layout);
  run.cluster = spec::load_cluster("1x" + std::to_string(run.layout.world()) + "xcpu");
  run.cluster.groups.front().device.memory_bytes = 1e9;
  run.batch = {.micro = 2, .accumulation = 1, .global_sequences = 2 * run.layout.data_ranks(), .sequence_length = 16};
  return run;
}

}  // namespace lockstep::cost
