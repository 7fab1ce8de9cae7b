// `--command CMD`: one program per trial, knobs in its arguments and environment, throughputs read from what it prints
// while it runs (docs/reference/tune.md).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/evaluators/template.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

struct CommandOptions {
  std::string command;  // a CommandTemplate (evaluator_template.h)
  std::string devices;  // that a trial holds: a number or the name of a knob; "": 1
  std::string metric;   // "": tokens_per_second, samples_per_second or throughput
  // Other figures that the study needs (objectives/objective.h): of memory the largest that is printed, of others the
  // last. kHostMemoryValue is what the program's processes hold, looked at five times a second.
  std::vector<std::string> values;
  double hang_seconds = 0;  // no output for so long is a hang; 0: the budget decides
  double memory_bytes = 0;  // more than that is out of memory; 0: no limit of ours
  std::string directory;    // working directory; "": ours
  // Run in an empty folder of its own, removed afterwards; arguments that name files of `directory` become absolute.
  bool own_folder = false;
  std::map<std::string, std::string> environment;  // added to the program's
  std::filesystem::path logs;                      // folder for trial-0007.log; "": none
};

// A program that is still running when the budget ends is ended; what it has printed counts. It is ended with
// everything it started.
std::unique_ptr<Evaluator> make_command_evaluator(const Space& space, CommandOptions options);

// The same for programs that are made up per trial instead of by a template; `command` and `devices` of the options are
// not read.
using FillProgram = std::function<CommandTemplate::Filled(const EvaluationRequest& request)>;
std::unique_ptr<Evaluator> make_program_evaluator(FillProgram fill, std::function<double(const Config&)> devices,
                                                  CommandOptions options);

}  // namespace lockstep::tune
