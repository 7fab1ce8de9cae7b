#include "lockstep/planner/rows/rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/planner/rows/memory_facts.h"
#include "lockstep/planner/rows/parts.h"

namespace lockstep::planner {
namespace {

struct TextColumn {
  const char* name;
  std::string PublishedRow::*field;
};
constexpr std::array<TextColumn, 15> kTexts{{{"id", &PublishedRow::id},
                                             {"source", &PublishedRow::source},
                                             {"hardware", &PublishedRow::hardware},
                                             {"interconnect", &PublishedRow::interconnect},
                                             {"model", &PublishedRow::model},
                                             {"arch", &PublishedRow::arch},
                                             {"sharding", &PublishedRow::sharding},
                                             {"act_ckpt", &PublishedRow::act_ckpt},
                                             {"precision", &PublishedRow::precision},
                                             {"compile_or_notes", &PublishedRow::compile_or_notes},
                                             {"task", &PublishedRow::task},
                                             {"evidence", &PublishedRow::evidence},
                                             {"full_config", &PublishedRow::full_config},
                                             {"notes", &PublishedRow::notes},
                                             {"memory_facts", &PublishedRow::memory_facts}}};

// Limits are far beyond any published run; they keep every product of the cost model finite.
struct CountColumn {
  const char* name;
  std::optional<std::int64_t> PublishedRow::*field;
  double most;
};
constexpr std::array<CountColumn, 18> kCounts{{{"gpus", &PublishedRow::gpus, 1 << 20},
                                               {"gpus_per_node", &PublishedRow::gpus_per_node, 1 << 10},
                                               {"layers", &PublishedRow::layers, 1e4},
                                               {"hidden", &PublishedRow::hidden, 1e6},
                                               {"heads", &PublishedRow::heads, 1e4},
                                               {"kv_heads", &PublishedRow::kv_heads, 1e4},
                                               {"ffn", &PublishedRow::ffn, 1e7},
                                               {"vocab", &PublishedRow::vocab, 1e7},
                                               {"seq_len", &PublishedRow::seq_len, 1e8},
                                               {"global_batch_seqs", &PublishedRow::global_batch_seqs, 1e8},
                                               {"micro_batch", &PublishedRow::micro_batch, 1e6},
                                               {"grad_accum", &PublishedRow::grad_accum, 1e6},
                                               {"dp", &PublishedRow::dp, 1 << 20},
                                               {"tp", &PublishedRow::tp, 1 << 20},
                                               {"pp", &PublishedRow::pp, 1 << 20},
                                               {"vpp", &PublishedRow::vpp, 1 << 20},
                                               {"cp", &PublishedRow::cp, 1 << 20},
                                               {"ep", &PublishedRow::ep, 1 << 20}}};

struct NumberColumn {
  const char* name;
  std::optional<double> PublishedRow::*field;
};
constexpr std::array<NumberColumn, 4> kNumbers{{{"params_b", &PublishedRow::params_b},
                                                {"tokens_per_s_per_gpu", &PublishedRow::tokens_per_s_per_gpu},
                                                {"step_time_s", &PublishedRow::step_time_s},
                                                {"mem_gib_per_gpu", &PublishedRow::mem_gib_per_gpu}}};

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> positive_number(PublishedRow& row, const char* name, std::string_view cell) {
  const std::string_view text = trim(cell);
  if (text.empty()) return std::nullopt;
  const auto value = parse_number(text);
  if (value && *value > 0 && *value < 1e15) return value;
  row.problems.push_back(fmt::format("{}: {} is not a positive number", name, printable(text, 30)));
  return std::nullopt;
}

std::optional<std::int64_t> count(PublishedRow& row, const CountColumn& column, std::string_view cell) {
  const std::string_view text = trim(cell);
  if (text.empty()) return std::nullopt;
  const auto value = parse_number(text);
  if (value && *value >= 1 && *value <= column.most && *value == std::floor(*value)) {
    return static_cast<std::int64_t>(*value);
  }
  row.problems.push_back(
      fmt::format("{}: {} is not a whole number from 1 to {:.0f}", column.name, printable(text, 30), column.most));
  return std::nullopt;
}

PublishedRow read_row(const std::map<std::string, std::size_t>& places, std::vector<std::string> cells, int line) {
  PublishedRow row;
  const auto cell = [&](const char* name) -> std::string_view {
    const auto found = places.find(name);
    return found == places.end() ? std::string_view() : std::string_view(cells[found->second]);
  };
  for (const TextColumn& column : kTexts) row.*column.field = std::string(trim(cell(column.name)));
  for (const CountColumn& column : kCounts) row.*column.field = count(row, column, cell(column.name));
  for (const NumberColumn& column : kNumbers) {
    row.*column.field = positive_number(row, column.name, cell(column.name));
  }
  row.cells = std::move(cells);
  row.line = line;
  return row;
}

// The rate of the table, or what its step time amounts to.
std::optional<double> measured_rate(const PublishedRow& row, const plan::BatchPlan& batch) {
  if (row.tokens_per_s_per_gpu) return row.tokens_per_s_per_gpu;
  if (!row.step_time_s || !row.gpus || batch.sequence_length == 0) return std::nullopt;
  return static_cast<double>(batch.global_sequences) * static_cast<double>(batch.sequence_length) /
         (*row.step_time_s * static_cast<double>(*row.gpus));
}

RowQuestion build_question(const PublishedRow& row) {
  if (!row.problems.empty()) throw CannotPrice{join(row.problems, "; ")};
  RowNotes notes;
  RowQuestion question;
  question.stack = stack_of(row);
  question.facts = facts_of(row, question.stack);
  if (const auto problem = apply_memory_facts(row.memory_facts, question.facts)) {
    throw CannotPrice{fmt::format("line {}, column memory_facts: {}", row.line, *problem)};
  }
  question.model = model_of(row, question.stack, notes);
  RowHardware hardware = hardware_of(row, notes);
  question.cluster = std::move(hardware.cluster);
  question.device_kind = std::move(hardware.device_kind);
  question.layout = layout_of(row, question.model, question.cluster, question.facts, notes);
  question.batch = batch_of(row, question.layout, question.stack, notes);
  question.lora = adapters_of(row, notes);
  question.tokens_per_second_per_gpu = measured_rate(row, question.batch);
  question.memory_gib = row.mem_gib_per_gpu;
  question.memory_is_reserved = contains(row.notes, "nvidia-smi") || contains(row.source, "BigScience");
  // Its memory grows by 0.6 GiB with a sequence where the logits of the last stage alone need 1.4.
  question.memory_is_of_first_stage = contains(row.source, "tr3m") && question.layout.pp > 1;
  question.note = notes.text();
  question.guess_sigma = notes.sigma();
  question.cannot_run = notes.cannot_run;
  return question;
}

}  // namespace

std::string RowNotes::text() const { return join(notes_, "; "); }

double RowNotes::sigma() const {
  constexpr double kMost = 0.2;  // guesses are the usual choices: all together are not wilder than that
  return std::min(kMost, std::sqrt(variance_));
}

bool contains(std::string_view text, std::string_view part) {
  return to_lower(text).find(to_lower(part)) != std::string::npos;
}

std::optional<std::int64_t> number_after(std::string_view text, std::string_view before) {
  const std::size_t place = text.find(before);
  if (place == std::string_view::npos) return std::nullopt;
  const char* begin = text.data() + place + before.size();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc() || end == begin || value < 1) return std::nullopt;
  return value;
}

