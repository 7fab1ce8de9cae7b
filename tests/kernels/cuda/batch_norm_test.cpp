// The kernels of residual networks against the textbook in double.
#include "lockstep/kernels/cuda/batch_norm.h"
#include "lockstep/kernels/cuda/pooling.h"
#include "tests/kernels/cuda/harness.h"

namespace lockstep::kernels::cuda::test {
namespace {

using Values = std::vector<double>;
constexpr double kBf16 = 4e-3;

// One layer's forward and backward over [rows, channels] columns.
struct Norm {
  std::int64_t rows, channels;
  Values x, weight, bias, mean, rstd, variance, y, dx, dweight, dbias;

  Norm(Values input, Values w, Values b, std::int64_t r, std::int64_t c)
      : rows(r),
        channels(c),
        x(std::move(input)),
        weight(std::move(w)),
        bias(std::move(b)),
        mean(c),
        rstd(c),
        variance(c),
        y(r * c),
        dx(r * c),
        dweight(c),
        dbias(c) {
    for (std::int64_t i = 0; i < r * c; ++i) mean[i % c] += x[i] / static_cast<double>(r);
    for (std::int64_t i = 0; i < r * c; ++i)
      variance[i % c] += std::pow(x[i] - mean[i % c], 2) / static_cast<double>(r);
    for (std::int64_t k = 0; k < c; ++k) rstd[k] = 1 / std::sqrt(variance[k] + 1e-5);
    for (std::int64_t i = 0; i < r * c; ++i) y[i] = hat(i) * weight[i % c] + bias[i % c];
  }
  double hat(std::int64_t i) const { return (x[i] - mean[i % channels]) * rstd[i % channels]; }
  void backward(const Values& g) {
    for (std::int64_t i = 0; i < rows * channels; ++i) {
      dbias[i % channels] += g[i];
      dweight[i % channels] += g[i] * hat(i);
    }
    for (std::int64_t i = 0; i < rows * channels; ++i) {
      const std::int64_t c = i % channels;
      const auto n = static_cast<double>(rows);
      dx[i] = weight[c] * rstd[c] * (g[i] - dbias[c] / n - hat(i) * dweight[c] / n);
    }
  }
};

// A layer's arrays on the device, outputs poisoned.
struct OnDevice {
  std::int64_t channels;
  DeviceArray<Bf16> x, weight, bias, dx, dweight, dbias;
  DeviceArray<float> mean, rstd, mean_g, mean_gx, running_mean, running_var, sums;
  DeviceArray<unsigned> tickets;
  DeviceArray<std::int64_t> batches;

