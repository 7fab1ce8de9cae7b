// Ranks that are lost, under layouts where nobody else holds their part of the state: the run goes on from memory, with
// the same losses. Ranks are threads, and a generation of them follows the other as in a run.
#include "lockstep/engine/snapshots.h"

#include <gtest/gtest.h>

#include <barrier>
#include <map>
#include <set>
#include <thread>

#include "lockstep/cost/snapshots.h"
#include "lockstep/engine/peer_state.h"
#include "lockstep/engine/training_step.h"
#include "lockstep/nn/torch_compat.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

using checkpoint::CheckpointPart;

constexpr std::int64_t kSteps = 7;
constexpr const char* kMoe =
    "{arch: moe, name: small, layers: 2, hidden: 32, heads: 4, ffn_hidden: 64, experts: 4, experts_per_token: 2, "
    "vocab: 256, max_sequence: 64}";

struct Died {};

struct Death {
  enum class When { kNever, kInStep, kAfterUpdate, kBeforeFirstStep };
  When when = When::kNever;
  std::set<int> ranks = {};
  std::int64_t step = 0;      // steps done when they die
  bool after_return = false;  // to that step, from two steps later
};

// What the ranks of a run hold between generations, and what the run told.
struct Processes {
  explicit Processes(std::int64_t ranks) : held(static_cast<std::size_t>(ranks)) {}
  std::vector<std::vector<CheckpointPart>> held;
  std::map<std::int64_t, double> losses;  // by step
  std::optional<std::int64_t> resumed;    // the step that the last generation found in memory
  std::int64_t newest_seen = -1;
  nlohmann::json figures;  // of the first rank
};

class ElasticRun {
 public:
  ElasticRun(const TrainingRuns& runs, const std::string& layout, const std::string& every,
             const std::string& model = {}, torch::Device device = torch::kCPU)
      : device_(device),
        job_(runs.job(fmt::format("batch: {{micro: 4, sequence_length: 64}}\nsteps: {}\n"
                                  "recovery: {{snapshots: {{every: {}}}}}\n",
                                  kSteps, every),
                      model)) {
    plan::Layout parsed = plan::parse_layout(layout);
    parsed.precision = job_.precision;
    job_.batch.accumulation = parsed.pp > 1 ? 2 : 1;
    spec::Job here = job_;
    here.cluster = {};  // the ranks are threads of this process
    run_ = plan::run_of(here, parsed);
  }
  std::int64_t ranks() const { return run_.layout.world(); }
  const plan::Run& run() const { return run_; }

