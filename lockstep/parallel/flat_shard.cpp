#include "lockstep/parallel/flat_shard.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/nn/tensor_comm.h"
#include "lockstep/nn/torch_compat.h"
#include "lockstep/parallel/storage.h"

namespace lockstep::parallel {
namespace {

using torch::Tensor;

comm::OpOptions at_site(const char* site) {
  comm::OpOptions options;
  options.site = site;
  return options;
}

}  // namespace

FlatShard::FlatShard(std::string name, std::vector<nn::DeclaredParameter> parameters, const FlatShardOptions& options,
                     ProcessGroups& groups, OffloadArena& arena)
    : name_(std::move(name)), parameters_(std::move(parameters)), options_(options), groups_(groups) {
  LOCKSTEP_ASSERT(!parameters_.empty(), "a block without parameters");
  // Parameters whose gradients are summed over the same sharers lie side by side, so that one all-reduce serves them;
  // in front, where the last bucket is.
  std::stable_sort(parameters_.begin(), parameters_.end(), [](const auto& a, const auto& b) {
    const auto key = [](const auto& p) { return p.placement.partial_gradient ? p.placement.sharers : 0; };
    return key(a) > key(b);
  });
  lay_out();
  const auto model = parameters_.front().tensor.options();
  has_master_ = options.master_dtype != model.dtype().toScalarType();
  whole_ = torch::empty({length_}, model);
  const bool away = options.offload == plan::Offload::kParameters;
  if (gathers()) {
    own_ = away ? arena.zeros(shard_length_, model.dtype().toScalarType()) : torch::empty({shard_length_}, model);
  } else {
    own_ = whole_.narrow(0, shard_rank() * shard_length_, shard_length_);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& tensor = parameters_[i].tensor;
    tensor.set_data(whole_.narrow(0, ranges_[i].offset, ranges_[i].count).view(tensor.sizes()));
  }
  if (!options_.trainable) {
    master_ = own_;
    has_master_ = false;
  } else if (has_master_) {
    master_ = options.offload != plan::Offload::kNone
                  ? arena.zeros(shard_length_, options.master_dtype)
                  : torch::empty({shard_length_}, model.dtype(options.master_dtype));
  } else {
    master_ = own_;
  }
  if (gathers()) release();
  filled_.assign(parameters_.size(), 0);
  if (options_.zero == 0 && options_.trainable) make_buckets();
}

void FlatShard::make_buckets() {
  shard_gradient_ = whole_gradient_ = torch::empty({length_}, whole_.options().dtype(options_.gradient_dtype));
  std::vector<ParameterRange> ranges;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ranges.push_back({parameters_[i].name, parameters_[i].tensor.sizes().vec(), ranges_[i].offset, ranges_[i].count});
  }
  buckets_ = std::make_unique<GradientBuckets>(
      whole_gradient_, ranges, replicas(), options_.buckets, options_.expert ? "dp: expert gradients" : "dp: gradients",
      [this](const Bucket& bucket) {
        complete(bucket.first_parameter, bucket.first_parameter + bucket.parameters.size(), bucket.begin,
                 bucket.begin + bucket.gradient.numel());
      });
}

// After a failure operations may still be in flight; they use this object's memory.
FlatShard::~FlatShard() {
  for (comm::Work* work : {&gathering_, &reducing_, &publishing_}) work->settle();
}

void FlatShard::lay_out() {
  for (const nn::DeclaredParameter& parameter : parameters_) {
    const std::int64_t count = parameter.placement.local_count();
    ranges_.push_back({length_, count});
    if (parameter.placement.partial_gradient && parameter.placement.sharers > 1) {
      Range& stretch = partial_.try_emplace(parameter.placement.sharers, Range{length_, 0}).first->second;
      stretch.count = length_ + count - stretch.offset;
    }
    length_ += count;
  }
  const std::int64_t ranks = nn::Partition::size(shards());
  length_ = (length_ + ranks - 1) / ranks * ranks;
  shard_length_ = length_ / ranks;
}

comm::Communicator& FlatShard::replicas() const {
  if (options_.zero == 0) return options_.expert ? groups_.expert_everyone : groups_.everyone;
  return options_.expert ? groups_.expert_replicas : groups_.replicas;
}

void FlatShard::start_gather() {
  if (!gathers() || gathered_) return;
  allocate_storage(whole_);
  sent_ = own_.to(whole_.device(), /*non_blocking=*/true);  // own_ itself, but for offloaded weights on a GPU
  gathering_ = shards().all_gather(nn::buffer_of(sent_), nn::buffer_of(whole_), at_site("zero: gather weights"));
  gathered_ = true;
}

void FlatShard::gather() {
  start_gather();
  gathering_.wait();
}

