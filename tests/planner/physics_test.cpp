// What no plan may contradict, on random clusters and layouts from fixed seeds: the order of a file changes nothing, a
// slower link makes nothing faster, groups are priced by their own kind, nothing is faster than its hardware.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <random>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/states.h"
#include "lockstep/planner/cadence.h"
#include "lockstep/planner/search/search.h"
#include "lockstep/planner/search/space.h"

namespace lockstep::planner {
namespace {

constexpr int kSeeds = 300;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  template <class List>
  auto pick(const List& list) {
    return *(std::begin(list) + between(0, static_cast<std::int64_t>(std::size(list)) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

constexpr std::array<const char*, 5> kKinds{"H100", "A100", "V100", "A10G", "MI300X"};

// Lines of the `groups` of a cluster file.
std::vector<std::string> random_groups(Dice& dice, std::int64_t count) {
  std::vector<std::string> groups;
  for (std::int64_t i = 0; i < count; ++i) {
    std::string line = fmt::format("kind: {}, nodes: {}, devices_per_node: {}", dice.pick(kKinds), dice.between(1, 3),
                                   dice.pick(std::array{2, 4, 8, 8}));
    if (dice.between(0, 1) == 1) {
      line += fmt::format(", nic: {{kind: ethernet, bandwidth: {}Gb/s}}, nics_per_node: {}",
                          dice.pick(std::array{10, 25, 100, 400}), dice.between(1, 4));
    }
    if (dice.between(0, 2) == 0) line += ", intra: {kind: pcie, bandwidth: 25GB/s}";
    if (dice.between(0, 2) == 0) line += fmt::format(", price_per_device_hour: {}", dice.between(1, 9));
    if (dice.between(0, 2) == 0) line += fmt::format(", host_memory: {}GiB", dice.between(64, 2048));
    groups.push_back(line);
  }
  return groups;
}

spec::Cluster cluster_of(const std::vector<std::string>& groups, const std::string& more = "") {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "cluster.yaml").string();
  std::ofstream out(file);
  out << "name: mixed\ngroups:\n";
  for (const std::string& group : groups) out << "  - {" << group << "}\n";
  out << more;
  out.close();
  return spec::load_cluster(file);
}

spec::Model random_model(Dice& dice) {
  spec::Model model = spec::load_model(dice.pick(std::array{"gpt-10b", "llama2-7b", "mixtral-8x7b", "mamba-2.8b"}));
  model.layers = dice.pick(std::array{8, 12, 24});
  return model;
}

SearchRequest request_on(Dice& dice, const spec::Cluster& cluster) {
  SearchRequest request;
  request.model = random_model(dice);
  request.cluster = cluster;
  request.profile = cost::profile_for(cluster);
  request.global_sequences = 8 * cluster.devices();
  request.sequence_length = 2048;
  request.constraints.stage_layers = std::vector<std::int64_t>();
  return complete(request);
}

struct Drawn {
  plan::Layout layout;
  plan::BatchPlan batch;
};

// A candidate of the request, every mesh alike likely; nullopt where there is none.
std::optional<Drawn> draw(Dice& dice, const SearchRequest& request) {
  const Space space(request);
  std::vector<plan::Layout> meshes = space.meshes(std::array{plan::Offload::kNone});
  std::erase_if(meshes, [&](const plan::Layout& mesh) { return space.find_problem(mesh).has_value(); });
  if (meshes.empty()) return std::nullopt;
  plan::Layout mesh = dice.pick(meshes);
  const std::int64_t wanted = dice.between(0, space.count(mesh) - 1);
  std::int64_t place = 0;
  std::optional<Drawn> drawn;
  space.for_each(mesh, [&](const plan::Layout& layout, const plan::BatchPlan& batch, const Choice&) {
    if (place++ == wanted) drawn = Drawn{layout, batch};
    return true;
  });
  return drawn;
}

cost::Price price_of(const SearchRequest& request, const Drawn& drawn) {
  return cost::Pricer(request.model, request.cluster, request.profile, pricer_options(request))
      .price(drawn.layout, drawn.batch);
}

TEST(PhysicsProperty, order_of_groups_and_of_their_nodes_changes_nothing) {
  int compared = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(static_cast<std::uint64_t>(seed));
    std::vector<std::string> groups = random_groups(dice, dice.between(2, 4));
    const spec::Cluster cluster = cluster_of(groups);
    const SearchRequest request = request_on(dice, cluster);
    const auto drawn = draw(dice, request);
    // Another order, and one group of n nodes as n lines of one.
    for (std::size_t i = groups.size(); i > 1; --i) {
      std::swap(groups[i - 1], groups[static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(i) - 1))]);
    }
    const std::size_t at = groups[0].find("nodes: ") + 7;
    const int nodes = groups[0][at] - '0';
    std::string one = groups[0];
    one[at] = '1';
    std::vector<std::string> lines(groups.begin() + 1, groups.end());
    lines.insert(lines.end(), static_cast<std::size_t>(nodes), one);
    SearchRequest other = request;
    other.cluster = cluster_of(lines);
    other.profile = cost::profile_for(other.cluster);
    EXPECT_EQ(other.cluster, cluster);
    if (!drawn) continue;
    ++compared;
    const cost::Price a = price_of(request, *drawn), b = price_of(other, *drawn);
    EXPECT_EQ(a.time, b.time) << plan::to_string(drawn->layout);
    EXPECT_EQ(a.memory, b.memory) << plan::to_string(drawn->layout);
  }
  EXPECT_GT(compared, kSeeds / 2);
}

TEST(PhysicsProperty, a_slower_link_never_makes_a_step_faster) {
  int slower = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(1000 + static_cast<std::uint64_t>(seed));
    const SearchRequest request = request_on(dice, cluster_of(random_groups(dice, dice.between(1, 3))));
    const auto drawn = draw(dice, request);
    if (!drawn) continue;
    const double before = price_of(request, *drawn).step_seconds();
    for (std::size_t group = 0; group < request.cluster.groups.size(); ++group) {
      for (int what = 0; what < 5; ++what) {
        SearchRequest changed = request;
        spec::NodeGroup& part = changed.cluster.groups[group];
        if (what == 0) part.intra.bytes_per_second /= 4;
        if (what == 1) part.nic.bytes_per_second /= 4;
        if (what == 2) part.nics_per_node = std::max<std::int64_t>(1, part.nics_per_node / 2);
        if (what == 3) part.nic.latency_seconds += 1e-4;
        if (what == 4) changed.cluster.between_groups.bytes_per_second /= 8;
        const double after = price_of(changed, *drawn).step_seconds();
        EXPECT_GE(after, before * (1 - 1e-12))
            << plan::to_string(drawn->layout) << " group " << group << " what " << what;
        slower += after > before ? 1 : 0;
      }
    }
  }
  EXPECT_GT(slower, kSeeds) << "hardly any message was on any link";
}

