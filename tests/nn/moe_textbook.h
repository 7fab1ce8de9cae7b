// A mixture of experts token by token, as the papers write it: what nn/moe.h is compared with.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/nn/moe.h"
#include "tests/parallel/ranks.h"

namespace lockstep::nn::testing {

using torch::Tensor;

inline constexpr std::uint64_t kSeed = 7;
inline const torch::TensorOptions kDouble = torch::dtype(torch::kDouble);

inline spec::Model small_moe() {
  spec::Model model;
  model.name = "small-moe";
  model.arch = spec::Arch::kMoe;
  model.hidden = 6;
  model.ffn_hidden = 10;
  model.experts = 8;
  model.experts_per_token = 2;
  model.bias = false;
  model.init_std = 0.7;
  return model;
}

inline spec::Model balanced_moe() {
  spec::Model model = small_moe();
  model.router_auxiliary_loss = 0.3;
  model.router_z_loss = 0.05;
  return model;
}

inline spec::Model tight_moe() {  // a capacity that many tokens do not fit
  spec::Model model = balanced_moe();
  model.capacity_factor = 0.8;
  return model;
}

inline spec::Model shared_moe() {
  spec::Model model = small_moe();
  model.experts_per_token = 3;
  model.shared_experts = 2;
  return model;
}

// The whole micro-step, whoever computes which part of it: loss = sum of y x `meaning` + auxiliary.
struct Batch {
  Tensor x, meaning;  // [samples, seq, hidden]
};
inline Batch batch_of(std::int64_t samples, std::int64_t seq = 8) {
  return {parallel::random_tensor({samples, seq, 6}, 1, torch::kDouble) * 3,
          parallel::random_tensor({samples, seq, 6}, 2, torch::kDouble)};
}

struct Result {
  Tensor y, dx;                             // shape of x; from several tp ranks one after the other, [tp, ...]
  std::map<std::string, Tensor> gradients;  // of whole parameters
  double auxiliary = 0;
  std::int64_t dropped = 0;
};

class Textbook {
 public:
  explicit Textbook(const spec::Model& spec) : spec_(spec), mlp_(spec, 0, {}, kDouble) { initialise(mlp_, kSeed); }

  Result run(const Batch& batch) {
    const Tensor x = batch.x.clone().requires_grad_();
    const Tensor tokens = x.view({-1, spec_.hidden});
    choose(tokens);
    Result result;
    result.dropped = drop();
    std::vector<Tensor> y;
    for (std::int64_t t = 0; t < tokens.size(0); ++t) y.push_back(mix(t, tokens[t]));
    result.y = torch::stack(y).view(x.sizes());
    Tensor loss = (result.y * batch.meaning).sum();
    if (spec_.router_auxiliary_loss > 0) {
      result.auxiliary = auxiliary().item<double>();
      loss = loss + auxiliary();
    }
    loss.backward();
    result.y = result.y.detach();
    result.dx = x.grad();
    for (const auto& entry : mlp_.named_parameters()) {
      const Tensor gradient = entry.value().grad();
      result.gradients[entry.key()] = gradient.defined() ? gradient : torch::zeros_like(entry.value());
    }
    return result;
  }

 private:
  Tensor weight(const std::string& name) const { return mlp_.named_parameters()[name + ".weight"]; }

  Tensor expert(const std::string& name, const char* const (&parts)[3], const Tensor& x) const {
    const Tensor inner = torch::silu(weight(name + parts[0]).mv(x)) * weight(name + parts[1]).mv(x);
    return weight(name + parts[2]).mv(inner);
  }

  void choose(const Tensor& tokens) {
    for (std::int64_t t = 0; t < tokens.size(0); ++t) {
      logits_.push_back(weight("gate").mv(tokens[t]));
      probabilities_.push_back(torch::softmax(logits_.back(), 0));
      std::vector<std::int64_t> order(static_cast<std::size_t>(spec_.experts));
      std::iota(order.begin(), order.end(), 0);
      const Tensor p = probabilities_.back();
      std::stable_sort(order.begin(), order.end(),
                       [&](std::int64_t a, std::int64_t b) { return p[a].item<double>() > p[b].item<double>(); });
      order.resize(static_cast<std::size_t>(spec_.experts_per_token));
      chosen_.push_back(order);
      accepted_.emplace_back(order.size(), true);
    }
  }

  std::int64_t drop() {
    if (spec_.capacity_factor == 0) return 0;
    const double pairs = static_cast<double>(chosen_.size() * chosen_[0].size());
    const double capacity = std::ceil(spec_.capacity_factor * pairs / static_cast<double>(spec_.experts));
    std::map<std::int64_t, double> load;
    std::int64_t dropped = 0;
    for (std::size_t j = 0; j < chosen_[0].size(); ++j) {
      for (std::size_t t = 0; t < chosen_.size(); ++t) {
        accepted_[t][j] = ++load[chosen_[t][j]] <= capacity;
        dropped += accepted_[t][j] ? 0 : 1;
      }
    }
    return dropped;
  }

  Tensor mix(std::int64_t token, const Tensor& x) const {
    const auto t = static_cast<std::size_t>(token);
    Tensor norm = torch::zeros({}, kDouble), y = torch::zeros({spec_.hidden}, kDouble);
    for (const std::int64_t e : chosen_[t]) norm = norm + probabilities_[t][e];
    for (std::size_t j = 0; j < chosen_[t].size(); ++j) {
      const std::int64_t e = chosen_[t][j];
      if (!accepted_[t][j]) continue;
      y = y + probabilities_[t][e] / norm * expert("experts." + std::to_string(e) + ".", {"w1", "w3", "w2"}, x);
    }
    if (spec_.shared_experts > 0) y = y + expert("shared_expert.", {"gate_proj", "up_proj", "down_proj"}, x);
    return y;
  }

  Tensor auxiliary() const {
    const auto tokens = static_cast<double>(chosen_.size()), k = static_cast<double>(spec_.experts_per_token);
    const Tensor mean = torch::stack(probabilities_).mean(0);
    Tensor balance = torch::zeros({}, kDouble), square = torch::zeros({}, kDouble);
    for (const auto& chosen : chosen_) {
      for (const std::int64_t e : chosen) balance = balance + mean[e] / (tokens * k);
    }
    for (const Tensor& logits : logits_) square = square + torch::logsumexp(logits, 0).pow(2) / tokens;
    return spec_.router_auxiliary_loss * static_cast<double>(spec_.experts) * balance + spec_.router_z_loss * square;
  }

  spec::Model spec_;
  MoeMlp mlp_;
  std::vector<Tensor> logits_, probabilities_;  // by token
  std::vector<std::vector<std::int64_t>> chosen_;
  std::vector<std::vector<bool>> accepted_;
};

}  // namespace lockstep::nn::testing
