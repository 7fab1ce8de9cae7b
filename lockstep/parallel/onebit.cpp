// 1-bit SGD (Seide et al. 2014): both legs of the exchange carry one bit per element, both with error feedback.
// The bucket is cut into one part per rank. Leg 1: each rank packs gradient + error and sends part j to rank j
// (all-to-all). Leg 2: rank j adds what came for part j, in rank order, plus its own second error, packs the sum and
// sends it to everyone (all-gather). Payload: 2 bits per element however many ranks there are.
#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/kernels/sign_bits.h"
#include "lockstep/nn/tensor_comm.h"
#include "lockstep/parallel/exchange_kinds.h"

namespace lockstep::parallel {
namespace {

const char* const kPrefix = "compression.onebit.";

struct BucketState {
  torch::Tensor gradient;    // [count] view of the bucket
  torch::Tensor error;       // [count] what this rank could not send
  torch::Tensor sum;         // [part] leg 2; holds the second error between steps
  torch::Tensor sent;        // [ranks, part_bytes] u8
  torch::Tensor received;    // [ranks, part_bytes] u8
  torch::Tensor own;         // [part_bytes] u8
  torch::Tensor everything;  // [ranks, part_bytes] u8
  std::int64_t part = 0;     // elements per rank; the last parts may be shorter, or empty
};

struct Stretch {
  std::int64_t begin;
  std::int64_t count;
};

Stretch part_of(const BucketState& state, int rank) {
  const std::int64_t begin = std::min(rank * state.part, state.gradient.numel());
  return {begin, std::min(state.part, state.gradient.numel() - begin)};
}

std::uint8_t* row_of(const torch::Tensor& messages, int rank) {
  return messages.data_ptr<std::uint8_t>() + rank * messages.size(1);
}

void pack(const torch::Tensor& flat, Stretch at, std::uint8_t* packed) {
  if (at.count == 0) return;
  if (flat.scalar_type() == torch::kFloat32) {
    kernels::pack_signs(flat.data_ptr<float>() + at.begin, at.count, packed);
  } else {
    kernels::pack_signs(flat.data_ptr<double>() + at.begin, at.count, packed);
  }
}

void add(const std::uint8_t* packed, const torch::Tensor& flat, Stretch at) {
  if (at.count == 0) return;
  if (flat.scalar_type() == torch::kFloat32) {
    kernels::add_signs(packed, at.count, flat.data_ptr<float>() + at.begin);
  } else {
    kernels::add_signs(packed, at.count, flat.data_ptr<double>() + at.begin);
  }
}

class OneBit : public GradientExchange {
 public:
  OneBit(const std::vector<Bucket>& buckets, int ranks) {
    for (const Bucket& bucket : buckets) {
      BucketState state;
      const std::int64_t share = (bucket.gradient.numel() + ranks - 1) / ranks;
      state.part = (share + kernels::kSignBlock - 1) / kernels::kSignBlock * kernels::kSignBlock;
      state.gradient = bucket.gradient;
      state.error = torch::zeros_like(bucket.gradient);
      state.sum = torch::zeros({state.part}, bucket.gradient.options());
      const std::int64_t bytes = kernels::packed_sign_bytes(state.part);
      const auto u8 = torch::TensorOptions().dtype(torch::kUInt8);
      state.sent = torch::zeros({ranks, bytes}, u8);
      state.received = torch::zeros({ranks, bytes}, u8);
      state.own = torch::zeros({bytes}, u8);
      state.everything = torch::zeros({ranks, bytes}, u8);
      buckets_.push_back(std::move(state));
    }
  }

  std::unique_ptr<PendingExchange> start(const Bucket& bucket, comm::Communicator& group) override {
    BucketState& state = buckets_.at(bucket.index);
    state.error.add_(state.gradient);
    for (int rank = 0; rank < group.size(); ++rank) pack(state.error, part_of(state, rank), row_of(state.sent, rank));
    comm::Work work = group.all_to_all(nn::buffer_of(state.sent), nn::buffer_of(state.received), at_site(bucket));
    return std::make_unique<Pending>(state, bucket, group, std::move(work));
  }

  TensorMap state() const override {
    TensorMap result;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      result.emplace(kPrefix + ("error." + std::to_string(i)), buckets_[i].error);
      result.emplace(kPrefix + ("sum_error." + std::to_string(i)), buckets_[i].sum);
    }
    return result;
  }

  void load_state(const TensorMap& state) override {
    torch::NoGradGuard no_grad;
    for (const auto& [name, mine] : this->state()) state_tensor(state, name, mine);
    for (auto& [name, mine] : this->state()) mine.copy_(state_tensor(state, name, mine));
  }

 private:
  class Pending : public PendingExchange {
   public:
    Pending(BucketState& state, const Bucket& bucket, comm::Communicator group, comm::Work work)
        : state_(state), bucket_(bucket), group_(std::move(group)), work_(std::move(work)) {}

    bool advance() override {
      work_.wait();
      if (second_leg_) {
        state_.gradient.zero_();
        for (int rank = 0; rank < group_.size(); ++rank) {
          add(row_of(state_.everything, rank), state_.gradient, part_of(state_, rank));
        }
        return true;
      }
      const Stretch mine{0, part_of(state_, group_.rank()).count};
      for (int rank = 0; rank < group_.size(); ++rank) add(row_of(state_.received, rank), state_.sum, mine);
      pack(state_.sum, mine, state_.own.data_ptr<std::uint8_t>());
      work_ = group_.all_gather(nn::buffer_of(state_.own), nn::buffer_of(state_.everything), at_site(bucket_));
      second_leg_ = true;
      return false;
    }

   private:
    BucketState& state_;
    const Bucket& bucket_;
    comm::Communicator group_;
    comm::Work work_;
    bool second_leg_ = false;
  };

  std::vector<BucketState> buckets_;
};

}  // namespace

std::unique_ptr<GradientExchange> make_onebit(const std::vector<Bucket>& buckets, int ranks) {
  if (!buckets.empty() && !buckets.front().gradient.device().is_cpu()) {
    throw bad_input("1-bit compression works on the CPU only", "use powersgd, bf16 or none on this device");
  }
  return std::make_unique<OneBit>(buckets, ranks);
}

}  // namespace lockstep::parallel
