// `--worker CMD`: a long-lived program that measures one configuration after the other (docs/reference/tune.md).
//
// Per trial one JSON line goes in, {"trial":n,"config":{...},"budget_seconds":s} (inactive knobs are omitted), and one
// comes back: {"samples":[...],"seconds":s,"values":{"memory_bytes":b}} (values only where the study asks), or
// {"failed":"oom|invalid|timeout","seconds":s}. Other lines on its output are taken for logs. What it answers wrongly,
// its death and its silence are outcomes of the trial; a worker that died or hung is started again. A worker that dies
// before it reads anything, three times in a row, or on six trials in a row, is given up with a UserError.
//
// A worker may report samples while it measures, {"trial":n,"sample":s}. Where a trial may be stopped early its request
// has "stop_file": when that file appears, the trial is hopeless and the worker answers with what it has. One that does
// not look for it is measured to its end.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

struct WorkerOptions {
  std::string command;
  std::string devices;                             // that a trial holds: a number or the name of a knob; "": 1
  std::map<std::string, std::string> environment;  // added to the worker's
  std::string directory;                           // working directory; "": ours
  std::filesystem::path log;                       // gets all but the answers; "": none
  std::string unit = "tokens/s";
};

// UserError (exit 2) for a command that cannot be split or a `devices` that is not valid.
std::unique_ptr<Evaluator> make_worker_evaluator(Space space, WorkerOptions options);

// What one line of a worker says; nullopt for one that does not answer `trial`. `seconds` below 0: not given.
std::optional<Measurement> parse_worker_line(const std::string& line, std::int64_t trial);
// The throughput in a line that reports one while the trial runs; nullopt: another line, or no throughput.
std::optional<double> parse_worker_sample(const std::string& line, std::int64_t trial);

}  // namespace lockstep::tune
