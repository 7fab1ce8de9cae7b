#include "lockstep/engine/probe.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/autograd.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/memory_counter.h"
#include "lockstep/engine/metrics.h"
#include "lockstep/engine/schedule.h"
#include "lockstep/engine/trained_model.h"
#include "lockstep/nn/foreign_model.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {
namespace {

using torch::Tensor;

constexpr double kMeasureSeconds = 1.0;
constexpr int kMostRepeats = 5;
constexpr std::int64_t kMostSamples = 64;  // of the larger of the two micro-batches that are timed

// Products and other results of the operators that run while this lives, in this thread.
class OperatorCounter {
 public:
  OperatorCounter() {
    current() = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCounter() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  struct Shape {
    std::int64_t m = 0, n = 0, k = 0;
    auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr): of the generated code
  };
  std::map<Shape, std::int64_t> products;
  double others = 0;  // elements

 private:
  static OperatorCounter*& current() {
    static thread_local OperatorCounter* counter = nullptr;
    return counter;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) {
    ++current()->depth_;
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    OperatorCounter& self = *current();
    const bool outermost = --self.depth_ == 0;
    const auto outputs = function.outputs();
    if (outputs.empty() || !outputs.front().isTensor() || !outputs.front().toTensor().defined()) return;
    const Tensor result = outputs.front().toTensor();
    if (self.add_product(function, result)) {
      self.inner_product_ = true;
    } else if (outermost && !self.inner_product_) {
      self.others += static_cast<double>(result.numel());
    }
    if (outermost) self.inner_product_ = false;
  }
  bool add_product(const at::RecordFunction& function, const Tensor& result) {
    const std::string name = function.name();
    const auto inputs = function.inputs();
    const auto tensor = [&](std::size_t i) {
      return i < inputs.size() && inputs[i].isTensor() ? inputs[i].toTensor() : Tensor();
    };
    Shape shape;
    if (name == "aten::convolution") {
      const Tensor weight = tensor(1);
      if (!weight.defined() || weight.dim() < 3 || result.dim() < 2) return false;
      shape = {result.numel() / result.size(1), result.size(1), weight.numel() / weight.size(0)};
    } else if (name == "aten::mm" || name == "aten::addmm") {
      const Tensor left = tensor(name == "aten::mm" ? 0 : 1);
      if (!left.defined() || left.dim() != 2 || result.dim() != 2) return false;
      shape = {result.size(0), result.size(1), left.size(1)};
    } else if (name == "aten::bmm" || name == "aten::baddbmm") {
      const Tensor left = tensor(name == "aten::bmm" ? 0 : 1);
      if (!left.defined() || left.dim() != 3 || result.dim() != 3) return false;
      shape = {result.size(0) * result.size(1), result.size(2), left.size(2)};
    } else {
      return false;
    }
    if (shape.m > 0 && shape.n > 0 && shape.k > 0) ++products[shape];
    return true;
  }

  at::CallbackHandle handle_ = 0;
  int depth_ = 0;
  bool inner_product_ = false;
};

// One micro-batch in memory.
struct Micro {
  data::Samples samples;
  nn::ForwardContext context;
  nn::UnitBatch batch() const { return {samples.input, samples.target, context}; }
};

Micro micro_of(const data::Dataset& dataset, std::int64_t samples) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(samples));
  std::iota(indices.begin(), indices.end(), 0);
  Micro micro;
  micro.samples = dataset.fetch(indices);
  micro.context.more_inputs = micro.samples.more_inputs;
  micro.context.documents = micro.samples.documents;
  return micro;
}

struct UnitTime {
  double forward = 0, backward = 0;
};

