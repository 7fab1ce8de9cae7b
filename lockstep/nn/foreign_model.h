// ForeignModel: a model of units (nn/unit_model.h) whose inside nobody here wrote: a module from Python (ScriptModel)
// or a plugin's model (PluginModel). Its parameters are tensors that are there already, under names of their own; their
// initial values are those they have when the model is built.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/unit_model.h"

namespace lockstep::nn {

class ForeignModel : public UnitModel, public ParameterOwner {
 public:
  torch::Tensor forward(const torch::Tensor& input, const ForwardContext& context) override;
  LossResult loss(const torch::Tensor& input, const torch::Tensor& target, const ForwardContext& context) override;

  bool ends_in_loss() const override { return part_.head; }
  bool recomputes(std::size_t unit, plan::Recompute recompute) const override;
  bool has_exchanges() const override { return false; }
  void drop_initial_values() override { initial_->values.clear(); }
  const std::vector<DeclaredParameter>& declared() const override { return declared_; }

  // For who looks at it once (engine/probe.h).
  virtual std::string unit_name(std::size_t unit) const = 0;
  virtual bool draws() const { return false; }    // random numbers in training, as far as is known before it runs
  virtual bool updates() const { return false; }  // writes into buffers in training
  virtual bool counts_targets() const { return spec::counts_classes(spec().script.loss); }
  // Names that stand for a parameter or buffer that is saved under another name.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

 protected:
  using Tensors = std::map<std::string, torch::Tensor>;

  // `read_again` gives the initial values once more, after they were dropped.
  ForeignModel(const spec::Model& spec, const BuildOptions& options, std::function<Tensors()> read_again);

  // In this order: fill parameters_, buffers_ and aliases_; convert; say what is used where; register.
  void convert_tensors();
  // `anywhere`, `here`: names of tensors that units use, of the whole model and of this part. Tensors of other parts
  // are given up. Returns the parameters that no unit uses and that this part holds: they stay as they are.
  std::vector<torch::Tensor> keep_tensors(const std::set<std::string>& anywhere, const std::set<std::string>& here,
                                          bool whole);
  void register_tensors();

  // The micro-batch's tensors as the model reads them.
  Stream inputs_of(const UnitBatch& batch) const;
  bool is_last(std::size_t unit) const { return part_.head && unit + 1 == unit_count(); }

  const std::string name_;
  ModelPart part_;
  const bool autocast_;
  Tensors parameters_, buffers_;
  std::map<std::string, std::string> aliases_;

 private:
  struct InitialValues {
    Tensors values;
    std::function<Tensors()> read_again;
  };
  std::vector<DeclaredParameter> declared_;  // of the module itself
  std::shared_ptr<InitialValues> initial_;
};

}  // namespace lockstep::nn
