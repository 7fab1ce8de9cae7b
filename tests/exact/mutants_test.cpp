// Every call site of a collective, executed wrongly in each way there is: the gate must notice all of them.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "lockstep/base/error.h"
#include "tests/exact/exact_run.h"
#include "tests/exact/mutating_backend.h"

namespace lockstep::exact {
namespace {

// Between them these layouts call every site of a training step of the gate's models; groups come in twos or more.
// (Logits and the rows of a classifier's head travel outside of it: tests/nn and tests/interop compare those.)
std::vector<Case> mutated_cases() {
  return {
      {"llama", "dp=2,shard=2,zero=2,tp=2,sequence_parallel=true"},
      {"gpt", "dp=2,shard=2,zero=3,tp=2"},
      {"llama", "dp=2,tp=4"},
      {"gpt", "tp=2,pp=2", 2},
      {"gpt", "shard=2,zero=1,cp=2"},
      {"llama", "dp=2,cp=2,context_exchange=all_to_all"},
      {"moe", "shard=4,zero=3,dp=2,ep=2"},
      {"moe-capacity", "dp=4,tp=2,ep=2"},
      {"ssm", "tp=2,cp=2"},
  };
}

constexpr std::size_t kFewestSites = 40;
constexpr int kFewestKilled = 160;

// Mutants that compute the same thing, and why.
bool is_equivalent(const Case& exact_case, const Site& site, Fault fault) {
  // A softmax may be shifted by anything that all ranks agree on; the maximum only keeps it from overflowing.
  if (site.name == "tp: softmax maximum") return fault == Fault::kDoubled || fault == Fault::kWrongScale;
  // Its loss counts samples, of which every rank has as many: any group of that size counts the same.
  if (exact_case.model == "plugin" && site.name == "data: targets of the step") return fault == Fault::kWrongGroup;
  return false;
}

std::string verdict(const Case& exact_case, Mutation& mutation) {
  try {
    const Outcome outcome = run_case(
        exact_case, [&](comm::Communicator inner, int rank) { return mutation.wrap(inner, rank); },
        comm::milliseconds{20'000});
    return first_difference(outcome, reference_of(exact_case));
  } catch (const std::exception& error) {
    return std::string("failed: ") + error.what();
  }
}

struct Count {
  std::size_t sites = 0;
  int killed = 0;
};

// Every mutant of every site that these cases call, each site once.
Count expect_noticed(const std::vector<Case>& cases) {
  std::set<std::pair<std::string, std::string>> done;  // site, group
  int killed = 0, survived = 0;
  for (const Case& exact_case : cases) {
    Mutation record;
    EXPECT_EQ(verdict(exact_case, record), "") << "the recording itself must change nothing: " << exact_case.name();
    for (const Site& site : record.sites()) {
      if (site.kind == comm::OpKind::kSend) continue;  // the other end of a recv
      if (!done.emplace(site.name, site.group).second) continue;
      for (const Fault fault : {Fault::kDropped, Fault::kDoubled, Fault::kWrongScale, Fault::kWrongGroup}) {
        if (is_equivalent(exact_case, site, fault)) continue;
        Mutation mutation(site, fault, record.groups());
        if (!mutation.possible()) continue;
        const std::string difference = verdict(exact_case, mutation);
        std::printf("%-8s %-28s %-12s %-12s %s\n", difference.empty() ? "SURVIVED" : "killed", site.name.c_str(),
                    site.group.c_str(), to_string(fault), difference.substr(0, 100).c_str());
        std::fflush(stdout);
        difference.empty() ? ++survived : ++killed;
        EXPECT_NE(difference, "") << site.name << " " << to_string(fault) << " in " << exact_case.name();
      }
    }
  }
  std::printf("%zu call sites, %d mutants killed, %d survived\n", done.size(), killed, survived);
  EXPECT_EQ(survived, 0);
  return {done.size(), killed};
}

// A site that is no longer called, or has lost its name, must not go unnoticed.
TEST(Mutants, of_every_call_site_are_noticed) {
  const Count count = expect_noticed(mutated_cases());
  EXPECT_GE(count.sites, kFewestSites);
  EXPECT_GE(count.killed, kFewestKilled);
}

TEST(Mutants, of_what_a_plugins_model_exchanges_are_noticed) {
  const Count count = expect_noticed({{"plugin", "dp=2,shard=2,zero=2,pp=2", 2}, {"plugin", "dp=2,shard=2,zero=3"}});
  EXPECT_GE(count.sites, 5u);
  EXPECT_GE(count.killed, 15);
}

}  // namespace
}  // namespace lockstep::exact

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks are threads already
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
