#include "lockstep/engine/run_health.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kMostSkips = 10;
constexpr std::int64_t kMostSkipsOfALossScale = 50;  // from 65536 down to nothing takes fewer
constexpr std::size_t kLeastLosses = 8;              // before a loss can be called unusual
constexpr double kDeviations = 8.0;
constexpr double kLeastJump = 0.1;
constexpr double kOutlierFactor = 5.0;
constexpr std::int64_t kStepsOfProof = 5;
constexpr const char* kFix = "lower optimizer.learning_rate, add warmup_steps or clip_norm";

UserError failed(const std::string& problem) { return UserError(ExitCode::kRunFailed, problem, kFix); }

}  // namespace

RunHealth::RunHealth(const spec::Health& policy, bool loss_scaled) : policy_(policy), loss_scaled_(loss_scaled) {
  most_withheld_ = policy_.most_skips > 0 ? policy_.most_skips : kMostSkips;
  if (policy_.most_skips == 0) policy_.most_skips = loss_scaled ? kMostSkipsOfALossScale : kMostSkips;
  if (policy_.nonfinite == spec::OnNonfinite::kStop && !loss_scaled) policy_.most_skips = 1;
}

bool RunHealth::is_high(double loss) const {
  return usual_losses_.is_above(loss, kDeviations, std::max(std::abs(usual_), kLeastJump), kLeastLosses);
}

bool RunHealth::is_spike() const { return last_losses_.size() >= kLastLosses && is_high(last_losses_.median()); }

double RunHealth::usual_norm() const { return usual_norms_.empty() ? 0.0 : usual_norms_.median(); }

bool RunHealth::is_outlier(double gradient_norm) const {
  if (std::isnan(gradient_norm)) return false;  // skipped for that
  return usual_norms_.is_above(gradient_norm, kDeviations, (kOutlierFactor - 1.0) * usual_norm(), kLeastLosses);
}

bool RunHealth::may_update(double loss, double gradient_norm) const {
  if (policy_.spike == spec::OnJump::kSkip && is_high(loss)) return false;
  return policy_.gradient_outlier != spec::OnJump::kSkip || !is_outlier(gradient_norm);
}

void RunHealth::end_or_go_back(bool go_back, const std::string& why) {
  if (!go_back) throw failed(why);
  if (rollbacks_ >= policy_.most_rollbacks) throw failed(fmt::format("{}, after {} rollbacks", why, rollbacks_));
  if (rollback_reason_.empty()) rollback_reason_ = why;
}

void RunHealth::rolled_back() {
  ++rollbacks_;
  rollback_reason_.clear();
  last_losses_.clear();
  spiking_ = false;
  skipped_in_a_row_ = withheld_in_a_row_ = 0;
  unproven_.clear();
}

void RunHealth::count_skips(std::int64_t step, bool skipped, bool withheld) {
  skipped_in_a_row_ = skipped ? skipped_in_a_row_ + 1 : 0;
  withheld_in_a_row_ = withheld ? withheld_in_a_row_ + 1 : 0;
  withheld_ += withheld ? 1 : 0;
  // With a loss scale some skipped steps are how the scale is found.
  const bool goes_back = policy_.nonfinite == spec::OnNonfinite::kRollback;
  const std::int64_t most = goes_back && !loss_scaled_ ? 1 : policy_.most_skips;
  if (skipped_in_a_row_ >= most) {
    end_or_go_back(goes_back, skipped_in_a_row_ == 1
                                  ? fmt::format("the gradient was not finite in step {}", step)
                                  : fmt::format("the gradient was not finite in {} steps in a row, up to step {}",
                                                skipped_in_a_row_, step));
  }
  if (withheld_in_a_row_ >= most_withheld_) {
    throw failed(fmt::format("{} steps in a row were skipped for their loss or gradient, up to step {}",
                             withheld_in_a_row_, step));
  }
}

// Whether the norm is an outlier. Where that is only recorded it becomes usual, so that a new level is not told for
// ever.
bool RunHealth::look_at_norm(std::int64_t step, double gradient_norm, bool withheld) {
  if (!(gradient_norm > 0) || !std::isfinite(gradient_norm)) return false;
  const bool outlier = is_outlier(gradient_norm);
  const double usual = usual_norm();
  const spec::OnJump policy = policy_.gradient_outlier;
  if (!withheld && (!outlier || policy == spec::OnJump::kRecord)) usual_norms_.push(gradient_norm);
  if (outlier && (policy == spec::OnJump::kStop || policy == spec::OnJump::kRollback)) {
    end_or_go_back(
        policy == spec::OnJump::kRollback,
        fmt::format("the gradient's norm is {:.6g} in step {}, {:.6g} was usual", gradient_norm, step, usual));
  }
  return outlier;
}

