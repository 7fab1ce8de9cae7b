#include "lockstep/tune/models/memory_sketch.h"

#include <algorithm>
#include <cmath>

#include "lockstep/tune/space/domain.h"

namespace lockstep::tune {
namespace {

constexpr int kFirstDraws = 400;  // from the prior; the chains start at those that agree best
constexpr std::size_t kChains = 32;
constexpr int kUpdates = 40;         // of each chain
constexpr double kSharpness = 0.10;  // of the edge, in the logarithm of memory: what the formula omits
constexpr double kOutlier = 0.02;    // probability that a trial says nothing

double normal_cumulative(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

double uniform(double latent, double low, double high) { return low + (high - low) / (1 + std::exp(-1.702 * latent)); }

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  double unit() { return std::max(draw_unit(random_), 1e-12); }
  double normal() { return std::sqrt(-2 * std::log(unit())) * std::cos(2 * 3.14159265358979 * unit()); }
  std::vector<double> normals(std::size_t count) {
    std::vector<double> list(count);
    for (double& value : list) value = normal();
    return list;
  }

 private:
  Random random_;
};

// Latent numbers besides those of the factors: total at the default, share of the states in it, and how these divide.
enum { kTotal, kStatesShare, kOptimizerShare, kOwnLatents };

}  // namespace

MemorySketch::MemorySketch(const Space& space, std::span<const Point> points, bool trust_default)
    : factors_(space), trust_default_(trust_default), usual_(factors_.slots(space.default_config())) {
  for (const Point& point : points) {
    seen_.push_back(factors_.slots(point.config));
    signs_.push_back(point.fits ? 1 : -1);
  }
  struct Chain {
    std::vector<double> latent;
    double log_likelihood;
  };
  Draw draw(0xace);
  const std::size_t size = factors_.latent_size() + kOwnLatents;
  std::vector<Chain> drawn(kFirstDraws);
  Guess scratch;
  for (Chain& chain : drawn) {
    chain.latent = draw.normals(size);
    chain.log_likelihood = log_likelihood(chain.latent, scratch);
  }
  std::stable_sort(drawn.begin(), drawn.end(),
                   [](const Chain& a, const Chain& b) { return a.log_likelihood > b.log_likelihood; });
  drawn.resize(kChains);
  std::vector<double> proposal(size);
  for (Chain& chain : drawn) {
    for (int update = 0; update < kUpdates; ++update) {
      const std::vector<double> other = draw.normals(size);
      const double threshold = chain.log_likelihood + std::log(draw.unit());
      double angle = 2 * 3.14159265358979 * draw.unit(), low = angle - 2 * 3.14159265358979, high = angle;
      for (int shrink = 0; shrink < 30; ++shrink) {
        for (std::size_t i = 0; i < size; ++i)
          proposal[i] = chain.latent[i] * std::cos(angle) + other[i] * std::sin(angle);
        const double value = log_likelihood(proposal, scratch);
        if (value >= threshold) {
          chain.latent = proposal;
          chain.log_likelihood = value;
          break;
        }
        (angle < 0 ? low : high) = angle;
        angle = low + (high - low) * draw.unit();
      }
    }
    make_guess(chain.latent, guesses_.emplace_back());
  }
}

void MemorySketch::make_guess(std::span<const double> latent, Guess& guess) const {
  guess.slots.resize(factors_.slot_count());
  factors_.fill(latent.subspan(kOwnLatents), guess.slots);
  for (MemoryParts& parts : guess.slots)
    for (double& part : parts) part = part == 0 ? 1.0 : std::exp(part);
  // The default fits: all it needs is between a twenty-fifth of the memory and nearly all of it. A combination that
  // nobody called the default may need several times as much.
  const double total = std::exp(uniform(latent[kTotal], std::log(0.04), trust_default_ ? 0.0 : std::log(4.0)));
  const double states = uniform(latent[kStatesShare], 0.02, 0.98);
  // Of unsharded states the optimizer is three quarters, more or less (12 bytes of 16 or 18).
  const double optimizer = uniform(latent[kOptimizerShare], 0.5, 0.85);
  MemoryParts at_default{1, 1, 1, 1};
  for (const std::size_t slot : usual_)
    for (std::size_t part = 0; part < kMemoryPartCount; ++part) at_default[part] *= guess.slots[slot][part];
  // Parts before any factor, in proportion; then scaled so that the default's states and activations are as drawn.
  const MemoryParts whole{(1 - optimizer) / 2, (1 - optimizer) / 2, optimizer, 0};
  double sum = 0;
  for (const MemoryPart part : {kWeights, kGradients, kOptimizer}) sum += whole[part] * at_default[part];
  for (const MemoryPart part : {kWeights, kGradients, kOptimizer})
    guess.base[part] = whole[part] / sum * total * states;
  guess.base[kActivations] = total * (1 - states) / at_default[kActivations];
}

double MemorySketch::log_memory(const Guess& guess, std::span<const std::size_t> slots) {
  MemoryParts parts = guess.base;
  for (const std::size_t slot : slots)
    for (std::size_t part = 0; part < kMemoryPartCount; ++part) parts[part] *= guess.slots[slot][part];
  return std::log(parts[kWeights] + parts[kGradients] + parts[kOptimizer] + parts[kActivations]);
}

double MemorySketch::log_likelihood(std::span<const double> latent, Guess& scratch) const {
  make_guess(latent, scratch);
  double sum = 0;
  for (std::size_t p = 0; p < seen_.size(); ++p) {
    const double z = -signs_[p] * log_memory(scratch, seen_[p]) / kSharpness;
    if (z < 4) sum += std::log(kOutlier + (1 - kOutlier) * normal_cumulative(z));
  }
  return sum;
}

double MemorySketch::predictive_score() const {
  double sum = 0;
  for (std::size_t p = 0; p < seen_.size(); ++p) {
    double inverse = 0;
    for (const Guess& guess : guesses_) {
      const double z = -signs_[p] * log_memory(guess, seen_[p]) / kSharpness;
      inverse += 1 / (kOutlier + (1 - kOutlier) * normal_cumulative(z));
    }
    sum -= std::log(inverse / static_cast<double>(guesses_.size()));
  }
  return sum;
}

double MemorySketch::fits(const Config& config) const {
  const std::vector<std::size_t> list = factors_.slots(config);
  double sum = 0;
  for (const Guess& guess : guesses_) sum += normal_cumulative(-log_memory(guess, list) / kSharpness);
  return sum / static_cast<double>(guesses_.size());
}

}  // namespace lockstep::tune
