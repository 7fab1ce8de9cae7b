// The step simulator: the same order as the tables, the same time as the closed form where both model the same thing,
// one rank for all that are alike, and what disturbs it.
#include "lockstep/sim/step/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/sim/step/questions.h"
#include "lockstep/spec/cluster.h"
#include "lockstep/spec/model.h"

namespace lockstep::sim {
namespace {

using plan::Schedule;

RankMap one_pipeline(int stages) {
  RankMap ranks;
  ranks.layout.pp = stages;
  return ranks;
}

PlayedStep play_alone(const StepProgram& program, const RankMap& ranks, const Disturbances& disturbances = {},
                      const PlayOptions& options = {.contention = false}) {
  return play_step(program, ranks, find_symmetry(ranks, disturbances, program.coupled_data_ranks), disturbances,
                   options);
}

// --- tables
// ------------------------------------------------------------------------------------------------------------
struct TableCase {
  Schedule schedule;
  int stages, chunks, micro_batches;
};

std::vector<TableCase> tables() {
  std::vector<TableCase> cases;
  for (const int micro_batches : {1, 2, 3, 8, 13, 32}) {
    cases.push_back({Schedule::kNone, 1, 1, micro_batches});
    for (const int stages : {2, 3, 4, 8, 16}) {
      for (const Schedule schedule : {Schedule::kGpipe, Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
        cases.push_back({schedule, stages, 1, micro_batches});
      }
      cases.push_back({Schedule::kZeroBubble, stages, 2, micro_batches});
      for (const int chunks : {2, 3, 5}) cases.push_back({Schedule::kInterleaved, stages, chunks, micro_batches});
    }
  }
  return cases;
}

TEST(StepSimulator, plays_every_table_as_plan_play_does_event_for_event) {
  std::mt19937_64 random(19);
  std::uniform_real_distribution<double> seconds(0.1, 3.0);
  for (const auto& [schedule, stages, chunks, micro_batches] : tables()) {
    const plan::PipelineSchedule table = plan::make_pipeline_schedule(schedule, stages, chunks, micro_batches);
    std::vector<plan::TaskSeconds> times;
    for (int position = 0; position < table.positions(); ++position) {
      times.push_back({seconds(random), seconds(random), seconds(random), 0.3 * seconds(random)});
    }
    const std::vector<plan::PlayedTask> expected = plan::play(table, times);
    const std::vector<plan::PlayedTask> played =
        played_tasks(play_alone(program_of(table, times), one_pipeline(stages)));
    ASSERT_EQ(played.size(), expected.size());
    for (std::size_t i = 0; i < played.size(); ++i) {
      EXPECT_EQ(played[i].task, expected[i].task);
      EXPECT_EQ(played[i].rank, expected[i].rank);
      EXPECT_EQ(played[i].start, expected[i].start);
      EXPECT_EQ(played[i].end, expected[i].end);
    }
  }
}

TEST(StepSimulator, takes_durations_rank_by_rank) {
  const plan::PipelineSchedule table = plan::make_pipeline_schedule(Schedule::kOneForwardOneBackward, 2, 1, 4);
  RankMap ranks = one_pipeline(2);
  ranks.layout.dp = 3;
  StepProgram program = program_of(table, {{1, 1, 1, 0.1}, {1, 1, 1, 0.1}});
  for (StageProgram& stage : program.stages) stage = {.reduce = {0, 2}, .reduce_exposed = 1, .optimizer = 0.5};
  Disturbances measured;
  measured.jitter = 1e-30;  // every data rank by itself
  PlayOptions options{.contention = false};
  options.compute = [](std::int64_t data_rank, int, const plan::PipelineTask&, double planned) {
    return data_rank == 1 ? 2 * planned : planned;
  };
  const double slow = play_alone(program, ranks, measured, options).seconds;
  // Everybody waits for data rank 1 in the reduction.
  const double pipeline = plan::step_seconds(plan::play(table, {{2, 2, 2, 0.1}, {2, 2, 2, 0.1}}));
  EXPECT_DOUBLE_EQ(slow, pipeline + 2 + 0.5);
}

// --- links
// -------------------------------------------------------------------------------------------------------------
std::vector<std::pair<std::uint32_t, double>> ends_of(Fabric& fabric) {
  std::vector<std::pair<std::uint32_t, double>> ends;
  std::uint32_t tag = 0;
  while (fabric.next(tag)) ends.emplace_back(tag, fabric.now());
  return ends;
}

TEST(Fabric, flows_on_one_link_share_it_fairly) {
  Fabric fabric(3, 1, true);
  fabric.message(1, Reach::kBetween, 0, 1, 1);
  fabric.message(2, Reach::kBetween, 0, 2, 2);  // the same link out
  fabric.message(1, Reach::kBetween, 1, 0, 3);  // the other direction
  fabric.message(1, Reach::kInside, 0, 1, 4);   // another link
  const auto ends = ends_of(fabric);
  ASSERT_EQ(ends.size(), 4u);
  const std::map<std::uint32_t, double> end(ends.begin(), ends.end());
  EXPECT_DOUBLE_EQ(end.at(1), 2);  // half of the link
  EXPECT_DOUBLE_EQ(end.at(2), 3);  // half for two seconds, then all of it
  EXPECT_DOUBLE_EQ(end.at(3), 1);
  EXPECT_DOUBLE_EQ(end.at(4), 1);
}

TEST(Fabric, a_collective_goes_at_the_pace_of_its_slowest_member) {
  const std::vector<int> members = {0, 1, 2};
  Fabric fabric(3, 1, true);
  fabric.set_nic_speed(2, 0.5);
  fabric.collective(1, Reach::kBetween, members, false, 1);
  EXPECT_DOUBLE_EQ(ends_of(fabric).front().second, 2);

  Fabric shared(3, 1, true);
  shared.collective(2, Reach::kBetween, members, false, 1);
  shared.message(0.5, Reach::kBetween, 1, 0, 2);  // takes half of it for a second
  const auto ends = ends_of(shared);
  EXPECT_DOUBLE_EQ(ends[0].second, 1);
  EXPECT_DOUBLE_EQ(ends[1].second, 2.5);
}

TEST(Fabric, a_pass_is_slowed_by_what_moves_beside_it_and_where_it_exchanges_itself) {
  const std::vector<int> members = {0};
  Fabric fabric(1, 1.25, true);
  fabric.pass(3, 0, Reach::kInside, 0, 1);
  fabric.collective(2, Reach::kBetween, members, true, 2);
  EXPECT_DOUBLE_EQ(ends_of(fabric).back().second, 3.5);  // two hidden seconds cost a quarter each

  Fabric exchanging(1, 1, true);
  exchanging.pass(4, 0.5, Reach::kBetween, 0, 1);  // two of the four seconds are its own collectives
  exchanging.collective(100, Reach::kBetween, members, false, 2);
  EXPECT_DOUBLE_EQ(ends_of(exchanging).front().second, 2 + 2 * 1.5);  // 1.5 of a flow is on the link
}

TEST(Fabric, without_contention_nothing_slows_anything) {
  Fabric fabric(2, 1, false);
  fabric.message(1, Reach::kBetween, 0, 1, 1);
  fabric.message(1, Reach::kBetween, 0, 1, 2);
  EXPECT_DOUBLE_EQ(ends_of(fabric).back().second, 1);
}

// --- a priced step
// -----------------------------------------------------------------------------------------------------
struct Priced {
  plan::Layout layout;
  double closed_form = 0;
  cost::StepWork work;
  StepsQuestion question;
};

// The closed form with idle time as the schedule has it: what profiles scale it by is fitted, not modelled.
Priced price(const std::string& model_name, const std::string& cluster_name, const plan::Layout& layout,
             std::int64_t micro_batches) {
  const spec::Model model = spec::load_model(model_name);
  const spec::Cluster cluster = spec::load_cluster(cluster_name);
  const cost::Profile profile = cost::profile_for(cluster);
  cost::Pricer pricer(model, cluster, profile, {.sequence_length = 4096});
  cost::Constants constants = profile.fitted->constants;
  constants.bubble = 1;
  pricer.recalibrate(constants);
  const plan::BatchPlan batch{.micro = 1,
                              .accumulation = micro_batches,
                              .global_sequences = micro_batches * layout.data_ranks(),
                              .sequence_length = 4096};
  Priced priced;
  priced.layout = layout;
  priced.closed_form = pricer.price(layout, batch).step_seconds();
  priced.work = pricer.work(layout, batch);
  priced.question.program = program_of(priced.work, layout, micro_batches);
  priced.question.ranks = {layout, cluster.groups.front().devices_per_node};
  priced.question.contention = false;
  return priced;
}

plan::Layout layout_of(const std::string& text) {
  plan::Layout layout = plan::parse_layout(text);
  layout.precision = spec::Precision::kBf16;
  return layout;
}

// --- the closed form
// --------------------------------------------------------------------------------------------------- Where the closed
// form says something else than the schedule plays:
//   zero bubble        its closed form is an estimate where F, B and W differ, and reductions have the last weight
//                      gradient to hide behind instead of the last backward
//   interleaved        a last round that is short costs at most what it says (schedule.h)
//   ZeRO-2 that scatters in every backward of a pipeline: what is exposed of it delays the stages behind, too
//   more traffic than device work to hide it: the closed form lets weights of ZeRO-1 and 2 hide behind backward alone,
//                      gradients behind every backward that scatters, and nothing behind the host; here weights hide
//                      behind the next forward, gradients that are reduced once behind the last backward
constexpr double kHostPaces = 0.005;  // of a pass

bool model_the_same(const Priced& priced, const cost::StepWork& work, std::int64_t micro_batches) {
  const plan::Layout& layout = priced.layout;
  if (layout.schedule == Schedule::kZeroBubble) return false;
  if (layout.schedule == Schedule::kInterleaved && micro_batches % layout.pp != 0) return false;
  const auto chunks = static_cast<double>(layout.virtual_stages);
  return std::all_of(work.stages.begin(), work.stages.end(), [&](const cost::StageWork& stage) {
    if (layout.pp > 1 && stage.scatter_each.total() > 0) return false;
    const double hidden = 1 - stage.reduce_exposed, hidden3 = 1 - work.zero3_exposed;
    const double with_backward = stage.reduce.total() + stage.publish.total() + stage.scatter_each.total();
    const double forward = (stage.forward - stage.host) / chunks, backward = (stage.backward - stage.host) / chunks;
    if (hidden * with_backward > backward || hidden * stage.publish.total() > forward) return false;
    // Where the host sets the pace the closed form does not hide behind exchanges either: they make no pass longer.
    if (stage.host > kHostPaces * (stage.forward + stage.backward)) {
      const double alone = backward - stage.exchange_backward / chunks;
      const double first = forward - stage.exchange_forward / chunks;
      if (hidden * with_backward > alone || hidden3 * (stage.gather.total() + stage.scatter.total()) > chunks * alone ||
          hidden3 * stage.gather.total() > chunks * first) {
        return false;
      }
    }
    return hidden3 * stage.gather.total() <= chunks * forward &&
           hidden3 * (stage.gather.total() + stage.scatter.total()) <= chunks * backward;
  });
}

plan::Layout random_layout(std::mt19937_64& random, std::int64_t devices) {
  const auto power = [&](int most) { return std::int64_t{1} << (random() % static_cast<std::uint64_t>(most + 1)); };
  plan::Layout layout;
  layout.tp = power(3);
  layout.pp = power(3);
  layout.cp = random() % 5 == 0 ? 2 : 1;
  const std::int64_t rest = std::max<std::int64_t>(1, devices / (layout.tp * layout.pp * layout.cp));
  layout.zero = static_cast<std::int64_t>(random() % 4);
  if (layout.zero > 0) layout.shard = std::min(rest, power(7));
  layout.dp = rest / layout.shard;
  if (layout.pp > 1) {
    constexpr std::array kSchedules = {Schedule::kGpipe, Schedule::kOneForwardOneBackward, Schedule::kInterleaved,
                                       Schedule::kZeroBubble};
    layout.schedule = kSchedules[random() % kSchedules.size()];
    if (layout.schedule == Schedule::kInterleaved) layout.virtual_stages = 2;
  }
  layout.sequence_parallel = layout.tp > 1;
  layout.precision = spec::Precision::kBf16;
  layout.recompute = static_cast<plan::Recompute>(random() % 3);
  return layout;
}

TEST(StepSimulator, agrees_with_the_closed_form_where_both_model_the_same_thing) {
  constexpr std::array kModels = {"llama2-7b", "llama2-13b", "llama2-70b", "gpt3-175b", "mixtral-8x7b", "llama3-8b"};
  constexpr std::array kClusters = {"4x8xH100", "16x8xA100", "32x8xH100"};
  std::mt19937_64 random(7);
  int compared = 0, pipelines = 0;
  double worst = 0;
  for (int i = 0; i < 1800; ++i) {
    const std::string model = kModels[random() % kModels.size()], cluster = kClusters[random() % kClusters.size()];
    const plan::Layout layout = random_layout(random, spec::load_cluster(cluster).devices());
    const std::int64_t micro_batches = std::int64_t{1} << (random() % 7);
    const spec::Model loaded = spec::load_model(model);
    if (layout.world() > spec::load_cluster(cluster).devices() || plan::find_layout_problem(layout, &loaded)) continue;
    const Priced priced = price(model, cluster, layout, micro_batches);
    if (!model_the_same(priced, priced.work, micro_batches)) continue;
    ++compared;
    pipelines += layout.pp > 1 ? 1 : 0;
    const double ratio = simulate(priced.question).seconds() / priced.closed_form;
    worst = std::max(worst, std::abs(ratio - 1));
    EXPECT_NEAR(ratio, 1, 0.02) << model << " on " << cluster << ": " << plan::to_string(layout) << ", "
                                << micro_batches << " micro-batches";
  }
  EXPECT_GT(compared, 500);
  EXPECT_GT(pipelines, 250);
  RecordProperty("compared", compared);
  std::printf("%d layouts, %d of them pipelines, within %.2f%% of the closed form\n", compared, pipelines, 100 * worst);
}

TEST(StepSimulator, plays_13b_on_32_h100_as_the_closed_form_prices_it) {
  for (const char* text :
       {"dp=32", "shard=32,zero=3", "shard=8,dp=4,zero=3", "dp=16,tp=2", "dp=4,tp=8", "dp=4,tp=2,pp=4",
        "dp=2,tp=4,pp=4", "shard=8,zero=1,tp=2,pp=2", "dp=4,pp=8", "dp=4,tp=2,pp=4,virtual_stages=2"}) {
    const Priced priced = price("llama2-13b", "4x8xH100", layout_of(text), 32);
    EXPECT_NEAR(simulate(priced.question).seconds() / priced.closed_form, 1, 0.02) << text;
  }
}

TEST(StepSimulator, folds_ranks_that_are_alike_without_changing_the_step) {
  for (const char* text :
       {"dp=8,tp=2,pp=2", "dp=2,shard=8,zero=3,tp=2", "shard=16,zero=1,pp=2", "shard=4,dp=2,zero=2,pp=4"}) {
    Priced priced = price("llama2-7b", "4x8xH100", layout_of(text), 8);
    for (const bool contention : {false, true}) {
      priced.question.contention = contention;
      priced.question.disturbances = {};
      const Simulation folded = simulate(priced.question);
      EXPECT_EQ(folded.symmetry.classes.size(), 1u) << text;
      priced.question.disturbances.jitter = 1e-30;  // nothing, but drawn for every rank
      const Simulation whole = simulate(priced.question);
      EXPECT_EQ(static_cast<std::int64_t>(whole.symmetry.classes.size()), priced.layout.data_ranks());
      EXPECT_NEAR(whole.seconds(), folded.seconds(), 1e-9 * folded.seconds()) << text;
    }
  }
}

TEST(StepSimulator, folds_around_a_slow_rank_too) {
  Priced priced = price("llama2-7b", "4x8xH100", layout_of("dp=2,shard=4,zero=3,tp=2,pp=2"), 4);
  priced.question.disturbances.slow_ranks[5] = 1.5;
  const Simulation folded = simulate(priced.question);
  EXPECT_EQ(folded.symmetry.classes.size(), 3u);  // it, its shards, the others
  priced.question.disturbances.jitter = 1e-30;
  EXPECT_NEAR(simulate(priced.question).seconds(), folded.seconds(), 1e-9 * folded.seconds());
}

TEST(StepSimulator, a_slow_rank_makes_everybody_wait_for_its_compute) {
  Priced priced = price("llama2-7b", "4x8xH100", layout_of("dp=32"), 4);
  const double usual = simulate(priced.question).seconds();
  priced.question.disturbances.slow_ranks[17] = 1.3;
  const Simulation slow = simulate(priced.question);
  ASSERT_EQ(slow.symmetry.classes.size(), 2u);
  const PositionProgram& position = priced.question.program.positions.front();
  const double compute =
      4 * (position.forward.compute + position.input_gradient.compute + position.weight_gradient.compute) +
      priced.question.program.stages.front().optimizer;
  EXPECT_NEAR(slow.seconds() - usual, 0.3 * compute, 0.02 * compute);  // less of the reduction is exposed
}

TEST(StepSimulator, half_a_link_doubles_what_is_exposed_of_a_reduction) {
  Priced priced = price("llama2-7b", "4x8xH100", layout_of("dp=32"), 1);
  StageProgram& stage = priced.question.program.stages.front();
  stage.reduce_exposed = 1;
  const double usual = simulate(priced.question).seconds();
  priced.question.disturbances.slow_links[3] = 0.5;
  EXPECT_NEAR(simulate(priced.question).seconds() - usual, stage.reduce.between, 1e-9);
}

TEST(StepSimulator, a_loader_delays_every_micro_batch) {
  Priced priced = price("llama2-7b", "4x8xH100", layout_of("dp=32"), 4);
  const double usual = simulate(priced.question).seconds();
  priced.question.disturbances.loader_seconds[3] = 0.05;
  EXPECT_NEAR(simulate(priced.question).seconds() - usual, 0.2, 1e-9);
}

TEST(StepSimulator, contention_slows_and_never_speeds_up) {
  for (const char* text : {"dp=4,pp=8", "shard=8,dp=2,zero=3,pp=2", "shard=32,zero=3", "dp=2,tp=8,pp=2"}) {
    Priced priced = price("llama2-13b", "4x8xH100", layout_of(text), 8);
    const double alone = simulate(priced.question).seconds();
    priced.question.contention = true;
    EXPECT_GE(simulate(priced.question).seconds(), alone * (1 - 1e-12)) << text;
  }
}

TEST(StepSimulator, is_determined_by_its_seed) {
  Priced priced = price("llama2-7b", "4x8xH100", layout_of("dp=8,tp=2,pp=2"), 8);
  priced.question.disturbances.jitter = 0.05;
  priced.question.steps = 3;
  const Simulation first = simulate(priced.question), second = simulate(priced.question);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(first.steps[i].seconds, second.steps[i].seconds);
  EXPECT_NE(first.steps[0].seconds, first.steps[1].seconds);
  priced.question.seed = 2;
  EXPECT_NE(simulate(priced.question).steps[0].seconds, first.steps[0].seconds);
}

TEST(StepSimulator, parts_of_a_step_add_up_to_it) {
  Priced priced = price("mixtral-8x7b", "4x8xH100", layout_of("dp=2,shard=4,zero=3,tp=2,pp=2,ep=4"), 8);
  priced.question.contention = true;
  priced.question.disturbances.loader_seconds[1] = 0.01;
  priced.question.disturbances.slow_ranks[9] = 1.2;
  const Simulation simulation = simulate(priced.question);
  const PlayedStep& step = *simulation.steps.front().played;
  for (const PlayedStage& stage : step.stages) {
    EXPECT_NEAR(time_shares(step, stage, priced.question.program).total(), step.seconds, 1e-9 * step.seconds);
  }
}

TEST(StepSimulator, checkpoints_come_at_their_cadence_and_never_overlap) {
  Priced priced = price("llama2-7b", "4x8xH100", layout_of("dp=32"), 4);
  const double step = simulate(priced.question).seconds();
  priced.question.steps = 100;
  priced.question.checkpoints = {.interval_seconds = 9.5 * step, .stall_seconds = step, .write_seconds = step};
  int count = 0;
  for (const SimulatedStep& played : simulate(priced.question).steps) count += played.checkpoint_stall > 0 ? 1 : 0;
  EXPECT_EQ(count, 11);  // after step 10, then every nine: the stall counts too
  priced.question.checkpoints.write_seconds = 49.5 * step;
  count = 0;
  for (const SimulatedStep& played : simulate(priced.question).steps) count += played.checkpoint_stall > 0 ? 1 : 0;
  EXPECT_EQ(count, 2);
}

TEST(Injections, say_what_is_wrong_with_them) {
  RankMap ranks{layout_of("dp=8,tp=2,pp=2"), 8};
  Disturbances disturbances;
  add_injection("slow-rank=17,1.3x", ranks, disturbances);
  add_injection("slow-link=3,0.5x", ranks, disturbances);
  add_injection("slow-loader=3,50ms", ranks, disturbances);
  EXPECT_EQ(disturbances.slow_ranks.at(17), 1.3);
  EXPECT_EQ(disturbances.slow_links.at(3), 0.5);
  EXPECT_EQ(disturbances.loader_seconds.at(3), 0.05);
  for (const char* wrong : {"slow-rank", "slow-rank=17", "slow-rank=32,2x", "slow-rank=1,2", "slow-rank=1,-2x",
                            "slow-link=4,0.5x", "slow-loader=16,50ms", "slow-loader=3,50", "fast-rank=1,2x"}) {
    EXPECT_THROW(add_injection(wrong, ranks, disturbances), UserError) << wrong;
  }
}

TEST(WhatIfs, change_every_node_group) {
  spec::Cluster cluster = spec::load_cluster("4x8xH100");
  apply_what_if("nic=800Gb/s", cluster);
  EXPECT_EQ(cluster.groups.front().nic.bytes_per_second, 100e9);
  const double fp8 = cluster.groups.front().device.peak_fp8_flops / cluster.groups.front().device.peak_bf16_flops;
  apply_what_if("peak=2PFLOPS", cluster);
  EXPECT_EQ(cluster.groups.front().device.peak_bf16_flops, 2e15);
  EXPECT_NEAR(cluster.groups.front().device.peak_fp8_flops, fp8 * 2e15, 1);
  for (const char* wrong : {"nic", "nic=800", "wire=1Gb/s", "nics=0", "peak=3GB/s"}) {
    EXPECT_THROW(apply_what_if(wrong, cluster), UserError) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::sim
