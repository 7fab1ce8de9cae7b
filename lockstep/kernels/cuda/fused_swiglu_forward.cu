#include "lockstep/kernels/cuda/fused_swiglu_gemm.h"
#include "lockstep/kernels/cuda/hopper/launch.cuh"
#include "lockstep/kernels/cuda/swiglu_math.cuh"

namespace lockstep::kernels::cuda {
namespace {

using hopper::Finished;

// A tile is 128 columns of gate and the same of up.
struct ForwardEpilogue {
  static constexpr hopper::Major kMajor = hopper::Major::kK;
  static constexpr bool kPair = true;
  static constexpr unsigned kBatch = 2;
  struct Arguments {
    Bf16 *gate_up, *h;
    std::int64_t ffn;
  };

  // Two rows per warp at a time, 16 lanes each; so many of these in a batch, without branches between them.
  static __device__ void run(const Arguments& a, Finished& tile) {
    constexpr unsigned step = hopper::kEpilogueWarps * 2, rows = hopper::kTileRows;
    const unsigned chunk = tile.lane % 16;
    const std::int64_t column = tile.column * 128 + chunk * kVector;
    for (unsigned first = tile.warp * 2; first < rows; first += step * kBatch) {
      tile.wait_for(min(first + (kBatch - 1) * step + 1, rows - 1));
      Vector gate[kBatch], up[kBatch];
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned r = min(first + i * step + tile.lane / 16, rows - 1);
        gate[i] = tile.read(r, chunk), up[i] = tile.read(r, chunk + 16);
      }
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned r = first + i * step + tile.lane / 16;
        float f[kVector];
#pragma unroll
        for (int j = 0; j < kVector; ++j) f[j] = swiglu(gate[i][j], up[i][j]);
        Bf16* const to = a.gate_up + (tile.row + r) * 2 * a.ffn + column;
        hopper::store_once(to, gate[i], r < rows);
        hopper::store_once(to + a.ffn, up[i], r < rows);
        hopper::store_once(a.h + (tile.row + r) * a.ffn + column, pack(f), r < rows && a.h != nullptr);
      }
      tile.done_below(first + kBatch * step);
    }
  }
};

}  // namespace

bool fused_swiglu_forward_fits(std::int64_t rows, std::int64_t hidden, std::int64_t ffn) {
  return hopper::device_fits() && hopper::product_fits(rows, 2 * ffn, hidden);
}

void fused_swiglu_forward(const FusedSwigluForward& a, cudaStream_t stream) {
  require(fused_swiglu_forward_fits(a.rows, a.hidden, a.ffn), "fused_swiglu_forward", "sizes or device not served");
  hopper::run_persistent<ForwardEpilogue>({a.x, a.w, a.rows, 2 * a.ffn, a.hidden, a.ffn}, {a.gate_up, a.h, a.ffn},
                                          stream);
}

}  // namespace lockstep::kernels::cuda
