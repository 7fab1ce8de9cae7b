#include "lockstep/spec/hf_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "lockstep/base/text.h"

namespace lockstep::spec::hf {
namespace {

std::vector<double> reals(const JsonReader& map, const char* key) {
  std::vector<double> values;
  for (const nlohmann::json& value : map.array(key)) {
    if (!value.is_number()) map.fail(key, "holds something else than numbers", "one divisor for every frequency");
    values.push_back(value.get<double>());
  }
  return values;
}

RopeScaling::Kind kind_of(const JsonReader& map, const Model& model) {
  const std::string kind = map.has("rope_type") ? map.text("rope_type") : map.text("type", "default");
  if (kind == "default") return RopeScaling::Kind::kNone;
  if (kind == "linear") return RopeScaling::Kind::kLinear;
  if (kind == "llama3") return RopeScaling::Kind::kLlama3;
  // Early files of Phi 3 call it so.
  const bool old_longrope = model.decoder.family == Family::kPhi3 && (kind == "su" || kind == "yarn");
  if (kind == "longrope" || old_longrope) return RopeScaling::Kind::kLongRope;
  if (kind == "yarn") return RopeScaling::Kind::kYarn;
  map.fail("rope_type", fmt::format("is `{}`", printable(kind)), "supported: default, linear, llama3, yarn, longrope");
}

void read_long_rope(const JsonReader& map, const Model& model, RopeScaling& rope) {
  rope.factor = map.has("factor") ? real_between(map, "factor", 1.0, 1.0, 1e6) : 0.0;
  rope.short_factors = reals(map, "short_factor");
  rope.long_factors = reals(map, "long_factor");
  const auto pairs = static_cast<std::size_t>(rotary_dim(model) / 2);
  for (const auto& [key, factors] :
       {std::pair{"short_factor", &rope.short_factors}, {"long_factor", &rope.long_factors}}) {
    if (factors->size() != pairs) {
      map.fail(key, fmt::format("has {} entries", factors->size()), fmt::format("it needs {}", pairs));
    }
    if (std::any_of(factors->begin(), factors->end(), [](double value) { return !(value >= 1e-6 && value <= 1e6); })) {
      map.fail(key, "holds a value out of range", "1e-06 to 1000000");
    }
  }
}

void read_yarn(const JsonReader& map, RopeScaling& rope) {
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (map.has(key)) map.fail(key, "is there", "this variant of yarn is not supported; give attention_factor");
  }
  rope.beta_fast = real_between(map, "beta_fast", 32.0, 1e-6, 1e6);
  rope.beta_slow = real_between(map, "beta_slow", 1.0, 1e-6, 1e6);
  rope.truncate = map.boolean_or("truncate", true);
}

}  // namespace

Activation activation_of(const JsonReader& config, const char* key, const char* fallback) {
  const std::string name = config.text(key, fallback);
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::kGeluTanh;
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  config.fail(key, fmt::format("is `{}`", printable(name)), "supported: gelu, gelu_new, silu, relu");
}

double real_between(const JsonReader& config, const char* key, double fallback, double low, double high) {
  const double value = config.real_or(key, fallback);
  if (value < low || value > high) config.fail(key, fmt::format("is {}", value), fmt::format("{} to {}", low, high));
  return value;
}

double norm_epsilon_of(const JsonReader& config, const char* key, double fallback) {
  return real_between(config, key, fallback, 0.0, 1.0);
}

double dropout_of(const JsonReader& config, const std::vector<std::string>& keys, double fallback) {
  const double dropout = config.real_or(keys.front(), fallback);
  for (const std::string& key : keys) {
    const double value = config.real_or(key, fallback);
    if (value < 0.0 || value >= 1.0) config.fail(key, fmt::format("is {}", value), "0 <= dropout < 1");
    if (value != dropout) config.fail(key, fmt::format("differs from {}", keys.front()), "set both to the same value");
  }
  return dropout;
}

std::int64_t width(const JsonReader& config, const char* key, std::int64_t most) {
  return config.integer(key, 1, most);
}

void check_heads(const JsonReader& config, const Model& model, const char* heads_key, bool head_dim_given) {
  if (!head_dim_given && model.hidden % model.heads != 0) {
    config.fail(heads_key, fmt::format("{} does not divide the hidden size {}", model.heads, model.hidden),
                "check both");
  }
  if (model.heads % model.kv_heads != 0) {
    config.fail("num_key_value_heads", fmt::format("{} does not divide the {} heads", model.kv_heads, model.heads),
                "check both");
  }
}

void refuse_true(const JsonReader& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (config.boolean_or(key, false)) config.fail(key, "is true", "this variant is not supported");
  }
}

void refuse_dropout(const JsonReader& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (config.real_or(key, 0.0) != 0.0) config.fail(key, "is not 0", "dropout here is not supported; set it to 0");
  }
}

