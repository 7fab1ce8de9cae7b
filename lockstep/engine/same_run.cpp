#include "lockstep/engine/same_run.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/fingerprint.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/job_identity.h"

namespace lockstep::engine {
namespace {

constexpr std::size_t kDifferencesSaid = 6;
constexpr std::size_t kRanksSaid = 8;
constexpr std::size_t kValueBytes = 200;

void add_data(const spec::Job& job, RunFacts& facts) {
  const data::DataFingerprints data = data::fingerprints_of(job.data);
  facts["data"] = data.path;
  if (!data.evaluation_path.empty()) facts["evaluation data"] = data.evaluation_path;
  facts["tokenizer"] = data.tokenizer;
  if (!job.weights.empty()) facts["weights"] = data::fingerprint_of(job.weights);
}

// Every rank's text, by rank. Texts are as long as jobs are, so each travels in the room of the longest.
std::vector<std::string> gather_texts(comm::Communicator& world, const std::string& mine,
                                      const std::vector<std::int64_t>& sizes) {
  const std::int64_t room = std::max<std::int64_t>(1, *std::max_element(sizes.begin(), sizes.end()));
  std::string sent = mine;
  sent.resize(static_cast<std::size_t>(room), ' ');
  std::string all(static_cast<std::size_t>(room * world.size()), '\0');
  world.all_gather({sent.data(), room, comm::DType::kU8}, {all.data(), room * world.size(), comm::DType::kU8}).wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    texts.push_back(all.substr(rank * static_cast<std::size_t>(room), static_cast<std::size_t>(sizes[rank])));
  }
  return texts;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min(ranks.size(), kRanksSaid); ++i) words.push_back(std::to_string(ranks[i]));
  std::string text = (ranks.size() == 1 ? "rank " : "ranks ") + join(words, ", ");
  if (ranks.size() > kRanksSaid) text += fmt::format(" and {} more", ranks.size() - kRanksSaid);
  return text + (ranks.size() == 1 ? " has" : " have");
}

std::string difference_in(const std::string& key, const std::vector<std::string>& of_ranks) {
  std::map<std::string, std::vector<int>> holders;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) holders[of_ranks[rank]].push_back(static_cast<int>(rank));
  const auto shown = [](const std::string& value) { return value.empty() ? "nothing" : printable(value, kValueBytes); };
  // The ranks that differ from rank 0 come first: most often they are the ones to look at.
  std::vector<std::string> parts;
  for (const auto& [value, ranks] : holders) {
    if (value == of_ranks.front()) continue;
    parts.push_back(parts.empty() ? fmt::format("{} {} {}", ranks_text(ranks), key, shown(value))
                                  : fmt::format("{} {}", ranks_text(ranks), shown(value)));
  }
  parts.push_back(fmt::format("{} {}", ranks_text(holders.at(of_ranks.front())), shown(of_ranks.front())));
  return join(parts, ", ");
}

}  // namespace

RunFacts facts_of(const elastic::RankRequest& request) {
  RunFacts facts = {
      {"lockstep", LOCKSTEP_VERSION}, {"torch", TORCH_VERSION}, {"verb", request.verb}, {"backend", request.backend}};
  if (request.verb != "train") return facts;
  for (const auto& [key, value] : spec::keys_of(request.job)) {
    if (spec::is_shared_by_ranks(key)) facts[key] = value;
  }
  facts["--export"] = request.options.export_folder.empty() ? "no" : "yes";
  facts["--general-step"] = request.options.general_step ? "yes" : "no";
  if (request.plan) facts["plan"] = plan::to_string(request.plan->best.layout);
  add_data(request.job, facts);
  return facts;
}

std::vector<std::string> differences(const std::vector<RunFacts>& of_ranks) {
  std::set<std::string> keys;
  for (const RunFacts& facts : of_ranks) {
    for (const auto& [key, value] : facts) keys.insert(key);
  }
  std::vector<std::string> found;
  for (const std::string& key : keys) {
    std::vector<std::string> values;
    for (const RunFacts& facts : of_ranks) {
      const auto at = facts.find(key);
      values.push_back(at == facts.end() ? "" : at->second);
    }
    const bool same = std::all_of(values.begin(), values.end(), [&](const auto& v) { return v == values.front(); });
    if (!same) found.push_back(difference_in(key, values));
  }
  return found;
}

void require_same_run(comm::Communicator& world, const RunFacts& mine) {
  if (world.size() == 1) return;
  const std::string text = nlohmann::json(mine).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Size and checksum of every rank's facts: in a sound run that is all that travels.
  const std::int64_t told[2] = {static_cast<std::int64_t>(text.size()), crc32c(text.data(), text.size())};
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> all(2 * ranks);
  world.all_gather({told, 2, comm::DType::kI64}, {all.data(), 2 * world.size(), comm::DType::kI64}).wait();
  std::vector<std::int64_t> sizes(ranks);
  bool same = true;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    sizes[rank] = all[2 * rank];
    same = same && all[2 * rank] == all[0] && all[2 * rank + 1] == all[1];
  }
  if (same) return;
  std::vector<RunFacts> of_ranks;
  for (const std::string& one : gather_texts(world, text, sizes)) {
    of_ranks.push_back(nlohmann::json::parse(one).get<RunFacts>());
  }
  world.barrier().wait();  // nobody leaves while a peer still reads
  std::vector<std::string> found = differences(of_ranks);
  const std::size_t more = found.size() > kDifferencesSaid ? found.size() - kDifferencesSaid : 0;
  found.resize(found.size() - more);
  if (more > 0) found.push_back(fmt::format("and {} more differences", more));
  throw bad_input("the ranks were started with different jobs: " + join(found, "; "),
                  "give every rank the same job file, overrides, data and version");
}

}  // namespace lockstep::engine
