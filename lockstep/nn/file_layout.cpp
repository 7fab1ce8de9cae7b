#include "lockstep/nn/file_layout.h"

#include <optional>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

constexpr const char* kLayers = "model.layers.";

// Our name of a layer's parameter, "self_attn.q_proj.weight" of layer "3".
struct LayerName {
  std::string layer, module, kind;  // kind: "weight" or "bias"
};

std::optional<LayerName> layer_name(const std::string& name) {
  const std::string start = kLayers;
  if (name.rfind(start, 0) != 0) return std::nullopt;
  const std::size_t number_end = name.find('.', start.size()), kind = name.rfind('.');
  if (number_end == std::string::npos || kind <= number_end) return std::nullopt;
  return LayerName{name.substr(start.size(), number_end - start.size()),
                   name.substr(number_end + 1, kind - number_end - 1), name.substr(kind + 1)};
}

// The same for another first dim.
std::vector<std::int64_t> with_rows(std::vector<std::int64_t> sizes, std::int64_t rows) {
  sizes[0] = rows;
  return sizes;
}

struct HeadCounts {
  std::int64_t heads, kv_heads, dim;
  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t all() const { return (heads + 2 * kv_heads) * dim; }
};

HeadCounts heads_of(const spec::Model& spec) {
  return {spec.heads, spec.kv_heads > 0 ? spec.kv_heads : spec.heads,
          spec.head_dim > 0 ? spec.head_dim : spec.hidden / spec.heads};
}

// All queries, all keys, all values (Phi 3).
std::vector<Segment> rows_by_kind(const HeadCounts& h, char which) {
  const std::int64_t queries = h.heads * h.dim, keys = h.kv_heads * h.dim;
  if (which == 'q') return {{0, queries}};
  return {{queries + (which == 'k' ? 0 : keys), keys}};
}

// For every key head its queries, its key and its value (GPT-NeoX, Falcon).
std::vector<Segment> rows_by_head(const HeadCounts& h, char which) {
  const std::int64_t queries = h.group() * h.dim, stride = queries + 2 * h.dim;
  std::vector<Segment> rows;
  for (std::int64_t head = 0; head < h.kv_heads; ++head) {
    const std::int64_t first = head * stride;
    if (which == 'q') rows.push_back({first, queries});
    if (which == 'k') rows.push_back({first + queries, h.dim});
    if (which == 'v') rows.push_back({first + queries + h.dim, h.dim});
  }
  return rows;
}

// "self_attn.q_proj" -> 'q'; 0 for other modules.
char projection_of(const std::string& module) {
  if (module == "self_attn.q_proj") return 'q';
  if (module == "self_attn.k_proj") return 'k';
  return module == "self_attn.v_proj" ? 'v' : '\0';
}

FilePlace phi3_place(const LayerName& name, FilePlace place, const spec::Model& spec) {
  std::string module = name.module;
  if (const char which = projection_of(module)) {
    place.rows = rows_by_kind(heads_of(spec), which);
    place.sizes = with_rows(place.sizes, heads_of(spec).all());
    module = "self_attn.qkv_proj";
  } else if (module == "mlp.gate_proj" || module == "mlp.up_proj") {
    const std::int64_t width = place.sizes[0];
    place.rows = {{module == "mlp.gate_proj" ? 0 : width, width}};
    place.sizes = with_rows(place.sizes, 2 * width);
    module = "mlp.gate_up_proj";
  }
  place.name = kLayers + name.layer + "." + module + "." + name.kind;
  return place;
}

using Names = std::map<std::string, std::string>;

// Modules of a layer; what is not here has our name.
const Names& neox_modules() {
  static const Names names = {{"self_attn.o_proj", "attention.dense"},
                              {"mlp.up_proj", "mlp.dense_h_to_4h"},
                              {"mlp.down_proj", "mlp.dense_4h_to_h"}};
  return names;
}

const Names& falcon_modules(const spec::Model& spec) {
  static const Names one = {{"self_attn.o_proj", "self_attention.dense"},
                            {"mlp.up_proj", "mlp.dense_h_to_4h"},
                            {"mlp.down_proj", "mlp.dense_4h_to_h"}};
  static const Names two = [] {
    Names names = one;
    names["input_layernorm"] = "ln_attn";
    names["post_attention_layernorm"] = "ln_mlp";
    return names;
  }();
  return spec.decoder.parallel_block == spec::ParallelBlock::kTwoNorms ? two : one;
}

