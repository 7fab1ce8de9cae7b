// What happens to one bucket of gradients between the ranks: plain sum, or a compressed exchange.
//
// A GradientExchange is told of one bucket at a time, always in the same order on every rank. It starts communication
// at once and hands back a pending exchange, which the owner advances round by round after backward. When the last
// round is over, the bucket holds the (approximate) SUM over ranks, bit-identical on every rank.
//
//   none      all-reduce in place
//   fp16/bf16 cast, all-reduce, cast back; half the bytes of fp32
//   powersgd  rank-r factors of every matrix with error feedback and warm start; Vogels, Karimireddy and Jaggi,
//             "PowerSGD: Practical Low-Rank Gradient Compression", NeurIPS 2019. Tensors with fewer than two dims, and
//             matrices too small to gain, travel uncompressed
//   onebit    one sign per element and one scale per 1024, error feedback on both legs of the exchange (all-to-all of
//             the parts, all-gather of the sums); Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014
//
// Error feedback: what a rank could not send is added to its next gradient, so nothing is lost, only delayed. That
// state belongs to the rank: checkpoints keep it per rank.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/tensor_map.h"
#include "lockstep/spec/job.h"

namespace lockstep::parallel {

struct ParameterRange {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::int64_t offset = 0;  // first element in the flat gradient
  std::int64_t count = 0;
};

// A contiguous stretch of the flat gradient: whole parameters.
struct Bucket {
  std::size_t index = 0;                   // order of reduction
  torch::Tensor gradient;                  // [count] view of the flat gradient
  std::int64_t begin = 0;                  // its first element there
  std::size_t first_parameter = 0;         // of the flat gradient's
  std::vector<ParameterRange> parameters;  // offsets are relative to `gradient`
  const char* site = "";                   // of its operations (comm::OpOptions)
};

// One bucket on its way. Destroying it before the last round is allowed only after an error or abort.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  // Waits for the round in flight (Fault when the group's timeout passed or a peer was lost), then starts the next.
  // True: the bucket is summed.
  virtual bool advance() = 0;
};

class GradientExchange {
 public:
  virtual ~GradientExchange() = default;
  // `bucket` outlives the pending exchange; nobody else touches its gradient until advance() returned true.
  virtual std::unique_ptr<PendingExchange> start(const Bucket& bucket, comm::Communicator& group) = 0;
  // State of this rank, by name, as views of the live state; empty for stateless kinds. load_state() restores exactly;
  // bad_input names a tensor that is missing or misshapen.
  virtual TensorMap state() const = 0;
  virtual void load_state(const TensorMap& state) = 0;
};

struct CompressionOptions {
  spec::Compression kind = spec::Compression::kNone;
  std::int64_t powersgd_rank = 4;
  double powersgd_min_ratio = 2.0;  // a matrix is compressed when that saves at least this factor
  std::uint64_t seed = 1;           // of PowerSGD's first Q; the same on all ranks
};

// For these buckets (all of the flat gradient, in order of reduction) and a group of `ranks`. bad_input for options
// that make no sense.
std::unique_ptr<GradientExchange> make_exchange(const CompressionOptions& options, const std::vector<Bucket>& buckets,
                                                int ranks);

}  // namespace lockstep::parallel
