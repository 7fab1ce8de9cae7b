#include <c10/cuda/CUDAStream.h>

#include <array>

#include "lockstep/kernels/cuda/pooling.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/cuda/image_functions.h"
#include "lockstep/nn/image_model.h"

namespace lockstep::nn::cuda {
namespace {

using torch::autograd::Function;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

kernels::cuda::Bf16* values(const Tensor& t) { return static_cast<kernels::cuda::Bf16*>(t.data_ptr()); }
cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

// [pixels, channels] of a channels-last image tensor, and back.
Tensor pixels_of(const Tensor& x) { return x.permute({0, 2, 3, 1}).reshape({-1, x.size(1)}); }
Tensor image_of(const Tensor& pixels, const Tensor& like) {
  return pixels.view({like.size(0), like.size(2), like.size(3), pixels.size(1)}).permute({0, 3, 1, 2});
}

// A convolution of 1x1 is one product of matrices; cuBLAS is a little faster at it than cuDNN, above all backward.
struct PixelProduct : Function<PixelProduct> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight) {
    const Tensor x = input.contiguous(kLast);
    context->save_for_backward({x, weight});
    return image_of(at::mm(pixels_of(x), weight.flatten(1).t()), x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], dy = gradients[0].contiguous(kLast);
    const Tensor dpixels = pixels_of(dy);
    return {image_of(at::mm(dpixels, weight.flatten(1)), x), at::mm(dpixels.t(), pixels_of(x)).view(weight.sizes())};
  }
};

// cuDNN's, with input, weight and gradients channels last. The weight is reordered once and kept for backward; weights
// of 1x1 are in both orders at once.
struct Convolution : Function<Convolution> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, std::int64_t stride,
                        std::int64_t padding) {
    const Tensor x = input.contiguous(kLast), w = weight.contiguous(kLast);
    context->save_for_backward({x, w});
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->saved_data["input"] = input.requires_grad();
    return at::convolution(x, w, {}, {stride, stride}, {padding, padding}, {1, 1}, false, {0, 0}, 1);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const std::int64_t stride = context->saved_data["stride"].toInt(), padding = context->saved_data["padding"].toInt();
    const Tensor dy = gradients[0].contiguous(kLast);
    const auto [dx, dweight, none] = at::convolution_backward(
        dy, saved[0], saved[1], c10::nullopt, {stride, stride}, {padding, padding}, {1, 1}, false, {0, 0}, 1,
        std::array<bool, 3>{context->saved_data["input"].toBool(), true, false});
    return {dx, dweight, Tensor(), Tensor()};
  }
};

// The first convolution by squares of pixels (kernels/cuda/pooling.h): its weight and the gradient back.
struct SquareWeights : Function<SquareWeights> {
  static Tensor forward(AutogradContext*, const Tensor& weight) {
    const Tensor w = weight.contiguous();
    const Tensor squares = at::empty({4 * w.size(0), 48, 3, 3}, w.options(), kLast);
    kernels::cuda::square_weights(values(w), values(squares), w.size(0), stream());
    return squares;
  }

  static variable_list backward(AutogradContext*, variable_list gradients) {
    const Tensor dsquares = gradients[0].contiguous(kLast);
    const Tensor dweight = at::empty({dsquares.size(0) / 4, 3, 7, 7}, dsquares.options());
    kernels::cuda::square_weights_backward(values(dsquares), values(dweight), dweight.size(0), stream());
    return {dweight};
  }
};

Tensor squares_of(const Tensor& pixels) {
  const Tensor bytes = pixels.contiguous(kLast);
  const Tensor squares = at::empty({bytes.size(0), 48, bytes.size(2) / 4, bytes.size(3) / 4},
                                   bytes.options().dtype(torch::kBFloat16), kLast);
  kernels::cuda::PixelSquares a;
  a.pixels = static_cast<const std::uint8_t*>(bytes.data_ptr());
  a.squares = values(squares);
  a.images = bytes.size(0), a.height = bytes.size(2), a.width = bytes.size(3);
  for (int c = 0; c < 3; ++c) a.mean[c] = kPixelMean[c], a.deviation[c] = kPixelDeviation[c];
  kernels::cuda::pixel_squares(a, stream());
  return squares;
}

}  // namespace

void search_convolutions() { at::globalContext().setBenchmarkCuDNN(true); }

Tensor convolution(const Tensor& x, const Tensor& weight, std::int64_t stride, std::int64_t padding) {
  const bool product = weight.size(2) == 1 && weight.size(3) == 1 && stride == 1 && padding == 0;
  return product ? PixelProduct::apply(x, weight) : Convolution::apply(x, weight, stride, padding);
}

bool takes_pixels(const Tensor& pixels, const Tensor& weight) {
  return pixels.is_cuda() && pixels.scalar_type() == torch::kByte && weight.scalar_type() == torch::kBFloat16 &&
         pixels.size(2) % 4 == 0 && pixels.size(3) % 4 == 0 && weight.size(1) == 3 && weight.size(2) == 7;
}

Tensor pixel_convolution(const Tensor& pixels, const Tensor& weight) {
  return convolution(squares_of(pixels), SquareWeights::apply(weight), 1, 1);
}

}  // namespace lockstep::nn::cuda
