// A convolution keeps its input; batch norm keeps its input (the convolution's output); ReLU works in place and its
// output is the next convolution's input, so it keeps nothing more.
#include <utility>

#include "lockstep/base/error.h"

#include <cmath>
#include "lockstep/cost/operators.h"

namespace lockstep::cost {
namespace {

// A walk through a network of convolutions: remembers the shape of the activation between the layers.
class ImageNetwork {
 public:
  ImageNetwork(std::int64_t samples, std::int64_t channels, std::int64_t size)
      : samples_(samples), channels_(channels), size_(size) {}

  std::int64_t channels() const { return channels_; }
  std::int64_t size() const { return size_; }
  std::int64_t elements() const { return samples_ * channels_ * size_ * size_; }  // [samples, channels, size, size]
  std::vector<Operator> take() { return std::move(list_); }

  void convolution(const char* name, std::int64_t out, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
    Operator op = convolution_of(name, channels_, size_, out, kernel, stride, padding);
    op.needs_input_gradient = !list_.empty();
    list_.push_back(op);
    size_ = output_size(size_, kernel, stride, padding);
    channels_ = out;
    LOCKSTEP_ASSERT(size_ > 0, "image smaller than the network's kernels");
  }

  // The projection beside a residual block; leaves the walk where it is.
  void shortcut(std::int64_t in, std::int64_t in_size, std::int64_t stride) {
    list_.push_back(convolution_of("shortcut", in, in_size, channels_, 1, stride, 0));
    apply("shortcut_norm", PointwiseKernel::kBatchNorm, elements());
  }

  void apply(const char* name, PointwiseKernel kernel, std::int64_t saved = 0) {
    list_.push_back(pointwise(name, kernel, 1, elements(), saved));
  }

  void pool(const char* name, PointwiseKernel kernel, std::int64_t window, std::int64_t stride, std::int64_t padding) {
    // The input, and for the maximum an index per output (eight bytes each: two elements of fp32).
    const std::int64_t input = elements();
    size_ = output_size(size_, window, stride, padding);
    LOCKSTEP_ASSERT(size_ > 0, "image smaller than the network's kernels");
    apply(name, kernel, kernel == PointwiseKernel::kMaxPool ? input + 2 * elements() : 0);
  }

  void linear(const char* name, std::int64_t out) {
    const std::int64_t in = channels_ * size_ * size_;
    list_.push_back(matmul(name, 1, samples_, out, in, samples_ * in));
    channels_ = out;
    size_ = 1;
  }

 private:
  static std::int64_t output_size(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
    return (size + 2 * padding - kernel) / stride + 1;
  }

  Operator convolution_of(const char* name, std::int64_t in, std::int64_t in_size, std::int64_t out,
                          std::int64_t kernel, std::int64_t stride, std::int64_t padding) const {
    const std::int64_t out_size = output_size(in_size, kernel, stride, padding);
    Operator op =
        matmul(name, 1, samples_ * out_size * out_size, out, in * kernel * kernel, samples_ * in * in_size * in_size);
    op.kind = OperatorKind::kConvolution;
    op.samples = samples_;
    op.channels = in;
    op.size = in_size;
    op.kernel_size = kernel;
    op.stride = stride;
    op.padding = padding;
    return op;
  }

