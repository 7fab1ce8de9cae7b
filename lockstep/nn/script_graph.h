// The forward graph of a TorchScript module cut into segments that run one after the other, so that weights can come
// and go with a segment and activations be computed again: the units of a model whose inside nobody here wrote.
//
// Containers (torch.nn.Sequential, and submodules that hold most of the weights) are inlined; a segment begins where a
// submodule with weights is called and only tensors live across that place. What is left is opaque: a submodule's own
// code runs as TorchScript runs it. A graph with no such place is one segment.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/script.h>

namespace lockstep::nn {

struct ScriptSegment {
  std::string name;                          // the submodules called in it: "features.0, features.1"
  std::set<std::string> parameters;          // full names of parameters and buffers that it uses
  std::shared_ptr<torch::jit::Graph> graph;  // (module, tensors that enter) -> tensors that leave, or the results
  std::vector<char> written;                 // by tensor that enters: the segment writes into it
  std::int64_t inputs = 0, outputs = 0;      // tensors that enter and leave
};

struct ScriptGraph {
  std::vector<ScriptSegment> segments;
  std::vector<std::string> arguments;  // names of the tensors that forward reads; those with a default are left out
  bool draws = false;                  // random numbers in training
  bool updates = false;                // writes into buffers in training
};

// Throws UserError (bad input, naming `name`) for a module that cannot be trained here: no forward, arguments that are
// no tensors, attributes that forward assigns.
ScriptGraph cut_module(const torch::jit::Module& module, const std::string& name);

}  // namespace lockstep::nn
