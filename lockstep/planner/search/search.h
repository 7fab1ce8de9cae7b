// Search: every layout of a model on a cluster, priced; the best under an objective and constraints.
//
// Named passes in order, each timed:
//
//   enumerate  every way to split the devices over the axes (pp, dp, shard, zero, cp, tp, ep), with precision and
//              offload, that divides layers, heads, sequence and global batch
//   divide     the rules between axes (plan::find_layout_problem), constraints
//   floor      drops axes whose memory floor is above the capacity           (saves time; can be switched off)
//   outgrow    stops growing the micro-batch once the memory is over         (saves time; can be switched off)
//   price      everything else: pipeline schedule and split, sequence parallel, context exchange, recompute, batch
//   rank       best, Pareto front, best of each family
//
// What is returned has been judged by plan/verdict.h: a layout that the engine refuses is our own bug.
// The answer does not depend on the passes that save time, only on the sound bounds they rest on: the tests compare.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/run.h"

namespace lockstep::planner {

struct Capabilities;

enum class Objective {
  kThroughput,  // most tokens (samples) per second
  kGoodput,     // the same x the share of time that trains, checkpoints and failures counted
  kDollars,     // least money for the whole job; may leave devices idle and then does not pay for them
  kDeadline,    // cheapest that ends in time; those that end too late score -infinity and follow, fastest first
};

// Axes and choices that are fixed ("tp" -> 8) or bounded; absent: searched. Keys of plan::parse_layout, and "micro".
struct Constraints {
  std::map<std::string, std::int64_t> fixed;    // pp dp shard zero cp tp ep virtual_stages micro accumulation
  std::map<std::string, std::int64_t> at_most;  // the same keys
  std::optional<plan::Schedule> schedule;       // of layouts with pp > 1; none: pp = 1
  std::optional<plan::Recompute> recompute;
  std::optional<bool> sequence_parallel;                  // of layouts with tp > 1
  std::optional<plan::ContextExchange> context_exchange;  // of layouts with cp > 1
  std::optional<std::vector<std::int64_t>> stage_layers;  // of the layouts it fits; empty vector: even
  std::optional<plan::Offload> offload;             // absent: none first, and offload only where nothing else fits
  double largest_out_of_memory_probability = 0.25;  // and whatever risk is taken lowers the score
  bool allow_idle_devices = false;  // layouts smaller than the cluster; the dollar objectives always allow them
};

// Everything about `layout` fixed; the batch stays open unless `micro` is given. Its precision goes into
// SearchRequest::precisions.
Constraints constraints_of(const plan::Layout& layout, std::optional<std::int64_t> micro = std::nullopt);

struct SearchRequest;
// The request asks for this layout: its constraints are the layout's, its precision stays. Who names a layout wants its
// price, so risk is allowed up to an even chance, and devices beyond its ranks stay idle.
void fix_layout(SearchRequest& request, const plan::Layout& layout, std::optional<std::int64_t> micro = std::nullopt);

struct SearchRequest {
  spec::Model model;
  spec::Cluster cluster;
  cost::Profile profile;
  std::int64_t global_sequences = 0;  // 0: the model's usual batch in tokens / sequence length
  std::int64_t sequence_length = 0;   // 0: the model's
  spec::OptimizerKind optimizer = spec::OptimizerKind::kAdamW;
  spec::Precision state_precision = spec::Precision::kFp32;  // of AdamW's means
  spec::Lora lora;
  spec::Communication communication;
  bool activation_offload = false;
  spec::Snapshots snapshots{.every = 0};  // a job's; a question without a job has none
  // Asked for a job: what `lockstep train` refuses is not an answer. Otherwise only layouts that the engine could not
  // run are left out, and a question about fp8 on many devices, which other frameworks train, is answered.
  bool is_job = false;
  const Capabilities* framework = nullptr;  // that will run it: layouts it cannot run are no answers; null: any
  std::optional<double> selection;          // of the question that this one is a part of (selection.h); none: its own
  std::vector<spec::Precision> precisions;  // empty: bf16 (fp16 where the device has no bf16, fp32 on cpu)
  Constraints constraints;
  Objective objective = Objective::kThroughput;
  double tokens = 0;            // of the whole job (samples for images); 0: not asked
  double deadline_seconds = 0;  // kDeadline
  double max_lost_seconds = 1800;
  // A plan that cannot keep that bound is refused (lost_work.h): it was asked for. Otherwise its cadence says so.
  bool requires_max_lost = false;
  std::vector<std::string> switched_off;  // names of passes
  int threads = 0;                        // 0: all cores
  std::size_t keep = 16;                  // best candidates to return
};

inline cost::PricerOptions pricer_options(const SearchRequest& request) {
  return {.sequence_length = request.sequence_length,
          .optimizer = request.optimizer,
          .state_precision = request.state_precision,
          .lora = request.lora,
          .communication = request.communication,
          .activation_offload = request.activation_offload};
}

// enumerate, divide and floor count axes; outgrow, price and rank count whole candidates. The passes after divide run
// once more where nothing fits and offload is tried, and are added up.
struct PassReport {
  std::string name;
  double seconds = 0;  // wall; outgrow acts inside price and has no time of its own
  std::int64_t in = 0;
  std::int64_t out = 0;
};

// One candidate with what ranked it.
struct Ranked {
  plan::Layout layout;
  plan::BatchPlan batch;
  cost::Price price;
  // Higher is better, in the unit of the objective (dollars are negative), of the step as objective.h considers it.
  double score = 0;
};

struct SearchResult {
  std::vector<Ranked> best;    // fitting ones, best first, at most `keep`
  std::vector<Ranked> pareto;  // tokens/s against memory against dollars; best first
  // Where nothing fits: the candidates that lack least memory, nearest first.
  std::vector<Ranked> nearest;
  // Per family that lost ("tp=16", "zero=0", "recompute=full", ...) its best candidate, or where none of it fits the
  // one that lacks least memory: raw material of the explanation. Keys of parse_layout, "micro" and "devices".
  std::map<std::string, Ranked> best_of_family;
  std::vector<PassReport> passes;
  plan::SearchSummary summary;
};

// Deterministic: the same request gives the same result with any number of threads. Throws UserError for requests that
// contradict themselves or that no layout trains (exit 2). An empty `best` is an answer, not an error.
SearchResult search(const SearchRequest& request);

// The candidate with every field a Plan carries (prediction, intervals, cost, checkpoint), reasons left empty.
plan::Candidate to_candidate(const SearchRequest& request, const cost::Pricer& pricer, const Ranked& ranked);

// The run that a candidate becomes, on as many of the cluster's devices as its layout has ranks.
plan::Run run_of(const SearchRequest& request, const plan::Layout& layout, const plan::BatchPlan& batch);

// Defaults filled in: global_sequences, sequence_length, precisions.
SearchRequest complete(SearchRequest request);

}  // namespace lockstep::planner