// All groups of ranks, one by one.
cost::GroupPlacement placed_by_hand(std::int64_t ranks, std::int64_t stride, std::int64_t devices, std::int64_t world) {
  cost::GroupPlacement worst{.ranks = ranks, .per_node = ranks, .nodes = 1};
  for (std::int64_t block = 0; (block + 1) * ranks * stride <= world; ++block) {
    for (std::int64_t j = 0; j < stride; ++j) {
      std::map<std::int64_t, std::int64_t> members;
      for (std::int64_t i = 0; i < ranks; ++i) ++members[(block * ranks * stride + j + i * stride) / devices];
      worst.nodes = std::max(worst.nodes, static_cast<std::int64_t>(members.size()));
      for (const auto& [node, count] : members) worst.per_node = std::min(worst.per_node, count);
    }
  }
  return worst;
}

TEST(Physics, groups_that_do_not_end_where_nodes_do_cross_between_them) {
  for (const std::int64_t devices : {2, 3, 4, 6, 8}) {
    for (const std::int64_t ranks : {2, 3, 4, 5, 6, 8, 12}) {
      for (const std::int64_t stride : {1, 2, 3, 4, 6}) {
        const std::int64_t world = 120 * devices;
        const cost::GroupPlacement hand = placed_by_hand(ranks, stride, devices, world);
        const cost::GroupPlacement ours = cost::place_anywhere(ranks, stride, devices, 0, world);
        EXPECT_EQ(ours.nodes > 1, hand.nodes > 1) << ranks << " x " << stride << " on " << devices;
        EXPECT_GE(ours.nodes, hand.nodes) << ranks << " x " << stride << " on " << devices;
        EXPECT_LE(ours.per_node, hand.per_node) << ranks << " x " << stride << " on " << devices;
      }
    }
  }
}

