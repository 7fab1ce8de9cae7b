#include "bench/tune/surfaces.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "bench/tune/lab_families.h"
#include "bench/tune/lab_surface.h"
#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

constexpr int kDraws = 20'000;
constexpr int kSeeds = 40;
constexpr int kTrials = 30;
constexpr double kLeastRegretPercent = 7;
constexpr double kLeastFailing = 0.4;
constexpr std::uint64_t kUniform = 0x756e69, kSearch = 0x736561;

double failing_share(const Surface& surface, bool rules) {
  Draws draws(key_of({kUniform, static_cast<std::uint64_t>(surface.instance()), rules}));
  int failed = 0;
  for (int n = 0; n < kDraws; ++n) failed += surface.at(surface.draw(draws, rules)).outcome != tune::Outcome::kMeasured;
  return static_cast<double>(failed) / kDraws;
}

// The truth of what one random search would choose: the best observed. The default, where it is told, is its first
// trial, as it is for every tool here.
double random_search(const Surface& surface, bool rules, std::uint64_t seed) {
  Draws draws(key_of({kSearch, static_cast<std::uint64_t>(surface.instance()), rules, seed}));
  double best_observed = 0, truth = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Point point = trial == 0 && surface.tells_defaults() ? surface.default_point() : surface.draw(draws, rules);
    const SurfaceMeasurement measured = surface.measure(point, seed, trial);
    if (measured.outcome != tune::Outcome::kMeasured) continue;
    const double mean = std::accumulate(measured.samples.begin(), measured.samples.end(), 0.0) /
                        static_cast<double>(measured.samples.size());
    if (mean <= best_observed) continue;
    best_observed = mean;
    truth = surface.at(point).throughput;
  }
  return truth;
}

double mean_random_regret(const Surface& surface, const SurfaceFacts& facts, bool rules) {
  double sum = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    sum += regret_percent(facts, random_search(surface, rules, static_cast<std::uint64_t>(seed)));
  }
  return sum / kSeeds;
}

struct Family {
  std::string kind;
  std::unique_ptr<Surface> (*make)(int instance);
};

const std::vector<Family>& families() {
  static const std::vector<Family> all{{"nccl6", make_nccl6},
                                       {"zero9", make_zero9},
                                       {"mesh", make_mesh},
                                       {"rugged", make_rugged},
                                       {"dev_ddp", make_dev_ddp},
                                       {"dev_zero", make_dev_zero},
                                       {"dev_anonymous", make_dev_anonymous},
                                       {"dev_words", make_dev_words},
                                       {"dev_cloud", make_dev_cloud},
                                       {"final_pipeline", make_final_pipeline},
                                       {"final_compress", make_final_compress},
                                       {"final_tiles", make_final_tiles},
                                       {"final_stream", make_final_stream},
                                       {"final_moe", make_final_moe}};
  return all;
}

// Tries every configuration.
void enumerate(const Surface& surface, SurfaceFacts& facts) {
  double most_believed = -std::numeric_limits<double>::infinity();
  surface.for_each([&](PointView point) {
    ++facts.configurations;
    const SurfaceTruth truth = surface.at(point);
    const tune::Belief belief = surface.believe(point);
    if (belief.fits_probability >= 0.8 && belief.log_throughput > most_believed) {
      most_believed = belief.log_throughput;
      facts.believed_best = truth.throughput;
    }
    if (truth.outcome != tune::Outcome::kMeasured) return;
    ++facts.feasible;
    if (truth.throughput <= facts.best) return;
    facts.best = truth.throughput;
    facts.best_point.assign(point.begin(), point.end());
  });
}

}  // namespace

const std::vector<std::string>& surface_kinds() {
  static const std::vector<std::string> kinds{"nccl6", "zero9", "mesh", "rugged"};
  return kinds;
}

std::vector<std::string> lab_kinds(const std::string& half) {
  if (half != "dev" && half != "final")
    throw UserError(ExitCode::kUsage, fmt::format("the laboratory has no half '{}'", half), "use dev or final");
  std::vector<std::string> kinds;
  for (const Family& family : families()) {
    if (family.kind.starts_with(half + "_")) kinds.push_back(family.kind);
  }
  return kinds;
}

bool is_lab_kind(const std::string& kind) { return kind.starts_with("dev_") || kind.starts_with("final_"); }

std::unique_ptr<Surface> make_surface(const std::string& kind, int instance) {
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (family.kind == kind) return family.make(instance);
    known.push_back(family.kind);
  }
  throw UserError(ExitCode::kUsage, fmt::format("no surface of kind '{}'", kind),
                  fmt::format("use one of {}", fmt::join(known, ", ")));
}

double regret_percent(const SurfaceFacts& facts, double throughput) { return 100 * (1 - throughput / facts.best); }

SurfaceFacts study_surface(const Surface& surface) {
  SurfaceFacts facts;
  const bool of_lab = is_lab_kind(surface.kind());
  if (of_lab) {
    SurfaceOptimum optimum = find_optimum(surface);
    facts.best = optimum.throughput;
    facts.best_point = std::move(optimum.point);
  } else {
    enumerate(surface, facts);
  }
  facts.default_throughput = surface.at(surface.default_point()).throughput;
  facts.failing = failing_share(surface, false);
  facts.failing_with_rules = failing_share(surface, true);
  facts.random_regret = mean_random_regret(surface, facts, false);
  facts.random_regret_with_rules = mean_random_regret(surface, facts, true);
  facts.counts = of_lab || (std::min(facts.random_regret, facts.random_regret_with_rules) >= kLeastRegretPercent &&
                            facts.failing >= kLeastFailing && facts.default_throughput > 0);
  return facts;
}

std::uint64_t fingerprint(const Surface& surface) {
  constexpr int kPoints = 1000;
  std::uint64_t hash = 0;
  const auto add = [&](double value) { hash = mix(hash ^ static_cast<std::uint64_t>(std::llround(1e6 * value))); };
  for (const char character : surface.space_yaml()) hash = mix(hash ^ static_cast<unsigned char>(character));
  Draws draws(key_of({kUniform, static_cast<std::uint64_t>(surface.instance())}));
  for (int n = 0; n < kPoints; ++n) {
    const SurfaceMeasurement measured = surface.measure(surface.draw(draws, n % 2 == 0), 1, n % 60);
    add(static_cast<double>(measured.outcome));
    add(measured.seconds);
    for (const double sample : measured.samples) add(std::log(sample));
  }
  return hash;
}

std::vector<int> counted_instances(const std::string& kind, int wanted, int* examined) {
  std::vector<int> counted;
  int instance = 0;
  for (; static_cast<int>(counted.size()) < wanted && instance < 10 * wanted; ++instance) {
    if (study_surface(*make_surface(kind, instance)).counts) counted.push_back(instance);
  }
  if (examined) *examined = instance;
  return counted;
}

}  // namespace lockstep::bench
