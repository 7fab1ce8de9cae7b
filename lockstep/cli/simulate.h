// The questions `lockstep simulate` answers, one file each: simulate_failures.cpp weeks of failures, simulate_step.cpp
// one step, simulate_replay.cpp recorded operations. simulate.cpp has what they share, and chooses by the flags given.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::cli {

struct SimulateCommon {
  std::string plan;  // file; empty: none was given
  std::uint64_t seed = 1;
  bool json = false;
};

// A question: the heading of its own flags in --help (CLI::Option::group), any of which asks it, and what answers it
// with an exit code.
struct SimulateQuestion {
  std::string heading;
  std::function<int(const SimulateCommon&)> answer;
};

SimulateQuestion add_step_question(CLI::App& verb);
SimulateQuestion add_failure_question(CLI::App& verb);
SimulateQuestion add_replay_question(CLI::App& verb);

}  // namespace lockstep::cli
