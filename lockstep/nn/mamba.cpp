// Mamba (Gu and Dao 2023) with Hugging Face's names: layers of one mixer each, a selective state-space model between
// two projections.
//
// Tensor parallel splits the inner channels: all is done channel by channel but the two projections and x_proj, which
// makes time steps, B and C of all channels and is summed over the ranks. Context parallel gives each rank one piece of
// the sequence: it takes the convolution's last rows and the scan's state from the rank before. A rank that has handed
// them on continues with the next layer, so ranks are apart by one scan, not by one scan per layer.
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/nn/collectives.h"
#include "lockstep/nn/language_model.h"
#include "lockstep/nn/selective_scan.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

constexpr double kTimeStepMin = 1e-3, kTimeStepMax = 0.1;

// log(1), ..., log(state) in every row: A starts as S4D-Real (Gu et al. 2022).
InitialValue logs_of_state_numbers(std::int64_t state) {
  return [state](Tensor& out, std::int64_t first, std::uint64_t, const std::string&) {
    const Tensor elements = torch::arange(first, first + out.numel(), torch::dtype(torch::kLong));
    out.copy_((elements.remainder(state) + 1).to(torch::kDouble).log());
  };
}

// softplus of it is log-uniform in [kTimeStepMin, kTimeStepMax].
InitialValue time_step_bias() {
  return [draw = uniform_value(std::log(kTimeStepMin), std::log(kTimeStepMax))](
             Tensor& out, std::int64_t first, std::uint64_t seed, const std::string& name) {
    Tensor dt = torch::empty(out.sizes(), torch::dtype(torch::kDouble));
    draw(dt, first, seed, name);
    dt.exp_();
    out.copy_(dt + (-(-dt).expm1()).log());
  };
}

InitialValue uniform_by_fan_in(std::int64_t fan_in) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  return uniform_value(-bound, bound);
}

// One filter per channel.
struct DepthwiseConv : Layer {
  DepthwiseConv(std::int64_t channels, std::int64_t taps, const Segment& own, const torch::TensorOptions& options) {
    weight = declare("weight", {.whole = {channels, 1, taps}, .segments = {own}}, uniform_by_fan_in(taps), options);
    bias = declare("bias", {.whole = {channels}, .segments = {own}}, constant_value(0.0), options);
  }
  Tensor weight;  // [channels, 1, taps]
  Tensor bias;
};

// dt_proj: a linear layer whose bias sets the range of time steps.
struct TimeStepProjection : Layer {
  TimeStepProjection(std::int64_t rank, std::int64_t channels, const Segment& own,
                     const torch::TensorOptions& options) {
    weight = declare("weight", {.whole = {channels, rank}, .segments = {own}}, uniform_by_fan_in(rank), options);
    bias = declare("bias", {.whole = {channels}, .segments = {own}}, time_step_bias(), options);
  }

  Tensor forward(const Tensor& x) const {
    if (x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kDouble) {
      return at::softplus(linear(x, weight, bias, WeightLayout::kOutIn));
    }
    // Around -5, where the bias lies, bf16 is too coarse: it would quantise time steps to some percent.
    const Tensor product = linear(x, weight, Tensor(), WeightLayout::kOutIn);
    return at::softplus(product.to(torch::kFloat) + bias.to(torch::kFloat));
  }

  Tensor weight;  // [channels, rank]
  Tensor bias;
};

struct MambaMixer : Layer {
  std::shared_ptr<Linear> in_proj, x_proj, out_proj;
  std::shared_ptr<DepthwiseConv> conv;
  std::shared_ptr<TimeStepProjection> dt_proj;
  Tensor A_log;  // [channels, state]; A = -exp(A_log)
  Tensor D;      // [channels]

  MambaMixer(const spec::Model& spec, const Segment& own, const Sharing& outside, const torch::TensorOptions& options) {
    const std::int64_t inner = spec.expand * spec.hidden;
    const Init normal{Init::Kind::kNormal, spec.init_std}, by_fan_in{Init::Kind::kKaimingUniform};
    A_log = declare("A_log", {.whole = {inner, spec.state_size}, .segments = {own}},
                    logs_of_state_numbers(spec.state_size), options);
    D = declare("D", {.whole = {inner}, .segments = {own}}, constant_value(1.0), options);
    const auto dense = [&](std::int64_t in, std::int64_t out, bool bias, const Init& init, const LinearCut& cut) {
      return std::make_shared<Linear>(in, out, bias, WeightLayout::kOutIn, init, options, cut);
    };
    const LinearCut x_and_gate{.kind = LinearCut::Kind::kOutputs, .segments = {own, {inner + own.first, own.count}}};
    const LinearCut by_inputs{.kind = LinearCut::Kind::kInputs, .segments = {own}, .bias = outside};
    conv = register_module("conv1d", std::make_shared<DepthwiseConv>(inner, spec.conv_kernel, own, options));
    in_proj = register_module("in_proj", dense(spec.hidden, 2 * inner, spec.bias, normal, x_and_gate));
    x_proj =
        register_module("x_proj", dense(inner, spec.dt_rank + 2 * spec.state_size, /*bias=*/false, normal, by_inputs));
    dt_proj = register_module("dt_proj", std::make_shared<TimeStepProjection>(spec.dt_rank, inner, own, options));
    out_proj = register_module("out_proj", dense(inner, spec.hidden, spec.bias, by_fan_in, by_inputs));
  }

