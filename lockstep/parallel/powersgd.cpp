// PowerSGD (Vogels, Karimireddy, Jaggi 2019), algorithms 1 and 2, with sums instead of means: the loss carries the
// weight. With G_i = gradient + error of rank i, as a matrix [rows, cols], and Q [cols, r] of the step before:
//   P = sum_i G_i Q;  P <- orthonormal columns;  Q_i = G_i^T P;  error_i = G_i - P Q_i^T;  Q = sum_i Q_i;  G = P Q^T
// Factors are held transposed ([r, rows] and [r, cols]) so that each vector lies contiguous in memory.
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/nn/tensor_comm.h"
#include "lockstep/parallel/exchange_kinds.h"

namespace lockstep::parallel {
namespace {

const char* const kPrefix = "compression.powersgd.";

struct Matrix {
  std::string name;
  std::uint64_t seed = 0;
  torch::Tensor gradient;  // [rows, cols] view of the bucket
  torch::Tensor error;     // [rows, cols] what this rank still owes
  torch::Tensor p;         // [r, rows] view of the first message
  torch::Tensor q;         // [r, cols] view of the second message; kept from step to step
};

struct Vector {
  torch::Tensor gradient;  // [count] view of the bucket
  torch::Tensor message;   // [count] view of the first message
};

struct BucketState {
  std::vector<Matrix> matrices;
  std::vector<Vector> vectors;
  torch::Tensor first;   // vectors, then every P
  torch::Tensor second;  // every Q
};

// Modified Gram-Schmidt over the rows of m [r, n], each vector projected twice, which is enough to be orthogonal to
// rounding (Giraud et al. 2005). A row that is linearly dependent becomes zero; returns whether there was one.
bool orthonormalise_rows(const torch::Tensor& m) {
  const double threshold = m.scalar_type() == torch::kFloat64 ? 1e-13 : 1e-6;
  bool dependent = false;
  for (std::int64_t j = 0; j < m.size(0); ++j) {
    const torch::Tensor row = m[j];
    const double before = row.norm().item<double>();
    for (int pass = 0; pass < 2 && j > 0; ++pass) {
      const torch::Tensor earlier = m.narrow(0, 0, j);  // [j, n]
      row.sub_(earlier.t().mv(earlier.mv(row)));
    }
    const double after = row.norm().item<double>();
    if (after > before * threshold && after > 0.0) {
      row.div_(after);
    } else {
      row.zero_();
      dependent = true;
    }
  }
  return dependent;
}

void fill_normal(const torch::Tensor& m, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  m.copy_(torch::empty(m.sizes(), m.options().device(torch::kCPU)).normal_(0.0, 1.0, generator));
}

class PowerSgd : public GradientExchange {
 public:
  PowerSgd(const CompressionOptions& options, const std::vector<Bucket>& buckets) : seed_(options.seed) {
    for (const Bucket& bucket : buckets) add_bucket(options, bucket);
  }

  std::unique_ptr<PendingExchange> start(const Bucket& bucket, comm::Communicator& group) override;
  TensorMap state() const override;
  void load_state(const TensorMap& state) override;

 private:
  class Pending;
  void add_bucket(const CompressionOptions& options, const Bucket& bucket);

  std::uint64_t seed_;
  std::vector<BucketState> buckets_;
};

// The first round carries the vectors and the P factors, the second the Q factors.
class PowerSgd::Pending : public PendingExchange {
 public:
  Pending(BucketState& state, const Bucket& bucket, comm::Communicator group, comm::Work work)
      : state_(state), bucket_(bucket), group_(std::move(group)), work_(std::move(work)) {}

  bool advance() override {
    work_.wait();
    if (second_round_) {
      for (Matrix& matrix : state_.matrices) at::mm_out(matrix.gradient, matrix.p.t(), matrix.q);
      return true;
    }
    for (Vector& vector : state_.vectors) vector.gradient.copy_(vector.message);
    if (state_.matrices.empty()) return true;
    // Every rank sees the same sum, so every rank takes the same way out of an overflow: the gradient shows it, and the
    // factors and errors stay as they are good for the next step.
    if (!torch::isfinite(state_.first).all().item<bool>()) return give_up();
    for (Matrix& matrix : state_.matrices) {
      orthonormalise_rows(matrix.p);
      at::mm_out(matrix.q, matrix.p, matrix.gradient);
      at::addmm_out(matrix.error, matrix.gradient, matrix.p.t(), matrix.q, 1.0, -1.0);
    }
    work_ = group_.all_reduce(nn::buffer_of(state_.second), comm::ReduceOp::kSum, at_site(bucket_));
    second_round_ = true;
    return false;
  }

 private:
  bool give_up() {
    for (Matrix& matrix : state_.matrices) {
      matrix.gradient.fill_(std::nan(""));
      matrix.error.zero_();
    }
    return true;
  }

