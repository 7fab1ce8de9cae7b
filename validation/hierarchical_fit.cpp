#include "validation/hierarchical_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>

#include "lockstep/cost/profile/profile.h"

namespace lockstep::validation {
namespace {

// Prior of the mean over all hardware, of the logarithm. Bytes are counted, not guessed: their factors stay near 1.
constexpr double kGlobalSpread = 0.5;
constexpr double kGlobalMemorySpread = 0.04;
double global_spread(const cost::ConstantInfo& info) { return info.is_memory ? kGlobalMemorySpread : kGlobalSpread; }
// Stacks that are built alike differ from others as much as stacks do.
double peers_spread(const cost::ConstantInfo& info) { return info.stack_spread; }
constexpr double kTail = 2.5;   // sigmas beyond which a run counts less and less (Cauchy)
constexpr double kStep = 1e-3;  // of the logarithm, for derivatives

const cost::Constants kPrior;

cost::Constants constants_from(const std::vector<double>& offsets) {
  cost::Constants constants;
  const auto table = cost::constant_table();
  for (std::size_t j = 0; j < table.size(); ++j) {
    const double value = kPrior.*table[j].member * std::exp(offsets[j]);
    constants.*table[j].member = std::clamp(value, table[j].low, table[j].high);
  }
  return constants;
}

std::vector<double> add(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sum(a);
  for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += b[j];
  return sum;
}

// The unknowns in one vector: a block of the moving constants for each stack, then for each hardware, then the global
// one.
struct Layout {
  std::vector<std::size_t> moving;  // indices into constant_table()
  std::vector<std::string> hardware, peers;
  std::vector<std::pair<std::string, std::string>> stacks;
  std::size_t size() const { return moving.size() * (1 + hardware.size() + peers.size() + stacks.size()); }
};

Layout layout_of(const std::vector<const Observation*>& observations, bool memory) {
  Layout layout;
  const auto table = cost::constant_table();
  for (std::size_t j = 0; j < table.size(); ++j) {
    if (table[j].is_memory == memory) layout.moving.push_back(j);
  }
  for (const Observation* o : observations) {
    layout.hardware.push_back(o->hardware);
    layout.peers.push_back(cost::peers_of(o->stack));
    layout.stacks.emplace_back(o->hardware, o->stack);
  }
  const auto unique = [](auto& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  unique(layout.hardware);
  unique(layout.peers);
  unique(layout.stacks);
  return layout;
}

template <class List, class Value>
std::size_t index_in(const List& list, const Value& value) {
  return static_cast<std::size_t>(std::lower_bound(list.begin(), list.end(), value) - list.begin());
}

// Eight sums side by side: as vectors, which one sum in order would not be.
double dot(const double* a, const double* b, std::size_t n) {
  constexpr std::size_t kLanes = 8;
  double sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Where the normal matrix is not zero: blocks of `width` unknowns, those of stacks in front. Stacks know nothing of
// each other, and a block behind them meets the stacks that it is part of. The factor is as sparse there.
struct Sparsity {
  std::size_t width = 0, stacks = 0;
  std::vector<std::vector<std::size_t>> met;  // by block behind the stacks: their indices, in order

  std::size_t front() const { return width * stacks; }
  const std::vector<std::size_t>& met_by(std::size_t row) const { return met[row / width - stacks]; }
  bool meets(std::size_t row, std::size_t stack) const {
    const std::vector<std::size_t>& known = met_by(row);
    return std::binary_search(known.begin(), known.end(), stack);
  }
};

// The part of row `j` of the factor times row `i` that lies before column i; i <= j.
double known_before(const double* row_j, const double* row_i, std::size_t j, std::size_t i, const Sparsity& sparsity) {
  const std::size_t width = sparsity.width;
  const std::size_t front = sparsity.front();
  if (i < front) {
    const std::size_t from = i / width * width;
    return dot(row_j + from, row_i + from, i - from);
  }
  double sum = dot(row_j + front, row_i + front, i - front);
  for (const std::size_t stack : sparsity.met_by(i)) {
    if (sparsity.meets(j, stack)) sum += dot(row_j + stack * width, row_i + stack * width, width);
  }
  return sum;
}

bool is_zero(std::size_t j, std::size_t i, const Sparsity& sparsity) {
  if (i >= sparsity.front()) return false;
  const std::size_t stack = i / sparsity.width;
  return j < sparsity.front() ? j / sparsity.width != stack : !sparsity.meets(j, stack);
}

// Symmetric positive definite, in place; `b` becomes the solution.
void solve_cholesky(std::vector<double>& a, std::vector<double>& b, std::size_t n, const Sparsity& sparsity) {
  for (std::size_t j = 0; j < n; ++j) {
    double* row_j = &a[j * n];
    for (std::size_t i = j < sparsity.front() ? j / sparsity.width * sparsity.width : 0; i < j; ++i) {
      if (is_zero(j, i, sparsity)) {
        i += sparsity.width - 1;  // the whole block
        continue;
      }
      const double* row_i = &a[i * n];
      row_j[i] = (row_j[i] - known_before(row_j, row_i, j, i, sparsity)) / row_i[i];
    }
    row_j[j] = std::sqrt(std::max(row_j[j] - known_before(row_j, row_j, j, j, sparsity), 1e-12));
    b[j] = (b[j] - dot(row_j, b.data(), j)) / row_j[j];
  }
  for (std::size_t j = n; j-- > 0;) {
    b[j] /= a[j * n + j];
    for (std::size_t k = 0; k < j; ++k) b[k] -= a[j * n + k] * b[j];
  }
}

// Runs on a congested fabric are off by factors of ten and say nothing about the constants.
double robust_weight(double scaled) { return 1 / (1 + scaled * scaled / (kTail * kTail)); }
double robust_loss(double scaled) { return kTail * kTail * std::log1p(scaled * scaled / (kTail * kTail)); }

struct Evaluation {
  double error = 0;
  std::vector<double> derivative;  // by moving constant
};

class Problem {
 public:
  Problem(const std::vector<const Observation*>& observations, const PooledConstants& start, const FitOptions& options)
      : observations_(observations), options_(options), layout_(layout_of(observations, options.memory)) {
    // Only what is observed now: what the start knew of other stacks must not leak into a fold that leaves them out.
    const std::vector<double> none(cost::constant_table().size(), 0.0);
    state_.global = start.global;
    for (const auto& name : layout_.hardware) {
      const auto found = start.by_hardware.find(name);
      state_.by_hardware[name] = found != start.by_hardware.end() ? found->second : none;
    }
    for (const auto& name : layout_.peers) {
      const auto found = start.by_peers.find(name);
      state_.by_peers[name] = found != start.by_peers.end() ? found->second : none;
    }
    for (const auto& key : layout_.stacks) {
      const auto found = start.by_stack.find(key);
      state_.by_stack[key] = found != start.by_stack.end() ? found->second : none;
    }
  }

  // From wide to narrow: everything counts at first, so that nothing is given up before it could be explained.
  PooledConstants run() {
    for (const double widening : options_.widenings) {
      widening_ = widening;
      descend();
    }
    return state_;
  }

 private:
  void descend() {
    double loss = loss_of(state_);
    double damping = 1e-2;
    for (int i = 0; i < options_.iterations; ++i) {
      const std::vector<Evaluation> evaluations = evaluate();
      bool better = false;
      for (int attempt = 0; attempt < 6 && !better; ++attempt) {
        const PooledConstants candidate = step(evaluations, damping);
        const double candidate_loss = loss_of(candidate);
        if (candidate_loss < loss) {
          const double gain = (loss - candidate_loss) / loss;
          state_ = candidate;
          loss = candidate_loss;
          damping = std::max(damping / 5, 1e-5);
          better = true;
          if (gain < 1e-4) return;
        } else {
          damping *= 6;
        }
      }
      if (!better) return;
    }
  }

  template <class Body>
  void in_parallel(std::size_t count, Body body) const {
    std::vector<std::thread> threads;
    const std::size_t workers = static_cast<std::size_t>(std::max(1, options_.threads));
    for (std::size_t w = 0; w < workers; ++w) {
      threads.emplace_back([&, w] {
        for (std::size_t i = w; i < count; i += workers) body(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static std::vector<double> offsets_of(const PooledConstants& at, const Observation& o) {
    return add(add(at.global, at.by_hardware.at(o.hardware)),
               add(at.by_peers.at(cost::peers_of(o.stack)), at.by_stack.at({o.hardware, o.stack})));
  }

  double loss_of(const PooledConstants& at) const {
    std::vector<double> losses(observations_.size());
    in_parallel(observations_.size(), [&](std::size_t i) {
      const Observation& o = *observations_[i];
      losses[i] = robust_loss(o.log_error(constants_from(offsets_of(at, o))) / (o.sigma * widening_));
    });
    double loss = 0;
    for (const double part : losses) loss += part;
    const auto table = cost::constant_table();
    for (const std::size_t j : layout_.moving) {
      loss += std::pow(at.global[j] / global_spread(table[j]), 2);
      for (const auto& name : layout_.hardware) {
        loss += std::pow(at.by_hardware.at(name)[j] / table[j].hardware_spread, 2);
      }
      for (const auto& name : layout_.peers) loss += std::pow(at.by_peers.at(name)[j] / peers_spread(table[j]), 2);
      for (const auto& key : layout_.stacks) loss += std::pow(at.by_stack.at(key)[j] / table[j].stack_spread, 2);
    }
    return loss;
  }

  std::vector<Evaluation> evaluate() const {
    std::vector<Evaluation> evaluations(observations_.size());
    in_parallel(observations_.size(), [&](std::size_t i) {
      const Observation& o = *observations_[i];
      std::vector<double> offsets = offsets_of(state_, o);
      Evaluation& e = evaluations[i];
      e.error = o.log_error(constants_from(offsets));
      for (const std::size_t j : layout_.moving) {
        const double kept = offsets[j];
        offsets[j] = kept + kStep;
        e.derivative.push_back((o.log_error(constants_from(offsets)) - e.error) / kStep);
        offsets[j] = kept;
      }
    });
    return evaluations;
  }

  PooledConstants step(const std::vector<Evaluation>& evaluations, double damping) const {
    const std::size_t n = layout_.size();
    const std::size_t p = layout_.moving.size();
    std::vector<double> normal(n * n, 0.0);
    std::vector<double> right(n, 0.0);
    std::vector<std::size_t> blocks(4);
    for (std::size_t i = 0; i < evaluations.size(); ++i) {
      const Observation& o = *observations_[i];
      const Evaluation& e = evaluations[i];
      const double sigma = o.sigma * widening_;
      const double weight = robust_weight(e.error / sigma) / (sigma * sigma);
      blocks[0] = p * index_in(layout_.stacks, std::pair(o.hardware, o.stack));
      blocks[1] = p * (layout_.stacks.size() + index_in(layout_.hardware, o.hardware));
      const std::size_t above = layout_.stacks.size() + layout_.hardware.size();
      blocks[2] = p * (above + index_in(layout_.peers, cost::peers_of(o.stack)));
      blocks[3] = p * (above + layout_.peers.size());
      for (std::size_t a = 0; a < p; ++a) {
        const double da = weight * e.derivative[a];
        if (da == 0) continue;
        for (const std::size_t block : blocks) right[block + a] -= da * e.error;
        for (std::size_t b = 0; b < p; ++b) {
          const double dab = da * e.derivative[b];
          if (dab == 0) continue;
          for (const std::size_t row : blocks) {
            for (const std::size_t column : blocks) normal[(row + a) * n + column + b] += dab;
          }
        }
      }
    }
    add_prior(normal, right, n);
    for (std::size_t i = 0; i < n; ++i) normal[i * n + i] *= 1 + damping;
    solve_cholesky(normal, right, n, sparsity());
    PooledConstants moved = state_;
    for (std::size_t a = 0; a < p; ++a) {
      const std::size_t j = layout_.moving[a];
      std::size_t block = a;
      for (const auto& key : layout_.stacks) {
        moved.by_stack.at(key)[j] += bounded(right[block]);
        block += p;
      }
      for (const auto& name : layout_.hardware) {
        moved.by_hardware.at(name)[j] += bounded(right[block]);
        block += p;
      }
      for (const auto& name : layout_.peers) {
        moved.by_peers.at(name)[j] += bounded(right[block]);
        block += p;
      }
      moved.global[j] += bounded(right[block]);
    }
    return moved;
  }

  static double bounded(double change) { return std::clamp(change, -0.5, 0.5); }

  Sparsity sparsity() const {
    Sparsity sparsity{.width = layout_.moving.size(), .stacks = layout_.stacks.size(), .met = {}};
    const auto add_block = [&](auto is_part) {
      std::vector<std::size_t>& met = sparsity.met.emplace_back();
      for (std::size_t i = 0; i < layout_.stacks.size(); ++i) {
        if (is_part(layout_.stacks[i])) met.push_back(i);
      }
    };
    for (const auto& name : layout_.hardware) add_block([&](const auto& stack) { return stack.first == name; });
    for (const auto& name : layout_.peers) {
      add_block([&](const auto& stack) { return cost::peers_of(stack.second) == name; });
    }
    add_block([](const auto&) { return true; });
    return sparsity;
  }

  void add_prior(std::vector<double>& normal, std::vector<double>& right, std::size_t n) const {
    const auto table = cost::constant_table();
    const std::size_t p = layout_.moving.size();
    for (std::size_t a = 0; a < p; ++a) {
      const std::size_t j = layout_.moving[a];
      const auto pull = [&](std::size_t index, double value, double spread) {
        const double weight = 1 / (spread * spread);
        normal[index * n + index] += weight;
        right[index] -= weight * value;
      };
      std::size_t block = a;
      for (const auto& key : layout_.stacks) {
        pull(block, state_.by_stack.at(key)[j], table[j].stack_spread);
        block += p;
      }
      for (const auto& name : layout_.hardware) {
        pull(block, state_.by_hardware.at(name)[j], table[j].hardware_spread);
        block += p;
      }
      for (const auto& name : layout_.peers) {
        pull(block, state_.by_peers.at(name)[j], peers_spread(table[j]));
        block += p;
      }
      pull(block, state_.global[j], global_spread(table[j]));
    }
  }

  const std::vector<const Observation*>& observations_;
  FitOptions options_;
  Layout layout_;
  PooledConstants state_;
  double widening_ = 1;  // of every sigma
};

}  // namespace

PooledConstants::PooledConstants() : global(cost::constant_table().size(), 0.0) {}

cost::Constants PooledConstants::at(const std::string& hardware, const std::string& stack) const {
  std::vector<double> offsets = global;
  if (const auto found = by_hardware.find(hardware); found != by_hardware.end()) offsets = add(offsets, found->second);
  if (const auto found = by_peers.find(cost::peers_of(stack)); found != by_peers.end()) {
    offsets = add(offsets, found->second);
  }
  if (const auto found = by_stack.find({hardware, stack}); found != by_stack.end()) {
    offsets = add(offsets, found->second);
  }
  return constants_from(offsets);
}

PooledConstants fit(const std::vector<const Observation*>& observations, const PooledConstants& start,
                    const FitOptions& options) {
  return Problem(observations, start, options).run();
}

}  // namespace lockstep::validation