  Tensor A() const {
    const auto wide = A_log.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    return A_log.to(wide).exp().neg();
  }
};

struct MambaLayer : torch::nn::Module {
  std::shared_ptr<RmsNorm> norm;
  std::shared_ptr<MambaMixer> mixer;
};

class Mamba : public LanguageModel {
 public:
  Mamba(const spec::Model& model, const BuildOptions& build) : LanguageModel(model, build) {
    auto base = register_module("backbone", std::make_shared<Group>());
    embeddings_ = make_words(*base, "embeddings");
    auto layers = base->register_module("layers", std::make_shared<Group>());
    make_layers(*layers, [&](std::int64_t) { return make_layer(); });
    if (part().head) norm_ = base->register_module("norm_f", make_rms_norm());
    make_head(embeddings_);
  }

  Tensor embed(const Tensor& tokens, const ForwardContext&) override { return embed_words(tokens); }

  int parts_per_layer() const override { return 1; }

  LayerOutput run_layer(std::int64_t index, int, const Tensor& x, const ForwardContext&) override {
    const MambaLayer& layer = layer_at<MambaLayer>(index);
    const Tensor normed = enter_block(layer.norm->forward(x), "tp: mixer input");
    return {leave_block(x, mix(*layer.mixer, normed), *layer.mixer->out_proj, "tp: mixer output")};
  }

  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules() const override { return {embeddings_}; }

 protected:
  Tensor final_norm(const Tensor& x) const override { return norm_->forward(x); }
  std::vector<std::shared_ptr<torch::nn::Module>> final_modules() const override { return {norm_}; }

 private:
  std::shared_ptr<MambaLayer> make_layer() const {
    auto layer = std::make_shared<MambaLayer>();
    const Segment channels = partition().tp_share(spec().expand * spec().hidden);
    layer->norm = layer->register_module("norm", make_rms_norm());
    layer->mixer = layer->register_module(
        "mixer", std::make_shared<MambaMixer>(spec(), channels, outside_blocks(), tensor_options()));
    return layer;
  }

  // [batch, rows, hidden] -> what out_proj reads, [batch, rows, channels].
  Tensor mix(const MambaMixer& mixer, const Tensor& normed) const {
    const auto x_and_gate = mixer.in_proj->forward(normed).chunk(2, -1);
    const Tensor x = convolve(*mixer.conv, x_and_gate[0]);
    const Tensor selected = sum_inside_region(mixer.x_proj->product(x), partition().tp, "tp: mamba x_proj");
    return swiglu(x_and_gate[1], scan(mixer, x, selected));
  }

  Tensor convolve(const DepthwiseConv& conv, const Tensor& x) const {
    const std::int64_t rows = x.size(1), before = spec().conv_kernel - 1;
    if (before == 0) return causal_conv_silu(x, conv.weight, conv.bias);
    const Tensor received = receive_from_previous({x.size(0), before, x.size(2)}, x, partition().cp, "cp: conv rows");
    const Tensor padded = at::cat({received, x}, 1);
    // The last rows of `padded`, not of x: a rank with fewer rows than that passes on what it received.
    const Tensor carrier = send_to_next(padded.narrow(1, rows, before), padded, partition().cp, "cp: conv rows");
    return causal_conv_silu(carrier, conv.weight, conv.bias);
  }

  // selected [batch, rows, dt_rank + 2 state]: low-rank time steps, B and C. As the anchor it keeps backward in one
  // order on all ranks: this scan's state, then the convolution's rows, then the layer before.
  Tensor scan(const MambaMixer& mixer, const Tensor& x, const Tensor& selected) const {
    const std::int64_t state = spec().state_size;
    const auto parts = selected.split_with_sizes({spec().dt_rank, state, state}, -1);
    const Tensor dt = mixer.dt_proj->forward(parts[0]);
    const Tensor initial =
        receive_from_previous({x.size(0), x.size(2), state}, selected, partition().cp, "cp: scan state");
    const ScanResult result = selective_scan(x, dt, mixer.A(), parts[1], parts[2], mixer.D, initial);
    return send_to_next(result.final_state, result.y, partition().cp, "cp: scan state");
  }

  std::shared_ptr<Embedding> embeddings_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace

std::shared_ptr<LanguageModel> make_mamba(const spec::Model& spec, const BuildOptions& options) {
  return std::make_shared<Mamba>(spec, options);
}

}  // namespace lockstep::nn
