// What the communicators count in one step equals what cost/ says the layout exchanges: every layout of the gate, every
// rank, every group, every kind of operation, byte for byte.
#include "tests/cost/volumes.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/exact/cases.h"

namespace lockstep::exact {
namespace {

using cost::CollectiveOp;
using cost::CommAxis;
using cost::CommGroup;

// Beyond the gate: buffers that need padding and vocabularies that do not divide, one key head for all, both ends of a
// pipeline on one rank, experts that everybody passes, BERT, and recomputation of what routes and hands on.
std::vector<Case> further_cases() {
  return {
      {"gpt-odd", "shard=4,zero=1"},
      {"gpt-odd", "shard=2,zero=3,tp=2,sequence_parallel=true", 2, true},
      {"gpt-odd", "tp=2,pp=2,shard=2,zero=2", 2},
      {"llama-mqa", "dp=2,tp=4"},
      {"gpt", "dp=2,pp=2,virtual_stages=2,schedule=zero_bubble", 2},
      {"gpt", "shard=2,zero=3,pp=2,virtual_stages=2,schedule=zero_bubble", 2},
      {"moe-shared", "dp=2,tp=2,ep=2,recompute=full", 2},
      {"moe-shared", "shard=2,zero=3,tp=2,sequence_parallel=true,recompute=selective", 2, true, false},
      {"moe-capacity", "dp=2,cp=2,ep=4,recompute=full"},
      {"bert", "tp=2,pp=2,sequence_parallel=true", 2},
      {"bert", "shard=2,zero=3,cp=2"},
      {"ssm", "cp=4,recompute=full"},
      {"ssm", "tp=2,dp=2,recompute=full,sequence_parallel=true"},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = every_case();
  for (const Case& further : further_cases()) cases.push_back(further);
  return cases;
}

cost::RankPlace place_of(std::int64_t rank, const plan::Layout& layout) {
  return {.stage = rank / (layout.world() / layout.pp), .cp = rank / layout.tp % layout.cp, .tp = rank % layout.tp};
}

using Bytes = std::array<std::int64_t, comm::kOpKinds>;
using BytesByGroup = std::map<std::string, Bytes>;

BytesByGroup counted(const RankTraffic& traffic) {
  BytesByGroup result;
  for (const auto& [name, group] : traffic.groups) {
    for (int kind = 0; kind < comm::kOpKinds; ++kind)
      result[name][static_cast<std::size_t>(kind)] = group.entries[kind].bytes;
  }
  return result;
}

CollectiveOp op_of(comm::OpKind kind) {
  switch (kind) {
    case comm::OpKind::kAllReduce:
      return CollectiveOp::kAllReduce;
    case comm::OpKind::kReduceScatter:
      return CollectiveOp::kReduceScatter;
    case comm::OpKind::kAllGather:
      return CollectiveOp::kAllGather;
    case comm::OpKind::kBroadcast:
      return CollectiveOp::kBroadcast;
    case comm::OpKind::kAllToAll:
      return CollectiveOp::kAllToAll;
    default:
      return CollectiveOp::kSendReceive;
  }
}

// Whole numbers only: a fraction of a byte is a wrong formula.
std::int64_t whole(double bytes) {
  EXPECT_EQ(bytes, static_cast<double>(static_cast<std::int64_t>(bytes)));
  return static_cast<std::int64_t>(bytes);
}

BytesByGroup predicted(const cost::Volumes& volumes) {
  BytesByGroup result;
  for (std::size_t i = 0; i < cost::kCommGroups; ++i) {
    const auto group = static_cast<CommGroup>(i);
    Bytes& bytes = result[cost::to_string(group)];
    for (int k = 0; k < comm::kOpKinds; ++k) {
      const auto kind = static_cast<comm::OpKind>(k);
      if (kind == comm::OpKind::kBarrier) continue;
      const double expected = kind == comm::OpKind::kRecv ? volumes.received[i] : volumes.at(group, op_of(kind));
      bytes[static_cast<std::size_t>(k)] = whole(expected);
    }
  }
  return result;
}

// One line for each group and kind in which the two differ.
std::string differences(const BytesByGroup& counted, const BytesByGroup& predicted) {
  BytesByGroup all = predicted;
  for (const auto& [name, bytes] : counted) all[name];
  std::string text;
  const auto at = [](const BytesByGroup& map, const std::string& name, std::size_t kind) {
    const auto found = map.find(name);
    return found == map.end() ? std::int64_t{0} : found->second[kind];
  };
  for (const auto& [name, bytes] : all) {
    for (std::size_t kind = 0; kind < bytes.size(); ++kind) {
      const std::int64_t is = at(counted, name, kind), should = at(predicted, name, kind);
      if (is == should) continue;
      text += fmt::format("  {} {}: counted {}, predicted {}\n", name, comm::to_string(static_cast<comm::OpKind>(kind)),
                          is, should);
    }
  }
  return text;
}

// Payload bytes of all ranks together, by axis; what is sent, not again where it arrives.
void print_row(const std::string& name, std::size_t ranks, const std::map<CommAxis, double>& bytes) {
  double total = 0;
  for (const auto& [axis, sum] : bytes) total += sum;
  std::string row = fmt::format("{:<78} {:>5} {:>10.0f}", name, ranks, total);
  for (const CommAxis axis :
       {CommAxis::kTp, CommAxis::kCp, CommAxis::kDp, CommAxis::kPp, CommAxis::kEp, CommAxis::kWorld}) {
    row += fmt::format(" {:>9.0f}", bytes.at(axis));
  }
  std::printf("%s\n", row.c_str());
  std::fflush(stdout);
}

class Volumes : public ::testing::TestWithParam<Case> {};

TEST_P(Volumes, are_what_the_communicators_count) {
  const Case& exact_case = GetParam();
  const plan::Layout layout = layout_of(exact_case);
  const spec::Job job = job_of(exact_case);
  const plan::BatchPlan batch{.micro = job.batch.micro,
                              .accumulation = job.batch.accumulation,
                              .global_sequences = kSamples,
                              .sequence_length = job.batch.sequence_length};
  const Outcome outcome = run_case(exact_case);
  std::map<CommAxis, double> sums;
  for (std::size_t rank = 0; rank < outcome.traffic.size(); ++rank) {
    const RankTraffic& traffic = outcome.traffic[rank];
    const cost::RankPlace place = place_of(static_cast<std::int64_t>(rank), layout);
    ASSERT_EQ(place.stage, traffic.stage);
    const cost::RoutedRows routed{.sent = static_cast<double>(traffic.expert_rows_sent),
                                  .received = static_cast<double>(traffic.expert_rows_received)};
    const cost::Volumes volumes =
        cost::communication_volumes(job.model, layout, batch, cost::lockstep_facts(job.communication), place, routed);
    EXPECT_EQ(differences(counted(traffic), predicted(volumes)), "") << exact_case.name() << ", rank " << rank;
    for (int axis = 0; axis <= static_cast<int>(CommAxis::kWorld); ++axis) {
      sums[static_cast<CommAxis>(axis)] += volumes.of(static_cast<CommAxis>(axis));
    }
  }
  print_row(exact_case.name(), outcome.traffic.size(), sums);
}

std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name();
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return std::to_string(info.index) + "_" + name;
}

INSTANTIATE_TEST_SUITE_P(Exact, Volumes, ::testing::ValuesIn(all_cases()), test_name);

}  // namespace
}  // namespace lockstep::exact

int main(int argc, char** argv) {
  at::set_num_threads(1);  // ranks are threads already
  ::testing::InitGoogleTest(&argc, argv);
  std::printf("%-78s %5s %10s %9s %9s %9s %9s %9s %9s\n", "bytes of a step, all ranks", "ranks", "total", "tp", "cp",
              "dp", "pp", "ep", "world");
  return RUN_ALL_TESTS();
}
