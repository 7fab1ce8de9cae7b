#include "lockstep/cost/fused/time.h"

#include <cmath>

#include "lockstep/cost/fused/memory.h"

namespace lockstep::cost {
namespace {

using C = FusedConstants;
using Op = FusedOperation;

constexpr std::array<FusedConstantInfo, 15> kTable{{
    {"forward_efficiency", &C::forward_efficiency, 0.2, "forward products, share of the bf16 peak"},
    {"data_gradient_efficiency", &C::data_gradient_efficiency, 0.2, "products of data gradients"},
    {"weight_gradient_efficiency", &C::weight_gradient_efficiency, 0.2, "products of weight gradients"},
    {"gemm_k_half", &C::gemm_k_half, 1, "inner size at which a product runs at half its rate"},
    {"gemm_output_half", &C::gemm_output_half, 1, "elements of its result at which it does"},
    {"fp8_speedup", &C::fp8_speedup, 0.3, "products in 8 bits over bf16 ones"},
    {"attention_efficiency", &C::attention_efficiency, 0.3, "causal attention, share of the bf16 peak"},
    {"attention_backward_efficiency", &C::attention_backward_efficiency, 0.3, "its backward"},
    {"attention_dim_half", &C::attention_dim_half, 0.5, "width of a head at which it runs at half its rate"},
    {"attention_sequence_half", &C::attention_sequence_half, 0.5, "sequence at which it does"},
    {"stream_efficiency", &C::stream_efficiency, 0.2, "kernels that move memory, share of its bandwidth"},
    {"loss_efficiency", &C::loss_efficiency, 0.2, "cross-entropy"},
    {"optimizer_efficiency", &C::optimizer_efficiency, 0.2, "AdamW"},
    {"epilogue_share", &C::epilogue_share, 0.5, "of an epilogue's memory traffic, what is not hidden"},
    {"kernel_seconds", &C::kernel_seconds, 0.5, "of every kernel beside its work"},
}};

constexpr std::array<const char*, static_cast<std::size_t>(Op::kCount)> kNames{"qkv",
                                                                               "attention out",
                                                                               "gate up",
                                                                               "down",
                                                                               "head",
                                                                               "qkv dgrad",
                                                                               "attention out dgrad",
                                                                               "gate up dgrad",
                                                                               "down dgrad",
                                                                               "qkv wgrad",
                                                                               "attention out wgrad",
                                                                               "gate up wgrad",
                                                                               "down wgrad",
                                                                               "head backward",
                                                                               "attention",
                                                                               "attention backward",
                                                                               "rms_norm",
                                                                               "rms_norm backward",
                                                                               "rope",
                                                                               "rope backward",
                                                                               "swiglu",
                                                                               "swiglu backward",
                                                                               "gate up swiglu",
                                                                               "down dgrad swiglu",
                                                                               "cross entropy",
                                                                               "embedding",
                                                                               "embedding backward",
                                                                               "quantize attention",
                                                                               "quantize weights",
                                                                               "adamw"};

// Bytes of an element.
constexpr double kWide = 4, kNarrow = 2, kByte = 1;

// The operations of one micro-step and of the update, each with its seconds.
class Operations {
 public:
  Operations(const FusedRun& run, const FusedConstants& constants, const spec::Device& device)
      : r_(run), c_(constants), peak_(device.peak_bf16_flops), bandwidth_(device.memory_bytes_per_second) {
    products();
    head();
    attention();
    kernels();
    update();
  }
  const FusedOperationSeconds& seconds() const { return seconds_; }

 private:
  double& at(Op op) { return seconds_[static_cast<std::size_t>(op)]; }
  double layers() const { return r_.accumulation * r_.layers; }
  bool full() const { return r_.recompute == plan::Recompute::kFull; }
  bool recomputes() const { return r_.recompute != plan::Recompute::kNone; }
  double again() const { return full() ? 2 : 1; }  // forward work that backward does once more

  double product(double m, double n, double k, double efficiency) const {
    const double shape = (1 + c_.gemm_k_half / k) * (1 + c_.gemm_output_half / (m * n));
    return 2 * m * n * k / (peak_ * efficiency) * shape + c_.kernel_seconds;
  }
  double stream(double bytes, double efficiency) const { return bytes / (bandwidth_ * efficiency) + c_.kernel_seconds; }
  double stream(double bytes) const { return stream(bytes, c_.stream_efficiency); }
  double epilogue(double bytes) const { return c_.epilogue_share * bytes / (bandwidth_ * c_.stream_efficiency); }

