#include <c10/cuda/CUDAStream.h>
#include <torch/autograd.h>

#include <array>

#include "lockstep/kernels/cuda/pooling.h"
#include "lockstep/nn/cuda/image_functions.h"
#include "lockstep/nn/image_model.h"

namespace lockstep::nn::cuda {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

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

Tensor squares_of(const Tensor& pixels) {
  const Tensor bytes = pixels.contiguous(kLast);
  const Tensor squares = at::empty({bytes.size(0), 16, bytes.size(2) / 2 + 3, bytes.size(3) / 2 + 3},
                                   bytes.options().dtype(torch::kBFloat16), kLast);
  kernels::cuda::PixelSquares a;
  a.pixels = static_cast<const std::uint8_t*>(bytes.data_ptr());
  a.squares = static_cast<kernels::cuda::Bf16*>(squares.data_ptr());
  a.images = bytes.size(0), a.height = bytes.size(2), a.width = bytes.size(3);
  for (int c = 0; c < 3; ++c) a.mean[c] = kPixelMean[c], a.deviation[c] = kPixelDeviation[c];
  kernels::cuda::pixel_squares(a, c10::cuda::getCurrentCUDAStream().stream());
  return squares;
}

}  // namespace

void search_convolutions() {
  at::globalContext().setBenchmarkCuDNN(true);
  at::globalContext().setBenchmarkLimitCuDNN(0);  // all of them
}

Tensor convolution(const Tensor& x, const Tensor& weight, std::int64_t stride, std::int64_t padding) {
  return Convolution::apply(x, weight, stride, padding);
}

bool takes_pixels(const Tensor& pixels, const Tensor& weight) {
  return pixels.is_cuda() && pixels.scalar_type() == torch::kByte && weight.scalar_type() == torch::kBFloat16 &&
         pixels.size(2) % 2 == 0 && pixels.size(3) % 2 == 0 && weight.size(1) == 3 && weight.size(2) == 7;
}

Tensor pixel_convolution(const Tensor& pixels, const Tensor& weight) {
  // Row u of the kernel meets pixel 2i + u - 3, which is row (u + 1) % 2 of the square i + (u + 1) / 2 - 2.
  const Tensor squares = at::constant_pad_nd(weight, {1, 0, 1, 0})  // [out, colour, 8, 8]
                             .view({weight.size(0), 3, 4, 2, 4, 2})
                             .permute({0, 3, 5, 1, 2, 4})  // [out, row, column, colour, 4, 4]
                             .reshape({weight.size(0), 12, 4, 4});
  return convolution(squares_of(pixels), at::constant_pad_nd(squares, {0, 0, 0, 0, 0, 4}), 1, 0);
}

}  // namespace lockstep::nn::cuda
