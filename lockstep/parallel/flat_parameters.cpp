#include "lockstep/parallel/flat_parameters.h"

#include <torch/autograd.h>

#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class PostHook : public torch::autograd::FunctionPostHook {
 public:
  explicit PostHook(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

}  // namespace

// Autograd keeps only weak references to its accumulation nodes; holding them here keeps the hooks alive. The node runs
// once per backward pass, after all uses of the parameter have been summed.
struct FlatParameters::Hooks {
  // std::shared_ptr or c10::intrusive_ptr, depending on libtorch's version.
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

  std::vector<NodePointer> nodes;
  std::vector<std::uintptr_t> keys;
  std::function<void(std::size_t)> on_gradient;
  bool at_once = false;  // collect_gradients() does what the hooks would

  ~Hooks() {
    for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i]->del_post_hook(keys[i]);
  }
};

FlatParameters::FlatParameters(std::shared_ptr<torch::nn::Module> module, const FlatOptions& options)
    : module_(std::move(module)), hooks_(std::make_unique<Hooks>()) {
  LOCKSTEP_ASSERT(options.gradient_dtype.has_value() == options.master_dtype.has_value(),
                  "set both the gradient's and the master's dtype, or neither");
  LOCKSTEP_ASSERT(options.total_multiple >= 1, "total_multiple counts from 1");
  lay_out(options);
  rehome(options);
}

FlatParameters::~FlatParameters() = default;

void FlatParameters::lay_out(const FlatOptions& options) {
  std::unordered_set<const void*> held;
  for (const auto& item : module_->named_parameters(/*recurse=*/true)) {
    const torch::Tensor& parameter = item.value();
    if (!parameter.defined() || !parameter.requires_grad()) continue;
    if (!held.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (!parameters_.empty() && (parameter.scalar_type() != parameters_.front().scalar_type() ||
                                 parameter.device() != parameters_.front().device())) {
      throw bad_input("parameter " + item.key() + " is " + c10::toString(parameter.scalar_type()) + " on " +
                          parameter.device().str() + ", unlike " + ranges_.front().name,
                      "give all trainable parameters one dtype and device");
    }
    parameters_.push_back(parameter);
    ranges_.push_back({item.key(), parameter.sizes().vec(), 0, parameter.numel()});
  }
  if (parameters_.empty()) throw bad_input("the model has no trainable parameter", "unfreeze at least one");
  // The model's dtype is the narrowest of the flat tensors; what is aligned there is aligned in all.
  const std::int64_t alignment = kAlignmentBytes / static_cast<std::int64_t>(parameters_.front().element_size());
  std::int64_t offset = 0;
  for (ParameterRange& range : ranges_) {
    range.offset = offset;
    offset = round_up(offset + range.count, alignment);
  }
  values_ =
      torch::zeros({round_up(offset, options.total_multiple)}, parameters_.front().options().requires_grad(false));
}

void FlatParameters::rehome(const FlatOptions& options) {
  torch::NoGradGuard no_grad;
  const torch::ScalarType model_dtype = values_.scalar_type();
  has_master_ = options.master_dtype.value_or(model_dtype) != model_dtype;
  gradients_ = torch::zeros({length()}, values_.options().dtype(options.gradient_dtype.value_or(model_dtype)));
  const bool own_gradient = gradients_.scalar_type() == model_dtype;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& parameter = parameters_[i];
    const torch::Tensor home = view(values_, i);
    home.copy_(parameter);
    parameter.set_data(home);
    const torch::Tensor gradient = view(gradients_, i);
    // With its own dtype, autograd adds straight into the flat gradient: a defined .grad is added to in place.
    parameter.mutable_grad() = own_gradient ? gradient : torch::Tensor();
    hooks_->nodes.push_back(torch::autograd::impl::grad_accumulator(parameter));
    Hooks* hooks = hooks_.get();
    auto call = [hooks, i, own_gradient, parameter, gradient]() mutable {
      // Also mends what Module::zero_grad() of newer libtorch does: it drops .grad, and autograd makes one elsewhere.
      if (!hooks->at_once && parameter.grad().defined() && !parameter.grad().is_alias_of(gradient)) {
        torch::NoGradGuard inner;
        gradient.add_(parameter.grad());
        parameter.mutable_grad() = own_gradient ? gradient : torch::Tensor();
      }
      if (hooks->on_gradient) hooks->on_gradient(i);
    };
    hooks_->keys.push_back(hooks_->nodes.back()->add_post_hook(std::make_unique<PostHook>(std::move(call))));
  }
  master_ = has_master_ ? values_.to(*options.master_dtype) : values_;
}