  BucketState& state_;
  const Bucket& bucket_;
  comm::Communicator group_;
  comm::Work work_;
  bool second_round_ = false;
};

void PowerSgd::add_bucket(const CompressionOptions& options, const Bucket& bucket) {
  BucketState state;
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> places;  // of each matrix in the two messages
  std::vector<std::int64_t> vector_places;
  for (const ParameterRange& range : bucket.parameters) {
    const torch::Tensor flat = bucket.gradient.narrow(0, range.offset, range.count);
    const std::int64_t rows = range.sizes.size() < 2 ? 0 : range.sizes[0];
    const std::int64_t cols = rows == 0 ? 0 : range.count / rows;
    const std::int64_t rank = std::min({options.powersgd_rank, rows, cols});
    if (rank == 0 ||
        static_cast<double>((rows + cols) * rank) * options.powersgd_min_ratio > static_cast<double>(range.count)) {
      state.vectors.push_back({flat, {}});
      vector_places.push_back(first);
      first += range.count;
      continue;
    }
    Matrix matrix;
    matrix.name = range.name;
    matrix.seed = seed_ + 0x9e3779b97f4a7c15u * (buckets_.size() * 65536u + state.matrices.size() + 1);
    matrix.gradient = flat.view({rows, cols});
    matrix.error = torch::zeros_like(matrix.gradient);
    matrix.p = torch::empty({rank, 0});  // only the number of rows counts until the messages exist
    places.emplace_back(0, second);
    second += rank * cols;
    state.matrices.push_back(std::move(matrix));
  }
  for (std::size_t i = 0; i < state.matrices.size(); ++i) {
    places[i].first = first;
    first += state.matrices[i].p.size(0) * state.matrices[i].gradient.size(0);
  }
  state.first = torch::zeros({first}, bucket.gradient.options());
  state.second = torch::zeros({second}, bucket.gradient.options());
  for (std::size_t i = 0; i < state.vectors.size(); ++i) {
    state.vectors[i].message = state.first.narrow(0, vector_places[i], state.vectors[i].gradient.numel());
  }
  for (std::size_t i = 0; i < state.matrices.size(); ++i) {
    Matrix& matrix = state.matrices[i];
    const std::int64_t rank = matrix.p.size(0);
    const std::int64_t rows = matrix.gradient.size(0);
    const std::int64_t cols = matrix.gradient.size(1);
    matrix.p = state.first.narrow(0, places[i].first, rank * rows).view({rank, rows});
    matrix.q = state.second.narrow(0, places[i].second, rank * cols).view({rank, cols});
    fill_normal(matrix.q, matrix.seed);
  }
  buckets_.push_back(std::move(state));
}

std::unique_ptr<PendingExchange> PowerSgd::start(const Bucket& bucket, comm::Communicator& group) {
  BucketState& state = buckets_.at(bucket.index);
  for (Vector& vector : state.vectors) vector.message.copy_(vector.gradient);
  for (Matrix& matrix : state.matrices) {
    matrix.gradient.add_(matrix.error);
    // A direction that died out (a gradient of lower rank, or zero) would never come back; start it anew. Q is the same
    // on every rank, so all ranks do.
    if (orthonormalise_rows(matrix.q)) {
      torch::Tensor fresh = torch::empty_like(matrix.q);
      fill_normal(fresh, matrix.seed);
      const torch::Tensor alive = matrix.q.square().sum(1, /*keepdim=*/true) > 0.5;  // [r, 1]
      matrix.q.copy_(torch::where(alive, matrix.q, fresh));
      orthonormalise_rows(matrix.q);
    }
    at::mm_out(matrix.p, matrix.q, matrix.gradient.t());
  }
  return std::make_unique<Pending>(state, bucket, group,
                                   group.all_reduce(nn::buffer_of(state.first), comm::ReduceOp::kSum, at_site(bucket)));
}

TensorMap PowerSgd::state() const {
  TensorMap result;
  for (const BucketState& bucket : buckets_) {
    for (const Matrix& matrix : bucket.matrices) {
      result.emplace(kPrefix + ("error." + matrix.name), matrix.error);
      result.emplace(kPrefix + ("q." + matrix.name), matrix.q);
    }
  }
  return result;
}

void PowerSgd::load_state(const TensorMap& state) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, mine] : this->state()) state_tensor(state, name, mine);  // all checked before any is written
  for (auto& [name, mine] : this->state()) mine.copy_(state_tensor(state, name, mine));
}

}  // namespace

std::unique_ptr<GradientExchange> make_powersgd(const CompressionOptions& options, const std::vector<Bucket>& buckets) {
  if (options.powersgd_rank < 1) throw bad_input("powersgd_rank is below 1", "use 1, 2, 4 or 8");
  return std::make_unique<PowerSgd>(options, buckets);
}

}  // namespace lockstep::parallel
