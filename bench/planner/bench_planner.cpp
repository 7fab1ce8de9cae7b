// How many layouts a second one core prices, in seconds of that core (other processes may run beside). Every layout of
// a case is priced once, in the order of the space: no two are alike (checked), and nothing is kept from one to the
// next (Pricer has no cache). A random thousand of them are then priced again, each by a Pricer of its own, and every
// figure must be the same to the last bit. Ends with the wall time of two whole searches. One JSON object on standard
// output.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/planner/search/search.h"
#include "lockstep/planner/search/space.h"

namespace {

using namespace lockstep;

constexpr std::size_t kSamples = 1000;

struct Sample {
  std::int64_t number = 0;  // of the candidate in the space
  plan::Layout layout;
  plan::BatchPlan batch;
  cost::Price price;
};

planner::SearchRequest request_of(const std::string& model, const spec::Cluster& cluster) {
  planner::SearchRequest request;
  request.model = spec::load_model(model);
  request.cluster = cluster;
  request.profile = cost::profile_for(cluster.groups.front().device.kind);
  return planner::complete(request);
}

cost::Pricer pricer_of(const planner::SearchRequest& request) {
  return {request.model,
          request.cluster,
          request.profile,
          {.sequence_length = request.sequence_length, .optimizer = request.optimizer}};
}

std::vector<plan::Layout> meshes_of(const planner::Space& space) {
  std::vector<plan::Layout> meshes = space.meshes(std::array{plan::Offload::kNone});
  std::erase_if(meshes, [&](const plan::Layout& mesh) { return space.find_problem(mesh).has_value(); });
  return meshes;
}

// Number of distinct (layout, batch) pairs, by the hash of all they say. A collision would count too few.
std::int64_t count_distinct(const planner::Space& space, const std::vector<plan::Layout>& meshes) {
  std::unordered_set<std::size_t> seen;
  for (plan::Layout mesh : meshes) {
    space.for_each(mesh, [&](const plan::Layout& layout, const plan::BatchPlan& batch, const planner::Choice&) {
      seen.insert(
          std::hash<std::string>()(fmt::format("{} {} {}", plan::to_string(layout), batch.micro, batch.accumulation)));
      return true;
    });
  }
  return static_cast<std::int64_t>(seen.size());
}

double core_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Timing {
  std::int64_t layouts = 0;
  double seconds = 0;   // of cores, added up
  double checksum = 0;  // keeps the compiler from leaving the work out
};

// Prices everything on one core; fills in the price of each sample as its number comes by.
Timing price_all(const planner::Space& space, const cost::Pricer& pricer, const std::vector<plan::Layout>& meshes,
                 std::vector<Sample>& samples) {
  Timing timing;
  std::size_t next = 0;
  const double start = core_seconds();
  for (plan::Layout mesh : meshes) {
    space.for_each(mesh, [&](const plan::Layout& layout, const plan::BatchPlan& batch, const planner::Choice&) {
      const cost::Price price = pricer.price(layout, batch);
      timing.checksum += price.step_seconds() + price.memory.total();
      if (next < samples.size() && samples[next].number == timing.layouts) {
        samples[next] = {.number = timing.layouts, .layout = layout, .batch = batch, .price = price};
        ++next;
      }
      ++timing.layouts;
      return true;
    });
  }
  timing.seconds = core_seconds() - start;
  return timing;
}

// The same on every core at once.
Timing price_all_in_parallel(const planner::Space& space, const cost::Pricer& pricer,
                             const std::vector<plan::Layout>& meshes, unsigned cores) {
  std::atomic<std::size_t> next{0};
  std::vector<Timing> parts(cores);
  std::vector<std::thread> threads;
  for (Timing& part : parts) {
    threads.emplace_back([&] {
      Timing mine;
      const double start = core_seconds();
      for (std::size_t i = next++; i < meshes.size(); i = next++) {
        plan::Layout mesh = meshes[i];
        space.for_each(mesh, [&](const plan::Layout& layout, const plan::BatchPlan& batch, const planner::Choice&) {
          mine.checksum += pricer.price(layout, batch).step_seconds();
          ++mine.layouts;
          return true;
        });
      }
      mine.seconds = core_seconds() - start;
      part = mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  Timing all;
  for (const Timing& part : parts) {
    all.layouts += part.layouts;
    all.seconds += part.seconds;
  }
  return all;
}

std::vector<Sample> choose_samples(std::int64_t layouts) {
  std::mt19937_64 engine(1);
  std::vector<std::int64_t> numbers;
  while (numbers.size() < std::min<std::size_t>(kSamples, static_cast<std::size_t>(layouts))) {
    numbers.push_back(static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(layouts)));
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  }
  std::vector<Sample> samples;
  for (const std::int64_t number : numbers) samples.push_back({.number = number});
  return samples;
}

std::vector<double> figures_of(const cost::Price& price) {
  const plan::TimeBreakdown& time = price.time;
  const plan::MemoryBreakdown& memory = price.memory;
  return {time.compute,
          time.tp_comm,
          time.dp_comm,
          time.pp_comm,
          time.cp_comm,
          time.ep_comm,
          time.bubble,
          time.optimizer,
          time.other,
          memory.parameters,
          memory.gradients,
          memory.optimizer,
          memory.activations,
          memory.buffers,
          memory.overhead,
          memory.capacity,
          price.exposed_share,
          price.time_sigma,
          price.memory_sigma,
          double(price.memory_stage),
          double(price.slow_stage)};
}

std::int64_t count_differences(const planner::SearchRequest& request, const std::vector<Sample>& samples) {
  const auto same_bits = [](double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  };
  std::int64_t different = 0;
  for (const Sample& sample : samples) {
    const cost::Price again = pricer_of(request).price(sample.layout, sample.batch);
    const std::vector<double> first = figures_of(sample.price), second = figures_of(again);
    different += std::equal(first.begin(), first.end(), second.begin(), same_bits) ? 0 : 1;
  }
  return different;
}

nlohmann::json measure(const std::string& name, const planner::SearchRequest& request, unsigned cores) {
  const planner::Space space(request);
  const std::vector<plan::Layout> meshes = meshes_of(space);
  const cost::Pricer pricer = pricer_of(request);
  const std::int64_t distinct = count_distinct(space, meshes);
  std::vector<Sample> samples = choose_samples(distinct);
  std::vector<Sample> none;
  price_all(space, pricer, meshes, none);  // warms caches and the clock of the core
  const Timing timing = price_all(space, pricer, meshes, samples);
  const Timing parallel = price_all_in_parallel(space, pricer, meshes, cores);
  const auto rate = [](const Timing& t) { return static_cast<double>(t.layouts) / t.seconds; };
  return {{"case", name},
          {"layouts", timing.layouts},
          {"distinct", distinct},
          {"layouts_per_second_on_one_core", rate(timing)},
          {"layouts_per_second_per_core_on_all", rate(parallel)},
          {"cores", cores},
          {"samples", samples.size()},
          {"samples_that_differ", count_differences(request, samples)},
          {"checksum", timing.checksum}};
}

nlohmann::json measure_search(const std::string& name, planner::SearchRequest request) {
  planner::SearchResult result = planner::search(request);
  double fastest = result.summary.seconds;
  for (int repetition = 0; repetition < 4; ++repetition) {
    fastest = std::min(fastest, planner::search(request).summary.seconds);
  }
  nlohmann::json passes = nlohmann::json::array();
  for (const planner::PassReport& pass : result.passes) {
    passes.push_back({{"name", pass.name}, {"seconds", pass.seconds}, {"in", pass.in}, {"out", pass.out}});
  }
  return {{"case", name},
          {"seconds", fastest},
          {"candidates", result.summary.candidates},
          {"feasible", result.summary.feasible},
          {"passes", passes}};
}

spec::Cluster unlike_groups() {
  spec::Cluster cluster = spec::load_cluster("8x8xH100");
  cluster.groups.push_back(spec::load_cluster("8x8xA100").groups.front());
  cluster.between_groups = {.kind = spec::LinkKind::kEthernet, .bytes_per_second = 12.5e9, .latency_seconds = 20e-6};
  cluster.name = "8x8xH100 + 8x8xA100";
  return cluster;
}

int run() {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const auto on = [](const char* cluster) { return spec::load_cluster(cluster); };
  nlohmann::json report{{"schema", "lockstep.bench.planner/1"}};
  bool sound = true;
  for (const auto& [model, cluster] :
       {std::pair("llama2-13b", on("4x8xH100")), std::pair("gpt3-175b", on("128x8xH100")),
        std::pair("mixtral-8x7b", on("8x8xH100")), std::pair("gpt-10b", unlike_groups())}) {
    nlohmann::json row = measure(fmt::format("{} on {}", model, cluster.name), request_of(model, cluster), cores);
    sound &= row["layouts"] == row["distinct"] && row["samples_that_differ"] == 0;
    report["pricing"].push_back(row);
  }
  for (const auto& [model, cluster] : {std::pair("llama2-13b", "4x8xH100"), std::pair("gpt3-175b", "128x8xH100")}) {
    report["searches"].push_back(
        measure_search(fmt::format("{} on {}", model, cluster), request_of(model, on(cluster))));
  }
  report["sound"] = sound;
  fmt::print("{}\n", report.dump());
  return sound ? 0 : 3;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_planner: {}\n", error.what());
    return 1;
  }
}
