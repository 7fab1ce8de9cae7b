#include "tests/cost/parameter_blocks.h"

#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {
namespace {

using spec::Arch;

// Adds parameters to a block by how tensor-parallel ranks hold them.
class BlockCounter {
 public:
  BlockCounter(const spec::Model& model, const plan::Layout& layout, std::int64_t tp_rank)
      : model_(model), layout_(layout), tp_rank_(tp_rank) {}

  ParameterBlock token_table() const {
    ParameterBlock block;
    block.elements = share(model_.vocab) * model_.hidden;
    return block;
  }

  // Beside the token table.
  ParameterBlock other_embeddings() const {
    ParameterBlock block;
    if (model_.arch == Arch::kGpt || model_.arch == Arch::kBert) {
      add_outside(block, model_.max_sequence * model_.hidden);
    }
    if (model_.arch == Arch::kBert) {
      add_outside(block, model_.type_vocab * model_.hidden);
      add_norm(block);
    }
    return block;
  }

  ParameterBlock layer() const {
    ParameterBlock block;
    if (model_.arch == Arch::kMamba) {
      add_mixer(block);
      add_norm(block);
      return block;
    }
    add_attention(block);
    add_norm(block);
    add_norm(block);
    if (model_.experts == 0) {
      add_mlp(block);
      return block;
    }
    add_inside(block, model_.hidden * model_.experts);  // router
    block.elements += 3 * model_.hidden * share(model_.shared_experts * model_.ffn_hidden);
    return block;
  }

  ParameterBlock experts() const {
    ParameterBlock block;
    block.expert = true;
    block.elements = model_.experts / layout_.ep * 3 * model_.hidden * share(model_.ffn_hidden);
    return block;
  }

  // Without a tied token table. A classifier and its pooler are whole on every tp rank, and so is their gradient.
  ParameterBlock head() const {
    ParameterBlock block;
    const std::int64_t hidden = model_.hidden;
    if (model_.arch != Arch::kBert) {
      add_norm(block);
      if (model_.classes > 0) {
        block.elements += hidden * model_.classes;
      } else if (!model_.tied_embeddings) {
        block.elements += share(model_.vocab) * hidden;
      }
      return block;
    }
    const std::int64_t square = hidden * hidden + (model_.bias ? hidden : 0);
    if (model_.classes > 0) {
      block.elements += square + hidden * model_.classes + model_.classes;
      return block;
    }
    add_outside(block, square);  // transform of the masked-LM head
    add_norm(block);
    block.elements += share(model_.vocab) * (model_.tied_embeddings ? 1 : hidden + 1);
    return block;
  }

 private:
  // Of what tp cuts: as even as possible, in the order of the ranks.
  std::int64_t share(std::int64_t total) const {
    return total * (tp_rank_ + 1) / layout_.tp - total * tp_rank_ / layout_.tp;
  }

  // Whole on every tp rank and outside the tensor-parallel blocks: with sequence parallel each rank sees some rows.
  void add_outside(ParameterBlock& block, std::int64_t elements) const {
    block.elements += elements;
    if (layout_.sequence_parallel) block.partial_over_tp += elements;
  }

  // Whole on every tp rank and inside a block: the gradient comes through this rank's share of the block.
  void add_inside(ParameterBlock& block, std::int64_t elements) const {
    block.elements += elements;
    if (layout_.tp > 1) block.partial_over_tp += elements;
  }

  // LayerNorm has a bias where the linear layers have, RMSNorm has none.
  void add_norm(ParameterBlock& block) const {
    const bool biased = model_.bias && (model_.arch == Arch::kGpt || model_.arch == Arch::kBert);
    add_outside(block, model_.hidden * (biased ? 2 : 1));
  }

  void add_outputs(ParameterBlock& block, std::int64_t outputs) const {
    block.elements += outputs * (model_.hidden + (model_.bias ? 1 : 0));
  }

  // The bias comes after the ranks' products are summed.
  void add_inputs(ParameterBlock& block, std::int64_t inputs) const {
    block.elements += inputs * model_.hidden;
    if (model_.bias) add_outside(block, model_.hidden);
  }

  void add_attention(ParameterBlock& block) const {
    const std::int64_t queries = model_.heads / layout_.tp * model_.head_dim;
    add_outputs(block, queries);
    const std::int64_t kv_heads = model_.kv_heads > 0 ? model_.kv_heads : model_.heads;
    const std::int64_t sharers = layout_.tp > kv_heads ? layout_.tp / kv_heads : 1;
    const std::int64_t before = block.elements;
    add_outputs(block, 2 * (kv_heads * sharers / layout_.tp) * model_.head_dim);
    const std::int64_t keys = block.elements - before;
    if (sharers == layout_.tp && sharers > 1) {
      block.partial_over_tp += keys;
    } else if (sharers > 1) {
      block.partial_over_key_sharers += keys;
    }
    add_inputs(block, queries);
  }

  void add_mlp(ParameterBlock& block) const {
    const bool gated = model_.arch == Arch::kLlama || model_.arch == Arch::kMoe;
    const std::int64_t columns = share(model_.ffn_hidden);
    add_outputs(block, (gated ? 2 : 1) * columns);
    add_inputs(block, columns);
  }

  // Mamba: in_proj, the convolution and its bias, x_proj, dt_proj and its bias, A_log, D, out_proj.
  void add_mixer(ParameterBlock& block) const {
    const std::int64_t channels = share(model_.expand * model_.hidden);
    add_outputs(block, 2 * channels);
    block.elements += channels * (model_.conv_kernel + 1);
    block.elements += channels * (model_.dt_rank + 2 * model_.state_size);
    block.elements += channels * (model_.dt_rank + 1);
    block.elements += channels * (model_.state_size + 1);
    add_inputs(block, channels);
  }

  const spec::Model& model_;
  const plan::Layout& layout_;
  std::int64_t tp_rank_;
};

}  // namespace

std::vector<ParameterBlock> parameter_blocks(const spec::Model& model, const plan::Layout& layout,
                                             const RankPlace& rank, std::int64_t layers) {
  std::vector<ParameterBlock> blocks;
  const auto add = [&](ParameterBlock block) {
    if (block.elements * block.copies > 0) blocks.push_back(block);
  };
  if (model.is_image_model()) {
    add({.elements = spec::parameter_count(model)});
    return blocks;
  }
  const BlockCounter counter(model, layout, rank.tp);
  const bool first = rank.stage == 0, last = rank.stage == plan::head_rank(layout);
  const bool tied = model.tied_embeddings && model.classes == 0;
  ParameterBlock table = counter.token_table();
  ParameterBlock embeddings = counter.other_embeddings();
  if (tied) {
    // Where a pipeline's first and last position meet on one rank (a V), it has the table twice.
    table.tied = layout.pp > 1;
    table.copies = (first ? 1 : 0) + (last && layout.pp > 1 ? 1 : 0);
    add(table);
  } else {
    embeddings.elements += table.elements;
  }
  if (first) add(embeddings);
  ParameterBlock layer = counter.layer();
  layer.copies = layers;
  add(layer);
  if (model.experts > 0) {
    ParameterBlock experts = counter.experts();
    experts.copies = layers;
    add(experts);
  }
  if (last) add(counter.head());
  return blocks;
}

}  // namespace lockstep::cost
