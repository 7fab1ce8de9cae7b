// What the data loader and the host's threads take from a step beside the training itself. Pure functions.
//
// MODEL ASSUMPTIONS: the rates below are round figures for one CPU core of a GPU node, not measurements of a cluster.
//   tokens   a worker that tokenises or packs as it goes delivers some 200 k tokens a second
//   images   a worker that decodes and crops JPEGs delivers some 400 images a second
//   copies   pageable memory reaches about 6 GB/s over PCIe and blocks the host, pinned memory 24 GB/s beside compute
//   cores    twelve for each device
#pragma once

#include <cstdint>

namespace lockstep::cost {

inline constexpr double kTokensPerWorkerSecond = 200e3;
inline constexpr double kImagesPerWorkerSecond = 400;
inline constexpr double kPageableBytesPerSecond = 6e9;
inline constexpr double kPinnedBytesPerSecond = 24e9;
inline constexpr double kCoresPerDevice = 12;

struct LoaderKnobs {
  std::int64_t workers = 1;   // per rank; 0: the training thread loads
  std::int64_t prefetch = 2;  // batches ready per worker
  bool pinned = true;
  std::int64_t threads = 1;  // of the training process (OMP_NUM_THREADS)
};

// One micro-batch of one rank.
struct LoaderDemand {
  double items = 0;             // tokens or images
  double items_per_second = 0;  // of one worker
  double bytes = 0;             // copied to the device
  double compute_seconds = 0;   // that loading can hide behind
};

// Seconds that training waits for one micro-batch: what the workers are too slow by, a wait where few batches are ready
// (batches take unevenly long), and the copy unless memory is pinned.
double loader_stall_seconds(const LoaderKnobs& knobs, const LoaderDemand& demand);

// Factor on the host's share of a step when workers and threads want more cores than a device has: 1 while they fit.
double host_slowdown(const LoaderKnobs& knobs);

}  // namespace lockstep::cost
