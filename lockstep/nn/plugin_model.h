// PluginModel: a model that a plugin registered (plugin/model.h), under any layout that its units allow.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/foreign_model.h"
#include "lockstep/nn/plugin_loss.h"
#include "lockstep/plugin/model.h"

namespace lockstep::nn {

class PluginModel : public ForeignModel {
 public:
  // Throws UserError, naming the plugin, for a file that cannot be used, options that the model does not know, and
  // whatever its constructor throws.
  PluginModel(const spec::Model& spec, const BuildOptions& options);

  std::size_t unit_count() const override { return units_.size(); }
  std::vector<torch::Tensor> unit_parameters(std::size_t unit) const override { return units_[unit].parameters; }
  Stream first_stream(const UnitBatch& batch) const override { return inputs_of(batch); }
  UnitOutput run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;
  torch::Tensor predict_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) override;
  std::string unit_name(std::size_t unit) const override { return units_.at(unit).name; }
  bool counts_targets() const override;

 private:
  struct Unit {
    std::string name;
    std::shared_ptr<plugin::Unit> module;
    std::vector<torch::Tensor> parameters;
  };

  void take_tensors();
  void keep_part(torch::Device device);
  Stream call(std::size_t unit, const Stream& x, const plugin::Batch& batch);
  LossResult loss_of(const Stream& output, const plugin::Batch& batch) const;
  plugin::Batch batch_of(const UnitBatch& batch) const;

  std::string title_;
  std::unique_ptr<plugin::Model> model_;
  std::vector<Unit> units_;                      // of all parts first, then of part_
  std::vector<std::vector<std::string>> names_;  // of the tensors of each unit, of all parts
  std::unique_ptr<PluginLoss> own_loss_;
};

}  // namespace lockstep::nn
