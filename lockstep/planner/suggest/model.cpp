#include "lockstep/planner/suggest/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"

namespace lockstep::planner {
namespace {

constexpr double kFewest = 1e6;
constexpr double kMost = 1e13;
constexpr double kSameSize = 0.03;

// A preset and the size in its name.
struct Sized {
  const char* name;
  double nominal;
};

// Dense decoders; Llamas first, so that they win ties ("7B" is llama2-7b).
constexpr std::array<Sized, 17> kPresets{{{"smollm2-135m", 135e6},
                                          {"tinyllama-1.1b", 1.1e9},
                                          {"llama3.2-1b", 1.24e9},
                                          {"smollm2-1.7b", 1.7e9},
                                          {"llama3.2-3b", 3.2e9},
                                          {"llama2-7b", 7e9},
                                          {"llama3-8b", 8e9},
                                          {"llama2-13b", 13e9},
                                          {"llama2-70b", 70e9},
                                          {"llama3-405b", 405e9},
                                          {"gpt2-124m", 124e6},
                                          {"gpt2-355m", 355e6},
                                          {"gpt2-774m", 774e6},
                                          {"gpt-1.3b", 1.3e9},
                                          {"gpt2-1.5b", 1.5e9},
                                          {"gpt-10b", 10e9},
                                          {"gpt3-175b", 175e9}}};

// The Llamas between which shapes are drawn: one per size, ascending.
constexpr std::array<const char*, 6> kFamily{"smollm2-135m", "tinyllama-1.1b", "llama3.2-3b",
                                             "llama2-7b",    "llama2-70b",     "llama3-405b"};

const Sized* preset_near(double parameters) {
  const auto distance = [&](const Sized& preset) { return std::abs(std::log(parameters / preset.nominal)); };
  const auto nearest = std::min_element(kPresets.begin(), kPresets.end(),
                                        [&](const Sized& a, const Sized& b) { return distance(a) < distance(b); });
  if (distance(*nearest) <= kSameSize) return &*nearest;
  for (const Sized& preset : kPresets) {  // asked for by its exact count
    if (distance(preset) > 0.3) continue;
    const auto count = static_cast<double>(spec::parameter_count(spec::load_model(preset.name)));
    if (std::abs(std::log(parameters / count)) <= kSameSize) return &preset;
  }
  return nullptr;
}

struct Anchor {
  spec::Model model;
  double parameters = 0;
};

std::vector<Anchor> anchors() {
  std::vector<Anchor> family;
  for (const char* name : kFamily) {
    Anchor anchor{.model = spec::load_model(name)};
    anchor.parameters = static_cast<double>(spec::parameter_count(anchor.model));
    family.push_back(std::move(anchor));
  }
  return family;
}

std::int64_t to_multiple(double value, std::int64_t of) {
  return std::max<std::int64_t>(1, std::llround(value / static_cast<double>(of))) * of;
}

// The line through two anchors in log scale; beyond the ends it goes on.
double on_line(double parameters, const Anchor& low, const Anchor& high, std::int64_t spec::Model::*field) {
  const double share = std::log(parameters / low.parameters) / std::log(high.parameters / low.parameters);
  const auto from = static_cast<double>(low.model.*field), to = static_cast<double>(high.model.*field);
  return from * std::pow(to / from, share);
}

// Embeddings take at most this share of a small model; a smaller vocabulary makes room.
constexpr double kMostEmbedding = 0.3;

void fit_vocabulary(spec::Model& model, double parameters) {
  for (const std::int64_t vocab : {model.vocab, std::int64_t{32000}, std::int64_t{8192}, std::int64_t{1024}}) {
    model.vocab = vocab;
    const double embedding = static_cast<double>(vocab * model.hidden);
    model.tied_embeddings = 2 * embedding > kMostEmbedding * parameters;
    if (embedding <= kMostEmbedding * parameters) return;
  }
  model.vocab = 256;  // bytes
}

// The inner size that makes the count right.
void fit_inner_size(spec::Model& model, double parameters) {
  const std::int64_t step = model.hidden >= 2048 ? 128 : model.hidden >= 512 ? 32 : 8;
  model.ffn_hidden = 0;
  const auto without = static_cast<double>(spec::parameter_count(model));
  const auto per_column = 3.0 * static_cast<double>(model.layers * model.hidden);  // gate, up, down
  model.ffn_hidden = to_multiple(std::max(parameters - without, per_column) / per_column, step);
}

spec::Model shape_of(double parameters, const Anchor& low, const Anchor& high) {
  const bool nearer_low = parameters * parameters < low.parameters * high.parameters;
  spec::Model model = nearer_low ? low.model : high.model;
  const double layers = on_line(parameters, low, high, &spec::Model::layers);
  const double hidden = on_line(parameters, low, high, &spec::Model::hidden);
  model.head_dim = hidden >= 1024 ? 128 : hidden >= 256 ? 64 : 32;
  model.hidden = to_multiple(hidden, model.head_dim * (hidden >= 4096 ? 4 : 1));
  model.layers = layers >= 24 ? to_multiple(layers, 4) : to_multiple(std::max(2.0, layers), 2);
  model.heads = model.hidden / model.head_dim;
  // Grouped-query attention with 8 groups above the largest Llama that goes without.
  const bool grouped = parameters > 20e9 && model.heads % 8 == 0;
  model.kv_heads = grouped ? 8 : model.heads;
  model.rope_scaling = {};
  fit_vocabulary(model, parameters);
  fit_inner_size(model, parameters);
  model.name = fmt::format("llama-{}", parameters >= 1e9 ? fmt::format("{:.4g}b", parameters / 1e9)
                                                         : fmt::format("{:.4g}m", parameters / 1e6));
  return model;
}

}  // namespace

SizedModel model_of_size(double parameters) {
  if (!(parameters >= kFewest && parameters <= kMost)) {
    throw bad_input(fmt::format("a model of {:.4g} parameters", parameters),
                    "give 1M to 10T, for instance 7B; or name one with --model");
  }
  if (const Sized* preset = preset_near(parameters)) {
    SizedModel found{.model = spec::load_model(preset->name)};
    const auto count = static_cast<double>(spec::parameter_count(found.model));
    found.reason = fmt::format("model: {} ({} parameters) stands for {}; --model names another", preset->name,
                               format_count(count), format_count(parameters));
    return found;
  }
  const std::vector<Anchor> family = anchors();
  std::size_t high = 1;
  while (high + 1 < family.size() && family[high].parameters < parameters) ++high;
  SizedModel drawn{.model = shape_of(parameters, family[high - 1], family[high]), .interpolated = true};
  const spec::Model& model = drawn.model;
  const bool between = parameters >= family[high - 1].parameters && parameters <= family[high].parameters;
  drawn.reason = fmt::format(
      "model: no preset has {}, so a Llama of {} layers of {} ({} parameters) stands for it, on the line {} {} and {}; "
      "--model names yours",
      format_count(parameters), model.layers, model.hidden,
      format_count(static_cast<double>(spec::parameter_count(model))), between ? "between" : "through",
      family[high - 1].model.name, family[high].model.name);
  return drawn;
}

}  // namespace lockstep::planner