TEST(Physics, tensor_parallelism_of_three_on_nodes_of_eight_uses_the_network) {
  spec::Model model = spec::load_model("gpt2-1.5b");
  model.heads = model.kv_heads = 24;
  model.hidden = 24 * 64;
  model.ffn_hidden = 4 * model.hidden;
  const auto price = [&](const std::string& nic) {
    const spec::Cluster cluster = cluster_of({"kind: A100, nodes: 3, nic: {kind: ethernet, bandwidth: " + nic + "}"});
    return cost::Pricer(model, cluster, cost::profile_for(cluster), {.sequence_length = 1024})
        .price(plan::parse_layout("dp=8,tp=3"),
               {.micro = 1, .accumulation = 4, .global_sequences = 32, .sequence_length = 1024});
  };
  EXPECT_GT(price("1Gb/s").time.tp_comm, 5 * price("400Gb/s").time.tp_comm);
}

TEST(Physics, every_group_is_priced_by_its_own_kind) {
  const spec::Cluster mixed = cluster_of({"kind: H100, nodes: 1", "kind: A100, nodes: 1"});
  const spec::Model model = spec::load_model("gpt-10b");
  const plan::Layout layout = plan::parse_layout("pp=2,shard=8,zero=1,recompute=full");
  const plan::BatchPlan batch{.micro = 1, .accumulation = 8, .global_sequences = 64, .sequence_length = 2048};
  const auto stages = [&](const spec::Cluster& cluster) {
    return cost::Pricer(model, cluster, cost::profile_for(cluster), {.sequence_length = 2048}).stages(layout, batch);
  };
  const auto both = stages(mixed), fast = stages(spec::load_cluster("2x8xH100")),
             slow = stages(spec::load_cluster("2x8xA100"));
  const auto work = [](const cost::StagePrice& stage) { return stage.forward_seconds - stage.send_seconds; };
  EXPECT_EQ(both[0].device, "H100");
  EXPECT_NEAR(work(both[0]), work(fast[0]), 1e-9);
  EXPECT_NEAR(work(both[1]), work(slow[1]), 1e-9);
  EXPECT_NEAR(both[1].memory.total(), slow[1].memory.total(), 1.0);
}

TEST(Physics, a_named_profile_is_of_its_own_hardware_alone) {
  const spec::Cluster mixed = cluster_of({"kind: H100, nodes: 1", "kind: A100, nodes: 1"});
  const auto named = cost::fitted_by_group(*cost::find_profile("A100-nemo-23").fitted, mixed);
  EXPECT_EQ(named[0].hardware, "H100");
  EXPECT_EQ(named[1].stack, "nemo-23");
  // Of none of the kinds: it was meant for all.
  const auto foreign = cost::fitted_by_group(*cost::find_profile("V100").fitted, mixed);
  EXPECT_EQ(foreign[0].hardware, "V100");
  EXPECT_EQ(foreign[1].hardware, "V100");
}

TEST(Physics, no_constant_is_beyond_what_the_hardware_has) {
  for (const std::string& name : cost::profile_names()) {
    const cost::Profile profile = cost::find_profile(name);
    if (!profile.fitted) continue;
    const cost::Constants k = cost::physical(profile.fitted->constants);
    EXPECT_LE(k.intra_efficiency, 1.0) << name;
    EXPECT_LE(k.inter_efficiency * k.gather_efficiency, 1.0) << name;
    EXPECT_GE(k.bubble, 1.0) << name;
    EXPECT_LE(k.gemm_efficiency / k.gemm_backward, 1.0) << name;
    EXPECT_LE(k.attention_efficiency / k.attention_backward, 1.0) << name;
  }
}