  OnDevice(const std::vector<Bf16>& input, const std::vector<Bf16>& w, const std::vector<Bf16>& b, std::int64_t c)
      : channels(c),
        x(input),
        weight(w),
        bias(b),
        dx(static_cast<std::int64_t>(input.size())),
        dweight(c),
        dbias(c),
        mean(c),
        rstd(c),
        mean_g(c),
        mean_gx(c),
        running_mean(std::vector<float>(c, 2.0f)),
        running_var(std::vector<float>(c, 3.0f)),
        sums(batch_norm_scratch_floats(c)),
        tickets(std::vector<unsigned>(batch_norm_tickets(c))),
        batches(std::vector<std::int64_t>{41}) {}
  BatchNormLayer layer() const { return {x.get(), weight.get(), bias.get(), mean.get(), rstd.get()}; }
  BatchNormGradients gradients() const { return {dx.get(), dweight.get(), dbias.get(), mean_g.get(), mean_gx.get()}; }
  BatchNormScratch scratch() const { return {sums.get(), tickets.get()}; }
  void statistics(std::int64_t rows) const {
    batch_norm_statistics(
        {layer(), running_mean.get(), running_var.get(), batches.get(), 0.1f, 1e-5f, rows, channels, scratch()},
        nullptr);
  }
};

void check_statistics(Harness& h, const std::string& name, const OnDevice& d, const Norm& r) {
  h.close(name + " mean", d.mean.host(), r.mean, 1e-5);
  h.close(name + " rstd", d.rstd.host(), r.rstd, 1e-5);
  Values running_mean(r.channels), running_var(r.channels);
  const auto n = static_cast<double>(r.rows);
  for (std::int64_t c = 0; c < r.channels; ++c) {
    running_mean[c] = 0.9 * 2 + 0.1 * r.mean[c];
    running_var[c] = 0.9 * 3 + 0.1 * r.variance[c] * (r.rows > 1 ? n / (n - 1) : 1);
  }
  h.close(name + " running mean", d.running_mean.host(), running_mean, 1e-5);
  h.close(name + " running variance", d.running_var.host(), running_var, 1e-5);
  h.is_true(name + " counts batches", d.batches.host()[0] == 42);
  for (const unsigned ticket : d.tickets.host()) h.is_true(name + " tickets are back", ticket == 0);
}
// `roundings`: of the terms and of their sum; over few rows terms cancel, and what is left has the error of all.
void check_gradients(Harness& h, const std::string& name, const OnDevice& d, const Norm& r, int roundings) {
  h.close(name + " dx", d.dx.host(), r.dx, kBf16 * roundings);
  h.close(name + " dweight", d.dweight.host(), r.dweight, kBf16 * roundings);
  h.close(name + " dbias", d.dbias.host(), r.dbias, kBf16 * roundings);
}

// Whether ReLU passes an element this close to 0 is a matter of rounding: its gradient is taken out.
void settle(std::vector<Bf16>& dy, const Values& before_relu) {
  for (std::size_t i = 0; i < dy.size(); ++i)
    if (std::abs(before_relu[i]) < 1e-4) dy[i] = __float2bfloat16(0.0f);
}

struct Inputs {
  std::vector<Bf16> x, weight, bias;
  Inputs(Harness& h, std::int64_t rows, std::int64_t channels)
      : x(h.normal(rows * channels, 1, 3)), weight(h.normal(channels, 0.3, 1)), bias(h.normal(channels)) {}
  Norm reference(std::int64_t rows, std::int64_t channels) const {
    return {doubles(x), doubles(weight), doubles(bias), rows, channels};
  }
};

void relu_case(Harness& h, std::int64_t rows, std::int64_t channels) {
  const std::string name = "batch_norm " + std::to_string(rows) + "x" + std::to_string(channels);
  const Inputs in(h, rows, channels);
  auto dy = h.normal(rows * channels);
  Norm r = in.reference(rows, channels);
  settle(dy, r.y);
  Values y = r.y, g = doubles(dy);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = std::max(y[i], 0.0), g[i] = y[i] > 0 ? g[i] : 0.0;
  r.backward(g);
  const OnDevice d(in.x, in.weight, in.bias, channels);
  const DeviceArray<Bf16> gy(rows * channels), gdy(dy);
  d.statistics(rows);
  check_statistics(h, name, d, r);
  BatchNormForward f;
  f.layer = d.layer(), f.y = gy.get(), f.rows = rows, f.channels = channels;
  batch_norm_forward(f, nullptr);
  h.close(name + " forward", gy.host(), y, kBf16);
  batch_norm_backward({d.layer(), gdy.get(), d.gradients(), rows, channels, d.scratch()}, nullptr);
  check_gradients(h, name, d, r, 1);
}

// Added as it is (second = false) or normalised; with one or two gradients of the output.
void add_case(Harness& h, std::int64_t rows, std::int64_t channels, bool second, bool two) {
  const std::string name = std::string("batch_norm + ") + (second ? "norm " : "value ") + std::to_string(rows) + "x" +
                           std::to_string(channels);
  const Inputs in(h, rows, channels), other(h, rows, channels);
  auto dy = h.normal(rows * channels), more = h.normal(rows * channels);
  Norm r = in.reference(rows, channels), r2 = other.reference(rows, channels);
  Values y = r.y;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += second ? r2.y[i] : value_of(other.x[i]);
  settle(dy, y);
  settle(more, y);
  Values g = doubles(dy);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = std::max(y[i], 0.0);
    g[i] = y[i] > 0 ? g[i] + (two ? value_of(more[i]) : 0.0) : 0.0;
  }
  r.backward(g);
  r2.backward(g);
  const OnDevice d(in.x, in.weight, in.bias, channels), d2(other.x, other.weight, other.bias, channels);
  const DeviceArray<Bf16> gy(rows * channels), gdy(dy), gmore(more), gg(rows * channels);
  const DeviceArray<std::uint8_t> mask(rows * channels / 8);
  d.statistics(rows);
  if (second) d2.statistics(rows);
  BatchNormForward f;
  f.layer = d.layer(), f.y = gy.get(), f.mask = mask.get(), f.rows = rows, f.channels = channels;
  if (second) f.other = d2.layer();
  if (!second) f.added = d2.x.get();
  batch_norm_forward(f, nullptr);
  h.close(name + " forward", gy.host(), y, kBf16);
  BatchNormAddBackward b;
  b.layer = d.layer(), b.dy = gdy.get(), b.mask = mask.get(), b.g = gg.get(), b.gradients = d.gradients();
  if (two) b.more = gmore.get();
  if (second) b.other = d2.layer(), b.other_gradients = d2.gradients();
  b.rows = rows, b.channels = channels, b.scratch = d.scratch();
  batch_norm_add_backward(b, nullptr);
  h.close(name + " gradient of the sum", gg.host(), g, kBf16);
  check_gradients(h, name, d, r, two ? 2 : 1);
  if (second) check_gradients(h, name + " second", d2, r2, two ? 2 : 1);
}

// A block whose output is read by a convolution of stride 2 as well: that reads every other pixel in both directions.
void even_case(Harness& h, std::int64_t images, std::int64_t side, std::int64_t channels, bool second) {
  const std::string name = std::string("batch_norm, even pixels") + (second ? ", second norm" : "");
  const std::int64_t rows = images * side * side, count = rows * channels, half = side / 2;
  const Inputs in(h, rows, channels), other(h, rows, channels);
  const auto dy = h.normal(count), more = h.normal(count / 4);
  Norm r = in.reference(rows, channels), r2 = other.reference(rows, channels);
  Values y = r.y, picked(count / 4), g(count);
  for (std::int64_t i = 0; i < count; ++i) y[i] += second ? r2.y[i] : value_of(other.x[i]);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t column = i / channels % side, row = i / channels / side % side,
                       image = i / channels / side / side;
    y[i] = std::max(y[i], 0.0);
    const bool even = row % 2 == 0 && column % 2 == 0;
    const std::int64_t to = ((image * half + row / 2) * half + column / 2) * channels + i % channels;
    if (even) picked[to] = y[i];
    g[i] = y[i] > 0 ? value_of(dy[i]) + (even ? value_of(more[to]) : 0.0) : 0.0;
  }
  const OnDevice d(in.x, in.weight, in.bias, channels), d2(other.x, other.weight, other.bias, channels);
  const DeviceArray<Bf16> gy(count), geven(count / 4), gdy(dy), gmore(more), gg(count);
  const DeviceArray<std::uint8_t> mask(count / 8);
  d.statistics(rows);
  d2.statistics(rows);
  BatchNormForward f;
  f.layer = d.layer(), f.y = gy.get(), f.mask = mask.get(), f.even = geven.get(), f.width = side;
  f.rows = rows, f.channels = channels;
  if (second) f.other = d2.layer();
  if (!second) f.added = d2.x.get();
  batch_norm_forward(f, nullptr);
  h.close(name + " forward", gy.host(), y, kBf16);
  h.close(name + " copy", geven.host(), picked, kBf16);
  BatchNormAddBackward b;
  b.layer = d.layer(), b.dy = gdy.get(), b.more = gmore.get(), b.more_is_even = true, b.width = side;
  b.mask = mask.get(), b.g = gg.get(), b.gradients = d.gradients();
  if (second) b.other = d2.layer(), b.other_gradients = d2.gradients();
  b.rows = rows, b.channels = channels, b.scratch = d.scratch();
  batch_norm_add_backward(b, nullptr);
  h.close(name + " gradient of the sum", gg.host(), g, 0.03, 1.1);  // an element on ReLU's edge may go either way
}

