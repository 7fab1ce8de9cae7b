#include "validation/measurements.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/units.h"

namespace lockstep::validation {

std::string hardware_family(const std::string& kind) {
  if (kind.starts_with("A100")) return "A100";
  if (kind == "H800" || kind == "H200" || kind.starts_with("H100")) return "H100";
  if (kind.starts_with("GB") || kind.starts_with("B2") || kind.starts_with("B3")) return "B200";
  if (kind.starts_with("V100")) return "V100";
  return kind;
}

bool is_grid(const Measurement& m) { return m.file.starts_with("grid"); }

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::set<std::string> ids_of_each_source(const std::vector<Measurement>& measurements, std::size_t most) {
  std::map<std::string, std::vector<std::pair<std::uint64_t, std::string>>> by_source;
  for (const Measurement& m : measurements) {
    if (m.step_seconds || m.memory_bytes) {
      by_source[planner::source_family(m.row)].emplace_back(hash_of(m.row.id), m.row.id);
    }
  }
  std::set<std::string> ids;
  for (auto& [source, members] : by_source) {
    std::sort(members.begin(), members.end());
    for (std::size_t i = 0; i < std::min(most, members.size()); ++i) ids.insert(members[i].second);
  }
  return ids;
}

std::vector<Measurement> load_measurements(const std::string& folder) {
  std::vector<Measurement> measurements;
  for (const char* file : {"throughput.csv", "grid_h100_ok.csv", "grid_h100_failed.csv", "vtrain_a100.csv"}) {
    for (planner::PublishedRow& row : planner::load_published_rows(folder + "/" + file).rows) {
      Measurement m;
      m.file = file;
      m.reading = planner::question_of(row);
      m.fold = planner::fold_of(row);
      // Runs of one model at other scales are seen: a user of a cluster has some.
      if (is_grid(m)) m.fold += fmt::format(" | {} GPUs", row.gpus.value_or(0));
      m.strict = planner::is_strict(row);
      m.failed = planner::is_failure(row);
      m.row = std::move(row);
      if (m.reading.question) {
        const planner::RowQuestion& q = *m.reading.question;
        m.hardware = hardware_family(q.device_kind);
        cost::Profile profile;
        profile.fitted = cost::Fitted{.hardware = m.hardware, .stack = q.stack, .facts = q.facts};
        m.pricer = std::make_shared<cost::Pricer>(
            q.model, q.cluster, profile,
            cost::PricerOptions{.sequence_length = q.batch.sequence_length, .lora = q.lora});
        if (q.tokens_per_second_per_gpu) {
          const double tokens =
              static_cast<double>(q.batch.global_sequences) * static_cast<double>(q.batch.sequence_length);
          m.step_seconds = tokens / (*q.tokens_per_second_per_gpu * static_cast<double>(q.layout.world()));
        }
        // Memory says something only where micro-batch and recompute are known.
        if (q.memory_gib && m.strict) m.memory_bytes = *q.memory_gib * kGiB;
      }
      measurements.push_back(std::move(m));
    }
  }
  return measurements;
}

}  // namespace lockstep::validation
