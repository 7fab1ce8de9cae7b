// validation_selection: what plans expect beside the best that anybody measured on the same cluster. For every (source,
// hardware, model, GPUs, sequence) of the published rows the planner searches as a user would who names no stack; its
// expected tokens/s/GPU is divided by the best measured of that cluster. Half of the clusters find the constant of
// planner/selection.h, the other half is kept back for the report. Clusters are dealt out by their order, so that the
// halves do not depend on any result.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "lockstep/base/error.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/planner/rows/rows.h"
#include "lockstep/planner/selection.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kFewestGpus = 4;  // below nothing is chosen

struct Cluster {
  std::string name;
  planner::RowQuestion best;
  int rows = 0;
  double predicted = 0;  // tokens/s/GPU of the plan, not corrected
  double sigma_times_m = 0;
  std::string layout;
  double expected(double share) const { return predicted * std::exp(-share * sigma_times_m); }
  double ratio(double share) const { return expected(share) / *best.tokens_per_second_per_gpu; }
};

std::map<std::string, Cluster> read_clusters(const std::string& folder, const std::vector<std::string>& files) {
  std::map<std::string, Cluster> clusters;
  for (const std::string& file : files) {
    for (const planner::PublishedRow& row : planner::load_published_rows(folder + "/" + file).rows) {
      const planner::RowReading reading = planner::question_of(row);
      if (!reading.question || planner::is_failure(row) || !planner::is_strict(row)) continue;
      const planner::RowQuestion& question = *reading.question;
      if (!question.tokens_per_second_per_gpu || question.cluster.devices() < kFewestGpus) continue;
      const std::string key =
          fmt::format("{} | {} | {} GPUs | {} | {}", question.device_kind, row.model, question.cluster.devices(),
                      question.batch.sequence_length, planner::source_family(row));
      Cluster& cluster = clusters[key];
      ++cluster.rows;
      if (cluster.rows == 1 || *question.tokens_per_second_per_gpu > *cluster.best.tokens_per_second_per_gpu) {
        cluster.best = question;
      }
      cluster.name = key;
    }
  }
  return clusters;
}

// False where the planner has no plan.
bool plan_on(Cluster& cluster) {
  planner::SearchRequest request;
  request.model = cluster.best.model;
  request.cluster = cluster.best.cluster;
  request.profile = cost::profile_for(cluster.best.device_kind);
  request.global_sequences = cluster.best.batch.global_sequences;
  request.sequence_length = cluster.best.batch.sequence_length;
  request.precisions = {cluster.best.layout.precision};
  request = planner::complete(std::move(request));
  try {
    const planner::SearchResult result = planner::search(request);
    if (result.best.empty()) return false;
    const planner::Ranked& best = result.best.front();
    cluster.predicted = static_cast<double>(best.batch.global_sequences * best.batch.sequence_length) /
                        best.price.step_seconds() / static_cast<double>(request.cluster.devices());
    cluster.sigma_times_m = planner::selection_bias(request) / planner::kOwnShare;
    cluster.layout = plan::to_string(best.layout);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

double mean_ratio(const std::vector<Cluster>& clusters, double share) {
  double sum = 0;
  for (const Cluster& cluster : clusters) sum += cluster.ratio(share);
  return clusters.empty() ? 0 : sum / static_cast<double>(clusters.size());
}

// The share at which the mean ratio is 1; 0 where predictions are not optimistic.
double best_share(const std::vector<Cluster>& clusters) {
  double low = 0, high = 4;
  if (mean_ratio(clusters, 0) <= 1) return 0;
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (mean_ratio(clusters, middle) > 1 ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What chosen plans expect beside the best measured of their clusters");
  std::string published = "validation/published";
  std::vector<std::string> files{"throughput.csv", "vtrain_a100.csv"};
  app.add_option("--published", published, "Folder of the published rows");
  app.add_option("--files", files, "Files of it");
  CLI11_PARSE(app, argc, argv);
  std::vector<Cluster> halves[2];
  std::size_t place = 0;
  for (auto& [name, cluster] : read_clusters(published, files)) {
    if (!plan_on(cluster)) continue;
    halves[place++ % 2].push_back(cluster);
  }
  for (const char* which : {"chooses the constant", "kept back"}) {
    const bool kept = which[0] == 'k';
    fmt::print("\n{}: cluster | rows | measured best | expected | ratio | uncorrected | layout\n", which);
    for (const Cluster& cluster : halves[kept ? 1 : 0]) {
      fmt::print("{} | {} | {:.0f} | {:.0f} | {:.3f} | {:.3f} | {}\n", cluster.name, cluster.rows,
                 *cluster.best.tokens_per_second_per_gpu, cluster.expected(planner::kOwnShare),
                 cluster.ratio(planner::kOwnShare), cluster.ratio(0), cluster.layout);
    }
  }
  fmt::print("\nshare that makes the first half unbiased: {:.3f} (in use: {})\n", best_share(halves[0]),
             planner::kOwnShare);
  for (int i = 0; i < 2; ++i) {
    fmt::print("{}: {} clusters, mean of expected / measured best {:.3f}; uncorrected {:.3f}\n",
               i == 0 ? "chooses the constant" : "kept back", halves[i].size(),
               mean_ratio(halves[i], planner::kOwnShare), mean_ratio(halves[i], 0));
  }
  return 0;
}