// The order in which pixels lie: row by row, or by squares of 2x2.
template <class T>
std::vector<T> by_squares(const std::vector<T>& rows, std::int64_t side, std::int64_t channels) {
  std::vector<T> out(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t column = at / channels % side, row = at / channels / side % side;
    const std::int64_t square = (at / channels / side / side * (side / 2) + row / 2) * (side / 2) + column / 2;
    out[(square * 4 + row % 2 * 2 + column % 2) * channels + at % channels] = rows[i];
  }
  return out;
}

void pool_case(Harness& h, std::int64_t images, std::int64_t side, std::int64_t channels, bool squares) {
  const std::string name =
      "pooled batch_norm " + std::to_string(images) + "x" + std::to_string(side) + "x" + std::to_string(channels);
  const std::int64_t rows = images * side * side, pooled = pooled_side(side), outputs = images * pooled * pooled;
  const Inputs in(h, rows, channels);
  auto dy = h.normal(outputs * channels);
  Norm r = in.reference(rows, channels);
  Values y(outputs * channels), g(rows * channels);
  for (std::int64_t o = 0; o < outputs * channels; ++o) {
    const std::int64_t c = o % channels, ow = o / channels % pooled, oh = o / channels / pooled % pooled;
    std::int64_t best = -1;
    for (std::int64_t k = 0; k < 9; ++k) {
      const std::int64_t row = 2 * oh + k / 3 - 1, column = 2 * ow + k % 3 - 1;
      if (row < 0 || row >= side || column < 0 || column >= side) continue;
      const std::int64_t at = ((o / channels / pooled / pooled * side + row) * side + column) * channels + c;
      if (best < 0 || r.y[at] > r.y[best]) best = at;
    }
    if (std::abs(r.y[best]) < 1e-4) dy[o] = __float2bfloat16(0.0f);  // see settle()
    y[o] = std::max(r.y[best], 0.0);
    if (y[o] > 0) g[best] += value_of(dy[o]);
  }
  r.backward(g);
  if (squares) r.dx = by_squares(r.dx, side, channels);
  const OnDevice d(squares ? by_squares(in.x, side, channels) : in.x, in.weight, in.bias, channels);
  const DeviceArray<Bf16> gy(outputs * channels), chosen(outputs * channels), gdy(dy);
  const DeviceArray<std::uint8_t> where(outputs * channels);
  d.statistics(rows);
  pooled_norm_forward({d.layer(), gy.get(), chosen.get(), where.get(), images, side, side, channels, squares}, nullptr);
  h.close(name + " forward", gy.host(), y, kBf16);
  pooled_norm_backward({d.layer(), gdy.get(), chosen.get(), where.get(), d.gradients(), images, side, side, channels,
                        squares, d.scratch()},
                       nullptr);
  check_gradients(h, name, d, r, 1);
}