TEST(Physics, no_message_is_faster_than_its_link) {
  // NICs of H100 were fitted to 1.15 of their datasheet: an all-gather at 57 GB/s of 50.
  const spec::Cluster cluster = spec::load_cluster("16x8xH100");
  const spec::Model model = spec::load_model("llama2-7b");
  const cost::Pricer pricer(model, cluster, cost::profile_for(cluster), {.sequence_length = 4096});
  const plan::Layout layout = plan::parse_layout("shard=128,zero=3");
  const cost::StepWork work =
      pricer.work(layout, {.micro = 1, .accumulation = 1, .global_sequences = 128, .sequence_length = 4096});
  const double bytes = 2 * static_cast<double>(spec::parameter_count(model)) * 127 / 128;
  EXPECT_GE(work.stages[0].gather.total(), bytes / (8 * 50e9));
}

TEST(Physics, no_interval_reaches_beyond_the_best_product) {
  struct Case {
    const char* model;
    const char* cluster;
    spec::Precision precision;
  };
  for (const auto& [model, cluster, precision] :
       {Case{"gpt-100b", "8x8xA100", spec::Precision::kBf16}, Case{"gpt3-175b", "16x8xH100", spec::Precision::kBf16},
        Case{"llama2-70b", "16x8xH100", spec::Precision::kFp8},
        Case{"llama3-70b", "8x8xMI300X", spec::Precision::kBf16},
        Case{"llama2-13b", "4x8xB200", spec::Precision::kBf16}, Case{"mamba-2.8b", "4x8xA100", spec::Precision::kBf16},
        Case{"bert-large", "4x8xA100", spec::Precision::kBf16}}) {
    SearchRequest request;
    request.model = spec::load_model(model);
    request.cluster = spec::load_cluster(cluster);
    request.profile = cost::profile_for(request.cluster);
    request.precisions = {precision};
    request = complete(request);
    const SearchResult result = search(request);
    ASSERT_FALSE(result.best.empty()) << model;
    const cost::Pricer pricer(request.model, request.cluster, request.profile, pricer_options(request));
    const spec::Device& device = request.cluster.groups.front().device;
    const bool fp8 = precision == spec::Precision::kFp8;
    const double ceiling = fp8                             ? device.peak_fp8_flops
                           : device.reached_bf16_flops > 0 ? device.reached_bf16_flops
                                                           : device.peak_bf16_flops;
    const plan::Interval mfu = to_candidate(request, pricer, result.best.front()).prediction->mfu;
    EXPECT_LE(mfu.high, ceiling / device.peak_bf16_flops * (1 + 1e-9)) << model << " on " << cluster;
    EXPECT_LT(mfu.expected, mfu.high + 1e-12) << model;
  }
}

TEST(Physics, states_are_counted) {
  // The profile of BLOOM's stack had them 1.26 times as large.
  const spec::Model model = spec::load_model("gpt-10b");
  const spec::Cluster cluster = spec::load_cluster("8x8xA100");
  for (const char* name : {"A100-megatron-deepspeed-bloom", "A100"}) {
    const cost::Profile profile = cost::find_profile(name);
    const plan::Layout layout = plan::parse_layout("dp=64");
    const plan::MemoryBreakdown memory =
        cost::Pricer(model, cluster, profile, {.sequence_length = 2048})
            .price(layout, {.micro = 1, .accumulation = 1, .global_sequences = 64, .sequence_length = 2048})
            .memory;
    const cost::ParameterBytes bytes =
        cost::parameter_bytes(layout.precision, spec::OptimizerKind::kAdamW, profile.fitted->facts);
    const double parameters = static_cast<double>(spec::parameter_count(model));
    EXPECT_NEAR(memory.parameters / (parameters * bytes.weight), 1, 1e-6) << name;
    EXPECT_NEAR(memory.optimizer / (parameters * bytes.optimizer), 1, 1e-6) << name;
  }
}

