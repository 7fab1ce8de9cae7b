// Published rows: training measurements in the columns of validation/published/*.csv (blank = unknown), read into
// questions the pricer can answer. What a row leaves open gets the usual choice, and the note says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/cost/profile/constants.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::planner {

struct PublishedRow {
  std::vector<std::string> cells;  // as they stood in the file, in the order of PublishedTable::columns
  int line = 0;

  std::string id, source, hardware, interconnect, model, arch, sharding, act_ckpt, precision, compile_or_notes, task,
      evidence, full_config, notes, memory_facts;
  // Absent: blank, or a text that is not such a number (then `problems` says so).
  std::optional<std::int64_t> gpus, gpus_per_node, layers, hidden, heads, kv_heads, ffn, vocab, seq_len,
      global_batch_seqs, micro_batch, grad_accum, dp, tp, pp, vpp, cp, ep;
  std::optional<double> params_b, tokens_per_s_per_gpu, step_time_s, mem_gib_per_gpu;
  std::vector<std::string> problems;
};

struct PublishedTable {
  std::vector<std::string> columns;
  std::vector<PublishedRow> rows;
};

// Any subset of the known columns in any order; unknown ones are kept in `cells`. Throws UserError (exit code 2) only
// for a file that is no CSV (csv.h); wrong numbers become `problems` of their row.
PublishedTable read_published_rows(std::string_view csv_text, const std::string& name_for_errors);
PublishedTable load_published_rows(const std::string& path);  // a missing file: exit code 4

struct RowQuestion {
  spec::Model model;
  spec::Cluster cluster;
  plan::Layout layout;  // valid for the model; its precision is the row's
  plan::BatchPlan batch;
  std::string device_kind;  // of the preset the cluster was made from: "A100-40", "H100"; names the profile
  std::string stack;        // software stack, as profiles name it: "nanotron-0.5"; "": unknown
  cost::StackFacts facts;
  spec::Lora lora;                                  // adapters: rank 0 where every weight is trained
  double guess_sigma = 0;                           // of log(measured / predicted) time, for what had to be guessed
  std::string note;                                 // choices made for what the row leaves open; "": none
  std::optional<double> tokens_per_second_per_gpu;  // measured
  std::optional<double> memory_gib;                 // measured
  bool cannot_run = false;                // the note names a rule by which the run does not start, whatever the memory
  bool memory_is_of_first_stage = false;  // as rank 0 saw it, not the rank that needs most
  bool memory_is_reserved = false;  // as nvidia-smi shows it (allocator's reserve and context), not peak allocated
};

struct RowReading {
  std::optional<RowQuestion> question;
  std::string why_not;      // there is no question: what is missing or contradicts itself
  bool cannot_run = false;  // why_not is a rule of layouts (more stages than layers): no memory would help
};

// A sentence for every column that is not read but is named almost like one that is read and is not there: a slip of
// the pen would leave its values unknown without a word.
std::vector<std::string> find_misnamed_columns(const PublishedTable& table);

// A word that its column does not have, with its line, its column and the words that are allowed; question_of() gives
// it as why_not. Blank is unknown, not wrong.
std::optional<std::string> find_unknown_word(const PublishedRow& row);

// Never throws.
RowReading question_of(const PublishedRow& row);

// Source without ", line N".
std::string source_family(const PublishedRow& row);
// The software stack by its profile name; "" where the source is not known.
std::string stack_of(const PublishedRow& row);
// What that stack is known to do; the defaults for one that is not known.
cost::StackFacts stack_facts(std::string_view stack);

// The group that is left out together in cross-validation: (source family, model).
std::string fold_of(const PublishedRow& row);
// Complete configuration of a dense transformer with evidence that is not weak: what accuracy is claimed on.
bool is_strict(const PublishedRow& row);
// The run did not finish: out of memory, or crashed (the grid does not separate the two).
bool is_failure(const PublishedRow& row);

}  // namespace lockstep::planner
