// The surfaces of the tuner's benchmark, and which of their instances are hard enough to count.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/tune/surface.h"

namespace lockstep::bench {

const std::vector<std::string>& surface_kinds();  // nccl6, zero9, mesh, rugged: the tuner was made on these

// The laboratory (lab_surface.h): "dev" to work on the tuner with, "final" to be opened once, for the reported figure.
std::vector<std::string> lab_kinds(const std::string& half);  // throws UserError for another word
bool is_lab_kind(const std::string& kind);

// Throws UserError for an unknown kind.
std::unique_ptr<Surface> make_surface(const std::string& kind, int instance);

// By enumeration (large spaces: by ascents, see find_optimum) and by random search.
struct SurfaceFacts {
  std::uint64_t configurations = 0;  // that obey the rules; 0: not enumerated
  std::uint64_t feasible = 0;        // of them, those that run
  double best = 0;
  Point best_point;
  double default_throughput = 0;
  double believed_best = 0;  // true throughput of what the prior would choose (fits with 0.8 or more); 0: does not run
  // Of 20,000 uniform draws over the knobs, without rules and with them.
  double failing = 0;
  double failing_with_rules = 0;
  // Mean over 40 seeds of how far random search ends below the best after 30 trials, in percent of the best.
  double random_regret = 0;
  double random_regret_with_rules = 0;
  // Of the laboratory's surfaces all count, nothing is selected. Of the others: random search ends at least 7% below
  // the best in both ways, and at least 40% of draws without rules fail.
  bool counts = false;
};
SurfaceFacts study_surface(const Surface& surface);

// Of what a surface does and says, not of its source: equal when truth, failures, noise, seconds and the space are.
std::uint64_t fingerprint(const Surface& surface);

// The first `wanted` instances of a kind that count, in order; `examined` gets how many were looked at.
std::vector<int> counted_instances(const std::string& kind, int wanted, int* examined = nullptr);

// How far `throughput` is below the best, in percent.
double regret_percent(const SurfaceFacts& facts, double throughput);

std::unique_ptr<Surface> make_nccl6(int instance);
std::unique_ptr<Surface> make_zero9(int instance);
std::unique_ptr<Surface> make_mesh(int instance);
std::unique_ptr<Surface> make_rugged(int instance);

}  // namespace lockstep::bench