void pixels_case(Harness& h, std::int64_t images, std::int64_t side) {
  std::vector<std::uint8_t> pixels;
  for (const std::int32_t v : h.integers(images * side * side * 3, 0, 255)) {
    pixels.push_back(static_cast<std::uint8_t>(v));
  }
  const std::int64_t places = side / 4;
  PixelSquares a{nullptr, nullptr, {0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}, images, side, side};
  Values expected(pixels.size());
  for (std::int64_t i = 0; i < images * side * side * 3; ++i) {
    const std::int64_t k = i % 48, column = i / 48 % places * 4 + k / 3 % 4;
    const std::int64_t row = i / 48 / places % places * 4 + k / 12, image = i / 48 / places / places;
    const double pixel = pixels[((image * side + row) * side + column) * 3 + k % 3];
    expected[i] = (pixel / 255 - a.mean[k % 3]) / a.deviation[k % 3];
  }
  const DeviceArray<std::uint8_t> in(pixels);
  const DeviceArray<Bf16> out(static_cast<std::int64_t>(expected.size()));
  a.pixels = in.get(), a.squares = out.get();
  pixel_squares(a, nullptr);
  h.close("pixel_squares", out.host(), expected, kBf16);
}

// The convolution by squares is the 7x7 one: both written out, on one image.
void square_weights_case(Harness& h, std::int64_t out) {
  constexpr std::int64_t kSide = 12, kResults = kSide / 2, kPlaces = kSide / 4;
  const auto weight = h.normal(out * 147), image = h.normal(kSide * kSide * 3);
  const DeviceArray<Bf16> gweight(weight), squares(out * 4 * 9 * 48), back(out * 147);
  square_weights(gweight.get(), squares.get(), out, nullptr);
  square_weights_backward(squares.get(), back.get(), out, nullptr);
  const Values w = doubles(weight), x = doubles(image), s = doubles(squares.host());
  const auto pixel = [&](std::int64_t row, std::int64_t column, std::int64_t colour) {
    const bool inside = row >= 0 && row < kSide && column >= 0 && column < kSide;
    return inside ? x[(row * kSide + column) * 3 + colour] : 0.0;
  };
  Values plain(kResults * kResults * out), by_squares(plain.size());
  for (std::int64_t i = 0; i < kResults * kResults * out; ++i) {
    const std::int64_t o = i % out, column = i / out % kResults, row = i / out / kResults;
    for (std::int64_t k = 0; k < 147; ++k) {
      const std::int64_t c = k / 49, u = k / 7 % 7, v = k % 7;
      plain[i] += w[o * 147 + k] * pixel(2 * row + u - 3, 2 * column + v - 3, c);
    }
    const std::int64_t filter = (row % 2 * 2 + column % 2) * out + o;
    for (std::int64_t k = 0; k < 9 * 48; ++k) {
      const std::int64_t place = k / 48, channel = k % 48;
      const std::int64_t r = (row / 2 + place / 3 - 1) * 4 + channel / 12;
      const std::int64_t c = (column / 2 + place % 3 - 1) * 4 + channel / 3 % 4;
      by_squares[i] += s[filter * 9 * 48 + k] * pixel(r, c, channel % 3);
    }
  }
  h.is_true("a result of 6x6 squares", plain.size() == static_cast<std::size_t>(4 * kPlaces * kPlaces * out));
  h.close("square_weights", by_squares, plain, 1e-9);
  Values four = w;  // every weight stands in four filters
  for (double& v : four) v *= 4;
  h.close("square_weights gradient", back.host(), four, 1e-9);
}

