// What is submitted: the same for every scheduler. Values are the user's own and may hold anything printable; a
// scheduler hands them on as arguments, as JSON or as YAML scalars, never as text of a shell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/schedulers/settings.h"

namespace lockstep::schedulers {

struct Submission {
  std::string run;                   // id of the run in the submitter's store: letters, digits, '-' and '_'
  std::string name;                  // of the job
  std::optional<std::string> job;    // YAML text of the Job, paths as on the submitter; none: a foreign program
  std::string verb = "launch";       // of lockstep on the nodes; another one has neither job nor command
  std::vector<std::string> flags;    // of that verb
  std::vector<std::string> command;  // foreign program: after `--`
  std::int64_t nodes = 1;            // that hold ranks; settings.spares more are asked for
  std::int64_t ranks_per_node = 1;   // devices of a node
  std::string device = "cpu";        // or the kind of GPU: "H100"
  std::string token;                 // the secret of the agents; goes to the nodes, never into argv or logs
  std::filesystem::path folder;      // of this submission, on the submitter: files and logs
  std::filesystem::path directory;   // working directory of the submitter
  std::string lockstep;              // executable of the submitter
  LaunchSettings settings;

  bool has_gpus() const { return device != "cpu"; }
  std::int64_t all_nodes() const { return nodes + settings.spares; }
  std::filesystem::path job_file() const { return folder / "job.yaml"; }  // where `job` is written before submit()

  // The executable on the nodes and its arguments; `job` is where the job file is there.
  std::vector<std::string> words(const std::string& job) const;
  // What every node needs beside its number and the list of nodes, without the secret.
  std::map<std::string, std::string> environment() const;
};

// For nodes that get one text instead of arguments and files: `lockstep launch --submission -` reads it from standard
// input, `--submission env` from LOCKSTEP_SUBMISSION. Holds the token: a secret.
nlohmann::json to_json(const Submission& submission);
// What such a node does: writes the job file, sets the variables, and is then the agent `argv` says.
struct NodeStart {
  std::string run;
  std::optional<std::string> job;
  std::vector<std::string> arguments;  // after `lockstep`; kJobPlaceholder stands for the job file
  std::string directory;               // to run in; "": where it was started
  std::map<std::string, std::string> environment;
};
inline constexpr const char* kJobPlaceholder = "{job}";
// Throws UserError for anything else than what to_json(Submission) writes.
NodeStart node_start_from_json(const std::string& text);

// Names that schedulers accept, made from any text; never empty, never beginning with '-'.
std::string dns_label(const std::string& text, std::size_t most = 63);   // lower case letters, digits and '-'
std::string plain_name(const std::string& text, std::size_t most = 64);  // letters, digits, '-', '_' and '.'

}  // namespace lockstep::schedulers