// Forward and backward, unit by unit as chunks run them; `see` hears of what enters a unit and of the bytes it kept.
std::vector<UnitTime> run_units(nn::ForeignModel& model, const Micro& micro,
                                const std::function<void(std::size_t, const nn::Stream&, std::int64_t)>& see = {}) {
  std::vector<UnitTime> times(model.unit_count());
  std::vector<nn::Stream> inputs(model.unit_count());
  std::vector<nn::UnitOutput> outputs(model.unit_count());
  nn::Stream x = model.first_stream(micro.batch());
  const MemoryCounter memory;
  for (std::size_t i = 0; i < times.size(); ++i) {
    for (const Tensor& tensor : x) {
      inputs[i].push_back(tensor.detach());
      if (i > 0 && tensor.is_floating_point()) inputs[i].back().requires_grad_(true);
    }
    const std::int64_t before = memory.bytes();
    const double begin = monotonic_seconds();
    outputs[i] = model.run_unit(i, inputs[i], micro.batch());
    times[i].forward = monotonic_seconds() - begin;
    if (see) see(i, inputs[i], memory.bytes() - before);
    x = outputs[i].stream;
  }
  nn::Stream gradients;
  for (std::size_t i = times.size(); i-- > 0;) {
    const double begin = monotonic_seconds();
    torch::autograd::variable_list ends, given;
    nn::Stream& stream = outputs[i].stream;
    if (outputs[i].loss) {
      ends = {outputs[i].loss->loss_sum};
      given = {torch::ones_like(ends.front())};
    }
    for (std::size_t j = 0; j < stream.size(); ++j) {
      if (!stream[j].requires_grad() || !gradients[j].defined()) continue;
      ends.push_back(stream[j]);
      given.push_back(gradients[j]);
    }
    if (!ends.empty() && ends.front().requires_grad()) torch::autograd::backward(ends, given);
    gradients.clear();
    for (const Tensor& input : inputs[i]) gradients.push_back(input.grad());
    outputs[i] = {};
    times[i].backward = monotonic_seconds() - begin;
  }
  for (Tensor& parameter : model.parameters()) parameter.mutable_grad() = Tensor();
  return times;
}

std::vector<UnitTime> fastest(nn::ForeignModel& model, const Micro& micro) {
  const double begin = monotonic_seconds();
  std::vector<UnitTime> best = run_units(model, micro);
  for (int i = 1; i < kMostRepeats && monotonic_seconds() - begin < kMeasureSeconds; ++i) {
    const std::vector<UnitTime> again = run_units(model, micro);
    for (std::size_t unit = 0; unit < best.size(); ++unit) {
      best[unit].forward = std::min(best[unit].forward, again[unit].forward);
      best[unit].backward = std::min(best[unit].backward, again[unit].backward);
    }
  }
  return best;
}

// What a model's code does beside computing: it draws from torch's generator, it writes into buffers.
class StateWatch {
 public:
  explicit StateWatch(const nn::ForeignModel& model) : model_(model), generator_(state()) {
    for (const Tensor& buffer : model.buffers()) buffers_.push_back(buffer.clone());
  }
  bool has_drawn() const { return !state().equal(generator_); }
  bool has_updated() const {
    const std::vector<Tensor> now = model_.buffers();
    return !std::equal(now.begin(), now.end(), buffers_.begin(), buffers_.end(),
                       [](const Tensor& a, const Tensor& b) { return a.equal(b); });
  }

 private:
  static Tensor state() { return at::globalContext().defaultGenerator(torch::kCPU).get_state(); }

  const nn::ForeignModel& model_;
  Tensor generator_;
  std::vector<Tensor> buffers_;
};

// Names, parameters, and what enters each unit.
void count_units(nn::ForeignModel& model, const data::Dataset& dataset, spec::ScriptFacts& facts) {
  std::set<const void*> seen;
  for (std::size_t i = 0; i < model.unit_count(); ++i) {
    spec::ScriptUnit unit{.name = model.unit_name(i)};
    for (const Tensor& tensor : model.unit_parameters(i)) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
        unit.parameters += tensor.numel();
      } else {
        facts.shares = true;
      }
    }
    facts.units.push_back(std::move(unit));
  }
  for (const Tensor& tensor : model.parameters()) {
    facts.parameters += tensor.numel();
    if (!tensor.requires_grad()) facts.frozen += tensor.numel();
  }
  for (const Tensor& tensor : model.buffers()) facts.buffer_bytes += static_cast<double>(tensor.nbytes());
  // Two numbers of samples tell the sizes that follow them from those that do not.
  const std::int64_t few = std::min<std::int64_t>(2, dataset.size()), more = std::min<std::int64_t>(3, dataset.size());
  std::vector<std::vector<std::int64_t>> entering(model.unit_count());
  const StateWatch watch(model);
  run_units(model, micro_of(dataset, few), [&](std::size_t unit, const nn::Stream& x, std::int64_t) {
    if (unit > 0 && x.size() == 1 && x.front().dim() > 0 && x.front().size(0) == few && x.front().is_floating_point()) {
      entering[unit] = x.front().sizes().slice(1).vec();
    }
  });
  facts.draws = model.draws() || watch.has_drawn();
  facts.updates = model.updates() || watch.has_updated();
  const Micro some = micro_of(dataset, more);
  run_units(model, some, [&](std::size_t unit, const nn::Stream& x, std::int64_t kept) {
    spec::ScriptUnit& own = facts.units[unit];
    const bool same = x.size() == 1 && x.front().size(0) == more && x.front().sizes().slice(1).vec() == entering[unit];
    if (same) own.entering = entering[unit];
    for (const Tensor& tensor : x)
      own.entering_bytes += static_cast<double>(tensor.nbytes()) / static_cast<double>(more);
    own.saved_bytes = std::max(0.0, static_cast<double>(kept)) / static_cast<double>(more);
  });
  const OperatorCounter counter;
  {
    const torch::NoGradGuard no_grad;
    model.loss(some.samples.input, some.samples.target, some.context);
  }
  for (const auto& [shape, count] : counter.products) {
    const std::int64_t rows = std::max<std::int64_t>(1, shape.m / more);
    facts.products.push_back({count, rows, shape.n, shape.k});
  }
  facts.pointwise_elements = counter.others / static_cast<double>(more);
}

