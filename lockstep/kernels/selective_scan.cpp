#include "lockstep/kernels/selective_scan.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

// Channels side by side in vector registers. States of a tile are [state, kTile], so that no step needs a sum across
// lanes but those of the gradients of b and c.
constexpr std::int64_t kTile = 16;

// Channels [first, first + width) of one sample; lanes from `width` on are zero.
struct Tile {
  std::int64_t sample;
  std::int64_t first;
  std::int64_t width;
};

template <typename T>
LOCKSTEP_INLINE void load_row(const T* row, std::int64_t width, T* lanes) {
  for (std::int64_t l = 0; l < width; ++l) lanes[l] = row[l];
  for (std::int64_t l = width; l < kTile; ++l) lanes[l] = 0;
}

template <typename T>
LOCKSTEP_INLINE void store_row(const T* lanes, std::int64_t width, T* row) {
  for (std::int64_t l = 0; l < width; ++l) row[l] = lanes[l];
}

// [channels, state] in memory, [state, kTile] in the tile.
template <typename T>
LOCKSTEP_INLINE void load_states(const T* memory, std::int64_t width, std::int64_t state, T* lanes) {
  for (std::int64_t n = 0; n < state; ++n) {
    for (std::int64_t l = 0; l < kTile; ++l) lanes[n * kTile + l] = l < width ? memory[l * state + n] : T(0);
  }
}

template <typename T>
LOCKSTEP_INLINE void store_states(const T* lanes, std::int64_t width, std::int64_t state, T* memory) {
  for (std::int64_t l = 0; l < width; ++l) {
    for (std::int64_t n = 0; n < state; ++n) memory[l * state + n] = lanes[n * kTile + l];
  }
}

template <typename T>
LOCKSTEP_INLINE void forward_tile(const ScanShape& s, const ScanInput<T>& in, const T* initial_state,
                                  const ScanOutput<T>& out, const Tile& tile, T* scratch) {
  const std::int64_t size = s.state * kTile;
  T* __restrict a = scratch;
  T* __restrict h = scratch + size;
  const std::int64_t per_sample = s.channels * s.state;
  load_states(in.a + tile.first * s.state, tile.width, s.state, a);
  load_states(initial_state + tile.sample * per_sample + tile.first * s.state, tile.width, s.state, h);
  T x[kTile], dt[kTile], u[kTile], y[kTile], d[kTile];
  load_row(in.d + tile.first, tile.width, d);
  for (std::int64_t t = 0; t < s.seq; ++t) {
    if (t % kScanChunk == 0) {
      const std::int64_t chunk = tile.sample * s.chunks() + t / kScanChunk;
      store_states(h, tile.width, s.state, out.checkpoints + chunk * per_sample + tile.first * s.state);
    }
    const std::int64_t step = tile.sample * s.seq + t;
    load_row(in.x + step * s.channels + tile.first, tile.width, x);
    load_row(in.dt + step * s.channels + tile.first, tile.width, dt);
    for (std::int64_t l = 0; l < kTile; ++l) {
      u[l] = dt[l] * x[l];
      y[l] = d[l] * x[l];
    }
    for (std::int64_t n = 0; n < s.state; ++n) {
      const T b = in.b[step * s.state + n], c = in.c[step * s.state + n];
#pragma omp simd
      for (std::int64_t l = 0; l < kTile; ++l) {
        const T value = vexp(dt[l] * a[n * kTile + l]) * h[n * kTile + l] + u[l] * b;
        h[n * kTile + l] = value;
        y[l] += c * value;
      }
    }
    store_row(y, tile.width, out.y + step * s.channels + tile.first);
  }
  store_states(h, tile.width, s.state, out.final_state + tile.sample * per_sample + tile.first * s.state);
}

// What backward holds of one tile: tensors [state, kTile], and of the chunk at hand [steps, state, kTile].
template <typename T>
struct BackwardTile {
  T* a;
  T* da;
  T* g;       // exp(dt_{t+1} a) times the gradient of h_{t+1}
  T* h;       // states before each step of the chunk, and after its last
  T* factor;  // exp(dt_t a)

  static std::int64_t elements(std::int64_t state) { return (4 + 2 * kScanChunk) * state * kTile; }
  LOCKSTEP_INLINE BackwardTile(T* scratch, std::int64_t size)
      : a(scratch), da(a + size), g(da + size), h(g + size), factor(h + (kScanChunk + 1) * size) {}
};

