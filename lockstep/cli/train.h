// What `lockstep train` and `lockstep launch` are told; launch is train with an agent on every node.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/node_list.h"

namespace lockstep::cli {

struct Outcome;

struct TrainOptions {
  std::string verb = "train";
  std::string job_file;
  std::vector<std::string> overrides;
  std::string plan_file, profile, backend, resume, export_folder, chaos, interface, tensorboard;
  bool resuming = false, accept_changes = false;
  bool json = false, dry_run = false, no_record = false, report_steps = false, general_step = false;
  bool launches = false;  // this process is the agent of a node, whatever started it
  std::string nodes;      // "": what a launcher says
  int node = -1;
  // How the nodes are found; `job`: what must be the same on all of them. Empty: there is one.
  std::function<std::optional<elastic::NodeList>(const std::string& job)> find_nodes;
};

// The flags that both verbs have; `run` is the verb.
void add_train_options(CLI::App& verb, const std::shared_ptr<TrainOptions>& options, Outcome& outcome,
                       std::function<int(const TrainOptions&)> run);

int train(const TrainOptions& options);

}  // namespace lockstep::cli