  // The product's seconds go to the fused operation, which takes `more`.
  void move(Op product, Op fused, double more) {
    at(fused) = at(product) + more;
    at(product) = 0;
  }

  struct Linear {
    Op forward, data, weight;
    double in, out;
    bool recomputed;
    bool adds_residual;  // the product reads the residual stream and writes the sum
  };
  void products() {
    const double rows = r_.rows(), speedup = r_.fp8 ? c_.fp8_speedup : 1;
    const double summed = kWide + kWide - kNarrow;  // more than a bf16 gradient that is written once
    for (const Linear& l : {Linear{Op::kQkv, Op::kQkvData, Op::kQkvWeight, r_.hidden, r_.qkv_width(), true, false},
                            Linear{Op::kAttentionOut, Op::kAttentionOutData, Op::kAttentionOutWeight,
                                   r_.attention_width(), r_.hidden, true, true},
                            Linear{Op::kGateUp, Op::kGateUpData, Op::kGateUpWeight, r_.hidden, 2 * r_.ffn, true, false},
                            Linear{Op::kDown, Op::kDownData, Op::kDownWeight, r_.ffn, r_.hidden, false, true}}) {
      const double residual = l.adds_residual ? kNarrow * rows * l.out / (bandwidth_ * c_.stream_efficiency) : 0.0;
      at(l.forward) = (l.recomputed ? again() : 1) * layers() *
                      (product(rows, l.out, l.in, c_.forward_efficiency * speedup) + residual);
      at(l.data) = layers() * product(rows, l.in, l.out, c_.data_gradient_efficiency * speedup);
      at(l.weight) = layers() * product(l.out, l.in, rows, c_.weight_gradient_efficiency);
      if (!r_.narrow_gradients()) {
        at(l.weight) += layers() * summed * l.in * l.out / (bandwidth_ * c_.stream_efficiency);
      }
    }
  }

  void head() {
    const double rows = fused_chunk_rows(r_), chunks = r_.accumulation * std::ceil(r_.rows() / rows);
    at(Op::kHead) = chunks * product(rows, r_.vocab, r_.hidden, c_.forward_efficiency);
    at(Op::kHeadBackward) = chunks * (product(rows, r_.hidden, r_.vocab, c_.data_gradient_efficiency) +
                                      product(r_.vocab, r_.hidden, rows, c_.weight_gradient_efficiency));
    at(Op::kCrossEntropy) = chunks * stream(2 * kNarrow * rows * r_.vocab, c_.loss_efficiency);
  }

  void attention() {
    const double flops = 2 * r_.rows() * r_.sequence * r_.attention_width();  // forward, causal
    const double shape = (1 + c_.attention_dim_half / r_.head_dim) * (1 + c_.attention_sequence_half / r_.sequence);
    at(Op::kAttention) = again() * layers() * (flops * shape / (peak_ * c_.attention_efficiency) + c_.kernel_seconds);
    at(Op::kAttentionBackward) =
        layers() * (2.5 * flops * shape / (peak_ * c_.attention_backward_efficiency) + 3 * c_.kernel_seconds);
  }

