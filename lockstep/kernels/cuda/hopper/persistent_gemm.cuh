// A product of matrices whose results are worked on before they reach device memory. For sm_90a only.
//
// c = a b with a [m, k] (k contiguous) and b in one of two layouts, in tiles of 128x256. One block per multiprocessor
// stays for the whole product; two blocks of a cluster have the same columns and share the reading of b's tile.
// In a block one warp copies tiles to shared memory (TMA, kStages deep), two warpgroups multiply (64x256 each, fp32 in
// registers), round the finished tile to bf16 into a staging buffer and go on with the next tile, while the other warps
// do the epilogue from the staging buffer: they have the whole time of the next tile's product for it.
//
// The epilogue E is a class:
//   static constexpr Major kMajor: the layout of b;
//   static constexpr bool kPair: the tile's columns are two times 128, `pair_offset` rows of b apart (for kMajor kK);
//   struct Arguments: passed by value;
//   static __device__ void run(const Arguments&, Finished& tile): an epilogue warp's share of the work on a tile; it
//   waits for all rows and says that it is done with them.
#pragma once

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/hopper/async.cuh"
#include "lockstep/kernels/cuda/hopper/wgmma.cuh"
#include "lockstep/plan/fused_limits.h"

namespace lockstep::kernels::cuda::hopper {

constexpr int kCluster = plan::fused::kTileCluster;
constexpr int kTileRows = plan::fused::kTileRows, kTileColumns = plan::fused::kTileColumns;
constexpr int kTileK = plan::fused::kTileInner;
// What the code below is written for: two warpgroups of 64 rows, swizzled rows of 128 bytes, halves of a pair of
// blocks.
static_assert(kCluster == 2 && kTileRows == 128 && kTileColumns == 256 && kTileK == 64);
constexpr int kStages = 3;
// Warpgroups: copies and epilogue, product, product. A 64x256 product needs more than the 128 registers that a fourth
// warpgroup would leave at the start.
constexpr int kThreads = 384;
constexpr int kEpilogueWarps = 3;                              // of the first warpgroup; its first warp copies
constexpr int kProductRegisters = 176, kOtherRegisters = 152;  // together 3 x 168

constexpr unsigned kBytesA = kTileRows * kTileK * 2, kBytesB = kTileColumns * kTileK * 2;
constexpr unsigned kBytesStage = kBytesA + kBytesB;
constexpr unsigned kPitch = kTileColumns * 2;  // of a staging row
constexpr unsigned kBytesHalf = 64 * kPitch;
constexpr unsigned kSharedBytes = kStages * kBytesStage + 2 * kBytesHalf + 1024 + 256;  // room to align, and barriers

// What is multiplied; tiles are counted in whole clusters (256 rows).
struct Walk {
  unsigned row_tiles, column_tiles, k_blocks;
  unsigned group;        // rows of tiles that go over all columns together: how a and b share the L2 cache
  unsigned pair_offset;  // see kPair
};
struct Tile {
  unsigned row, column;  // in clusters of rows, in tiles of columns
};
__device__ inline Tile tile_of(const Walk& w, unsigned index) {
  const unsigned whole = w.group * w.column_tiles, g = index / whole, rest = index - g * whole;
  const unsigned left = w.row_tiles - g * w.group, rows = left < w.group ? left : w.group;
  return {g * w.group + rest % rows, rest / rows};
}

// Where the 16 bytes of columns 8 chunk ... 8 chunk + 7 of a staging row lie: rows that are written together, and
// chunks that are read together, fall into different banks.
__device__ inline unsigned staging_offset(unsigned row, unsigned chunk) {
  return row * kPitch + ((chunk ^ (row & 7)) << 4);
}

// A finished tile as an epilogue warp sees it: 128 rows in the staging buffer, whose halves come and go one by one.
class Finished {
 public:
  __device__ Finished(std::int64_t row, unsigned column, unsigned warp, unsigned lane, const unsigned char* staging,
                      std::uint32_t staged, std::uint32_t taken, unsigned parity)
      : row(row),
        column(column),
        warp(warp),
        lane(lane),
        staging_(staging),
        staged_(staged),
        taken_(taken),
        parity_(parity) {}