void FlatShard::release() {
  if (!gathers() || !gathered_) return;
  gathering_.wait();
  sent_.reset();
  free_storage(whole_);
  gathered_ = false;
}

void FlatShard::collect(std::span<const std::size_t> parameters) {
  const torch::NoGradGuard no_grad;
  if (arriving_.defined()) continue_reduction();  // of an earlier micro-step
  if (!whole_gradient_.defined()) {
    whole_gradient_ = torch::empty({length_}, whole_.options().dtype(options_.gradient_dtype));
    whole_gradient_.narrow(0, ranges_.back().end(), length_ - ranges_.back().end()).zero_();
    filled_.assign(parameters_.size(), 0);
  }
  std::vector<Tensor> targets[2], sources[2];  // to be written, to be added to
  for (const std::size_t i : parameters) {
    Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined()) continue;
    LOCKSTEP_ASSERT(!buckets_ || !buckets_->is_ready(i), "a gradient came after its exchange had begun");
    const int add = filled_[i];
    targets[add].push_back(whole_gradient_.narrow(0, ranges_[i].offset, ranges_[i].count));
    sources[add].push_back(gradient.reshape({-1}));
    gradient.reset();
    filled_[i] = 1;
  }
  for (const int add : {0, 1}) nn::compat::copy_all(targets[add], sources[add], add != 0);
}

void FlatShard::complete(std::size_t first_parameter, std::size_t end_parameter, std::int64_t begin, std::int64_t end) {
  for (std::size_t i = first_parameter; i < end_parameter; ++i) {
    if (!filled_[i]) whole_gradient_.narrow(0, ranges_[i].offset, ranges_[i].count).zero_();
    filled_[i] = 1;
  }
  // Before the data ranks are summed: small, and the order keeps every group's operations in sequence.
  for (const auto& [count, stretch] : partial_) {
    const std::int64_t from = std::max(begin, stretch.offset), to = std::min(end, stretch.end());
    if (from >= to) continue;
    const Tensor part = whole_gradient_.narrow(0, from, to - from);
    groups_.sharers.at(count)
        .all_reduce(nn::buffer_of(part), comm::ReduceOp::kSum, at_site("tp: partial gradients"))
        .wait();
  }
}

void FlatShard::gradients_done(std::span<const std::size_t> parameters, bool reduce) {
  if (!options_.trainable) return;
  collect(parameters);
  if (!reduce) return;
  if (!buckets_) return start_reduction();
  for (const std::size_t parameter : parameters) buckets_->ready(parameter);
}

void FlatShard::start_reduction() {
  const torch::NoGradGuard no_grad;
  complete(0, parameters_.size(), 0, length_);
  if (!shards().valid()) {
    arriving_ = whole_gradient_;
    return;
  }
  // Stage 1 keeps the whole gradient anyway: its own slice receives the sum.
  arriving_ = options_.zero == 1 ? whole_gradient_.narrow(0, shard_rank() * shard_length_, shard_length_)
                                 : torch::empty({shard_length_}, whole_gradient_.options());
  reducing_ = shards().reduce_scatter(nn::buffer_of(whole_gradient_), nn::buffer_of(arriving_), comm::ReduceOp::kSum,
                                      at_site(options_.expert ? "zero: expert gradients" : "zero: gradients"));
}

void FlatShard::continue_reduction() {
  if (!options_.trainable || !arriving_.defined()) return;
  reducing_.wait();
  reducing_ = {};
  if (reduced_before_) {
    shard_gradient_.add_(arriving_);
  } else {
    shard_gradient_ = arriving_;
  }
  arriving_.reset();
  reduced_before_ = true;
  if (options_.zero >= 2) whole_gradient_.reset();
}

void FlatShard::finish_reduction() {
  if (!options_.trainable) return;
  continue_reduction();
  if (buckets_) buckets_->finish();
  if (options_.zero > 0 && replicas().valid()) {
    replicas()
        .all_reduce(nn::buffer_of(shard_gradient_), comm::ReduceOp::kSum,
                    at_site(options_.expert ? "dp: replicas of experts" : "dp: replicas"))
        .wait();
  }
  if (options_.tied_ends && groups_.ends.valid()) {
    groups_.ends.all_reduce(nn::buffer_of(shard_gradient_), comm::ReduceOp::kSum, at_site("pp: tied embedding")).wait();
  }
}

void FlatShard::clear_gradient() {
  filled_.assign(parameters_.size(), 0);
  if (buckets_) return;
  reduced_before_ = false;
  shard_gradient_.reset();
  whole_gradient_.reset();
}

void FlatShard::start_publish() {
  if (!shards().valid() || options_.zero == 3) return;
  publishing_ = shards().all_gather(nn::buffer_of(own_), nn::buffer_of(whole_), at_site("zero: publish weights"));
}

