// Flight-recorder dumps: who is waited for, and a reader of pickles that cannot be made to do anything.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/diagnose/foreign/flight_recorder.h"
#include "lockstep/diagnose/foreign/pickle.h"

namespace lockstep::diagnose {
namespace {

using nlohmann::json;
using namespace std::string_literals;

// Ranks that record collectives of groups, as dumps.
class Recorded {
 public:
  explicit Recorded(int ranks) : dumps_(static_cast<std::size_t>(ranks)) {
    for (json& dump : dumps_) dump = {{"version", "2.9"}, {"entries", json::array()}, {"pg_config", json::object()}};
  }

  void group(const std::string& name, const std::vector<int>& members) {
    for (const int rank : members) {
      dumps_[static_cast<std::size_t>(rank)]["pg_config"][name] = {{"name", name}, {"ranks", json(members).dump()}};
    }
  }

  void op(const std::vector<int>& ranks, const std::string& group, int sequence, const std::string& name,
          const std::string& state = "scheduled") {
    for (const int rank : ranks) {
      json& entries = dumps_[static_cast<std::size_t>(rank)]["entries"];
      const bool pair = name.find("->") != std::string::npos || name.find("<-") != std::string::npos;
      entries.push_back({{"record_id", ++record_},
                         {"process_group", {group, "A_GROUP"}},
                         {"collective_seq_id", pair ? 0 : sequence},
                         {"p2p_seq_id", pair ? sequence : 0},
                         {"profiling_name", "nccl:" + name},
                         {"state", state},
                         {"is_p2p", pair},
                         {"input_sizes", {{2, 3}}},
                         {"time_created_ns", 1'000'000'000 + record_}});
    }
  }

  std::vector<Finding> findings(const std::vector<int>& without = {}) const {
    std::vector<RankDump> read;
    for (std::size_t r = 0; r < dumps_.size(); ++r) {
      if (std::find(without.begin(), without.end(), static_cast<int>(r)) != without.end()) continue;
      read.push_back(read_flight_recorder(dumps_[r], "dump_" + std::to_string(r)));
    }
    return hang_findings(read);
  }

 private:
  std::vector<json> dumps_;
  int record_ = 0;
};

std::vector<int> missing(const std::vector<Finding>& found) {
  return found.empty() ? std::vector<int>{} : found[0].ranks;
}

TEST(FlightRecorder, names_the_rank_that_never_came) {
  Recorded job(4);
  job.group("dp", {0, 1, 2, 3});
  job.op({0, 1, 2, 3}, "dp", 6, "all_reduce", "completed");
  job.op({0, 1, 3}, "dp", 7, "all_reduce");
  const std::vector<Finding> found = job.findings();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, Cause::kHang);
  EXPECT_EQ(found[0].ranks, std::vector<int>{2});
  EXPECT_EQ(found[0].evidence.substr(0, 78),
            "each of 3 ranks waits in all_reduce 7 of group dp (A_GROUP), [2,3], for rank 2");
}

TEST(FlightRecorder, a_rank_with_an_empty_dump_counts) {
  Recorded job(3);
  job.group("dp", {0, 1, 2});
  job.op({0, 2}, "dp", 1, "all_gather");
  EXPECT_EQ(missing(job.findings()), std::vector<int>{1});
}

TEST(FlightRecorder, a_rank_without_a_dump_is_blamed_only_when_nobody_else_is) {
  Recorded job(4);
  job.group("dp", {0, 1, 2, 3});
  job.op({0, 1, 3}, "dp", 7, "all_reduce");
  EXPECT_EQ(missing(job.findings({2})), std::vector<int>{2});
  Recorded other(4);
  other.group("dp", {0, 1, 2, 3});
  other.op({0, 3}, "dp", 7, "all_reduce");
  EXPECT_EQ(missing(other.findings({2})), std::vector<int>{1});  // the file of 2 may just not have been given
}

TEST(FlightRecorder, who_waits_itself_is_not_blamed) {
  // 0 and 1 are a stage, 2 and 3 the next; 3 never came to its stage's collective, so 2 does not send to 0.
  Recorded job(4);
  job.group("first", {0, 1});
  job.group("second", {2, 3});
  job.group("pair", {0, 2});
  job.op({2}, "second", 5, "all_reduce");
  job.op({0}, "pair", 9, "recv 0<-1");
  job.op({1}, "first", 4, "all_reduce");
  EXPECT_EQ(missing(job.findings()), std::vector<int>{3});
}

TEST(FlightRecorder, two_faults_in_two_stages_are_both_named) {
  Recorded job(8);
  job.group("first", {0, 1, 2, 3});
  job.group("second", {4, 5, 6, 7});
  for (int i = 0; i < 4; ++i) job.group("pair" + std::to_string(i), {i, i + 4});
  job.op({0, 2, 3}, "first", 5, "all_reduce");  // 1 is gone
  for (const int rank : {4, 5, 6, 7}) job.op({rank}, "pair" + std::to_string(rank - 4), 9, "recv 1<-0");
  job.op({4, 5, 7}, "second", 8, "all_reduce");  // 6 is behind its peers, which wait for the first stage as it does
  EXPECT_EQ(missing(job.findings()), (std::vector<int>{1, 6}));
}

TEST(FlightRecorder, ranks_that_ask_for_something_else_are_named) {
  Recorded job(3);
  job.group("dp", {0, 1, 2});
  job.op({0, 2}, "dp", 7, "all_reduce");
  job.op({1}, "dp", 7, "all_gather");
  EXPECT_EQ(missing(job.findings()), std::vector<int>{1});
}

TEST(FlightRecorder, nothing_is_said_when_everybody_is_there) {
  Recorded job(2);
  job.group("dp", {0, 1});
  job.op({0, 1}, "dp", 6, "all_reduce", "completed");
  job.op({0, 1}, "dp", 7, "all_reduce");
  EXPECT_TRUE(job.findings().empty());
}

TEST(FlightRecorder, counters_tell_of_a_group_of_which_nothing_is_recorded) {
  Recorded job(2);
  job.group("dp", {0, 1});
  job.op({0}, "dp", 7, "all_reduce");
  std::vector<RankDump> dumps = {
      read_flight_recorder(
          {{"version", "2.9"},
           {"entries", {{{"process_group", {"dp", ""}}, {"pg_id", 0}, {"collective_seq_id", 7}, {"state", "started"}}}},
           {"pg_config", {{"dp", {{"ranks", "[0, 1]"}}}}}},
          "dump_0"),
      read_flight_recorder(
          {{"version", "2.9"}, {"entries", json::array()}, {"pg_status", {{"0", {{"last_enqueued_collective", 7}}}}}},
          "dump_1")};
  EXPECT_TRUE(hang_findings(dumps).empty());
  dumps[1].last_enqueued[0] = 6;
  EXPECT_EQ(missing(hang_findings(dumps)), std::vector<int>{1});
}

std::string problem_of(const std::string& bytes) {
  try {
    read_pickle(bytes, "dump_1");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(Pickle, reads_plain_data_of_every_protocol) {
  // pickle.dumps({'a': [1, -2, 2.5, True, None, 'x'], 7: (1,)}, protocol=N)
  const json expected = {{"a", {1, -2, 2.5, true, nullptr, "x"}}, {"7", {1}}};
  EXPECT_EQ(read_pickle("(dp0\nVa\np1\n(lp2\nI1\naI-2\naF2.5\naI01\naNaVx\np3\nasI7\n(I1\ntp4\ns.", "0"), expected);
  EXPECT_EQ(read_pickle("}q\0(X\x01\0\0\0aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x04\0\0\0\0\0\0I01\nNX\x01\0\0\0xq\x03"
                        "eK\x07(K\x01tq\x04u."s,
                        "1"),
            expected);
  EXPECT_EQ(
      read_pickle("\x80\x02}q\0(X\x01\0\0\0aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x04\0\0\0\0\0\0\x88NX\x01\0\0\0xq\x03"
                  "eK\x07K\x01\x85q\x04u."s,
                  "2"),
      expected);
  EXPECT_EQ(read_pickle("\x80\x04\x95(\0\0\0\0\0\0\0}\x94(\x8c\x01"
                        "a\x94]\x94(K\x01J\xfe\xff\xff\xffG@\x04\0\0\0\0\0\0\x88N\x8c\x01x\x94"
                        "eK\x07K\x01\x85\x94u."s,
                        "4"),
            expected);
}

TEST(Pickle, reads_numbers_of_any_length_and_bytes) {
  EXPECT_EQ(read_pickle("\x80\x02\x8a\x05\xff\xff\xff\xff\x7f."s, ""), 0x7fffffffff);
  EXPECT_EQ(read_pickle("\x80\x02\x8a\x01\xff."s, ""), -1);
  EXPECT_EQ(read_pickle("\x80\x02\x8a\x08\0\0\0\0\0\0\0\x80."s, ""), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(read_pickle("\x80\x03"
                        "C\x02hi."s,
                        ""),
            "hi");
}

TEST(Pickle, refuses_whatever_would_run_something) {
  for (const std::string& bytes :
       {"cos\nsystem\n(S'echo'\ntR."s, "\x80\x04\x8c\x02os\x8c\x06system\x93."s, "(ios\nsystem\n."s, "\x80\x02)\x81."s,
        "\x80\x02}b."s, "\x80\x02\x82\x01."s, "P1\n."s, "\x80\x02NQ."s, "\x80\x05\x97."s, "\x80\x02N)R."s, "(o."s,
        "\x80\x04))}\x92."s}) {
    EXPECT_NE(problem_of(bytes).find("refused: "), std::string::npos) << problem_of(bytes);
  }
  EXPECT_EQ(problem_of("cos\nsystem\n."),
            "dump_1:0: refused: it imports a name; only plain data is read; it could run any program");
}

TEST(Pickle, refuses_what_is_cut_off_or_damaged) {
  const std::string whole =
      "\x80\x02}q\0(X\x01\0\0\0aq\x01]q\x02(K\x01K\x02"
      "eK\x07K\x01\x85q\x04u."s;
  ASSERT_EQ(problem_of(whole), "");
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_NE(problem_of(whole.substr(0, size)), "") << size;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string bad = whole;
      bad[at] = static_cast<char>(byte);
      problem_of(bad);
    }
  }
}

TEST(Pickle, refuses_to_be_blown_up) {
  std::string deep = "\x80\x02";
  for (int i = 0; i < 300; ++i) deep += "]";
  for (int i = 0; i < 299; ++i) deep += "a";
  EXPECT_NE(problem_of(deep + ".").find("nested too deeply"), std::string::npos);
  std::string laughs = "\x80\x02]q\0."s;
  laughs = "\x80\x02]q"s + '\0';
  for (int level = 1; level < 40; ++level) {
    laughs += "]q"s + static_cast<char>(level) + "(";
    for (int i = 0; i < 10; ++i) laughs += "h"s + static_cast<char>(level - 1);
    laughs += "e";
  }
  EXPECT_NE(problem_of(laughs + ".").find("too many values"), std::string::npos);
  std::string echoes = "\x80\x02X\0\0\x10\0"s + std::string(1 << 20, 'a') + "q\0]("s;  // a megabyte
  for (int i = 0; i < 600; ++i) echoes += "h\0"s;
  EXPECT_NE(problem_of(echoes + "e.").find("too much text"), std::string::npos)
      << problem_of(echoes + "e.").substr(0, 200);
  EXPECT_NE(problem_of("\x80\x02]q\0h\0a."s).find("nested too deeply"), std::string::npos);  // a list in itself
  EXPECT_NE(problem_of("\x80\x02X\xff\xff\xff\x7f."s).find("ends in the middle"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::diagnose