  void kernels() {
    const double rows = r_.rows(), hidden = rows * r_.hidden, ffn = rows * r_.ffn;
    const double eight = r_.fp8 ? kByte : 0;
    // Where only the 8-bit copy is read again, the other is not written.
    const double written = r_.fp8 && recomputes() ? kByte : kNarrow + eight, remade = recomputes() ? kNarrow : 0;
    at(Op::kNorm) = (again() * 2 * layers() + r_.accumulation) * stream(hidden * (kNarrow + written));
    at(Op::kNormBackward) =
        (2 * layers() + r_.accumulation) * (stream(hidden * (4 * kNarrow + eight + remade)) + c_.kernel_seconds);
    at(Op::kRope) = again() * layers() * stream(2 * kNarrow * rows * (r_.heads + r_.kv_heads) * r_.head_dim);
    at(Op::kRopeBackward) = layers() * stream((2 * kNarrow + eight) * rows * r_.qkv_width());
    // Fused, the product also writes h; backward's reads gate and up and writes two results instead of one.
    if (r_.fuses_swiglu())
      move(Op::kGateUp, Op::kGateUpSwiglu, layers() * epilogue(ffn * kNarrow));
    else
      at(Op::kSwiglu) = layers() * stream(ffn * (2 * kNarrow + written));
    if (r_.fuses_swiglu_backward())
      move(Op::kDownData, Op::kDownDataSwiglu, layers() * epilogue(ffn * (3 * kNarrow + remade)));
    else
      at(Op::kSwigluBackward) = layers() * stream(ffn * (5 * kNarrow + 2 * eight + remade));
    at(Op::kEmbedding) = r_.accumulation * stream(2 * kNarrow * hidden);
    const double gradient = r_.narrow_gradients() ? kNarrow : kWide;
    at(Op::kEmbeddingBackward) = r_.accumulation * (stream(hidden * 2 * kNarrow + r_.head_parameters() * gradient) +
                                                    8 * c_.kernel_seconds);  // the sort by tokens
    if (r_.fp8) {
      at(Op::kQuantizeAttention) = again() * layers() * stream(rows * r_.attention_width() * (kNarrow + kByte));
      at(Op::kQuantizeWeights) = stream(r_.matrix_parameters() * (kNarrow + 2 * kByte));
    }
  }

  void update() {
    const double gradient = r_.narrow_gradients() ? kNarrow : kWide;
    const double other = r_.head_parameters() + r_.norm_parameters();
    const double state = 2 * (2 * kNarrow) + 2 * 2 * (r_.bf16_states ? kNarrow : kWide);  // read and written
    double bytes = state * r_.parameters() + gradient * r_.body_parameters() + kWide * other;
    if (r_.gradient_norm) bytes += gradient * r_.body_parameters() + kWide * other;
    at(Op::kAdamW) = stream(bytes, c_.optimizer_efficiency);
  }

  const FusedRun& r_;
  const FusedConstants& c_;
  double peak_, bandwidth_;
  FusedOperationSeconds seconds_{};
};

}  // namespace

std::span<const FusedConstantInfo> fused_constant_table() { return kTable; }

const char* to_string(FusedOperation operation) { return kNames[static_cast<std::size_t>(operation)]; }

FusedOperationSeconds fused_operation_seconds(const FusedRun& run, const FusedConstants& constants,
                                              const spec::Device& device) {
  return Operations(run, constants, device).seconds();
}

FusedSeconds fused_seconds(const FusedRun& run, const FusedConstants& constants, const spec::Device& device) {
  const FusedOperationSeconds all = fused_operation_seconds(run, constants, device);
  const auto sum = [&](std::initializer_list<Op> operations) {
    double seconds = 0;
    for (const Op op : operations) seconds += all[static_cast<std::size_t>(op)];
    return seconds;
  };
  const double twice = run.recompute == plan::Recompute::kFull ? 0.5 : 1.0;  // half of it is backward's
  const double layer_forward = sum({Op::kQkv, Op::kAttentionOut, Op::kGateUp, Op::kGateUpSwiglu, Op::kAttention,
                                    Op::kRope, Op::kNorm, Op::kQuantizeAttention});
  FusedSeconds seconds;
  seconds.forward = twice * layer_forward +
                    sum({Op::kDown, Op::kHead, Op::kSwiglu, Op::kCrossEntropy, Op::kEmbedding, Op::kQuantizeWeights});
  seconds.weight_gradient = sum({Op::kQkvWeight, Op::kAttentionOutWeight, Op::kGateUpWeight, Op::kDownWeight});
  seconds.backward = (1 - twice) * layer_forward + seconds.weight_gradient +
                     sum({Op::kQkvData, Op::kAttentionOutData, Op::kGateUpData, Op::kDownData, Op::kDownDataSwiglu,
                          Op::kAttentionBackward, Op::kNormBackward, Op::kRopeBackward, Op::kSwigluBackward,
                          Op::kHeadBackward, Op::kEmbeddingBackward});
  seconds.optimizer = sum({Op::kAdamW});
  return seconds;
}

}  // namespace lockstep::cost
