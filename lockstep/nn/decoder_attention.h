// Attention of a decoder with rotary positions (spec::Decoder): projections of queries, keys and values, their norms,
// clipping and rotation, and the output projection that the caller applies.
#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/partition.h"
#include "lockstep/spec/model.h"

namespace lockstep::nn {

// What the layers of a decoder are built from and run with. Holds references.
struct DecoderBuild {
  const spec::Model& spec;
  const Partition& partition;
  const HeadShare& heads;
  torch::TensorOptions options;
  Sharing outside_blocks;

  std::int64_t head_dim() const { return spec.head_dim > 0 ? spec.head_dim : spec.hidden / spec.heads; }
  std::shared_ptr<Linear> dense(std::int64_t in, std::int64_t out, bool bias, const LinearCut& cut) const;
  static LinearCut by_outputs(const Segment& segment, std::int64_t sharers = 1);
  LinearCut by_inputs(const Segment& segment) const;
};

struct DecoderAttention {
  std::shared_ptr<Linear> q, k, v, o;
  std::shared_ptr<Norm> q_norm, k_norm;  // null without

  // x [batch, rows, hidden] inside the tensor-parallel region -> [batch, rows, own heads x head_dim], what `o` reads.
  // Collective over cp, and over tp where the norms go over all heads.
  torch::Tensor forward(const torch::Tensor& x, const RopeTables& tables, const AttentionOptions& options,
                        const DecoderBuild& build) const;
};

// Registers the modules as "self_attn" below `layer`.
DecoderAttention make_decoder_attention(torch::nn::Module& layer, const DecoderBuild& build);

}  // namespace lockstep::nn
