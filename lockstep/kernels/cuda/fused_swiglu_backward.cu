#include "lockstep/kernels/cuda/fused_swiglu_gemm.h"
#include "lockstep/kernels/cuda/hopper/launch.cuh"
#include "lockstep/kernels/cuda/swiglu_math.cuh"

namespace lockstep::kernels::cuda {
namespace {

using hopper::Finished;

constexpr unsigned kBatch = 4;  // rows of one warp whose gate and up are on their way together
constexpr unsigned kStep = hopper::kEpilogueWarps;
constexpr unsigned kRows = hopper::kTileRows;

template <bool kWithH>
struct BackwardEpilogue {
  static constexpr hopper::Major kMajor = hopper::Major::kRows;
  static constexpr bool kPair = false;
  struct Arguments {
    Bf16 *gate_up, *h;
    std::int64_t ffn;
  };
  struct Batch {
    Vector gate[kBatch], up[kBatch];
  };

  // A row per warp at a time, every kStep-th; one batch of them comes while the one before is worked on. Every thread
  // writes where it read, so gate_up can be changed in place.
  static __device__ void run(const Arguments& a, Finished& tile) {
    Batch even, odd;
    fetch(a, tile, tile.warp, even);
    for (unsigned first = tile.warp; first < kRows; first += 2 * kStep * kBatch) {
      fetch(a, tile, first + kStep * kBatch, odd);
      finish(a, tile, first, even);
      if (first + kStep * kBatch >= kRows) break;
      fetch(a, tile, first + 2 * kStep * kBatch, even);
      finish(a, tile, first + kStep * kBatch, odd);
    }
  }

  static __device__ Bf16* gate_at(const Arguments& a, const Finished& tile, unsigned r) {
    return a.gate_up + (tile.row + r) * 2 * a.ffn + tile.column * hopper::kTileColumns + tile.lane * kVector;
  }

  static __device__ Bf16* h_at(const Arguments& a, const Finished& tile, unsigned r) {
    return a.h + (tile.row + r) * a.ffn + tile.column * hopper::kTileColumns + tile.lane * kVector;
  }

  static __device__ void fetch(const Arguments& a, const Finished& tile, unsigned first, Batch& batch) {
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      const unsigned r = first + i * kStep;
      if (r >= kRows) continue;
      batch.gate[i] = load_once(gate_at(a, tile, r));
      batch.up[i] = load_once(gate_at(a, tile, r) + a.ffn);
    }
  }

  // Rows beyond the last are computed and not stored: no branches, so that the rows' instructions mix.
  static __device__ void finish(const Arguments& a, Finished& tile, unsigned first, const Batch& batch) {
    tile.wait_for(min(first + (kBatch - 1) * kStep, kRows - 1));
    Vector dh[kBatch];
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) dh[i] = tile.read(min(first + i * kStep, kRows - 1), tile.lane);
#pragma unroll
    for (unsigned i = 0; i < kBatch; ++i) {
      const unsigned r = first + i * kStep;
      float dgate[kVector], dup[kVector], h[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const SwigluGradient g = swiglu_gradient(batch.gate[i][j], batch.up[i][j], dh[i][j]);
        dgate[j] = g.dgate, dup[j] = g.dup, h[j] = g.h;
      }
      hopper::store_once(gate_at(a, tile, r), pack(dgate), r < kRows);
      hopper::store_once(gate_at(a, tile, r) + a.ffn, pack(dup), r < kRows);
      if (kWithH) hopper::store_once(h_at(a, tile, r), pack(h), r < kRows);
    }
    tile.done_below(first + kBatch * kStep);
  }
};

}  // namespace

bool fused_swiglu_backward_fits(std::int64_t rows, std::int64_t hidden, std::int64_t ffn) {
  return hopper::device_fits() && hopper::product_fits(rows, ffn, hidden);
}

void fused_swiglu_backward(const FusedSwigluBackward& a, cudaStream_t stream) {
  require(fused_swiglu_backward_fits(a.rows, a.hidden, a.ffn), "fused_swiglu_backward", "sizes or device not served");
  const hopper::Product product{a.dy, a.w, a.rows, a.ffn, a.hidden};
  if (a.h == nullptr)
    hopper::run_persistent<BackwardEpilogue<false>>(product, {a.gate_up, a.h, a.ffn}, stream);
  else
    hopper::run_persistent<BackwardEpilogue<true>>(product, {a.gate_up, a.h, a.ffn}, stream);
}

}  // namespace lockstep::kernels::cuda
