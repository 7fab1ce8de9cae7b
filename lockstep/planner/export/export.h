// A plan as the files that train it: for this repository's engine, and for the frameworks that people have. Everything
// that the plan settles is in them: layout, batch, precision, recompute, optimizer sharding; what it does not settle
// (data, tokenizer, learning rate) is named as the reader's to fill in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

enum class PlanExport { kJob, kTorchrun, kDeepspeed, kMegatron, kNemo, kTorchtitan };

// "job", "torchrun", "deepspeed", "megatron", "nemo", "torchtitan". Throws UserError (exit code 2) with the nearest.
PlanExport parse_plan_export(std::string_view text);

// What the files of a kind cannot say is left out of the search: DeepSpeed's configuration knows nothing of pipelines,
// experts and sequences. Layouts that were asked for stay.
void keep_to_export(SearchRequest& request, PlanExport kind);

struct ExportedFile {
  std::string name;  // "job.yaml"; no folder
  std::string text;
  bool executable = false;
};

// `plan` is the best of `request`, which is complete(). Throws UserError (exit code 3) where the framework cannot run
// the plan, with the --stack that plans for it.
//
//   job         job.yaml: `lockstep plan job.yaml` gives the same layout, batch and prices; `train` runs it
//   torchrun    run.sh and train_fsdp2.py: PyTorch's fully_shard (or DDP) on a model of transformers
//   deepspeed   ds_config.json
//   megatron    megatron.sh: the arguments of Megatron-LM's pretrain_gpt.py
//   nemo        nemo.yaml: overrides for a recipe of NeMo's Megatron-Bridge
//   torchtitan  torchtitan_plan.py: a configuration for --module torchtitan_plan --config plan (torchtitan 0.3)
std::vector<ExportedFile> export_plan(const SearchRequest& request, const plan::Candidate& plan, PlanExport kind);

// "layout: {dp: 4, ...}\n" as job files have it.
std::string job_layout_line(const plan::Layout& layout);

// Parts of the above, for their tests.
std::string export_job(const SearchRequest& request, const plan::Candidate& plan);
std::string export_deepspeed(const SearchRequest& request, const plan::Candidate& plan);
std::string export_megatron(const SearchRequest& request, const plan::Candidate& plan);
std::string export_nemo(const SearchRequest& request, const plan::Candidate& plan);
std::string export_torchtitan(const SearchRequest& request, const plan::Candidate& plan);
std::vector<ExportedFile> export_torchrun(const SearchRequest& request, const plan::Candidate& plan);

// Steps of the whole job; 0: its length was not asked.
std::int64_t steps_of(const SearchRequest& request, const plan::Candidate& plan);
// What the plan promises, as lines of a comment behind `mark`.
std::string plan_summary(const SearchRequest& request, const plan::Candidate& plan, std::string_view mark);
// `torchrun --nnodes=... --nproc-per-node=...`, and --standalone or where nodes meet.
std::string torchrun_command(const spec::Cluster& cluster);

}  // namespace lockstep::planner