  const std::int64_t row;     // of its first row in c
  const unsigned column;      // index of the column tile
  const unsigned warp, lane;  // warp: 0 ... kEpilogueWarps - 1

  // Before reading rows up to `last`; called with growing rows, by whole warps.
  __device__ void wait_for(unsigned last) {
    if (waited_ == 0) barrier_wait(staged_, parity_), waited_ = 1;
    if (waited_ == 1 && last >= 64) barrier_wait(staged_ + 8, parity_), waited_ = 2;
  }
  // The warp reads no row below `next` any more.
  __device__ void done_below(unsigned next) {
    if (next < 64) return;
    __syncwarp();
    if (lane == 0 && given_ == 0) barrier_arrive(taken_);
    if (lane == 0 && next >= kTileRows) barrier_arrive(taken_ + 8);
    given_ = 1;
  }
  __device__ Vector read(unsigned r, unsigned chunk) const {
    return *reinterpret_cast<const Vector*>(staging_ + staging_offset(r, chunk));
  }

 private:
  const unsigned char* staging_;
  const std::uint32_t staged_, taken_;  // barriers of the first half; the second's follow
  const unsigned parity_;
  unsigned waited_ = 0, given_ = 0;  // halves
};

// For results that are not read soon: leaves the cache to a and b. Where `wanted`, without a branch.
__device__ inline void store_once(Bf16* p, const Vector& v, bool wanted) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
      " @p st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(p),
      "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]), "r"(static_cast<int>(wanted)));
}

// Places in shared memory.
struct Shared {
  unsigned char* base;  // of the stages, 1024-byte aligned
  __device__ explicit Shared(unsigned char* raw) { base = raw + ((1024 - (shared_address(raw) & 1023)) & 1023); }
  __device__ std::uint32_t a(unsigned stage) const { return shared_address(base) + stage * kBytesStage; }
  __device__ std::uint32_t b(unsigned stage) const { return a(stage) + kBytesA; }
  __device__ unsigned char* staging(unsigned half) const { return base + kStages * kBytesStage + half * kBytesHalf; }
  __device__ std::uint32_t barrier(unsigned i) const { return shared_address(staging(2)) + i * 8; }
  __device__ std::uint32_t full(unsigned stage) const { return barrier(stage); }
  __device__ std::uint32_t empty(unsigned stage) const { return barrier(kStages + stage); }
  __device__ std::uint32_t staged(unsigned half) const { return barrier(2 * kStages + half); }
  __device__ std::uint32_t taken(unsigned half) const { return barrier(2 * kStages + 2 + half); }
};