std::int64_t FlatParameters::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterRange& range : ranges_) count += range.count;
  return count;
}

torch::Tensor FlatParameters::view(const torch::Tensor& flat, std::size_t index) const {
  const ParameterRange& range = ranges_.at(index);
  return flat.narrow(0, range.offset, range.count).view(range.sizes);
}

TensorMap FlatParameters::views(const torch::Tensor& flat, const std::string& prefix) const {
  TensorMap result;
  for (std::size_t i = 0; i < ranges_.size(); ++i) result.emplace(prefix + ranges_[i].name, view(flat, i));
  return result;
}

void FlatParameters::load(torch::Tensor& flat, const TensorMap& tensors, const std::string& prefix) const {
  torch::NoGradGuard no_grad;
  // All are checked before any is written: a bad checkpoint leaves the state as it was.
  for (const ParameterRange& range : ranges_) {
    const auto found = tensors.find(prefix + range.name);
    if (found == tensors.end()) {
      throw bad_input("tensor " + prefix + range.name + " is missing", "use a checkpoint of the same model and job");
    }
    if (found->second.sizes().vec() != range.sizes) {
      throw bad_input("tensor " + prefix + range.name + " has shape " + c10::str(found->second.sizes()) +
                          " instead of " + c10::str(c10::IntArrayRef(range.sizes)),
                      "use a checkpoint of the same model and job");
    }
  }
  for (std::size_t i = 0; i < ranges_.size(); ++i) view(flat, i).copy_(tensors.at(prefix + ranges_[i].name));
}

void FlatParameters::collect_at_once() {
  if (gradients_.scalar_type() != values_.scalar_type()) hooks_->at_once = true;
}

void FlatParameters::collect_gradients() {
  if (!hooks_->at_once) return;
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> targets, sources;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& gradient = parameters_[i].mutable_grad();
    if (!gradient.defined()) continue;
    targets.push_back(gradients_.narrow(0, ranges_[i].offset, ranges_[i].count));
    sources.push_back(gradient.reshape({-1}));
    gradient.reset();
  }
  if (targets.empty()) return;
  nn::compat::copy_all(targets, sources, /*add=*/!zeroed_);
  zeroed_ = false;
}

void FlatParameters::zero_gradients() {
  torch::NoGradGuard no_grad;
  gradients_.zero_();
  zeroed_ = true;
}

void FlatParameters::copy_values_to_master() {
  torch::NoGradGuard no_grad;
  if (has_master_) master_.copy_(values_);
}

void FlatParameters::copy_master_to_values() {
  torch::NoGradGuard no_grad;
  if (has_master_) values_.copy_(master_);
}

std::vector<kernels::ElementRange> FlatParameters::decay_ranges(DecayPolicy policy) const {
  if (policy == DecayPolicy::kNone) return {};
  if (policy == DecayPolicy::kAll) return {{0, length()}};
  std::vector<kernels::ElementRange> result;
  bool previous_decays = false;
  for (const ParameterRange& range : ranges_) {
    const bool decays = range.sizes.size() >= 2;
    const std::int64_t end = range.offset + range.count;
    if (decays && previous_decays) {
      result.back().end = end;  // across the padding, which is zero
    } else if (decays) {
      result.push_back({range.offset, end});
    }
    previous_decays = decays;
  }
  return result;
}

void FlatParameters::set_gradient_hook(std::function<void(std::size_t)> hook) { hooks_->on_gradient = std::move(hook); }

}  // namespace lockstep::parallel