  // One generation, until its end or until somebody dies.
  void generation(Processes& processes, const Death& death = {}) const {
    const int ranks = static_cast<int>(this->ranks());
    comm::LocalWorld world(ranks, comm::milliseconds{120'000}, nn::device_queues(device_));
    std::barrier<> together(ranks);
    std::vector<std::thread> threads;
    std::vector<std::string> problems(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank, communicator = world.communicator(rank)]() mutable {
        try {
          run_rank(processes, death, std::move(communicator), together);
        } catch (const std::exception& error) {
          problems[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  }

 private:
  void run_rank(Processes& processes, const Death& death, comm::Communicator world, std::barrier<>& together) const {
    nn::compat::set_compute_threads(1);
    const nn::DeviceThread thread(device_);
    const int rank = world.rank();
    const bool dies = death.ranks.contains(rank);
    RunContext context{{}, job_, run_, world, nullptr, Host(nullptr), device_};
    context.held = &processes.held[static_cast<std::size_t>(rank)];
    TrainingState state = build_training_state(job_, run_, context.world, {.device = device_});
    std::unique_ptr<Snapshots> snapshots;
    bool returned = !death.after_return;
    try {
      resume(processes, context, state);
      together.arrive_and_wait();
      if (death.when == Death::When::kBeforeFirstStep && dies) throw Died{};
      if (death.when == Death::When::kBeforeFirstStep) context.world.barrier().wait();
      snapshots = std::make_unique<Snapshots>(context, state);
      snapshots->begin(state);
      state.before_update = [&] {
        snapshots->wait();
        if (death.when != Death::When::kInStep || state.step != death.step || !returned) return;
        together.arrive_and_wait();
        if (dies) throw Died{};
      };
      if (death.after_return) go_and_return(context, state, *snapshots, death.step);
      returned = true;
      train(processes, context, state, *snapshots, dies ? death : Death{});
    } catch (const Fault&) {
      hold_state(context, state, snapshots.get());
    } catch (const Died&) {
      context.held->clear();
      world.abort("died");
    }
  }

  // As a rollback does: to `step`, two steps on, and back.
  void go_and_return(RunContext& context, TrainingState& state, Snapshots& snapshots, std::int64_t step) const {
    std::vector<CheckpointPart> kept;
    while (state.step < step + 2) {
      if (state.step == step) kept.push_back(held_part(state, job_, context.world.size()));
      const StepResult result = run_step(state, {});
      snapshots.after_step(state, result);
    }
    PeerState peers(context.world, kept);
    restore(state, peers, job_, context.world.size());
    snapshots.begin(state);
  }

  void resume(Processes& processes, RunContext& context, TrainingState& state) const {
    PeerState peers(context.world, *context.held, tensors_of(live_part(state, job_, context.world.size())));
    if (context.rank() == 0) {
      processes.resumed = peers.step();
      processes.newest_seen = peers.newest_seen();
    }
    if (peers.step()) restore(state, peers, job_, context.world.size());
    std::erase_if(*context.held, [&](const CheckpointPart& part) { return part.facts.step != peers.step(); });
  }

  void train(Processes& processes, RunContext& context, TrainingState& state, Snapshots& snapshots,
             const Death& death) const {
    while (state.step < kSteps) {
      const StepResult result = run_step(state, {});
      if (context.rank() == 0) processes.losses[state.step] = result.loss;
      if (death.when == Death::When::kAfterUpdate && state.step == death.step) throw Died{};
      snapshots.after_step(state, result);
    }
    snapshots.finish();
    if (context.rank() == 0) processes.figures = snapshots.summary();
    context.world.barrier().wait();
  }

  torch::Device device_;
  spec::Job job_;
  plan::Run run_;
};

struct Layout {
  const char* text;
  const char* model;
};
const Layout kLayouts[] = {{"shard=4,zero=1", ""},      {"shard=4,zero=3", ""},        {"tp=2,pp=2", ""},
                           {"cp=2,shard=2,zero=3", ""}, {"dp=2,shard=2,zero=3", ""},   {"dp=4,ep=2", kMoe},
                           {"dp=4,ep=4", kMoe},         {"shard=4,zero=3,ep=2", kMoe}, {"dp=2,tp=2", ""}};

std::map<std::int64_t, double> undisturbed(const ElasticRun& run) {
  Processes processes(run.ranks());
  run.generation(processes);
  return processes.losses;
}

TEST(Snapshots, a_rank_that_dies_inside_a_step_costs_no_step) {
  TrainingRuns runs;
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.text);
    const ElasticRun run(runs, layout.text, "1", layout.model);
    Processes processes(run.ranks());
    run.generation(processes, {Death::When::kInStep, {2}, 4});
    run.generation(processes);
    EXPECT_EQ(processes.resumed, 4);
    EXPECT_EQ(processes.newest_seen, 4);
    EXPECT_EQ(processes.losses, undisturbed(run));
  }
}

TEST(Snapshots, of_a_GPU_are_what_it_held) {
  if (!nn::compat::has_cuda()) GTEST_SKIP() << "no GPU here";
  TrainingRuns runs;
  for (const char* layout : {"shard=4,zero=3", "tp=2,pp=2"}) {
    SCOPED_TRACE(layout);
    const ElasticRun run(runs, layout, "1", {}, torch::Device(torch::kCUDA, 0));
    Processes processes(run.ranks());
    run.generation(processes, {Death::When::kInStep, {2}, 4});
    run.generation(processes);
    EXPECT_EQ(processes.resumed, 4);
    for (const auto& [step, loss] : undisturbed(run)) EXPECT_NEAR(processes.losses.at(step), loss, 1e-3 * loss);
  }
}

TEST(Snapshots, when_a_rank_dies_after_its_update_all_go_back_one_step) {
  TrainingRuns runs;
  for (const char* layout : {"shard=4,zero=3", "tp=2,pp=2"}) {
    SCOPED_TRACE(layout);
    const ElasticRun run(runs, layout, "1");
    Processes processes(run.ranks());
    run.generation(processes, {Death::When::kAfterUpdate, {1}, 4});
    run.generation(processes);
    EXPECT_EQ(processes.resumed, 3);
    EXPECT_EQ(processes.newest_seen, 4);
    EXPECT_EQ(processes.losses, undisturbed(run));
  }
}

TEST(Snapshots, every_third_step_loses_no_more_than_those_since) {
  TrainingRuns runs;
  const ElasticRun run(runs, "shard=4,zero=3", "3");
  Processes processes(run.ranks());
  run.generation(processes, {Death::When::kInStep, {0}, 5});
  run.generation(processes);
  EXPECT_EQ(processes.resumed, 3);
  EXPECT_EQ(processes.losses, undisturbed(run));
}

TEST(Snapshots, without_them_the_state_of_a_lost_rank_is_gone) {
  TrainingRuns runs;
  for (const char* layout : {"shard=4,zero=1", "tp=2,pp=2"}) {
    SCOPED_TRACE(layout);
    const ElasticRun run(runs, layout, "0");
    Processes processes(run.ranks());
    run.generation(processes, {Death::When::kInStep, {2}, 4});
    run.generation(processes);
    EXPECT_EQ(processes.resumed, std::nullopt);
  }
}

TEST(Snapshots, a_rank_and_its_keeper_lost_together_leave_no_step_in_memory) {
  TrainingRuns runs;
  const ElasticRun run(runs, "shard=4,zero=3", "1");
  Processes processes(run.ranks());
  run.generation(processes, {Death::When::kInStep, {1, 2}, 4});
  run.generation(processes);
  EXPECT_EQ(processes.resumed, std::nullopt);
}

TEST(Snapshots, a_rank_lost_right_after_a_recovery_costs_no_step) {
  TrainingRuns runs;
  const ElasticRun run(runs, "shard=4,zero=3", "1");
  Processes processes(run.ranks());
  run.generation(processes, {Death::When::kInStep, {2}, 4});
  run.generation(processes, {Death::When::kBeforeFirstStep, {2}, 0});
  run.generation(processes);
  EXPECT_EQ(processes.resumed, 4);
  EXPECT_EQ(processes.losses, undisturbed(run));
}

TEST(Snapshots, what_a_run_went_back_from_does_not_come_again) {
  TrainingRuns runs;
  const ElasticRun run(runs, "shard=4,zero=3", "1");
  Processes processes(run.ranks());
  run.generation(processes, {Death::When::kInStep, {2}, 3, true});
  run.generation(processes);
  EXPECT_EQ(processes.resumed, 3);
}

TEST(Snapshots, replicas_of_the_whole_state_need_none) {
  TrainingRuns runs;
  for (const char* layout : {"dp=4", "dp=2,cp=2"}) {
    SCOPED_TRACE(layout);
    const ElasticRun run(runs, layout, "1");
    EXPECT_FALSE(cost::snapshot_memory(run.run()).needed);
    Processes processes(run.ranks());
    run.generation(processes, {Death::When::kInStep, {2}, 4});
    run.generation(processes);
    EXPECT_EQ(processes.resumed, 4);
    EXPECT_TRUE(processes.figures.is_null());
  }
}

TEST(Snapshots, take_the_memory_that_the_plan_says) {
  TrainingRuns runs;
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.text);
    const ElasticRun run(runs, layout.text, "1", layout.model);
    Processes processes(run.ranks());
    run.generation(processes);
    const cost::SnapshotMemory planned = cost::snapshot_memory(run.run());
    const double own = processes.figures.at("own_bytes"), kept = processes.figures.at("kept_bytes");
    constexpr double kSmall = 16 << 10;  // generators, scales, norms that tensor parallel ranks share
    EXPECT_NEAR(own, planned.own, 0.05 * planned.own + kSmall);
    EXPECT_NEAR(kept, planned.peers, 0.05 * planned.peers + kSmall);
    std::printf("%-24s own %8.0f planned %8.0f, kept %8.0f planned %8.0f, stall %.2f ms a step\n", layout.text, own,
                planned.own, kept, planned.peers,
                1e3 * processes.figures.at("stall_seconds").get<double>() / static_cast<double>(kSteps));
  }
}

}  // namespace
}  // namespace lockstep::engine
