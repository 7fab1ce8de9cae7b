// Partial pooling: every software stack has its own constants, drawn around its hardware's and those of its peers
// (stacks built alike, on any hardware: cost::peers_of), which are drawn around the prior. Penalised nonlinear least
// squares on logarithms: a stack with many runs moves its own constants, one with few stays near them, one that was
// never seen is its hardware and its peers.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/cost/profile/constants.h"

namespace lockstep::validation {

// One measurement: `log_error(constants)` is log(predicted / measured), 0 where it is right.
struct Observation {
  std::string hardware;
  std::string stack;
  double sigma = 0.05;  // of the measurement and of what no formula sees; runs far beyond it count less
  std::function<double(const cost::Constants&)> log_error;
};

struct FitOptions {
  bool memory = false;                          // which constants of constant_table() move
  int iterations = 25;                          // per widening
  std::vector<double> widenings{6, 3, 1.5, 1};  // of every sigma, in turn; a warm start needs only the last
  int threads = 2;
};

// The fitted logarithms; knows every stack it has seen.
class PooledConstants {
 public:
  PooledConstants();  // the prior
  // Of (hardware, stack); of the hardware and the stack's peers where the stack is unknown; of all hardware where that
  // is unknown too.
  cost::Constants at(const std::string& hardware, const std::string& stack) const;

  // Offsets from the prior, by constant_table() index.
  std::vector<double> global;
  std::map<std::string, std::vector<double>> by_hardware;
  std::map<std::string, std::vector<double>> by_peers;
  std::map<std::pair<std::string, std::string>, std::vector<double>> by_stack;
};

// Starts from `start` (warm for cross-validation) and moves the constants of `options`. Levenberg-Marquardt with
// numerical derivatives; robust weights (Cauchy).
PooledConstants fit(const std::vector<const Observation*>& observations, const PooledConstants& start,
                    const FitOptions& options);

}  // namespace lockstep::validation