// Names of a family that spells all of them its own way.
struct Spelling {
  std::string layers;  // "gpt_neox.layers."
  std::string packed;  // module with queries, keys and values
  const Names& modules;
  Names outside;  // whole names
};

Spelling spelling_of(const spec::Model& spec) {
  if (spec.decoder.family == spec::Family::kNeox) {
    return {"gpt_neox.layers.",
            "attention.query_key_value",
            neox_modules(),
            {{"model.embed_tokens.weight", "gpt_neox.embed_in.weight"},
             {"model.norm.weight", "gpt_neox.final_layer_norm.weight"},
             {"model.norm.bias", "gpt_neox.final_layer_norm.bias"},
             {"lm_head.weight", "embed_out.weight"}}};
  }
  return {"transformer.h.",
          "self_attention.query_key_value",
          falcon_modules(spec),
          {{"model.embed_tokens.weight", "transformer.word_embeddings.weight"},
           {"model.norm.weight", "transformer.ln_f.weight"},
           {"model.norm.bias", "transformer.ln_f.bias"}}};
}

FilePlace spelled_place(const std::string& our_name, FilePlace place, const spec::Model& spec) {
  const Spelling spelling = spelling_of(spec);
  const auto name = layer_name(our_name);
  if (!name) {
    const auto found = spelling.outside.find(our_name);
    if (found != spelling.outside.end()) place.name = found->second;
    return place;
  }
  std::string module = name->module;
  if (const char which = projection_of(module)) {
    module = spelling.packed;
    place.rows = rows_by_head(heads_of(spec), which);
    place.sizes = with_rows(place.sizes, heads_of(spec).all());
  } else if (const auto found = spelling.modules.find(module); found != spelling.modules.end()) {
    module = found->second;
  }
  place.name = spelling.layers + name->layer + "." + module + "." + name->kind;
  return place;
}

}  // namespace

std::vector<Run> FilePlace::runs(std::int64_t first, std::int64_t count) const {
  return runs_of({.whole = sizes, .dim = 0, .segments = rows}, first, count);
}

FilePlace file_place(const std::string& our_name, const std::vector<std::int64_t>& our_sizes, const spec::Model& spec) {
  const FilePlace same{our_name, our_sizes, {}};
  if (!spec::has_decoder(spec)) return same;
  switch (spec.decoder.family) {
    case spec::Family::kPhi3: {
      const auto name = layer_name(our_name);
      return name ? phi3_place(*name, same, spec) : same;
    }
    case spec::Family::kNeox:
    case spec::Family::kFalcon:
      return spelled_place(our_name, same, spec);
    default:
      return same;
  }
}

std::string base_prefix(const spec::Model& spec) {
  switch (spec.arch) {
    case spec::Arch::kGpt:
      return "transformer.";
    case spec::Arch::kLlama:
    case spec::Arch::kMoe:
      if (spec.decoder.family == spec::Family::kNeox) return "gpt_neox.";
      return spec.decoder.family == spec::Family::kFalcon ? "transformer." : "model.";
    case spec::Arch::kBert:
      return "bert.";
    case spec::Arch::kMamba:
      return "backbone.";
    default:
      return "";
  }
}

std::map<std::string, Tensor> to_file_tensors(std::map<std::string, Tensor> ours, const spec::Model& spec) {
  std::map<std::string, Tensor> files;
  while (!ours.empty()) {
    const auto node = ours.extract(ours.begin());
    const Tensor& tensor = node.mapped();
    const FilePlace place = file_place(node.key(), tensor.sizes().vec(), spec);
    if (place.rows.empty()) {
      files[place.name] = tensor;
      continue;
    }
    Tensor& whole = files[place.name];
    if (!whole.defined()) whole = torch::empty(place.sizes, tensor.options());
    LOCKSTEP_ASSERT(whole.sizes().vec() == place.sizes, "the parts of " + place.name + " agree");
    std::int64_t row = 0;
    for (const Segment& segment : place.rows) {
      whole.narrow(0, segment.first, segment.count).copy_(tensor.narrow(0, row, segment.count));
      row += segment.count;
    }
  }
  return files;
}

}  // namespace lockstep::nn
