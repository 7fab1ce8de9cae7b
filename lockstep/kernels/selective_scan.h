// The recurrence of a selective state-space layer (Gu and Dao 2023, algorithm 2). For each sample and channel, with a
// state h of `state` numbers:
//   h_t = exp(dt_t a) h_{t-1} + dt_t x_t b_t        y_t = c_t . h_t + d x_t
// States are kept at the start of every kScanChunk steps only; backward runs a chunk again from there. Everything is
// contiguous and row-major. Work is spread over parallel_blocks; no result depends on the number of threads.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

inline constexpr std::int64_t kScanChunk = 64;           // steps between kept states
inline constexpr std::int64_t kScanGroupChannels = 128;  // channels that one thread scans one after the other

struct ScanShape {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t channels = 0;
  std::int64_t state = 0;

  std::int64_t chunks() const { return (seq + kScanChunk - 1) / kScanChunk; }
  std::int64_t groups() const { return (channels + kScanGroupChannels - 1) / kScanGroupChannels; }
};

template <typename T>
struct ScanInput {
  const T* x = nullptr;   // [batch, seq, channels]
  const T* dt = nullptr;  // [batch, seq, channels]
  const T* a = nullptr;   // [channels, state]
  const T* b = nullptr;   // [batch, seq, state]
  const T* c = nullptr;   // [batch, seq, state]
  const T* d = nullptr;   // [channels]
};

template <typename T>
struct ScanOutput {
  T* y = nullptr;            // [batch, seq, channels]
  T* checkpoints = nullptr;  // [batch, chunks, channels, state], for backward
  T* final_state = nullptr;  // [batch, channels, state]
};

// Sums over samples (a, d) and over channels (b, c) are left in parts, for the caller to add in order.
template <typename T>
struct ScanGradient {
  T* x = nullptr;              // [batch, seq, channels]
  T* dt = nullptr;             // [batch, seq, channels]
  T* a = nullptr;              // [batch, channels, state]
  T* b = nullptr;              // [groups, batch, seq, state], zeros before the call
  T* c = nullptr;              // likewise
  T* d = nullptr;              // [batch, channels]
  T* initial_state = nullptr;  // [batch, channels, state]
};

// initial_state [batch, channels, state].
void selective_scan_forward(const ScanShape& shape, const ScanInput<float>& in, const float* initial_state,
                            const ScanOutput<float>& out);
void selective_scan_forward(const ScanShape& shape, const ScanInput<double>& in, const double* initial_state,
                            const ScanOutput<double>& out);

// dy [batch, seq, channels], dfinal_state [batch, channels, state].
void selective_scan_backward(const ScanShape& shape, const ScanInput<float>& in, const float* checkpoints,
                             const float* dy, const float* dfinal_state, const ScanGradient<float>& gradient);
void selective_scan_backward(const ScanShape& shape, const ScanInput<double>& in, const double* checkpoints,
                             const double* dy, const double* dfinal_state, const ScanGradient<double>& gradient);

}  // namespace lockstep::kernels