template <typename T>
LOCKSTEP_INLINE void run_chunk_again(const ScanShape& s, const ScanInput<T>& in, const Tile& tile, std::int64_t first,
                                     std::int64_t steps, const BackwardTile<T>& work) {
  const std::int64_t size = s.state * kTile;
  T x[kTile], dt[kTile], u[kTile];
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t step = tile.sample * s.seq + first + i;
    load_row(in.x + step * s.channels + tile.first, tile.width, x);
    load_row(in.dt + step * s.channels + tile.first, tile.width, dt);
    for (std::int64_t l = 0; l < kTile; ++l) u[l] = dt[l] * x[l];
    const T* __restrict a = work.a;
    const T* __restrict before = work.h + i * size;
    T* __restrict after = work.h + (i + 1) * size;
    T* __restrict factor = work.factor + i * size;
    for (std::int64_t n = 0; n < s.state; ++n) {
      const T b = in.b[step * s.state + n];
#pragma omp simd
      for (std::int64_t l = 0; l < kTile; ++l) {
        const T e = vexp(dt[l] * a[n * kTile + l]);
        factor[n * kTile + l] = e;
        after[n * kTile + l] = e * before[n * kTile + l] + u[l] * b;
      }
    }
  }
}

// One step of one state number n: adds to the gradients of u = dt x and of dt (through exp(dt a)), to da, g, b and c.
template <typename T>
LOCKSTEP_INLINE void step_back(const T* __restrict dy, const T* __restrict u, const T* __restrict dt, T b, T c,
                               const T* __restrict a, const T* __restrict before, const T* __restrict after,
                               const T* __restrict factor, T* __restrict g, T* __restrict da, T* __restrict du,
                               T* __restrict ddt, T* db, T* dc) {
  T sum_b = 0, sum_c = 0;
#pragma omp simd reduction(+ : sum_b, sum_c)
  for (std::int64_t l = 0; l < kTile; ++l) {
    const T dh = g[l] + c * dy[l];
    const T carried = dh * factor[l];
    const T dexponent = carried * before[l];
    sum_c += dy[l] * after[l];
    sum_b += dh * u[l];
    du[l] += dh * b;
    ddt[l] += dexponent * a[l];
    da[l] += dexponent * dt[l];
    g[l] = carried;
  }
  *db += sum_b;
  *dc += sum_c;
}

template <typename T>
LOCKSTEP_INLINE void chunk_back(const ScanShape& s, const ScanInput<T>& in, const T* dy_rows,
                                const ScanGradient<T>& gradient, const Tile& tile, std::int64_t first,
                                std::int64_t steps, const BackwardTile<T>& work, const T* d, T* dd) {
  const std::int64_t size = s.state * kTile;
  const std::int64_t group = tile.first / kScanGroupChannels;
  T* db = gradient.b + group * s.batch * s.seq * s.state;
  T* dc = gradient.c + group * s.batch * s.seq * s.state;
  T x[kTile], dt[kTile], dy[kTile], u[kTile], du[kTile], ddt[kTile];
  for (std::int64_t i = steps - 1; i >= 0; --i) {
    const std::int64_t step = tile.sample * s.seq + first + i;
    const std::int64_t row = step * s.channels + tile.first;
    load_row(in.x + row, tile.width, x);
    load_row(in.dt + row, tile.width, dt);
    load_row(dy_rows + row, tile.width, dy);
    for (std::int64_t l = 0; l < kTile; ++l) {
      u[l] = dt[l] * x[l];
      du[l] = ddt[l] = 0;
    }
    for (std::int64_t n = 0; n < s.state; ++n) {
      const std::int64_t at = n * kTile, in_step = step * s.state + n;
      step_back(dy, u, dt, in.b[in_step], in.c[in_step], work.a + at, work.h + i * size + at,
                work.h + (i + 1) * size + at, work.factor + i * size + at, work.g + at, work.da + at, du, ddt,
                db + in_step, dc + in_step);
    }
    for (std::int64_t l = 0; l < kTile; ++l) {
      dd[l] += dy[l] * x[l];
      ddt[l] += du[l] * x[l];
      du[l] = du[l] * dt[l] + d[l] * dy[l];
    }
    store_row(du, tile.width, gradient.x + row);
    store_row(ddt, tile.width, gradient.dt + row);
  }
}

