// ScriptModel: a module that Python saved with torch.jit, as a model of units (nn/unit_model.h). Its parameters are the
// module's own tensors under the module's own names; their initial values are those in the file. The interpreter runs
// every operator as eager PyTorch does (no fusion, no rewriting), so that a step does not depend on how many came
// before it, and a resumed run repeats them bit by bit.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/script.h>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/script_graph.h"
#include "lockstep/nn/unit_model.h"

namespace lockstep::nn {

class ScriptModel : public UnitModel, public ParameterOwner {
 public:
  // Throws UserError: exit 4 where the file is missing, 2 where it is no module that can be trained or not the one that
  // spec.script.digest was taken of.
  ScriptModel(const spec::Model& spec, const BuildOptions& options);
  ~ScriptModel() override;

  torch::Tensor forward(const torch::Tensor& input, const ForwardContext& context) override;
  LossResult loss(const torch::Tensor& input, const torch::Tensor& target, const ForwardContext& context) override;

  std::size_t unit_count() const override { return units_.size(); }
  std::vector<torch::Tensor> unit_parameters(std::size_t unit) const override;
  bool ends_in_loss() const override { return part_.head; }
  Stream first_stream(const UnitBatch& batch) const override;
  UnitOutput run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;
  torch::Tensor predict_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;
  bool recomputes(std::size_t unit, plan::Recompute recompute) const override;
  bool has_exchanges() const override { return false; }
  void drop_initial_values() override;

  const std::vector<DeclaredParameter>& declared() const override { return declared_; }

  // Of the whole module, whichever part is held here.
  const ScriptGraph& graph() const { return graph_; }
  // Names that stand for a parameter or buffer that is saved under another name.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

 private:
  struct Unit;
  struct InitialValues;

  void share_tensors();
  void convert_tensors();
  void keep_part();
  void register_tensors();
  c10::IValue call(std::size_t unit, const Stream& x, bool training, Stream* leaving);
  torch::Tensor result_of(const c10::IValue& value) const;

  std::string name_;
  ModelPart part_;
  bool autocast_ = false;
  torch::jit::Module module_;
  ScriptGraph graph_;
  std::vector<std::unique_ptr<Unit>> units_;  // of part_
  std::map<std::string, torch::Tensor> parameters_, buffers_;
  std::map<std::string, std::string> aliases_;
  std::vector<DeclaredParameter> declared_;  // of the module itself
  std::shared_ptr<InitialValues> initial_;
  bool training_ = true;
};

}  // namespace lockstep::nn