bool is_null(const JsonReader& config, const char* key) {
  const auto found = config.value().find(key);
  return found != config.value().end() && found->is_null();
}

void read_rope_map(const JsonReader& map, const JsonReader& config, Model& model) {
  RopeScaling& rope = model.rope_scaling;
  model.rope_theta = real_between(map, "rope_theta", model.rope_theta, 1.0, 1e12);
  model.decoder.rotary_fraction = real_between(map, "partial_rotary_factor", model.decoder.rotary_fraction, 1e-3, 1.0);
  rope.kind = kind_of(map, model);
  if (rope.kind == RopeScaling::Kind::kNone) return;
  const bool is_long = rope.kind == RopeScaling::Kind::kLongRope;
  if (!is_long) rope.factor = real_between(map, "factor", map.real("factor"), 1.0, 1e6);
  if (rope.kind == RopeScaling::Kind::kLinear) return;
  // Phi 3 has it outside.
  const bool inside = map.has("original_max_position_embeddings");
  rope.original_max_sequence = (inside || !is_long ? map : config).integer("original_max_position_embeddings", 2);
  if (rope.kind == RopeScaling::Kind::kLlama3) {
    rope.low_freq_factor = real_between(map, "low_freq_factor", map.real("low_freq_factor"), 1e-6, 1e6);
    rope.high_freq_factor = real_between(map, "high_freq_factor", map.real("high_freq_factor"), 1e-6, 1e6);
    return;
  }
  rope.attention_factor = real_between(map, "attention_factor", 0.0, 0.0, 1e3);
  is_long ? read_long_rope(map, model, rope) : read_yarn(map, rope);
}

void read_rope(const JsonReader& config, Model& model) {
  model.rope_theta = real_between(config, "rope_theta", model.rope_theta, 1.0, 1e12);
  model.decoder.rotary_fraction =
      real_between(config, "partial_rotary_factor", model.decoder.rotary_fraction, 1e-3, 1.0);
  const auto map = config.object_or_none(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (map) read_rope_map(*map, config, model);
  const Family family = model.decoder.family;
  if (model.decoder.rotary_fraction != 1.0 && family != Family::kPhi3 && family != Family::kNeox) {
    config.fail("partial_rotary_factor", "is not 1", "models of this type rotate whole heads");
  }
  if (rotary_dim(model) < 2 || rotary_dim(model) % 2 != 0) {
    config.fail("head_dim", fmt::format("leaves {} elements of a head to rotate", rotary_dim(model)),
                "an even number of at least 2 is needed");
  }
}

void read_windows(const JsonReader& config, Model& model, std::int64_t window, std::int64_t from, std::int64_t period) {
  Decoder& d = model.decoder;
  d.sliding_window = window;
  d.window_from = std::min(from, model.layers);
  d.window_period = period;
  if (window > 0 && config.has("layer_types")) {
    std::vector<bool> slides;
    for (const std::string& type : config.texts("layer_types")) {
      if (type != "sliding_attention" && type != "full_attention") {
        config.fail("layer_types", fmt::format("holds `{}`", printable(type)),
                    "supported: full_attention, sliding_attention");
      }
      slides.push_back(type == "sliding_attention");
    }
    if (static_cast<std::int64_t>(slides.size()) != model.layers) {
      config.fail("layer_types", fmt::format("has {} entries for {} layers", slides.size(), model.layers), "check it");
    }
    const auto first = std::find(slides.begin(), slides.end(), true),
               full = std::find(slides.begin(), slides.end(), false);
    // Full first and then windows, or a full layer every so often.
    d.window_from = full == slides.begin() ? first - slides.begin() : 0;
    d.window_period = full == slides.begin() || full == slides.end() ? 0 : full - slides.begin() + 1;
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      if ((window_of(model, layer) > 0) == slides[static_cast<std::size_t>(layer)]) continue;
      config.fail("layer_types", fmt::format("has no pattern that is known (layer {})", layer),
                  "supported: full layers first, or one full layer every so many");
    }
  }
  bool any = false;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) any = any || window_of(model, layer) > 0;
  if (!any) d.sliding_window = d.window_from = d.window_period = 0;
}

double balancing_of(const JsonReader& config, const Model& model) {
  const double layers = static_cast<double>(model.layers - model.decoder.dense_layers);
  const double choices = static_cast<double>(model.experts_per_token);
  const double theirs = real_between(config, "router_aux_loss_coef", 0.001, 0.0, 1e3 * layers / choices);
  // It is added to the training loss only where the router's logits are asked for.
  if (!config.boolean_or("output_router_logits", false)) return 0.0;
  // To the digits that a double holds for sure, so that ours survives the way to a file (to_hf_config) and back.
  return std::strtod(fmt::format("{:.15g}", theirs * choices / layers).c_str(), nullptr);
}

}  // namespace lockstep::spec::hf
