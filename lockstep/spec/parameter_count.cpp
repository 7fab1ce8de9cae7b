#include "lockstep/spec/parameter_count.h"

#include <algorithm>

namespace lockstep::spec {
namespace {

// One formula for two number types: exact in int64, and in double where a hostile file may ask for 1e30 parameters.
template <class N>
struct Counter {
  const Model& model;
  bool active_only = false;

  N n(std::int64_t value) const { return static_cast<N>(value); }
  N linear(N in, N out, bool bias) const { return in * out + (bias ? out : N{0}); }
  N layer_norm(N width) const { return width + (model.bias || model.decoder.norm_bias ? width : N{0}); }

  // DeepSeek-V2, 2.1: the narrow products and their norms, and those that make heads of them.
  N latent_attention() const {
    const Decoder& d = model.decoder;
    const N hidden = n(model.hidden), heads = n(model.heads), rotated = n(rotary_dim(model));
    const N queries = heads * n(model.head_dim), rank = n(d.key_value_rank), narrow = n(d.query_rank);
    const N query =
        d.query_rank > 0 ? linear(hidden, narrow, d.qkv_bias) + narrow + narrow * queries : hidden * queries;
    return query + linear(hidden, rank + rotated, d.qkv_bias) + rank +
           rank * heads * (n(model.head_dim) - rotated + n(d.value_dim)) +
           linear(heads * n(d.value_dim), hidden, d.attention_output_bias);
  }

  N attention() const {
    if (is_latent(model)) return latent_attention();
    const N hidden = n(model.hidden);
    const N queries = n(model.heads) * n(model.head_dim), keys = n(model.kv_heads) * n(model.head_dim);
    const bool in = model.bias || model.decoder.qkv_bias, out = model.bias || model.decoder.attention_output_bias;
    return linear(hidden, queries, in) + N{2} * linear(hidden, keys, in) + linear(queries, hidden, out) + qk_norm();
  }

  N qk_norm() const {
    if (model.decoder.qk_norm == QkNorm::kNone) return N{0};
    const N heads = model.decoder.qk_norm == QkNorm::kHead ? N{2} : n(model.heads) + n(model.kv_heads);
    return heads * n(model.head_dim);
  }

  // One norm of a decoder, and those of one of its layers.
  N decoder_norm() const {
    if (model.decoder.norm == NormKind::kLayerPlain) return N{0};
    return model.decoder.norm == NormKind::kRms ? n(model.hidden) : layer_norm(n(model.hidden));
  }
  N layer_norms() const {
    if (model.decoder.norm_place == NormPlace::kBoth) return N{4} * decoder_norm();
    return (model.decoder.parallel_block == ParallelBlock::kOneNorm ? N{1} : N{2}) * decoder_norm();
  }

  N two_matrix_mlp() const {
    return linear(n(model.hidden), n(model.ffn_hidden), model.bias) +
           linear(n(model.ffn_hidden), n(model.hidden), model.bias);
  }

  N gated_mlp(std::int64_t width) const {  // gate, up, down
    return N{2} * linear(n(model.hidden), n(width), model.bias) + linear(n(width), n(model.hidden), model.bias);
  }
  N decoder_mlp() const { return model.decoder.gated_mlp ? gated_mlp(model.ffn_hidden) : two_matrix_mlp(); }

  // Over all layers.
  N expert_layers() const {
    const std::int64_t routed = active_only ? model.experts_per_token : model.experts;
    const N one =
        n(model.hidden) * n(model.experts) + (n(routed) + n(model.shared_experts)) * gated_mlp(model.ffn_hidden);
    const std::int64_t dense = std::min(model.decoder.dense_layers, model.layers);
    return n(model.layers - dense) * one + n(dense) * gated_mlp(model.decoder.dense_ffn_hidden);
  }

  N mamba_layer() const {
    const N hidden = n(model.hidden), inner = hidden * n(model.expand), state = n(model.state_size);
    const N rank = n(model.dt_rank);
    return linear(hidden, N{2} * inner, model.bias)      // in_proj
           + inner * n(model.conv_kernel) + inner        // conv1d, depthwise, with bias
           + inner * (rank + N{2} * state)               // x_proj
           + rank * inner + inner                        // dt_proj, with bias
           + inner * state + inner                       // A_log, D
           + linear(inner, hidden, model.bias) + hidden  // out_proj, RMSNorm
        ;
  }

  N layers() const {
    const N count = n(model.layers);
    switch (model.arch) {
      case Arch::kGpt:
      case Arch::kBert:
        return count * (attention() + two_matrix_mlp() + N{2} * layer_norm(n(model.hidden)));
      case Arch::kLlama:
        return count * (attention() + decoder_mlp() + layer_norms());
      case Arch::kMoe:
        return count * (attention() + layer_norms()) + expert_layers();
      case Arch::kMamba:
        return count * mamba_layer();
      default:
        return N{0};
    }
  }