  std::int64_t samples_;
  std::int64_t channels_;
  std::int64_t size_;
  std::vector<Operator> list_;
};

void append_residual_block(ImageNetwork& network, std::int64_t width, std::int64_t stride, bool bottleneck) {
  const std::int64_t in = network.channels();
  const std::int64_t in_size = network.size();
  const std::int64_t out = bottleneck ? 4 * width : width;
  const auto norm = [&] { network.apply("norm", PointwiseKernel::kBatchNorm, network.elements()); };
  if (bottleneck) {
    network.convolution("conv1", width, 1, 1, 0);
    norm();
    network.apply("relu", PointwiseKernel::kRelu);
    network.convolution("conv2", width, 3, stride, 1);
    norm();
    network.apply("relu", PointwiseKernel::kRelu);
    network.convolution("conv3", out, 1, 1, 0);
  } else {
    network.convolution("conv1", width, 3, stride, 1);
    norm();
    network.apply("relu", PointwiseKernel::kRelu);
    network.convolution("conv2", width, 3, 1, 1);
  }
  norm();
  if (stride != 1 || in != out) network.shortcut(in, in_size, stride);
  network.apply("residual_add", PointwiseKernel::kAdd);
  network.apply("relu", PointwiseKernel::kRelu);
}

}  // namespace

// He et al. 2016, "Deep Residual Learning", table 1; the stride of a bottleneck is in its 3x3 convolution
// (torchvision).
std::vector<Operator> script_operators(const spec::Model& model, std::int64_t samples) {
  const spec::ScriptFacts& facts = model.script.facts;
  std::vector<Operator> list;
  for (const spec::ScriptProduct& product : facts.products) {
    list.push_back(matmul("product", product.count, product.m * samples, product.n, product.k, 0));
  }
  double saved_bytes = 0;
  for (const spec::ScriptUnit& unit : facts.units) saved_bytes += unit.saved_bytes;
  const double each = static_cast<double>(samples);
  list.push_back(pointwise("rest", PointwiseKernel::kAdd, 1, std::llround(facts.pointwise_elements * each),
                           std::llround(saved_bytes / sizeof(float) * each)));
  return list;
}

std::vector<Operator> resnet_operators(const spec::Model& model, std::int64_t samples) {
  ImageNetwork network(samples, model.image_channels, model.image_size);
  network.convolution("stem", 64, 7, 2, 3);
  network.apply("norm", PointwiseKernel::kBatchNorm, network.elements());
  network.apply("relu", PointwiseKernel::kRelu);
  network.pool("max_pool", PointwiseKernel::kMaxPool, 3, 2, 1);
  std::int64_t width = 64;
  bool first_stage = true;
  for (const std::int64_t blocks : model.stage_blocks) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const bool halves = block == 0 && !first_stage;
      append_residual_block(network, width, halves ? 2 : 1, model.bottleneck);
    }
    first_stage = false;
    width *= 2;
  }
  network.pool("average_pool", PointwiseKernel::kAveragePool, network.size(), 1, 0);
  network.linear("classifier", model.classes);
  network.apply("cross_entropy", PointwiseKernel::kCrossEntropy);
  return network.take();
}

// The two small networks of specs/models, layer by layer as lockstep/nn builds them.
std::vector<Operator> cnn_operators(const spec::Model& model, std::int64_t samples) {
  ImageNetwork network(samples, model.image_channels, model.image_size);
  if (model.arch == spec::Arch::kMnistCnn) {
    for (const std::int64_t width : {32, 64}) {
      network.convolution("conv", width, 3, 1, 0);
      network.apply("relu", PointwiseKernel::kRelu);
    }
    network.pool("max_pool", PointwiseKernel::kMaxPool, 2, 2, 0);
    network.linear("hidden", 128);
    network.apply("relu", PointwiseKernel::kRelu);
  } else {
    bool pools = false;
    for (const std::int64_t width : {64, 128, 256, 256}) {
      network.convolution("conv", width, 3, 1, 1);
      network.apply("norm", PointwiseKernel::kBatchNorm, network.elements());
      network.apply("relu", PointwiseKernel::kRelu);
      if (pools) network.pool("max_pool", PointwiseKernel::kMaxPool, 2, 2, 0);
      pools = !pools;
    }
    network.pool("average_pool", PointwiseKernel::kAveragePool, network.size(), 1, 0);
  }
  network.linear("classifier", model.classes);
  network.apply("cross_entropy", PointwiseKernel::kCrossEntropy);
  return network.take();
}

}  // namespace lockstep::cost
