// ScriptModel: a module that Python saved with torch.jit, as a model of units (nn/unit_model.h). Its parameters are the
// module's own tensors under the module's own names; their initial values are those in the file. The interpreter runs
// every operator as eager PyTorch does (no fusion, no rewriting), so that a step does not depend on how many came
// before it, and a resumed run repeats them bit by bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/script.h>

#include "lockstep/nn/foreign_model.h"
#include "lockstep/nn/plugin_loss.h"
#include "lockstep/nn/script_graph.h"

namespace lockstep::nn {

class ScriptModel : public ForeignModel {
 public:
  // Throws UserError: exit 4 where the file is missing, 2 where it is no module that can be trained or not the one that
  // spec.script.digest was taken of.
  ScriptModel(const spec::Model& spec, const BuildOptions& options);
  ~ScriptModel() override;

  std::size_t unit_count() const override { return units_.size(); }
  std::vector<torch::Tensor> unit_parameters(std::size_t unit) const override;
  Stream first_stream(const UnitBatch& batch) const override;
  UnitOutput run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;
  torch::Tensor predict_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;

  // Of a model that holds all units.
  std::string unit_name(std::size_t unit) const override { return graph_.segments.at(unit).name; }
  bool draws() const override { return graph_.draws; }
  bool updates() const override { return graph_.updates; }
  bool counts_targets() const override;
  // Of the whole module, whichever part is held here.
  const ScriptGraph& graph() const { return graph_; }

 private:
  struct Unit;

  void share_tensors();
  void keep_part();
  c10::IValue call(std::size_t unit, const Stream& x, bool training, Stream* leaving);
  torch::Tensor result_of(const c10::IValue& value) const;

  torch::jit::Module module_;
  ScriptGraph graph_;
  std::vector<std::unique_ptr<Unit>> units_;  // of part_
  std::unique_ptr<PluginLoss> own_loss_;
  bool training_ = true;
};

}  // namespace lockstep::nn