HealthEvent RunHealth::observe(std::int64_t step, double loss, bool skipped, double gradient_norm, bool withheld) {
  seen_ = true;
  last_loss_ = loss;
  count_skips(step, skipped, withheld);
  const bool acts = policy_.nonfinite != spec::OnNonfinite::kSkip && !loss_scaled_;
  if (acts && !std::isfinite(loss)) {
    end_or_go_back(policy_.nonfinite == spec::OnNonfinite::kRollback,
                   fmt::format("the loss of step {} is {}", step, loss));
  }
  const bool outlier = look_at_norm(step, gradient_norm, withheld);
  const bool was_spiking = spiking_;
  // A loss that is not finite is as high as a loss can be.
  last_losses_.push(std::isfinite(loss) ? loss : std::numeric_limits<double>::max());
  spiking_ = is_spike();
  if (spiking_ && !was_spiking && (policy_.spike == spec::OnJump::kStop || policy_.spike == spec::OnJump::kRollback)) {
    end_or_go_back(policy_.spike == spec::OnJump::kRollback,
                   fmt::format("the loss rose to {:.6g} by step {}, from {:.6g} before", loss, step, usual_));
  }
  if (!spiking_ && !withheld && std::isfinite(loss)) {
    usual_losses_.push(loss);
    usual_ = usual_losses_.median();
  }
  prove(step);
  if (skipped) return HealthEvent::kSkipped;
  if (withheld) return HealthEvent::kWithheld;
  if (spiking_ == was_spiking) return outlier ? HealthEvent::kOutlier : HealthEvent::kNone;
  return spiking_ ? HealthEvent::kSpikeBegan : HealthEvent::kSpikeOver;
}

void RunHealth::prove(std::int64_t step) {
  if (!is_healthy()) {
    unproven_.clear();  // the damage may be as old as they are
    return;
  }
  for (const std::int64_t saved : unproven_) {
    if (step - saved < kStepsOfProof) continue;
    pinned_ = saved;
    proven_.push_back(saved);
  }
  std::erase_if(unproven_, [&](std::int64_t saved) { return step - saved >= kStepsOfProof; });
}

void RunHealth::saved(std::int64_t step) {
  if (is_healthy()) unproven_.push_back(step);
}

void RunHealth::distrust_after(std::int64_t step) {
  std::erase_if(proven_, [&](std::int64_t saved) { return saved > step; });
  pinned_ = proven_.empty() ? std::nullopt : std::optional(proven_.back());
  unproven_.clear();
}

void RunHealth::resumed(std::int64_t step, const std::vector<double>& losses) {
  pinned_ = step;
  proven_ = {step};
  for (const double loss : losses) usual_losses_.push(loss);
  if (!losses.empty()) usual_ = usual_losses_.median();
}

void RunHealth::require_sound_end(std::int64_t step) const {
  if (!seen_) return;
  if (!std::isfinite(last_loss_))
    throw failed(fmt::format("the loss of step {}, the last one, is {}", step, last_loss_));
  // With a loss scale a skipped step is how the scale is found.
  if (skipped_in_a_row_ > 0 && !loss_scaled_) {
    throw failed(
        fmt::format("the gradient was not finite in the last {} steps, up to step {}", skipped_in_a_row_, step));
  }
}

namespace {

bool has_no_floats(const torch::Tensor& tensor) {
  return !tensor.defined() || !tensor.is_floating_point() || tensor.numel() == 0;
}

// Finite only if all terms are.
torch::Tensor wide_sum(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat64 ? tensor.sum() : tensor.sum(torch::kFloat32);
}

// One answer for all tensors of a device, which to wait for one by one takes longer than to compute.
bool have_finite_sums(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> sums;
  for (const torch::Tensor& tensor : tensors) sums.push_back(wide_sum(tensor).to(torch::kFloat32));
  return sums.empty() || torch::isfinite(torch::stack(sums)).all().item<bool>();
}

}  // namespace

// Sums of finite terms may overflow, so the answer no is looked at again.
bool is_finite(const torch::Tensor& tensor) {
  if (has_no_floats(tensor)) return true;
  if (std::isfinite(wide_sum(tensor).item<double>())) return true;
  return torch::isfinite(tensor).all().item<bool>();
}

std::optional<std::string> find_not_finite(const checkpoint::CheckpointPart& part) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> elsewhere;
  for (const checkpoint::TensorPiece& piece : part.pieces) {
    const bool counts = piece.kind != checkpoint::TensorKind::kRank && !has_no_floats(piece.values);
    if (counts && !piece.values.is_cpu()) elsewhere.push_back(piece.values);
  }
  const bool is_sound_elsewhere = have_finite_sums(elsewhere);
  for (const checkpoint::TensorPiece& piece : part.pieces) {
    if (piece.kind == checkpoint::TensorKind::kRank || (is_sound_elsewhere && !piece.values.is_cpu())) continue;
    if (!is_finite(piece.values)) return piece.name;
  }
  return std::nullopt;
}

void require_finite(const std::optional<std::string>& not_finite, comm::Communicator& world, const std::string& doing) {
  std::int64_t ranks = not_finite ? 1 : 0;
  if (world.size() > 1) world.all_reduce({&ranks, 1, comm::DType::kI64}).wait();
  if (ranks == 0) return;
  throw failed(doing + ": " + (not_finite ? *not_finite + " holds" : "the state of another rank holds") +
               " values that are not finite");
}

}  // namespace lockstep::engine