void measure(nn::ForeignModel& model, const data::Dataset& dataset, std::int64_t micro, spec::ScriptFacts& facts) {
  const std::int64_t large = std::clamp<std::int64_t>(std::min(micro, dataset.size()), 1, kMostSamples);
  const std::int64_t small = std::max<std::int64_t>(1, large / 2);
  const std::vector<UnitTime> times = fastest(model, micro_of(dataset, large));
  double forward = 0, all = 0;
  for (const UnitTime& time : times) {
    forward += time.forward;
    all += time.forward + time.backward;
  }
  facts.forward_share = all > 0 ? forward / all : facts.forward_share;
  for (std::size_t i = 0; i < times.size(); ++i) {
    facts.units[i].share = all > 0 ? (times[i].forward + times[i].backward) / all : 0;
  }
  facts.sample_seconds = all / static_cast<double>(large);
  if (small == large) return;
  double less = 0;
  for (const UnitTime& time : fastest(model, micro_of(dataset, small))) less += time.forward + time.backward;
  const double slope = (all - less) / static_cast<double>(large - small);
  facts.sample_seconds = std::clamp(slope, 0.0, facts.sample_seconds);
  facts.base_seconds = std::max(0.0, all - static_cast<double>(large) * facts.sample_seconds);
}

}  // namespace

spec::ScriptFacts probe_script(const spec::Job& job) {
  const auto dataset = data::open_datasets(job).train;
  if (dataset->size() < 1) throw bad_input("the data set is empty", "check data.path in the job file");
  nn::BuildOptions options;
  options.seed = static_cast<std::uint64_t>(job.seed);
  options.initialise = false;  // it has its values
  const auto built = nn::build_model(job.model, options);
  auto& model = dynamic_cast<nn::ForeignModel&>(*built);
  spec::ScriptFacts facts;
  facts.aliases = model.aliases();
  facts.counts_targets = model.counts_targets();
  count_units(model, *dataset, facts);
  measure(model, *dataset, job.batch.micro, facts);
  facts.threads = at::get_num_threads();
  return facts;
}

namespace {

// Places of the sections' options in the user's file, which the text of the job has not.
void restore_places(spec::Job& job, const nlohmann::json& sent) {
  const auto restore = [&](const char* section, spec::PluginUse& use) {
    const auto found = sent.find(section);
    if (found == sent.end()) return;
    std::map<std::string, SourcePlace> places;
    for (const auto& [key, place] : found->items()) {
      places[key] = {place.at(0).get<std::string>(), place.at(1).get<int>(), place.at(2).get<int>()};
    }
    spec::restore_places(use, places);
  };
  for (const auto& [section, use] : spec::plugins_of(job)) restore(section, *use);
}

// What a job takes from plugins beside its model is there and fits.
void check_plugins(const spec::Job& job) {
  if (job.data.kind == spec::DataKind::kPlugin && !job.model.is_scripted()) {
    const auto datasets = data::open_datasets(job);
    const std::vector<std::int64_t> first(static_cast<std::size_t>(std::min<std::int64_t>(1, datasets.train->size())));
    datasets.train->fetch(first);
  }
  EvaluationMetrics metrics(job);
  LearningRate(job.optimizer).at(job.optimizer.warmup_steps, std::max<std::int64_t>(1, job.steps));
}

}  // namespace

int run_probe(const nlohmann::json& request, const Host& host) {
  return run_tool(host, [&]() -> nlohmann::json {
    nn::compat::set_compute_threads(request.at("threads").get<int>());
    spec::Job job = spec::parse_job(request.at("job").get<std::string>(), "job");
    restore_places(job, request.value("places", nlohmann::json::object()));
    check_plugins(job);
    const spec::ScriptFacts facts = job.model.is_scripted() ? probe_script(job) : spec::ScriptFacts{};
    return {{"facts", spec::to_text(facts)}};
  });
}

}  // namespace lockstep::engine