  // The embedding tables; tied_embeddings makes the token table the head's weight too.
  N positions_and_types() const {
    N total{0};
    if (model.arch == Arch::kGpt || model.arch == Arch::kBert) total += n(model.max_sequence) * n(model.hidden);
    if (model.arch == Arch::kBert) total += n(model.type_vocab) * n(model.hidden);
    return total;
  }
  N token_table() const { return n(model.vocab) * n(model.hidden); }

  N norms_outside_layers() const {
    if (model.arch == Arch::kGpt || model.arch == Arch::kBert) return layer_norm(n(model.hidden));
    return has_decoder(model) ? decoder_norm() : n(model.hidden);
  }

  N head() const {
    const N hidden = n(model.hidden);
    N total = model.arch == Arch::kBert ? linear(hidden, hidden, model.bias) : N{0};  // pooler
    if (model.classes > 0) return total + linear(hidden, n(model.classes), model.arch == Arch::kBert);
    if (!model.tied_embeddings) total += token_table();
    return total;
  }

  N language_model() const {
    return token_table() + positions_and_types() + layers() + norms_outside_layers() + head();
  }

  N language_model_without_input() const {
    const bool table_is_head = model.tied_embeddings && model.classes == 0;
    return language_model() - positions_and_types() - (table_is_head ? N{0} : token_table());
  }

  N convolution(N in, N out, N kernel, bool bias) const { return in * out * kernel * kernel + (bias ? out : N{0}); }
  N batch_norm(N channels) const { return N{2} * channels; }

  // conv 3x3 32, conv 3x3 64, max pool 2, 128, classes; no padding (the PyTorch examples' MNIST net).
  N mnist_cnn() const {
    const N side = n((model.image_size - 4) / 2);
    return convolution(n(model.image_channels), N{32}, N{3}, true) + convolution(N{32}, N{64}, N{3}, true) +
           linear(N{64} * side * side, N{128}, true) + linear(N{128}, n(model.classes), true);
  }

  // conv-bn-relu 64, 128, pool, 256, 256, pool, global average, classes. The convolutions have no bias: the batch norm
  // after each would cancel it.
  N cifar_cnn() const {
    N total{0}, in = n(model.image_channels);
    for (const int out : {64, 128, 256, 256}) {
      total += convolution(in, N(out), N{3}, false) + batch_norm(N(out));
      in = N(out);
    }
    return total + linear(N{256}, n(model.classes), true);
  }

  N resnet_block(N in, N width, bool downsample) const {
    const N out = model.bottleneck ? width * N{4} : width;
    N total{0};
    if (model.bottleneck) {
      total = convolution(in, width, N{1}, false) + convolution(width, width, N{3}, false) +
              convolution(width, out, N{1}, false) + N{2} * batch_norm(width) + batch_norm(out);
    } else {
      total = convolution(in, width, N{3}, false) + convolution(width, width, N{3}, false) + N{2} * batch_norm(width);
    }
    if (downsample) total += convolution(in, out, N{1}, false) + batch_norm(out);
    return total;
  }

  N resnet() const {
    N total = convolution(n(model.image_channels), N{64}, N{7}, false) + batch_norm(N{64});
    N in{64}, width{64};
    for (std::size_t stage = 0; stage < model.stage_blocks.size(); ++stage) {
      const N out = model.bottleneck ? width * N{4} : width;
      // torchvision: a projection where the shape changes, so not in the first stage of basic blocks.
      total += resnet_block(in, width, stage > 0 || model.bottleneck);
      total += n(model.stage_blocks[stage] - 1) * resnet_block(out, width, false);
      in = out;
      width = width * N{2};
    }
    return total + linear(in, n(model.classes), true);
  }

  N all() const {
    switch (model.arch) {
      case Arch::kMnistCnn:
        return mnist_cnn();
      case Arch::kCifarCnn:
        return cifar_cnn();
      case Arch::kResNet:
        return resnet();
      case Arch::kTorchScript:
      case Arch::kPlugin:
        return n(model.script.facts.parameters);
      default:
        return language_model();
    }
  }

  N without_input() const { return model.is_language_model() ? language_model_without_input() : all(); }
};

}  // namespace

std::int64_t parameter_count(const Model& model) { return Counter<std::int64_t>{model}.all(); }

std::int64_t parameter_count_without_input_embedding(const Model& model) {
  return Counter<std::int64_t>{model}.without_input();
}

std::int64_t active_parameter_count_without_input_embedding(const Model& model) {
  return Counter<std::int64_t>{model, true}.without_input();
}

double parameter_count_estimate(const Model& model) { return Counter<double>{model}.all(); }

}  // namespace lockstep::spec
