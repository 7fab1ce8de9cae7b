#include "lockstep/planner/proxy/shrink.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "lockstep/cost/flops.h"

namespace lockstep::planner {
namespace {

constexpr std::int64_t kFewestHeads = 4, kSmallestHead = 8;
constexpr std::int64_t kSmallestHidden = 64, kSmallestSequence = 16, kSmallestVocab = 256;
constexpr std::int64_t kSmallestImage = 32, kSmallestBatchShare = 64;
constexpr std::int64_t kAlignment = 8;  // of widths: what vector units and tensor cores like
constexpr double kMostSkew = 1.25;      // of hidden : layers

double real(std::int64_t value) { return static_cast<double>(value); }

// The multiple of `unit` that is nearest, at least one.
std::int64_t nearest_multiple(double value, std::int64_t unit) {
  return std::max<std::int64_t>(1, std::llround(value / real(unit))) * unit;
}

std::int64_t scaled(std::int64_t value, double factor, std::int64_t unit) {
  return value == 0 ? 0 : nearest_multiple(real(value) * factor, unit);
}

// Heads of the same size where enough are left, else of half of it, and so on.
bool shrink_heads(spec::Model& small, const spec::Model& model, const Divisors& divisors) {
  if (model.heads == 0) return true;
  const std::int64_t group = model.kv_heads > 1 ? std::max<std::int64_t>(1, model.heads / model.kv_heads) : 1;
  const std::int64_t ways = std::max<std::int64_t>(1, divisors.heads);
  const std::int64_t fewest = std::min(model.heads, std::max(kFewestHeads, group * ways));
  const double width = real(model.heads * model.head_dim) * real(small.hidden) / real(model.hidden);
  for (std::int64_t size = model.head_dim; size >= std::min(kSmallestHead, model.head_dim); size /= 2) {
    const std::int64_t heads = std::llround(width / real(size));
    if (size % 2 != 0) return false;  // rotary positions turn pairs
    if (heads < fewest || real(heads * size) != width) continue;
    if (heads % group != 0 || (heads / group) % ways != 0) continue;
    small.heads = heads;
    small.head_dim = size;
    small.kv_heads = model.kv_heads > 1 ? heads / group : model.kv_heads;
    return true;
  }
  return false;
}

// FLOPs of a token without the head.
double body_flops(const spec::Model& model, std::int64_t sequence) {
  const double head = model.classes > 0 ? 0.0 : 6.0 * real(model.vocab) * real(model.hidden);
  return cost::mfu_flops_per_token(model, sequence) - head;
}

std::int64_t shrunk_vocab(const spec::Model& small, std::int64_t sequence, const spec::Model& model,
                          std::int64_t model_sequence, std::int64_t unit) {
  const bool masked = model.arch == spec::Arch::kBert;  // bytes, and a mask beside them
  const std::int64_t fewest = std::min(model.vocab, kSmallestVocab + (masked ? unit : 0));
  const double per_hidden = body_flops(small, sequence) / real(small.hidden);
  const double share = per_hidden / (body_flops(model, model_sequence) / real(model.hidden));
  return std::clamp(nearest_multiple(real(model.vocab) * share, unit), fewest, model.vocab);
}

std::optional<SmallModel> shrunk(const spec::Model& model, std::int64_t sequence, std::int64_t hidden,
                                 const Divisors& divisors) {
  const double factor = real(hidden) / real(model.hidden);
  SmallModel result{model, 0};
  spec::Model& small = result.model;
  small.hidden = hidden;
  const double depth = real(model.layers) * factor;
  small.layers = std::min(model.layers, nearest_multiple(depth, divisors.layers));
  const bool shallowest = small.layers == divisors.layers && real(small.layers) >= depth;
  if (std::abs(std::log(real(small.layers) / depth)) > std::log(kMostSkew) && !shallowest) return std::nullopt;
  if (!shrink_heads(small, model, divisors)) return std::nullopt;
  const std::int64_t unit = std::lcm(kAlignment, divisors.heads);
  small.ffn_hidden = scaled(model.ffn_hidden, factor, unit);
  small.dt_rank = scaled(model.dt_rank, factor, 1);
  const std::int64_t pieces = std::lcm(kSmallestSequence, divisors.sequence);
  result.sequence = std::min(std::max(pieces, sequence), scaled(sequence, factor, pieces));
  small.max_sequence = result.sequence;
  small.vocab = 0;
  small.vocab = shrunk_vocab(small, result.sequence, model, sequence, unit);
  small.global_batch_tokens = 0;
  return result;
}

bool takes_any_size(const spec::Model& model) {
  return model.arch == spec::Arch::kResNet || model.arch == spec::Arch::kCifarCnn;
}

// Samples first, for they change no shape; then the images.
std::vector<SmallModel> smaller_images(const spec::Model& model) {
  std::vector<SmallModel> models;
  for (std::int64_t size = model.image_size; size >= std::min(kSmallestImage, model.image_size); size /= 2) {
    for (std::int64_t share = size == model.image_size ? 2 : 1; share <= kSmallestBatchShare; share *= 2) {
      SmallModel small{model, 0, 1.0 / real(share)};
      small.model.image_size = size;
      models.push_back(std::move(small));
    }
    if (!takes_any_size(model)) break;
  }
  std::stable_sort(models.begin(), models.end(), [](const SmallModel& a, const SmallModel& b) {
    const auto work = [](const SmallModel& small) {
      return small.share_of_micro * real(small.model.image_size * small.model.image_size);
    };
    return work(a) > work(b);
  });
  return models;
}

}  // namespace

Divisors divisors_of(const std::vector<plan::Layout>& layouts, const spec::Model& model) {
  Divisors divisors;
  for (const plan::Layout& layout : layouts) {
    const bool exchanged = layout.context_exchange == plan::ContextExchange::kAllToAll;
    divisors.heads = std::lcm(divisors.heads, layout.tp * (exchanged ? layout.cp : 1));
    divisors.layers = std::lcm(divisors.layers, layout.pp * layout.virtual_stages);
    divisors.sequence = std::lcm(divisors.sequence, plan::sequence_pieces(layout, model));
  }
  return divisors;
}

std::vector<SmallModel> smaller_models(const spec::Model& model, std::int64_t sequence, const Divisors& divisors) {
  if (model.is_image_model()) return smaller_images(model);
  std::vector<SmallModel> models;
  const std::int64_t step = model.hidden >= 8 * kSmallestHidden ? 32 : kAlignment;
  for (std::int64_t hidden = (model.hidden - 1) / step * step; hidden >= std::min(kSmallestHidden, model.hidden);
       hidden -= step) {
    if (auto small = shrunk(model, sequence, hidden, divisors)) models.push_back(std::move(*small));
  }
  return models;
}

}  // namespace lockstep::planner
