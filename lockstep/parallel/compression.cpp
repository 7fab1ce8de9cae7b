#include "lockstep/parallel/compression.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/nn/tensor_comm.h"
#include "lockstep/parallel/exchange_kinds.h"

namespace lockstep::parallel {
namespace {

class PlainExchange : public GradientExchange {
 public:
  std::unique_ptr<PendingExchange> start(const Bucket& bucket, comm::Communicator& group) override {
    return std::make_unique<Pending>(
        group.all_reduce(nn::buffer_of(bucket.gradient), comm::ReduceOp::kSum, at_site(bucket)));
  }
  TensorMap state() const override { return {}; }
  void load_state(const TensorMap&) override {}

 private:
  struct Pending : PendingExchange {
    explicit Pending(comm::Work started) : work(std::move(started)) {}
    bool advance() override {
      work.wait();
      return true;
    }
    comm::Work work;
  };
};

// The narrow copies are kept: giving 25 MiB back to the system and asking again costs more than the cast.
class CastExchange : public GradientExchange {
 public:
  CastExchange(torch::ScalarType dtype, const std::vector<Bucket>& buckets) {
    for (const Bucket& bucket : buckets) narrow_.push_back(torch::empty_like(bucket.gradient, dtype));
  }

  std::unique_ptr<PendingExchange> start(const Bucket& bucket, comm::Communicator& group) override {
    const torch::Tensor& narrow = narrow_.at(bucket.index);
    narrow.copy_(bucket.gradient);
    return std::make_unique<Pending>(bucket.gradient, narrow,
                                     group.all_reduce(nn::buffer_of(narrow), comm::ReduceOp::kSum, at_site(bucket)));
  }
  TensorMap state() const override { return {}; }
  void load_state(const TensorMap&) override {}

 private:
  struct Pending : PendingExchange {
    Pending(torch::Tensor to, torch::Tensor from, comm::Work started)
        : gradient(std::move(to)), narrow(std::move(from)), work(std::move(started)) {}
    bool advance() override {
      work.wait();
      gradient.copy_(narrow);
      return true;
    }
    torch::Tensor gradient;
    torch::Tensor narrow;
    comm::Work work;
  };

  std::vector<torch::Tensor> narrow_;
};

}  // namespace

const torch::Tensor& state_tensor(const TensorMap& state, const std::string& name, const torch::Tensor& like) {
  const auto found = state.find(name);
  if (found == state.end()) {
    throw bad_input("tensor " + name + " is missing", "use a checkpoint with the same compression, or switch it off");
  }
  if (found->second.sizes() != like.sizes() || found->second.scalar_type() != like.scalar_type()) {
    throw bad_input("tensor " + name + " is " + c10::toString(found->second.scalar_type()) + " " +
                        c10::str(found->second.sizes()) + " instead of " + c10::toString(like.scalar_type()) + " " +
                        c10::str(like.sizes()),
                    "use a checkpoint of the same job, bucket size and number of ranks");
  }
  return found->second;
}

comm::OpOptions at_site(const Bucket& bucket) {
  comm::OpOptions options;
  options.site = bucket.site;
  return options;
}

std::unique_ptr<GradientExchange> make_exchange(const CompressionOptions& options, const std::vector<Bucket>& buckets,
                                                int ranks) {
  switch (options.kind) {
    case spec::Compression::kNone:
      return std::make_unique<PlainExchange>();
    case spec::Compression::kFp16:
      return std::make_unique<CastExchange>(torch::kHalf, buckets);
    case spec::Compression::kBf16:
      return std::make_unique<CastExchange>(torch::kBFloat16, buckets);
    case spec::Compression::kPowerSgd:
      return make_powersgd(options, buckets);
    case spec::Compression::kOneBit:
      return make_onebit(buckets, ranks);
  }
  throw InternalError("unknown kind of compression");
}

}  // namespace lockstep::parallel
