// Pieces that the readers of config.json share. Internal to this folder.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/spec/model.h"

namespace lockstep::spec::hf {

constexpr std::int64_t kWidest = 1 << 22;

Activation activation_of(const JsonReader& config, const char* key, const char* fallback);

// A number in the range that model files allow too (docs/reference/cluster-and-model-files.md).
double real_between(const JsonReader& config, const char* key, double fallback, double low, double high);
double norm_epsilon_of(const JsonReader& config, const char* key, double fallback);
std::int64_t width(const JsonReader& config, const char* key, std::int64_t most = kWidest);

// The same probability in several places of the network is our one `dropout`; different ones cannot be expressed.
double dropout_of(const JsonReader& config, const std::vector<std::string>& keys, double fallback);

void check_heads(const JsonReader& config, const Model& model, const char* heads_key, bool head_dim_given);
void refuse_true(const JsonReader& config, std::initializer_list<const char*> keys);
void refuse_dropout(const JsonReader& config, std::initializer_list<const char*> keys);

// A key that is there with the value null.
bool is_null(const JsonReader& config, const char* key);

// Rotary positions as transformers 5 writes them (rope_parameters) or version 4 (rope_theta, rope_scaling and the
// like): fills rope_theta, rope_scaling and decoder.rotary_fraction, whose values before are the defaults. After all
// sizes.
void read_rope(const JsonReader& config, Model& model);
// The same from one of the objects that Gemma 3 has for its two kinds of layers.
void read_rope_map(const JsonReader& map, const JsonReader& config, Model& model);

// Windows by `layer_types`, or by (from, period) where that is absent. Clears them where no layer has one.
void read_windows(const JsonReader& config, Model& model, std::int64_t window, std::int64_t from, std::int64_t period);

// Our coefficient of the load-balancing loss. That of transformers counts all choices of a token and is one mean over
// the tokens of all layers with experts; ours counts shares of the choices and is a sum over those layers: the same for
// one layer, and wherever layers have the same expert load.
double balancing_of(const JsonReader& config, const Model& model);

// Llama's relatives, one reader for every model_type.
struct Reader {
  const char* type;
  Model (*read)(const JsonReader& config);
};
const std::vector<Reader>& decoder_readers();
// Likewise, of classes whose sizes can be planned and that nothing here trains.
const std::vector<Reader>& planned_readers();
// Fails for a model_type that nothing reads.
Model read_decoder_config(const JsonReader& config, const std::string& type);
// Everything of a Mixtral but its experts.
Model mixtral_sizes(const JsonReader& config);

}  // namespace lockstep::spec::hf