void average_case(Harness& h, std::int64_t images, std::int64_t places, std::int64_t channels) {
  const auto x = h.normal(images * places * channels), dy = h.normal(images * channels);
  Values y(images * channels), dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t out = i / channels / places * channels + i % channels;
    y[out] += value_of(x[i]) / static_cast<double>(places);
    dx[i] = value_of(dy[out]) / static_cast<double>(places);
  }
  const DeviceArray<Bf16> gx(x), gdy(dy), gy(images * channels), gdx(static_cast<std::int64_t>(x.size()));
  average_places(gx.get(), gy.get(), images, places, channels, nullptr);
  average_places_backward(gdy.get(), gdx.get(), images, places, channels, nullptr);
  h.close("average_places", gy.host(), y, kBf16);
  h.close("average_places gradient", gdx.host(), dx, kBf16);
}

}  // namespace

void test_batch_norm(Harness& h) {
  // With two rows dx is 0 but for rounding: nothing that could be compared.
  for (const auto& [rows, channels] :
       {std::pair<int, int>{9, 8}, {7, 40}, {130, 64}, {5000, 72}, {3001, 256}, {300, 2048}}) {
    relu_case(h, rows, channels);
    add_case(h, rows, channels, false, false);
    add_case(h, rows, channels, true, true);
  }
  add_case(h, 33'000, 64, false, true);
  add_case(h, 500, 512, true, false);
  even_case(h, 3, 8, 72, false);
  even_case(h, 2, 12, 128, true);
  for (const auto& [images, side, channels] : {std::tuple<int, int, int>{1, 2, 8}, {2, 7, 24}, {3, 20, 64}})
    pool_case(h, images, side, channels, side % 2 == 0);
  pool_case(h, 2, 10, 16, false);
  pixels_case(h, 2, 12);
  square_weights_case(h, 5);
  average_case(h, 3, 49, 2048);
  average_case(h, 1, 1, 8);
}

}  // namespace lockstep::kernels::cuda::test
