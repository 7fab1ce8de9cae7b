// DeviceStep: optimizer steps of a whole model on one device by a program of its own (own forward, backward and update,
// own memory), instead of libtorch's autograd: what FusedExecutor (fused_executor.h) runs where the job allows it.
//
//   DeviceStepChoice choice = make_device_step(job, run, device);
//   if (choice.step) { load_initial_values(*choice.step, job); choice.step->submit(batches, 3e-4); choice.step->wait();
//   }
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/plan/run.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// Used by one thread at a time. Optimizer: AdamW.
class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  // One line for people: "fused CUDA step, bf16, recompute none".
  virtual std::string describe() const = 0;

  struct Parameter {
    std::string name;  // as nn's models name it
    std::vector<std::int64_t> sizes;
  };
  virtual const std::vector<Parameter>& parameters() const = 0;

  // Where values are best drawn that write() takes.
  virtual torch::Device device() const = 0;
  // What is kept of a parameter: what the model computes with, what the optimizer updates (exact fp32), AdamW's means.
  enum class Part { kWeight, kMaster, kFirstMoment, kSecondMoment };
  // With the parameter's sizes; it may be a view of live state on the device, valid until the next step. No step is in
  // flight.
  virtual torch::Tensor read(Part part, std::size_t parameter) = 0;
  // Of every parameter, in their order; where one by one takes longer, all at once.
  virtual std::vector<torch::Tensor> read_all(Part part) {
    std::vector<torch::Tensor> all;
    for (std::size_t i = 0; i < parameters().size(); ++i) all.push_back(read(part, i));
    return all;
  }
  // `values`: any floating dtype, in host memory or on the device. Writing the master sets the weight too; weights
  // alone are not written. No step is in flight.
  virtual void write(Part part, std::size_t parameter, const torch::Tensor& values) = 0;
  // Updates made so far: what AdamW corrects its means with. Skipped steps are none.
  virtual std::int64_t updates() const = 0;
  virtual void set_updates(std::int64_t updates) = 0;

  struct Result {
    double loss = 0.0;            // mean over the step's targets that are not kIgnoredTarget
    double gradient_norm = 0.0;   // before clipping
    bool skipped = false;         // gradient not finite: weights were left alone
    double device_seconds = 0.0;  // that the device worked on it
  };
  // The micro-batches of one step, in host memory, at most `batch.micro` x `batch.accumulation` samples together; they
  // may be freed when submit returns. The device works meanwhile; wait() before the next submit.
  virtual void submit(const std::vector<data::Batch>& batches, double learning_rate) = 0;
  virtual Result wait() = 0;

  struct Evaluation {
    double loss = 0.0, targets = 0.0, correct = 0.0;  // sums
  };
  virtual Evaluation evaluate(const data::Batch& batch) = 0;

  // What it chose by measuring (algorithms of matrix products), as text that checkpoints keep: a run that goes on with
  // the same choices computes the same bits. Adopted before the first step; text of another device is passed over.
  virtual std::string choices() const = 0;
  virtual void adopt_choices(const std::string& text) = 0;

  // Peak so far, of everything this process has on the device.
  virtual double peak_memory_bytes() const = 0;
};

struct DeviceStepChoice {
  std::unique_ptr<DeviceStep> step;
  std::string why_not;  // where there is none: one clause
};
using DeviceStepMaker = std::function<DeviceStepChoice(const spec::Job&, const plan::Run&, torch::Device)>;

// The first thing about the run that no DeviceStep of ours does, as one clause; nothing where they might.
std::optional<std::string> reason_for_general_path(const plan::Run& run, torch::Device device);

// The fast step of this device where there is one for the job; parameters have no values yet. Throws UserError where it
// is the right one and its memory does not fit.
DeviceStepChoice make_device_step(const spec::Job& job, const plan::Run& run, torch::Device device);

}  // namespace lockstep::engine