// A ring's place: the stage, and the parity of its present turn.
struct Ring {
  unsigned stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

template <class E>
__device__ void copy_tiles(const Shared& s, const CUtensorMap& map_a, const CUtensorMap& map_b, const Walk& w,
                           unsigned rank) {
  constexpr std::uint16_t everyone = (1 << kCluster) - 1;
  Ring ring;
  for (unsigned t = blockIdx.x / kCluster; t < w.row_tiles * w.column_tiles; t += gridDim.x / kCluster) {
    const Tile tile = tile_of(w, t);
    const int row = static_cast<int>((tile.row * kCluster + rank) * kTileRows);
    // This block reads its half of b's tile for both.
    const int column = static_cast<int>(E::kPair ? tile.column * (kTileColumns / 2) + rank * w.pair_offset
                                                 : tile.column * kTileColumns + rank * (kTileColumns / 2));
    for (unsigned i = 0; i < w.k_blocks; ++i, ring.next()) {
      const int k = static_cast<int>(i * kTileK);
      const std::uint32_t full = s.full(ring.stage), b = s.b(ring.stage) + rank * (kBytesB / 2);
      barrier_wait(s.empty(ring.stage), ring.parity ^ 1);
      barrier_arrive_expect(full, kBytesStage);
      tma_load(s.a(ring.stage), map_a, k, row, full);
      if constexpr (E::kMajor == Major::kK) {
        tma_load_to(b, map_b, k, column, full, everyone);
      } else {
        tma_load_to(b, map_b, column, k, full, everyone);
        tma_load_to(b + kBoxBytes, map_b, column + 64, k, full, everyone);
      }
    }
  }
}

// Rounds a warpgroup's 64x256 into its half of the staging buffer.
__device__ inline void stage_tile(const float (&d)[128], unsigned char* staging, unsigned warp, unsigned lane) {
  const std::uint32_t to = shared_address(staging);
  const unsigned row = warp * 16 + lane % 16, first = lane / 16;
#pragma unroll
  for (unsigned j = 0; j < 32; j += 2) {
    std::uint32_t word[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
      word[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
    store_matrices(to + staging_offset(row, j + first), word);
  }
}

template <class E>
__device__ void multiply(const Shared& s, const Walk& w, unsigned half) {
  const unsigned warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const auto release = [&](unsigned stage) {
    if (lane < kCluster) barrier_arrive_at(s.empty(stage), lane);
  };
  Ring ring;
  unsigned turn = 0;
  float d[128] = {};
  for (unsigned t = blockIdx.x / kCluster; t < w.row_tiles * w.column_tiles; t += gridDim.x / kCluster, turn ^= 1) {
    unsigned before = 0;
    for (unsigned i = 0; i < w.k_blocks; ++i, ring.next()) {
      const std::uint64_t a = descriptor<Major::kK>(s.a(ring.stage) + half * (kBytesA / 2));
      const std::uint64_t b = descriptor<E::kMajor>(s.b(ring.stage));
      barrier_wait(s.full(ring.stage), ring.parity);
      wgmma_fence();
#pragma unroll
      for (unsigned k = 0; k < kTileK / 16; ++k)
        wgmma_64x256<E::kMajor>(d, a + k * kNextK<Major::kK>, b + k * kNextK<E::kMajor>, k > 0 || i > 0);
      wgmma_commit();
      if (i > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = ring.stage;
    }
    wgmma_wait<0>();
    release(before);
    barrier_wait(s.taken(half), turn ^ 1);
    stage_tile(d, s.staging(half), warp, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(s.staged(half));
  }
}

template <class E>
__device__ void finish_tiles(const Shared& s, const Walk& w, const typename E::Arguments& arguments, unsigned rank,
                             unsigned warp) {
  const unsigned lane = threadIdx.x % 32;
  unsigned turn = 0;
  for (unsigned t = blockIdx.x / kCluster; t < w.row_tiles * w.column_tiles; t += gridDim.x / kCluster, turn ^= 1) {
    const Tile tile = tile_of(w, t);
    Finished finished(static_cast<std::int64_t>(tile.row * kCluster + rank) * kTileRows, tile.column, warp, lane,
                      s.staging(0), s.staged(0), s.taken(0), turn);
    E::run(arguments, finished);
  }
}

template <class E>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    persistent_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                    const Walk walk, const typename E::Arguments arguments) {
  extern __shared__ unsigned char raw[];
  const Shared s(raw);
  const unsigned warp = threadIdx.x / 32, group = threadIdx.x / 128, rank = cluster_rank();
  if (threadIdx.x == 0) {
    tma_prefetch_map(map_a);
    tma_prefetch_map(map_b);
    for (unsigned i = 0; i < kStages; ++i) barrier_init(s.full(i), 1), barrier_init(s.empty(i), 8 * kCluster);
    for (unsigned i = 0; i < 2; ++i) barrier_init(s.staged(i), 4), barrier_init(s.taken(i), kEpilogueWarps);
    barrier_init_done();
  }
  __syncthreads();
  cluster_sync();
  if (group == 0) {
    give_registers<kOtherRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) copy_tiles<E>(s, map_a, map_b, walk, rank);
    } else {
      finish_tiles<E>(s, walk, arguments, rank, warp - 1);
    }
  } else {
    take_registers<kProductRegisters>();
    multiply<E>(s, walk, group - 1);
  }
  __syncwarp();
  cluster_sync();  // no block leaves while the other may still arrive on its barriers
}

}  // namespace lockstep::kernels::cuda::hopper
