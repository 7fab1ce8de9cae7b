// Models that are unlike others, and code that misbehaves.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <csignal>

#include "lockstep/plugin/register.h"

namespace {

using namespace lockstep::plugin;  // NOLINT(google-build-using-namespace): as users do
using torch::Tensor;

constexpr std::int64_t kPoints = 32, kClasses = 4;

struct Dense : Unit {
  Dense(std::int64_t in, std::int64_t out) : inner(register_module("inner", torch::nn::Linear(in, out))) {}
  Stream forward(const Stream& x, const Batch&) override { return {torch::tanh(inner(x[0]))}; }
  torch::nn::Linear inner;
};

// One misbehaviour, by name, in the second unit.
struct Doing : Unit {
  explicit Doing(std::string what)
      : what_(std::move(what)),
        inner(register_module("inner", torch::nn::Linear(kPoints, kPoints))),
        norm(register_module("norm", torch::nn::BatchNorm1d(kPoints))) {}
  Stream forward(const Stream& x, const Batch& batch) override {
    if (what_ == "throws") throw std::runtime_error("no such wave\nand a second line");
    if (what_ == "throws_int") throw 7;
    if (what_ == "crashes") std::raise(SIGSEGV);
    if (what_ == "shapes") return {torch::matmul(x[0], x[0])};
    if (what_ == "nothing") return {};
    if (what_ == "draws") return {torch::dropout(inner(x[0]), 0.5, batch.training)};
    if (what_ == "updates") return {norm(inner(x[0]))};
    if (what_ == "several") return {inner(x[0]), x[0]};
    return {inner(x[0])};
  }

 private:
  std::string what_;
  torch::nn::Linear inner;
  torch::nn::BatchNorm1d norm;
};

struct Sum : Unit {
  Sum() : inner(register_module("inner", torch::nn::Linear(kPoints, kClasses))) {}
  Stream forward(const Stream& x, const Batch&) override { return {inner(x.size() == 2 ? x[0] + x[1] : x[0])}; }
  torch::nn::Linear inner;
};

class Odd : public Model {
 public:
  explicit Odd(Options& options) {
    const std::string what = options.text("doing", "");
    counts_ = options.text("counts", "");
    if (what == "constructor") throw std::logic_error("the constructor does not like this");
    const bool tied = options.boolean("tied", false);
    const auto first = add_unit("first", std::make_shared<Dense>(kPoints, kPoints));
    add_unit("doing", std::make_shared<Doing>(what));
    if (tied) add_unit("again", first);
    add_unit("last", std::make_shared<Sum>());
  }
  // Mean over targets, of which every third does not count where `counts` is targets.
  Counted counted() const override { return counts_ == "targets" ? Counted::kTargets : Counted::kSamples; }
  Loss loss(const Stream& output, const Batch& batch) override {
    const Tensor logs = torch::log_softmax(output[0], 1);
    const Tensor counted = batch.target != kIgnored;
    const Tensor picked = logs.gather(1, batch.target.clamp_min(0).unsqueeze(1)).squeeze(1);
    if (counts_ == "wrong") return {-picked.sum(), 1};
    if (counts_ != "targets") return sum_of_samples(-picked);
    return {-(picked * counted).sum(), counted.sum().item<std::int64_t>()};
  }

 private:
  std::string counts_;
};

class OddData : public Dataset {
 public:
  OddData(Options& options, Split split)
      : what_(options.text("doing", "")), file_(options.path("file", "")), size_(split == Split::kTraining ? 48 : 0) {}
  std::int64_t size() const override { return size_; }
  std::string describe() const override { return "odd data of " + file_; }
  Samples fetch(const std::vector<std::int64_t>& indices) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    if (what_ == "throws") throw std::runtime_error("the disk is gone");
    const Tensor numbers = torch::tensor(indices, torch::kInt64);
    const Tensor x = torch::sin(numbers.unsqueeze(1).to(torch::kFloat32) * torch::arange(1, kPoints + 1) * 0.1);
    Tensor target = numbers % kClasses;
    if (what_ == "ignored") target = torch::where(numbers % 3 == 0, torch::full_like(target, kIgnored), target);
    if (what_ == "short") target = torch::zeros({count + 1}, torch::kInt64);
    return {.inputs = {x}, .target = target};
  }

 private:
  std::string what_, file_;
  std::int64_t size_;
};

// Reads windows of bytes, [samples, length], and guesses each next one from the one before.
struct Guess : Unit {
  Guess()
      : embed(register_module("embed", torch::nn::Embedding(256, 8))),
        out(register_module("out", torch::nn::Linear(8, 256))) {}
  Stream forward(const Stream& x, const Batch&) override { return {out(embed(x[0])).transpose(1, 2)}; }
  torch::nn::Embedding embed;
  torch::nn::Linear out;
};

struct Letters : Model {
  explicit Letters(Options&) { add_unit("guess", std::make_shared<Guess>()); }
};

struct NotARate : Schedule {
  double rate(const Progress&) const override { return std::nan(""); }
};

}  // namespace

LOCKSTEP_REGISTER_MODEL("odd", Odd)
LOCKSTEP_REGISTER_MODEL("letters", Letters)
LOCKSTEP_REGISTER_DATASET("odd", OddData)
LOCKSTEP_REGISTER_SCHEDULE("not-a-rate", NotARate)