TEST(PhysicsProperty, more_failures_never_raise_goodput) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(3000 + static_cast<std::uint64_t>(seed));
    CadenceQuestion question;
    question.state_bytes = static_cast<double>(dice.between(1, 4000)) * 1e9;
    question.write_bytes_per_second = static_cast<double>(dice.between(1, 400)) * 1e9;
    question.host_copy_bytes_per_second = static_cast<double>(dice.between(0, 40)) * 20e9;
    question.restart_seconds = static_cast<double>(dice.between(0, 1000));
    question.step_seconds = 0.1 * static_cast<double>(dice.between(0, 300));
    question.max_lost_seconds = static_cast<double>(dice.between(60, 7200));
    double before = 2;
    for (double rate = 1e-9; rate < 1e-2; rate *= 1.7) {
      question.failures_per_second = rate;
      const double goodput = choose_cadence(question).goodput;
      EXPECT_LE(goodput, before + 1e-9) << rate;
      before = goodput;
    }
  }
}

TEST(Physics, what_is_offloaded_must_fit_the_host) {
  SearchRequest request;
  request.model = spec::load_model("llama2-13b");
  request.profile = cost::profile_for("A10G");
  request.global_sequences = 64;
  request.constraints.offload = plan::Offload::kOptimizer;
  const auto best_with = [&](const std::string& host) {
    request.cluster = cluster_of({"kind: A10G, nodes: 1, host_memory: " + host});
    return search(request);
  };
  const SearchResult enough = best_with("512GiB");
  ASSERT_FALSE(enough.best.empty());
  const plan::MemoryBreakdown& memory = enough.best.front().price.memory;
  EXPECT_GT(memory.host, 0);
  EXPECT_LE(memory.host, memory.host_capacity);
  EXPECT_TRUE(best_with("64GiB").best.empty()) << "150 GB of optimizer state in 64 GiB";
}

TEST(Physics, adapters_are_counted_as_adapters_on_the_host_and_in_checkpoints) {
  const spec::Model model = spec::load_model("llama2-70b");
  const spec::Cluster cluster = spec::load_cluster("1x8xA100");
  const spec::Lora lora{.rank = 16, .targets = {"q_proj", "v_proj"}};
  const auto host = [&](const spec::Lora& of) {
    cost::PricerOptions options{.sequence_length = 2048};
    options.lora = of;
    return cost::Pricer(model, cluster, cost::profile_for(cluster), options)
        .price(plan::parse_layout("shard=8,zero=3,offload=optimizer"),
               {.micro = 1, .accumulation = 1, .global_sequences = 8, .sequence_length = 2048})
        .memory.host;
  };
  EXPECT_LT(host(lora), 0.01 * host({}));
  EXPECT_LT(cadence_question(model, cluster, 1, 1800, lora).state_bytes, 2e9);
  EXPECT_GT(cadence_question(model, cluster, 1, 1800).state_bytes, 900e9);
}

TEST(Physics, kinds_without_runs_are_known_least) {
  const cost::Residuals unknown = cost::profile_for("MI300X").fitted->residuals;
  for (const char* kind : {"H100", "A100", "B200", "V100"}) {
    const cost::Residuals known = cost::profile_for(kind).fitted->residuals;
    EXPECT_GT(unknown.time, known.time) << kind;
    EXPECT_GT(unknown.memory, known.memory) << kind;
  }
}

TEST(Physics, a_few_runs_are_not_known_well) {
  const double any = cost::find_profile("H100").fitted->residuals.time;
  EXPECT_GT(cost::find_profile("H100-pax-te").fitted->residuals.time, 0.7 * any) << "one run";
  EXPECT_LT(cost::find_profile("H100-llm-foundry").fitted->residuals.time, 0.5 * any) << "77 runs";
}

}  // namespace
}  // namespace lockstep::planner
