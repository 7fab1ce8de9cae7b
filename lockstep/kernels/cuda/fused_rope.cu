#include "lockstep/kernels/cuda/fused_rope_gemm.h"
#include "lockstep/kernels/cuda/hopper/launch.cuh"
#include "lockstep/kernels/cuda/rope_math.cuh"

namespace lockstep::kernels::cuda {
namespace {

using hopper::Finished;

// A tile holds whole heads.
template <unsigned kDim>
struct RopeEpilogue {
  static constexpr hopper::Major kMajor = hopper::Major::kK;
  static constexpr bool kPair = false;
  static constexpr unsigned kPairs = kDim / (2 * kVector);  // vectors of a head's first half
  static constexpr unsigned kBatch = 2;
  struct Arguments {
    Bf16* qkv;
    const float *cos, *sin;
    unsigned seq, heads, rotated;
  };

  // Two rows per warp at a time, 16 lanes each: a lane has a vector of a head's first half and its partner.
  static __device__ void run(const Arguments& a, Finished& tile) {
    constexpr unsigned step = hopper::kEpilogueWarps * 2, rows = hopper::kTileRows;
    const unsigned pair = tile.lane % 16, column = pair % kPairs * kVector;
    const unsigned chunk = pair / kPairs * (kDim / kVector) + pair % kPairs;
    const unsigned head = tile.column * (hopper::kTileColumns / kDim) + pair / kPairs;
    const bool turned = head < a.rotated;
    for (unsigned first = tile.warp * 2; first < rows; first += step * kBatch) {
      tile.wait_for(min(first + (kBatch - 1) * step + 1, rows - 1));
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned r = first + i * step + tile.lane / 16;
        if (r >= rows) continue;
        Vector one = tile.read(r, chunk), other = tile.read(r, chunk + kPairs);
        const std::int64_t row = tile.row + r;
        if (turned) turn_pair(a, static_cast<unsigned>(row) % a.seq * (kDim / 2) + column, one, other);
        Bf16* const to = a.qkv + (row * a.heads + head) * kDim + column;
        hopper::store_once(to, one, true);
        hopper::store_once(to + kDim / 2, other, true);
      }
      tile.done_below(first + kBatch * step);
    }
  }

  static __device__ void turn_pair(const Arguments& a, unsigned place, Vector& first, Vector& second) {
    float f[kVector], s[kVector];
    turn(first, second, load_angles(a.cos, a.sin, place), 1.0f, f, s);
    first = pack(f);
    second = pack(s);
  }
};

template <unsigned kDim>
void launch(const FusedRope& a, cudaStream_t stream) {
  hopper::run_persistent<RopeEpilogue<kDim>>({a.x, a.w, a.rows, a.heads * a.dim, a.hidden},
                                             {a.qkv, a.cos, a.sin, static_cast<unsigned>(a.seq),
                                              static_cast<unsigned>(a.heads), static_cast<unsigned>(a.rotated)},
                                             stream);
}

}  // namespace

bool fused_rope_fits(const FusedRope& a) {
  return hopper::device_fits() && (a.dim == 64 || a.dim == 128) && a.seq > 0 && a.rotated <= a.heads &&
         a.seq * a.dim < (std::int64_t{1} << 31) && hopper::product_fits(a.rows, a.heads * a.dim, a.hidden);
}

void fused_rope(const FusedRope& a, cudaStream_t stream) {
  require(fused_rope_fits(a), "fused_rope", "sizes or device not served");
  a.dim == 64 ? launch<64>(a, stream) : launch<128>(a, stream);
}

}  // namespace lockstep::kernels::cuda
