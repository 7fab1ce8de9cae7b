// Whole tensors on the first rank from everybody's shards: for checkpoints, exports and comparisons.
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/nn/tensor_comm.h"
#include "lockstep/parallel/parallel_model.h"

namespace lockstep::parallel {
namespace {

using torch::Tensor;

// What one rank answers for of one shard: stretches with their places, and the values back to back.
struct Parcel {
  nlohmann::json stretches = nlohmann::json::array();  // [name, whole sizes, first, count]
  std::vector<Tensor> values;
};

Parcel pack(const FlatShard& shard, const Tensor& values) {
  Parcel parcel;
  for (const OwnedStretch& stretch : shard.stretches()) {
    if (!shard.answers_for(stretch.parameter)) continue;
    const nn::DeclaredParameter& parameter = shard.parameters()[stretch.parameter];
    parcel.stretches.push_back({parameter.name, parameter.placement.whole, stretch.whole, stretch.count});
    parcel.values.push_back(values.narrow(0, stretch.shard, stretch.count));
  }
  return parcel;
}

void place(const nlohmann::json& stretches, const Tensor& values, const std::string& prefix, TensorMap& whole) {
  std::int64_t at = 0;
  for (const nlohmann::json& stretch : stretches) {
    const auto count = stretch.at(3).get<std::int64_t>();
    Tensor& tensor = whole[prefix + stretch.at(0).get<std::string>()];
    if (!tensor.defined()) {
      tensor = torch::zeros(stretch.at(1).get<std::vector<std::int64_t>>(), values.options());
    }
    tensor.view({-1}).narrow(0, stretch.at(2).get<std::int64_t>(), count).copy_(values.narrow(0, at, count));
    at += count;
  }
}

// The collector's own part: whole tensors in host memory are views, but for those in the arena, which may go first.
void place_own(const FlatShard& shard, const Parcel& parcel, const std::string& prefix, TensorMap& whole) {
  const bool stays = shard.options().offload == plan::Offload::kNone;
  for (std::size_t i = 0; i < parcel.values.size(); ++i) {
    const nlohmann::json& stretch = parcel.stretches[i];
    const auto sizes = stretch.at(1).get<std::vector<std::int64_t>>();
    const Tensor values = parcel.values[i].to(torch::kCPU);
    if (stays && values.numel() == c10::multiply_integers(sizes)) {
      whole[prefix + stretch.at(0).get<std::string>()] = values.view(sizes);
    } else {
      place(nlohmann::json::array({stretch}), values, prefix, whole);
    }
  }
}

constexpr int kCollector = 0;

void send(comm::Communicator& world, const Parcel& parcel) {
  std::string text = parcel.stretches.dump();
  const Tensor values = at::cat(parcel.values).to(torch::kCPU).contiguous();
  std::int64_t facts[3] = {static_cast<std::int64_t>(text.size()), values.numel(),
                           static_cast<std::int64_t>(values.scalar_type())};
  world.send({facts, 3, comm::DType::kI64}, kCollector).wait();
  world.send({text.data(), facts[0], comm::DType::kU8}, kCollector).wait();
  world.send(nn::buffer_of(values), kCollector).wait();
}

void receive(comm::Communicator& world, int from, const std::string& prefix, TensorMap& whole) {
  while (true) {
    std::int64_t facts[3] = {};
    world.recv({facts, 3, comm::DType::kI64}, from).wait();
    if (facts[0] == 0) return;
    std::string text(static_cast<std::size_t>(facts[0]), '\0');
    world.recv({text.data(), facts[0], comm::DType::kU8}, from).wait();
    Tensor values = torch::empty({facts[1]}, torch::dtype(static_cast<torch::ScalarType>(facts[2])));
    world.recv(nn::buffer_of(values), from).wait();
    place(nlohmann::json::parse(text), values, prefix, whole);
  }
}

}  // namespace

TensorMap ParallelModel::assemble(const std::function<Tensor(const FlatShard&)>& of, const std::string& prefix) {
  const torch::NoGradGuard no_grad;
  TensorMap whole;
  comm::Communicator& world = groups_.world;
  for (const auto& shard : shards_) {
    const Tensor values = of(*shard);
    if (!values.defined()) continue;
    const Parcel parcel = pack(*shard, values);
    if (parcel.values.empty()) continue;
    if (world.rank() == kCollector) {
      place_own(*shard, parcel, prefix, whole);
    } else {
      send(world, parcel);
    }
  }
  if (world.rank() != kCollector) {
    std::int64_t end[3] = {};
    world.send({end, 3, comm::DType::kI64}, kCollector).wait();
    return {};
  }
  for (int from = 1; from < world.size(); ++from) receive(world, from, prefix, whole);
  return whole;
}

}  // namespace lockstep::parallel