PublishedTable read_published_rows(std::string_view csv_text, const std::string& name_for_errors) {
  CsvTable csv = parse_csv(csv_text, name_for_errors);
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < csv.columns.size(); ++i) places[csv.columns[i]] = i;
  PublishedTable table{.columns = std::move(csv.columns)};
  table.rows.reserve(csv.rows.size());
  for (std::size_t i = 0; i < csv.rows.size(); ++i) {
    table.rows.push_back(read_row(places, std::move(csv.rows[i]), csv.lines[i]));
  }
  return table;
}

PublishedTable load_published_rows(const std::string& path) { return read_published_rows(read_file(path), path); }

std::vector<std::string> find_misnamed_columns(const PublishedTable& table) {
  std::vector<std::string> known, absent, found;
  for (const TextColumn& column : kTexts) known.emplace_back(column.name);
  for (const CountColumn& column : kCounts) known.emplace_back(column.name);
  for (const NumberColumn& column : kNumbers) known.emplace_back(column.name);
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::copy_if(known.begin(), known.end(), std::back_inserter(absent),
               [&](const std::string& name) { return !has(table.columns, name); });
  for (const std::string& column : table.columns) {
    const auto meant = has(known, column) ? std::nullopt : nearest(column, absent);
    if (meant) found.push_back(fmt::format("column {} is not read; did you mean `{}`?", printable(column, 30), *meant));
  }
  return found;
}

RowReading question_of(const PublishedRow& row) {
  try {
    return {.question = build_question(row)};
  } catch (const CannotPrice& problem) {
    return {.why_not = problem.why, .cannot_run = problem.layout_rule};
  } catch (const UserError& problem) {
    return {.why_not = problem.what()};
  }
}

std::string source_family(const PublishedRow& row) { return row.source.substr(0, row.source.find(", line ")); }

std::string fold_of(const PublishedRow& row) { return source_family(row) + " | " + row.model; }

bool is_strict(const PublishedRow& row) {
  constexpr std::array kWeak{"digitised-figure", "primary-table-lowquality", "readme-text", "production-gpu-hours"};
  const bool weak = std::any_of(kWeak.begin(), kWeak.end(), [&](const char* kind) { return row.evidence == kind; });
  return row.full_config == "full+ckpt" && (row.arch == "llama" || row.arch == "dense-gpt") && !weak;
}

bool is_failure(const PublishedRow& row) {
  return row.evidence == "primary-table-OOM" || row.notes.starts_with("crashed or out of memory");
}

}  // namespace lockstep::planner