template <typename T>
LOCKSTEP_INLINE void backward_tile(const ScanShape& s, const ScanInput<T>& in, const T* checkpoints, const T* dy,
                                   const T* dfinal_state, const ScanGradient<T>& gradient, const Tile& tile,
                                   T* scratch) {
  const std::int64_t size = s.state * kTile;
  const BackwardTile<T> work(scratch, size);
  const std::int64_t per_sample = s.channels * s.state;
  const std::int64_t place = tile.sample * per_sample + tile.first * s.state;
  load_states(in.a + tile.first * s.state, tile.width, s.state, work.a);
  load_states(dfinal_state + place, tile.width, s.state, work.g);
  std::fill(work.da, work.da + size, T(0));
  T d[kTile], dd[kTile] = {};
  load_row(in.d + tile.first, tile.width, d);
  for (std::int64_t chunk = s.chunks() - 1; chunk >= 0; --chunk) {
    const std::int64_t first = chunk * kScanChunk;
    const std::int64_t steps = s.seq - first < kScanChunk ? s.seq - first : kScanChunk;
    const std::int64_t kept = (tile.sample * s.chunks() + chunk) * per_sample + tile.first * s.state;
    load_states(checkpoints + kept, tile.width, s.state, work.h);
    run_chunk_again(s, in, tile, first, steps, work);
    chunk_back(s, in, dy, gradient, tile, first, steps, work, d, dd);
  }
  store_states(work.da, tile.width, s.state, gradient.a + place);
  store_states(work.g, tile.width, s.state, gradient.initial_state + place);
  store_row(dd, tile.width, gradient.d + tile.sample * s.channels + tile.first);
}

LOCKSTEP_MULTIVERSION void scan_tile(const ScanShape& s, const ScanInput<float>& in, const float* initial_state,
                                     const ScanOutput<float>& out, const Tile& tile, float* scratch) {
  forward_tile(s, in, initial_state, out, tile, scratch);
}

LOCKSTEP_MULTIVERSION void scan_tile(const ScanShape& s, const ScanInput<double>& in, const double* initial_state,
                                     const ScanOutput<double>& out, const Tile& tile, double* scratch) {
  forward_tile(s, in, initial_state, out, tile, scratch);
}

LOCKSTEP_MULTIVERSION void scan_tile_back(const ScanShape& s, const ScanInput<float>& in, const float* checkpoints,
                                          const float* dy, const float* dfinal_state,
                                          const ScanGradient<float>& gradient, const Tile& tile, float* scratch) {
  backward_tile(s, in, checkpoints, dy, dfinal_state, gradient, tile, scratch);
}

LOCKSTEP_MULTIVERSION void scan_tile_back(const ScanShape& s, const ScanInput<double>& in, const double* checkpoints,
                                          const double* dy, const double* dfinal_state,
                                          const ScanGradient<double>& gradient, const Tile& tile, double* scratch) {
  backward_tile(s, in, checkpoints, dy, dfinal_state, gradient, tile, scratch);
}

// Calls body(tile, scratch) for every tile. Tiles of one sample and group run one after the other, in order.
template <typename T, typename Body>
void for_tiles(const ScanShape& shape, std::int64_t scratch_elements, const Body& body) {
  parallel_blocks(shape.batch * shape.groups(), [&](std::int64_t block) {
    std::vector<T> scratch(static_cast<std::size_t>(scratch_elements));
    const std::int64_t sample = block / shape.groups();
    const std::int64_t begin = block % shape.groups() * kScanGroupChannels;
    const std::int64_t end = std::min(shape.channels, begin + kScanGroupChannels);
    for (std::int64_t first = begin; first < end; first += kTile) {
      body(Tile{sample, first, std::min(kTile, end - first)}, scratch.data());
    }
  });
}

template <typename T>
void forward(const ScanShape& shape, const ScanInput<T>& in, const T* initial_state, const ScanOutput<T>& out) {
  for_tiles<T>(shape, 2 * shape.state * kTile,
               [&](const Tile& tile, T* scratch) { scan_tile(shape, in, initial_state, out, tile, scratch); });
}

template <typename T>
void backward(const ScanShape& shape, const ScanInput<T>& in, const T* checkpoints, const T* dy, const T* dfinal_state,
              const ScanGradient<T>& gradient) {
  for_tiles<T>(shape, BackwardTile<T>::elements(shape.state), [&](const Tile& tile, T* scratch) {
    scan_tile_back(shape, in, checkpoints, dy, dfinal_state, gradient, tile, scratch);
  });
}

}  // namespace

void selective_scan_forward(const ScanShape& shape, const ScanInput<float>& in, const float* initial_state,
                            const ScanOutput<float>& out) {
  forward(shape, in, initial_state, out);
}

void selective_scan_forward(const ScanShape& shape, const ScanInput<double>& in, const double* initial_state,
                            const ScanOutput<double>& out) {
  forward(shape, in, initial_state, out);
}

void selective_scan_backward(const ScanShape& shape, const ScanInput<float>& in, const float* checkpoints,
                             const float* dy, const float* dfinal_state, const ScanGradient<float>& gradient) {
  backward(shape, in, checkpoints, dy, dfinal_state, gradient);
}

void selective_scan_backward(const ScanShape& shape, const ScanInput<double>& in, const double* checkpoints,
                             const double* dy, const double* dfinal_state, const ScanGradient<double>& gradient) {
  backward(shape, in, checkpoints, dy, dfinal_state, gradient);
}

}  // namespace lockstep::kernels
