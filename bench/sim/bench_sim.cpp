// Speed of the simulator, as JSON on stdout: the event queue by itself, and one step of Llama 3 405B on ever more GPUs.
// bench_sim [--seconds 1] (of each measurement). Every figure is the best of three.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/sim/event_queue.h"
#include "lockstep/sim/random.h"
#include "lockstep/sim/step/simulation.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using nlohmann::json;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Each event adds the next one, at a random time: the "hold" model that event queues are compared by (Jones 1986).
json queue_speed(std::size_t pending, double seconds) {
  double best = 0;
  std::uint64_t checked = 0;
  for (int round = 0; round < 3; ++round) {
    sim::EventQueue queue;
    sim::Random random(1);
    for (std::size_t i = 0; i < pending; ++i) queue.add(random.uniform(), static_cast<std::uint32_t>(i));
    std::uint64_t events = 0;
    double last = 0;
    const double begin = cpu_seconds();
    double now = begin;
    do {
      for (int i = 0; i < 100000; ++i) {
        const auto event = queue.pop();
        checked += event.time < last ? 1 : 0;  // out of order
        last = event.time;
        queue.add(event.time + random.uniform(), event.what);
      }
      events += 100000;
      now = cpu_seconds();
    } while (now - begin < seconds / 3);
    best = std::max(best, static_cast<double>(events) / (now - begin));
  }
  return {{"pending", pending}, {"events_per_cpu_second", best}, {"out_of_order", checked}};
}

struct Case {
  std::int64_t data_ranks;
  double jitter;
};

json step_speed(const Case& asked) {
  const spec::Model model = spec::load_model("llama3-405b");
  plan::Layout layout;
  layout.tp = 8;
  layout.pp = 16;
  layout.shard = asked.data_ranks;
  layout.zero = layout.shard > 1 ? 1 : 0;
  layout.schedule = plan::Schedule::kOneForwardOneBackward;
  layout.sequence_parallel = true;
  layout.precision = spec::Precision::kBf16;
  plan::require_valid_layout(layout, &model);
  const spec::Cluster cluster = spec::load_cluster(std::to_string(layout.world() / 8) + "x8xH100");
  plan::BatchPlan batch{.micro = 1, .accumulation = 16, .sequence_length = 8192};
  batch.global_sequences = batch.micro * batch.accumulation * layout.data_ranks();
  json result = {{"gpus", layout.world()}, {"jitter", asked.jitter}};
  double best = 1e300;
  for (int round = 0; round < 3; ++round) {
    const double begin = cpu_seconds();
    const cost::Pricer pricer(model, cluster, cost::profile_for(cluster), {.sequence_length = batch.sequence_length});
    sim::StepsQuestion question;
    question.program = sim::program_of(pricer.work(layout, batch), layout, batch.accumulation);
    question.ranks = {layout, cluster.groups.front().devices_per_node};
    question.disturbances.jitter = asked.jitter;
    const sim::Simulation simulation = sim::simulate(question);
    const double seconds = cpu_seconds() - begin;
    if (seconds >= best) continue;
    best = seconds;
    result["cpu_seconds"] = seconds;
    result["events"] = simulation.events;
    result["events_per_cpu_second"] = static_cast<double>(simulation.events) / seconds;
    result["kinds_of_data_ranks"] = simulation.symmetry.classes.size();
    result["step_seconds"] = simulation.seconds();
    result["closed_form_seconds"] = pricer.price(layout, batch).step_seconds();
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc == 3 && std::string(argv[1]) == "--seconds" ? std::stod(argv[2]) : 1.0;
  json document = {{"queue", json::array()}, {"step", json::array()}};
  for (const std::size_t pending : {100UL, 1000UL, 10000UL, 100000UL, 1000000UL}) {
    document["queue"].push_back(queue_speed(pending, seconds));
  }
  for (const std::int64_t data_ranks : {1, 4, 16, 64, 128, 512, 1024}) {
    document["step"].push_back(step_speed({data_ranks, 0}));
    document["step"].push_back(step_speed({data_ranks, 0.02}));
  }
  std::printf("%s\n", document.dump().c_str());
  return 0;
}