void FlatShard::finish_publish() {
  publishing_.wait();
  publishing_ = {};
}

void FlatShard::master_to_weights() {
  if (!has_master_) return;
  const torch::NoGradGuard no_grad;
  own_.copy_(master_);
}

// Of the ranks that hold this very part, and of tied ends, one.
bool FlatShard::first_sharer(std::size_t parameter) const {
  return options_.norm_counts && nn::Partition::rank(groups_.tp) % parameters_[parameter].placement.sharers == 0;
}

bool FlatShard::answers_for(std::size_t parameter) const {
  return first_sharer(parameter) && nn::Partition::rank(replicas()) == 0;
}

std::vector<OwnedStretch> FlatShard::stretches() const { return stretches_of(0, shard_length_); }

std::vector<OwnedStretch> FlatShard::stretches_of(std::int64_t first, std::int64_t count) const {
  std::vector<OwnedStretch> result;
  const std::int64_t shard = shard_rank() * shard_length_, begin = shard + first, end = begin + count;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::int64_t from = std::max(begin, ranges_[i].offset), to = std::min(end, ranges_[i].end());
    if (from >= to) continue;
    for (const nn::Run& run : runs_of(parameters_[i].placement, from - ranges_[i].offset, to - from)) {
      result.push_back({i, ranges_[i].offset + run.local - shard, run.whole, run.count});
    }
  }
  return result;
}

std::vector<OwnedStretch> FlatShard::saved_stretches() const {
  const nn::Segment share =
      nn::share_of(shard_length_, nn::Partition::rank(replicas()), nn::Partition::size(replicas()));
  std::vector<OwnedStretch> result = stretches_of(share.first, share.count);
  std::erase_if(result, [this](const OwnedStretch& stretch) { return !first_sharer(stretch.parameter); });
  return result;
}

nn::LocalValues FlatShard::own_values(std::size_t index, const Tensor& of_shard) const {
  const std::int64_t begin = shard_rank() * shard_length_;
  const std::int64_t from = std::max(begin, ranges_[index].offset);
  const std::int64_t to = std::min(begin + shard_length_, ranges_[index].offset + ranges_[index].count);
  if (from >= to) return {};
  return {of_shard.narrow(0, from - begin, to - from), from - ranges_[index].offset};
}

void FlatShard::rest(const OffloadArena& arena) const {
  if (options_.offload == plan::Offload::kNone) return;
  if (has_master_) arena.rest(master_);
  if (options_.offload == plan::Offload::kParameters && gathers()) arena.rest(own_);
}

// Stretches of the shard; neighbours are one.
std::vector<FlatShard::Range> FlatShard::answered(bool everything) const {
  std::vector<Range> result;
  const std::int64_t begin = shard_rank() * shard_length_, end = begin + shard_length_;
  for (std::size_t i = 0; i < parameters_.size() && options_.trainable; ++i) {
    const std::int64_t from = std::max(begin, ranges_[i].offset), to = std::min(end, ranges_[i].end());
    if (from >= to || !(everything || answers_for(i))) continue;
    if (result.empty() || result.back().end() != from - begin) result.push_back({from - begin, 0});
    result.back().count += to - from;
  }
  return result;
}

std::vector<kernels::ElementRange> FlatShard::decay_ranges(spec::Decay decay) const {
  if (decay == spec::Decay::kAll) return {{0, shard_length_}};
  std::vector<kernels::ElementRange> result;
  const std::int64_t begin = shard_rank() * shard_length_, end = begin + shard_length_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::int64_t from = std::max(begin, ranges_[i].offset), to = std::min(end, ranges_[i].end());
    if (from >= to || parameters_[i].placement.whole.size() < 2) continue;
    if (result.empty() || result.back().end != from - begin) result.push_back({from - begin, from - begin});
    result.back().end = to - begin;
  }
  return result;
}

double FlatShard::squared_norm(bool everything) const {
  double sum = 0.0;
  for (const Range& range : answered(everything)) {
    sum += kernels::squared_norm(shard_gradient_.narrow(0, range.offset, range.count));
  }
  return sum;
}

void FlatShard::add_squared_norm(Tensor& sum, bool everything) const {
  for (const Range& range : answered(everything)) {
    kernels::add_squared_norm(shard_gradient_.narrow(0, range.offset, range.count), sum);
  }
}

void FlatShard::share_values() {
  // Offloaded state lies in host memory, which a device's communicator does not reach.
  if (!replicas().valid() || options_.offload != plan::Offload::kNone) return;
  const torch::NoGradGuard no_grad;
  replicas().broadcast(nn::bytes_of(own_), 0).wait();
  if (has_master_) replicas().broadcast(nn::bytes_of(master_), 0).wait();
}

}  // namespace lockstep::parallel
