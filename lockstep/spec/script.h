// Script: a model whose inside nobody here wrote, and what is known about it: a module that torch.jit.script or
// torch.jit.trace saved, or a plugin's model (spec/plugin.h). The file is named by the user; the facts are counted and
// measured once by the engine (`probe`, engine/probe.h), kept by the digest of the file, and travel with the model, so
// that plans need no libtorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/spec/plugin.h"

namespace lockstep::spec {

// What the module's output is compared with the target by; every one is a mean, as torch.nn.functional's. kReturned:
// the module reads the target as its last input and returns the mean loss of the samples it is given. kOwn: the
// plugin's, by name (Script::own_loss) or that of its model.
enum class ScriptLoss { kCrossEntropy, kNll, kMse, kL1, kHuber, kBce, kBceWithLogits, kReturned, kOwn };
constexpr auto names_of(ScriptLoss) {
  return enum_names<ScriptLoss::kOwn>("cross_entropy", "nll", "mse", "l1", "huber", "bce", "bce_with_logits",
                                      "returned", "own");
}
// Whether targets are classes, of which some may not count.
inline bool counts_classes(ScriptLoss loss) { return loss == ScriptLoss::kCrossEntropy || loss == ScriptLoss::kNll; }

// A part of the module that runs by itself: weights come and go with it, and it may be computed again in backward.
struct ScriptUnit {
  std::string name;                    // of the submodules in it: "features.0"
  std::int64_t parameters = 0;         // that no unit before it uses
  std::vector<std::int64_t> entering;  // sizes, without the samples, of the one tensor that enters; empty: several do
  double entering_bytes = 0;           // of one sample
  double saved_bytes = 0;              // of one sample, kept from forward to backward
  double share = 0;                    // of the time of a step, 0 to 1
  bool operator==(const ScriptUnit&) const = default;
};

// Products of one sample that have the same sizes: [m, k] x [k, n]; convolutions as the products they amount to.
struct ScriptProduct {
  std::int64_t count = 1, m = 0, n = 0, k = 0;
  bool operator==(const ScriptProduct&) const = default;
};

struct ScriptFacts {
  std::int64_t parameters = 0;  // 0: nothing is known
  std::int64_t frozen = 0;      // of them, those that are not trained
  double buffer_bytes = 0;
  bool draws = false;           // random numbers in training: dropout
  bool updates = false;         // buffers in training: running statistics
  bool shares = false;          // a parameter between units
  bool counts_targets = false;  // kOwn: the loss is the mean over targets that are not -100, not over samples
  std::vector<ScriptUnit> units;
  std::map<std::string, std::string> aliases;  // other names of a parameter or buffer -> the one it is saved under
  std::vector<ScriptProduct> products;
  double pointwise_elements = 0;  // of one sample: results of all that is no product
  // One micro-step of forward and backward on the machine that looked: base_seconds + samples x sample_seconds.
  double base_seconds = 0, sample_seconds = 0;
  double forward_share = 1.0 / 3;
  std::int64_t threads = 0;  // it was measured with
  bool known() const { return parameters > 0; }
  bool operator==(const ScriptFacts&) const = default;
};

struct Script {
  std::string path;    // of a module from Python
  PluginUse plugin;    // of a plugin's model
  PluginUse own_loss;  // kOwn: a loss that a plugin registered
  ScriptLoss loss = ScriptLoss::kCrossEntropy;
  std::string digest;  // of a module from Python
  ScriptFacts facts;
  // Whether the same is trained: the file may lie elsewhere, and facts be measured on another machine.
  bool operator==(const Script& other) const {
    return loss == other.loss && digest == other.digest && plugin == other.plugin && own_loss == other.own_loss;
  }
};

// "1234 bytes, crc32c 89abcdef".
std::string digest_text(std::uint64_t bytes, std::uint32_t crc);
// Throws UserError (exit 4) where the file cannot be read.
std::string script_digest(const std::string& path);

// One line of JSON, and back; `name` is for errors (exit 2).
std::string to_text(const ScriptFacts& facts);
ScriptFacts script_facts(const std::string& text, const std::string& name);

}  // namespace lockstep::spec
