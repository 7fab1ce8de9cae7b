#include "lockstep/plan/verdict.h"

#include <fmt/format.h>

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/plan/nearest_layout.h"

namespace lockstep::plan {
namespace {

using Found = std::optional<Problem>;

Found refused(std::string key, std::string text, std::string fix) {
  return Problem{std::move(key), std::move(text), std::move(fix), Severity::kRefused};
}

Found warning(std::string key, std::string text, std::string fix) {
  return Problem{std::move(key), std::move(text), std::move(fix), Severity::kWarning};
}

// Without the precision, which no layout that is offered instead changes.
std::string text_of(Layout layout) {
  layout.precision = spec::Precision::kFp32;
  return to_string(layout);
}

Found find_batch_problem(const Run& run) {
  for (const auto& [name, value] :
       {std::pair("micro", run.batch.micro), std::pair("accumulation", run.batch.accumulation)}) {
    if (value < 1) {
      return refused(fmt::format("batch.{}", name), fmt::format("batch.{} is {}", name, value), "use 1 or more");
    }
  }
  const std::int64_t tokens = run.batch.sequence_length, longest = run.model.max_sequence;
  if (!run.model.is_language_model()) return std::nullopt;
  if (tokens < 1) {
    return refused("batch.sequence_length", fmt::format("batch.sequence_length is {}", tokens), "use 1 or more");
  }
  if (longest > 0 && tokens > longest) {
    return refused(
        "batch.sequence_length",
        fmt::format("sequence_length {} is longer than the {} positions of {}", tokens, longest, run.model.name),
        "shorten it or set model.max_sequence");
  }
  return std::nullopt;
}

Found model_problem(const Run& run, const char* field, const std::string& text, std::string fix) {
  return refused(fmt::format("model.{}", field), fmt::format("model {}: {}", run.model.name, text), std::move(fix));
}

Found find_attention_problem(const Run& run) {
  const spec::Model& model = run.model;
  if (model.arch == spec::Arch::kGpt || model.arch == spec::Arch::kBert) {
    if (model.kv_heads == 0 || model.kv_heads == model.heads) return std::nullopt;
    return model_problem(run, "kv_heads", fmt::format("{} has no grouped-query attention", spec::to_string(model.arch)),
                         "set model.kv_heads to model.heads, or use arch llama");
  }
  if (!spec::has_decoder(model) || model.heads == 0 || spec::rotary_dim(model) % 2 == 0) return std::nullopt;
  return model_problem(run, "head_dim",
                       fmt::format("RoPE rotates an even part of a head, not {}", spec::rotary_dim(model)),
                       "change model.head_dim or model.rotary_fraction");
}

// What no layout helps against: the architectures as nn/ builds them.
Found find_model_problem(const Run& run) {
  const spec::Model& model = run.model;
  if (const std::string why = spec::why_only_planned(model); !why.empty()) {
    return model_problem(run, "arch", fmt::format("{}, so it can be planned and not trained", why),
                         "`lockstep plan --export` writes its plan for other frameworks");
  }
  if (model.dropout < 0 || model.dropout >= 1) {
    return model_problem(run, "dropout", fmt::format("dropout {} is not in [0, 1)", model.dropout),
                         "set model.dropout");
  }
  if (model.arch == spec::Arch::kMamba && model.dropout > 0) {
    return model_problem(run, "dropout", "mamba has no dropout", "leave model.dropout out");
  }
  const bool silu = model.arch == spec::Arch::kMoe || model.arch == spec::Arch::kMamba;
  if (silu && model.activation != spec::Activation::kSilu) {
    return model_problem(run, "activation",
                         fmt::format("{} is trained with activation silu only", spec::to_string(model.arch)),
                         "set model.activation to silu");
  }
  if (model.experts > 0 && model.bias) {
    return model_problem(run, "bias", "experts have no biases", "set model.bias to false");
  }
  if (model.experts > 0 && (model.experts_per_token < 1 || model.experts_per_token > model.experts)) {
    return model_problem(run, "experts_per_token",
                         fmt::format("experts_per_token {} of {} experts", model.experts_per_token, model.experts),
                         "choose at least one and at most all");
  }
  if (run.lora.rank > 0 && !model.is_language_model()) {
    return refused("lora", fmt::format("lora: {} has no layers for adapters", model.name), "remove lora");
  }
  return find_attention_problem(run);
}

Found find_piece_problem(const Run& run) {
  const std::int64_t pieces = sequence_pieces(run.layout, run.model), tokens = run.batch.sequence_length;
  if (tokens % pieces == 0) return std::nullopt;
  const std::int64_t below = tokens / pieces * pieces;
  return refused(
      "layout.cp",
      fmt::format("a sequence of {} tokens does not divide into the {} pieces of layout {}", tokens, pieces,
                  text_of(run.layout)),
      fmt::format("set batch.sequence_length to a multiple of {}, such as {}", pieces, below > 0 ? below : pieces));
}

// Attention that stays within documents.
Found find_packing_problem(const Run& run) {
  if (run.packing != spec::Packing::kDocuments) return std::nullopt;
  const auto problem = [&](const std::string& why, const char* fix) {
    return refused("data.packing", "data.packing documents: " + why, fix);
  };
  if (run.model.is_scripted()) return problem("a model of your own is not told where they begin", "set packing: true");
  if (run.model.arch == spec::Arch::kMamba) {
    return problem(fmt::format("{} hands a state through the sequence, across documents", run.model.name),
                   "set packing: true");
  }
  if (run.layout.cp == 1) return std::nullopt;
  return problem(fmt::format("cp={} cuts sequences at even places, and documents across ranks", run.layout.cp),
                 "set layout.cp to 1, or packing: true");
}

Found find_offload_problem(const Run& run) {
  if (run.layout.offload != Offload::kParameters || run.layout.zero == 3) return std::nullopt;
  return refused("layout.offload", fmt::format("layout: offload=parameters needs zero=3, not zero={}", run.layout.zero),
                 "use offload=optimizer, or set zero to 3 and shard above 1");
}

Found find_compression_problem(const Run& run) {
  const spec::Compression compression = run.communication.compression;
  if (compression == spec::Compression::kNone) return std::nullopt;
  const std::string name = spec::to_string(compression);
  if (run.layout.zero > 0) {
    return refused("communication.compression",
                   fmt::format("communication.compression {} works where gradients are whole: zero=0, not zero={}",
                               name, run.layout.zero),
                   "set zero to 0 and shard to 1, or compression to none");
  }
  if (compression == spec::Compression::kOneBit && !run.cluster.groups.empty() && !run.cluster.is_cpu()) {
    return refused("communication.compression", "communication.compression onebit works on the CPU only",
                   "use powersgd, bf16 or none");
  }
  return std::nullopt;
}

// The rules that another layout may keep.
constexpr std::array kLayoutRules{&find_piece_problem, &find_offload_problem, &find_compression_problem};

std::string nearest_text(const Run& run) {
  Run other = run;
  const auto works = [&](const Layout& layout) {
    other.layout = layout;
    for (const auto rule : kLayoutRules) {
      if (rule(other)) return false;
    }
    return true;
  };
  const std::int64_t ranks = run.cluster.groups.empty() ? run.layout.world() : run.cluster.devices();
  const std::optional<Layout> nearest = nearest_valid_layout(run.layout, run.model, ranks, works);
  return nearest ? "nearest that works: " + text_of(*nearest) : "change that axis";
}

Found find_mesh_problem(const Run& run) {
  std::optional<std::string> problem = find_layout_problem(run.layout, &run.model);
  if (!problem && !run.cluster.groups.empty() && run.layout.world() != run.cluster.devices()) {
    problem =
        fmt::format("{} has {} ranks, the run has {}", text_of(run.layout), run.layout.world(), run.cluster.devices());
  }
  if (!problem) return std::nullopt;
  return refused("layout", "layout: " + *problem, nearest_text(run));
}

Found find_cluster_problem(const Run& run) {
  const auto on_cpu = [](const spec::NodeGroup& group) { return group.device.is_cpu(); };
  const auto& groups = run.cluster.groups;
  if (run.cluster.is_cpu() || std::none_of(groups.begin(), groups.end(), on_cpu)) return std::nullopt;
  return refused("cluster",
                 fmt::format("cluster {} has processors and GPUs; a run is on one of them", run.cluster.name),
                 "leave the groups of kind cpu out");
}

Found find_precision_problem(const Run& run) {
  for (const spec::NodeGroup& group : run.cluster.groups) {
    if (run.layout.precision != spec::Precision::kBf16 || group.device.has_bf16()) continue;
    return refused("precision", fmt::format("precision bf16: {} has no bf16", group.device.kind), "use fp16");
  }
  using enum spec::Precision;
  const spec::Precision precision = run.layout.precision;
  if (run.model.is_scripted() && precision != kFp64 && precision != kFp32 && precision != kBf16) {
    return refused("precision",
                   fmt::format("precision {}: {} is trained in fp64, in fp32, or in bf16 by autocast",
                               spec::to_string(precision), spec::origin_of(run.model)),
                   "use bf16");
  }
  if (run.layout.precision != spec::Precision::kFp8) return std::nullopt;
  for (const spec::NodeGroup& group : run.cluster.groups) {
    if (group.device.peak_fp8_flops > 0) continue;
    return refused("precision", fmt::format("precision fp8: {} has no fp8", group.device.kind), "use bf16");
  }
  return std::nullopt;
}

Found find_executor_problem(const Run& run) {
  const std::optional<std::string> why = why_not_fused(run);
  if (run.executor == Executor::kFused) {
    if (why) return refused("layout", "the fused step does not run this: " + *why, "use the general step");
    return std::nullopt;
  }
  const std::string reason = why.value_or("the general step was asked for");
  if (run.layout.precision == spec::Precision::kFp8) {
    return refused("precision", "precision fp8 is trained by the fused CUDA step alone: " + reason, "use bf16");
  }
  if (run.optimizer.state_precision != spec::Precision::kFp32) {
    return refused("optimizer.state_precision",
                   fmt::format("optimizer.state_precision {} is the fused CUDA step's alone: {}",
                               spec::to_string(run.optimizer.state_precision), reason),
                   "use state_precision fp32");
  }
  return std::nullopt;
}

Found find_communication_problem(const Run& run) {
  const spec::Communication& communication = run.communication;
  if (!(communication.bucket_mib > 0)) {
    return refused("communication.bucket", fmt::format("communication.bucket is {} MiB", communication.bucket_mib),
                   "for example 25MiB");
  }
  if (communication.compression == spec::Compression::kPowerSgd && communication.powersgd_rank < 1) {
    return refused("communication.powersgd_rank",
                   fmt::format("communication.powersgd_rank is {}", communication.powersgd_rank), "use 1, 2, 4 or 8");
  }
  return std::nullopt;
}

Found warn_of_compression(const Run& run) {
  const Layout& layout = run.layout;
  if (run.communication.compression == spec::Compression::kNone || layout.dp * layout.cp > 1) return std::nullopt;
  return warning("communication.compression",
                 fmt::format("communication.compression {} compresses nothing: one rank has each gradient (dp=1)",
                             spec::to_string(run.communication.compression)),
                 "leave it out");
}

Found warn_of_reduction(const Run& run) {
  if (!run.communication.reduce_each_micro_step || run.layout.zero >= 2) return std::nullopt;
  return warning(
      "communication.reduce_each_micro_step",
      fmt::format("communication.reduce_each_micro_step changes nothing with zero={}: it is for ZeRO-2 and 3",
                  run.layout.zero),
      "leave it out");
}

Found warn_of_resharding(const Run& run) {
  if (run.communication.reshard_after_forward || run.layout.zero == 3) return std::nullopt;
  return warning("communication.reshard_after_forward",
                 fmt::format("communication.reshard_after_forward changes nothing with zero={}: it is for ZeRO-3",
                             run.layout.zero),
                 "leave it out");
}

Found warn_of_recompute(const Run& run) {
  if (run.layout.recompute == Recompute::kNone || !run.model.is_image_model()) return std::nullopt;
  return warning("layout.recompute",
                 fmt::format("layout: recompute={} changes nothing: {} has no layers to recompute",
                             to_string(run.layout.recompute), run.model.name),
                 "leave it out");
}

Found warn_of_activation_offload(const Run& run) {
  if (!run.activation_offload) return std::nullopt;
  if (run.layout.recompute != Recompute::kNone && !run.model.is_image_model()) return std::nullopt;
  return warning("activation_offload",
                 "activation_offload moves the inputs of recomputed layers, and none is recomputed",
                 "set layout.recompute to full, or leave it out");
}

Found warn_of_phases(const Run& run) {
  if (run.executor != Executor::kFused || run.schedule.is_constant()) return std::nullopt;
  return warning("batch.schedule",
                 "batch.schedule: the fused CUDA step takes as long for a small phase as for the largest",
                 "add --general-step where the warm-up is long");
}

constexpr std::array kRefusals{&find_batch_problem,         &find_model_problem,     &find_cluster_problem,
                               &find_mesh_problem,          &find_piece_problem,     &find_offload_problem,
                               &find_compression_problem,   &find_precision_problem, &find_executor_problem,
                               &find_communication_problem, &find_packing_problem};
constexpr std::array kWarnings{
    &warn_of_compression, &warn_of_reduction,          &warn_of_resharding,
    &warn_of_recompute,   &warn_of_activation_offload, &warn_of_phases,
};

}  // namespace

std::vector<Problem> problems(const Run& run) {
  std::vector<Problem> found;
  for (const auto rule : kRefusals) {
    if (auto problem = rule(run)) found.push_back(std::move(*problem));
    // What follows reads a layout that adds up.
    if (rule == &find_mesh_problem && !found.empty() && found.back().key == "layout") return found;
  }
  for (const auto rule : kWarnings) {
    if (auto problem = rule(run)) found.push_back(std::move(*problem));
  }
  return found;
}

std::optional<Problem> first_refusal(const Run& run) {
  for (const auto rule : kRefusals) {
    if (auto problem = rule(run)) return problem;
  }
  return std::nullopt;
}

void require_runnable(const Run& run) {
  if (const auto problem = first_refusal(run)) throw bad_input(problem->text, problem->fix);
}

}  // namespace lockstep::plan
